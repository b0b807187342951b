"""Construction of algorithms: networks, twin critics, shared encoders, targets and optimisers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn, optim

from agilerl.algorithms import takes_argument, with_memory
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import NetworkGroup, lend
from agilerl.core.rng import Purpose, seeds
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.configs import NetConfig
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.encoders import asks_for_memory
from agilerl.networks.specs import stand_in

if TYPE_CHECKING:
    from agilerl.algorithms.base.agent import EvolvableAlgorithm
    from agilerl.algorithms.base.single_agent import RLAlgorithm


def check_network(name: str, network: object) -> EvolvableModule:
    """Return the network if it is evolvable.

    Raises:
        TypeError: not an `EvolvableModule`.
    """
    if not isinstance(network, EvolvableModule):
        fix = "subclass agilerl.modules.base.EvolvableModule."
        if isinstance(network, nn.Module):
            fix = "MakeEvolvable(network), of agilerl.wrappers.make_evolvable; or " + fix
        raise TypeError(f"{name!r} must be an EvolvableModule; got {type(network).__name__}. fix: {fix}")
    return network


ALWAYS = {
    "clip_actions": "actions are always within the bounds of the space",
    "normalize_actions": "critics always read actions in the range of the policy's output, [-1, 1]",
}
"""Published keys of `net_config` whose behaviour is always enabled here, for algorithms with Box actions."""


def check_memory(agent: Any, asked: bool, what: str) -> None:
    """Raise ConfigError if `what` has a recurrent encoder and the agent keeps no hidden states for it.

    Without hidden states every step would start an episode. The check is shared by all algorithms and arguments.

    Args:
        agent: single agent or team. asked: whether the encoder is recurrent.
        what: argument that requests it, for the message.
    """
    if asked and not agent.is_recurrent:
        raise ConfigError(
            f"{agent.algo}: {what} asks for a recurrent encoder (EvolvableLSTM), but {_forgetting(agent)} keeps no "
            f"hidden state from step to step. fix: {_remembering(agent)}, or another encoder, such as MlpNetConfig."
        )


def _forgetting(agent: EvolvableAlgorithm) -> str:
    return "recurrent=False" if takes_argument(type(agent), "recurrent") else "this algorithm"


def _remembering(agent: EvolvableAlgorithm) -> str:
    """Suggest how to get a hidden state: the agent's own argument, or the algorithms that have it."""
    if takes_argument(type(agent), "recurrent"):
        return "recurrent=True"
    return " or ".join(f"{name}(recurrent=True)" for name in with_memory(hasattr(agent, "agent_ids")))


def network_config(agent: RLAlgorithm, config: Mapping[str, Any] | NetConfig | None) -> Any:
    """Return `net_config` without published keys that already hold.

    Raises:
        ConfigError: a key asks for an unsupported feature, or for memory that the agent does not keep.
    """
    if not isinstance(config, Mapping):
        return config
    options = dict(config)
    for key in ALWAYS if "Box" in agent.action_spaces else ():
        if options.pop(key, True) not in (True, None):
            raise ConfigError(f"net_config: {key}={config[key]!r} is not supported: {ALWAYS[key]}. fix: leave it out.")
    remembers = agent.is_recurrent
    places = [
        options,
        *([dict(options["encoder_config"])] if isinstance(options.get("encoder_config"), Mapping) else []),
    ]
    for place in places:
        if place.pop("use_hidden_state", remembers) not in (remembers, None):
            fix = f"{'recurrent=False' if remembers else _remembering(agent)}, or leave it out"
            raise ConfigError(f"use_hidden_state contradicts {agent.algo}, recurrent={remembers}. fix: {fix}.")
    check_memory(agent, asks_for_memory(options), "net_config")
    return {**options, "encoder_config": places[1]} if len(places) > 1 else options


def build(
    agent: RLAlgorithm,
    cls: type[EvolvableNetwork],
    given: Any,
    name: str,
    number: int,
    drop: tuple[str, ...] = (),
    **more: Any,
) -> EvolvableModule:
    """Return the given network, or build one of `cls` from the agent's `net_config` with independent weights.

    Networks built after `agent.actor` preprocess observations like it. With shared encoders they read its features.

    Args:
        name: argument name, for messages. number: 0 for the policy; each number gives different initial weights.
        drop: head keys that `cls` does not take. more: further arguments of `cls` besides those of `net_config`.
    """
    policy = agent.__dict__.get("actor")
    scaled = policy.scale_observations if isinstance(policy, EvolvableNetwork) else None
    if given is not None:
        if isinstance(given, EvolvableNetwork) and scaled not in (None, given.scale_observations):
            raise AlgorithmError(
                f"{agent.algo}: {name} has scale_observations={given.scale_observations}, the actor {scaled}; over "
                "rows both get the same inputs. fix: build them with the same value."
            )
        if isinstance(given, EvolvableNetwork) and given.encoder_source is not None and not agent.share_encoders:
            raise AlgorithmError(f"{agent.algo}: {name} reads another network's features. fix: share_encoders=True.")
        check_memory(agent, isinstance(given, EvolvableNetwork) and given.recurrent, name)
        return check_network(name, given)
    seed = agent.seed if number == 0 else int(seeds(agent.seed, Purpose.INITIAL_WEIGHTS, number, generation=2)[-1])
    config = _without_head_keys(network_config(agent, agent.net_config), drop)
    arguments = checked_arguments(config, cls) | ({} if scaled is None else {"scale_observations": scaled})
    if isinstance(policy, EvolvableNetwork) and agent.share_encoders:
        more |= {**stand_in(policy), "simba": False, "recurrent": False}
    if "action_space" in constructor_arguments(cls):  # state values take no actions
        more["action_space"] = agent.action_space
    network = cls(agent.network_space, device=agent.device, random_seed=seed, **{**arguments, **more})
    if isinstance(policy, EvolvableNetwork) and agent.share_encoders:
        network.share_encoder(policy)
    return network


def twin_critics(
    agent: RLAlgorithm, cls: type[EvolvableNetwork], given: Any, drop: tuple[str, ...], **options: Any
) -> tuple[EvolvableModule, EvolvableModule]:
    """Return two critics with independent weights: the given ones, or instances of `cls` with these `options`."""
    pair = [None, None] if given is None else list(given)
    if len(pair) != 2:
        what = f"{agent.algo}: critic_networks must hold two critics; got {len(pair)}"
        raise AlgorithmError(f"{what}. fix: [critic, critic.clone()].")
    first, second = (
        build(agent, cls, network, "critic_networks", i + 1, drop, **options) for i, network in enumerate(pair)
    )
    return first, second


def share_encoder(agent: RLAlgorithm, *critics: str) -> None:
    """Make the critics read the policy's features instead of their own encoders, if sharing is enabled.

    Raises:
        KeyError: a given critic has a different encoder architecture from the policy.
    """
    others = [name for name in ("actor", *critics) if not isinstance(resolve(agent, name), EvolvableNetwork)]
    if agent.share_encoders and others:
        warnings.warn(
            f"Encoder sharing is disabled: {', '.join(others)} of {agent.algo} is not an EvolvableNetwork. "
            "fix: share_encoders=False, or networks with an encoder.",
            AgileRLWarning,
            stacklevel=4,
        )
        agent.share_encoders = False
    for name in critics if agent.share_encoders else ():
        critic = resolve(agent, name)
        if critic.encoder_source is not agent.actor:
            critic.check_same_encoder(agent.actor)
        critic.share_encoder(agent.actor)
        lend(agent, name, "actor")


def register_network(
    agent: RLAlgorithm, name: str, target: str | None, optimizer: str, lr: str, policy: bool = False
) -> None:
    """Create a frozen target and an Adam optimiser for the network `name`, and register all of them."""
    network = resolve(agent, name)
    shadow = None
    if target is not None:
        shadow = network.clone()
        shadow.requires_grad_(False)
        setattr(agent, target, shadow)
        if name in agent.registry.encoder_sources:
            encoder_source = agent.registry.encoder_sources[name]
            shared = next(g.shared_networks for g in agent.registry.groups if g.eval_network == encoder_source)
            lend(agent, target, shared[0] if shared else encoder_source)
            agent.link_encoders()
    setattr(agent, optimizer, OptimizerWrapper(optim.Adam, network, resolve(agent, lr), lr_name=lr))
    agent.register_network_group(NetworkGroup(network, shadow, policy=policy))


def _without_head_keys(config: Mapping[str, Any] | NetConfig | None, drop: tuple[str, ...]) -> Any:
    """Return `net_config` without some head keys: a critic has no output activation and no squashed output."""
    if not isinstance(config, Mapping):
        return config
    options = {k: v for k, v in config.items() if k not in drop}
    head = options.get("head_config")
    if dataclasses.is_dataclass(head) and not isinstance(head, type):
        head = {k: v for k, v in dataclasses.asdict(head).items() if v is not None}
    if isinstance(head, Mapping):
        options["head_config"] = {k: v for k, v in head.items() if k not in drop}
    return options
