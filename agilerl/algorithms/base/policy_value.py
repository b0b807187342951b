"""Build the networks of an on-policy agent: a policy and a value, or one network with a shared encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.building import check_memory, check_network, network_config
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.core.rng import Purpose, seeds
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import SharedActorCritic, StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.distributions import distribution_of
from agilerl.networks.value_networks import ValueNetwork

ADAM_EPS = 1e-5  # of the authors' released code (openai/baselines, ppo2/model.py)
POLICY_KEYS = ("squash_output", "log_std_init", "action_scaling")  # `net_config` keys that the critic ignores


def check_policy(agent: RLAlgorithm, noise_persistence: float) -> None:
    """Raise AlgorithmError unless the actions have a distribution, and noise that fits them."""
    space = agent.action_space
    try:
        distribution_of(space)
    except ConfigError as error:
        raise AlgorithmError(f"PPO: {error} fix: wrap the environment's actions.") from None
    check_noise(agent, [space], noise_persistence)


def check_noise(agent: EvolvableAlgorithm, spaces: Iterable[Any], noise_persistence: float) -> None:
    """Raise AlgorithmError if noise persists, or may be mutated to, and no space of the actions is a Box."""
    is_persistent = noise_persistence or "noise_persistence" in agent.hp_config.names()
    if is_persistent and not any(isinstance(space, gym.spaces.Box) for space in spaces):
        raise AlgorithmError(
            f"{agent.algo}: noise_persistence is of Box actions, and these are "
            f"{', '.join({type(space).__name__ for space in spaces})}. "
            "fix: leave it out, of the ranges of mutation too."
        )


def make_policy(agent: RLAlgorithm, given: Any, units: Mapping[str, Any], action_std_init: float) -> EvolvableModule:
    """Return the policy passed by the user, or build one from `net_config`.

    Args:
        units: `action_scaling` and `squash_output` of a new policy; `net_config` overrides them.

    Raises:
        AlgorithmError: the policy passed by the user contradicts `squash_output`.
    """
    if given is not None:
        if units["squash_output"] and not (isinstance(given, StochasticActor) and given.squash_output):
            raise AlgorithmError(
                "PPO: squash_output=True contradicts the actor_network, which has its own setting. "
                "fix: StochasticActor(..., squash_output=True)."
            )
        return check_network("actor_network", given)
    arguments = checked_arguments(network_config(agent, agent.net_config), StochasticActor)
    for name, value in units.items():
        arguments.setdefault(name, value)
    if distribution_of(agent.action_space).has_normal:
        arguments.setdefault("log_std_init", math.log(action_std_init))
    if agent.recurrent:
        arguments["recurrent"] = True
    cls = SharedActorCritic if agent.share_encoders else StochasticActor
    return cls(agent.observation_space, agent.action_space, device=agent.device, random_seed=agent.seed, **arguments)


def make_value(agent: RLAlgorithm, given: Any) -> EvolvableModule:
    """Return the value network passed by the user, or build one from `net_config` that preprocesses like the policy."""
    if given is not None:
        check_memory(agent, isinstance(given, EvolvableNetwork) and given.recurrent, "critic_network")
        return check_network("critic_network", given)
    config = {k: v for k, v in dict(network_config(agent, agent.net_config) or {}).items() if k not in POLICY_KEYS}
    arguments = checked_arguments(config, ValueNetwork)
    if isinstance(agent.actor, EvolvableNetwork):
        arguments["scale_observations"] = agent.actor.scale_observations
    if agent.recurrent:
        arguments["recurrent"] = True
    weight_seed = int(seeds(agent.seed, Purpose.INITIAL_WEIGHTS, 1, generation=2)[-1])
    return ValueNetwork(agent.observation_space, device=agent.device, random_seed=weight_seed, **arguments)


def check_sharing(agent: RLAlgorithm, critic_network: Any) -> None:
    """Raise AlgorithmError if the policy contradicts `share_encoders` or a separate value network."""
    is_shared = isinstance(agent.actor, SharedActorCritic)
    if is_shared and critic_network is not None:
        raise AlgorithmError("PPO: with shared encoders the actor_network holds the value. fix: no critic_network.")
    if agent.share_encoders and not is_shared:
        raise AlgorithmError("PPO: share_encoders=True needs a SharedActorCritic as actor_network; or leave it out.")
