"""Build the networks of an on-policy agent or of a group of agents: a policy and a value, or one network of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.building import check_memory, check_network, network_config
from agilerl.algorithms.base.on_policy import OnPolicyAlgorithm
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.core.rng import Purpose, seeds
from agilerl.errors import AlgorithmError, ConfigError, warn_once
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import SharedActorCritic, StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.distributions import distribution_of
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.networks.value_networks import ValueNetwork

ADAM_EPS = 1e-5  # of the authors' released code (openai/baselines, ppo2/model.py)
POLICY_KEYS = ("squash_output", "log_std_init", "action_scaling")  # `net_config` keys that values ignore


def initial_std(action_std_init: float, algo: str) -> float:
    """Return the standard deviation for the argument `action_std_init`; 0.0 maps to 1.0 with a warning.

    The published argument is a logarithm with default 0.0; a policy cannot have a standard deviation of 0.
    """
    if action_std_init != 0:
        return action_std_init
    warn_once(
        "action_std_init",
        f"{algo}(action_std_init=0.0) is taken as published, a logarithm: the standard deviation is 1.0. "
        "fix: action_std_init=1.0.",
        stacklevel=4,
    )
    return 1.0


def check_policy(agent: RLAlgorithm, noise_persistence: float) -> None:
    """Raise AlgorithmError unless the actions have a distribution, and noise that fits them."""
    space = agent.action_space
    try:
        distribution_of(space)
    except ConfigError as error:
        raise AlgorithmError(f"PPO: {error} fix: wrap the environment's actions.") from None
    check_noise(agent, [space], noise_persistence)


def check_noise(agent: EvolvableAlgorithm, spaces: Iterable[gym.Space[Any]], noise_persistence: float) -> None:
    """Raise AlgorithmError if noise persists, or may be mutated to, and no space of the actions is a Box."""
    is_persistent = noise_persistence or "noise_persistence" in agent.hp_config.names()
    if is_persistent and not any(isinstance(space, gym.spaces.Box) for space in spaces):
        raise AlgorithmError(
            f"{agent.algo}: noise_persistence is of Box actions, and these are "
            f"{', '.join({type(space).__name__ for space in spaces})}. "
            "fix: leave it out, of the ranges of mutation too."
        )


def make_policy(
    agent: Any, given: EvolvableModule | None, units: Mapping[str, Any], action_std_init: float
) -> EvolvableModule:
    """Return the policy passed by the user, or build one from `net_config`.

    Args:
        units: `action_scaling` and `squash_output` of a new policy; `net_config` overrides them.

    Raises:
        AlgorithmError: the policy passed by the user contradicts `squash_output`.
    """
    if given is None:
        config, spaces = network_config(agent, agent.net_config), (agent.observation_space, agent.action_space)
        units = {**units, "log_std_init": math.log(action_std_init)}
        return new_policy(agent, *spaces, config=config, units=units, random_seed=agent.seed)
    if units["squash_output"] and not (isinstance(given, StochasticActor) and given.squash_output):
        raise AlgorithmError(
            "PPO: squash_output=True contradicts the actor_network, which has its own setting. "
            "fix: StochasticActor(..., squash_output=True)."
        )
    return check_network("actor_network", given)


def new_policy(
    agent: OnPolicyAlgorithm, *spaces: gym.Space[Any], config: Any, units: Mapping[str, Any], random_seed: int
) -> StochasticActor:
    """Build a policy from a `net_config`, which overrides `units` (`log_std_init` applies to Box actions).

    With `share_encoders` it has a value head. `spaces`: of observations and actions.
    """
    cls = SharedActorCritic if agent.share_encoders else StochasticActor
    options = {"recurrent": agent.recurrent, "device": agent.device, "random_seed": random_seed}
    others = () if distribution_of(spaces[1]).has_normal else ("log_std_init",)
    arguments = {key: value for key, value in units.items() if key not in others}
    return cls(*spaces, **(arguments | checked_arguments(config, StochasticActor) | options))


def make_value(agent: RLAlgorithm, given: EvolvableModule | None) -> EvolvableModule:
    """Return the value network passed by the user, or build one from `net_config` that preprocesses like the policy."""
    if given is not None:
        check_memory(agent, isinstance(given, EvolvableNetwork) and given.recurrent, "critic_network")
        return check_network("critic_network", given)
    config = dict(network_config(agent, agent.net_config) or {})
    if isinstance(agent.actor, EvolvableNetwork):
        config["scale_observations"] = agent.actor.scale_observations
    seed = int(seeds(agent.seed, Purpose.INITIAL_WEIGHTS, 1, generation=2)[-1])
    config["recurrent"] = agent.recurrent
    return new_value(agent.observation_space, config, device=agent.device, random_seed=seed)


def new_value(
    space: gym.Space[Any], config: Mapping[str, Any], told: int = 0, **options: Any
) -> ValueNetwork | ContinuousQNetwork:
    """Build a value of observations; with `told` its head also reads the one-hot id of one of `told` agents."""
    config = {key: value for key, value in config.items() if key not in POLICY_KEYS}
    if told:
        arguments = checked_arguments(config, ContinuousQNetwork) | options
        return ContinuousQNetwork(space, gym.spaces.Box(0, 1, (told,), np.float32), **arguments)
    return ValueNetwork(space, **(checked_arguments(config, ValueNetwork) | options))


def check_sharing(agent: OnPolicyAlgorithm, actor: EvolvableModule, critic_network: EvolvableModule | None) -> None:
    """Raise AlgorithmError if the policy contradicts `share_encoders` or a separate value network."""
    is_shared = isinstance(actor, SharedActorCritic)
    if is_shared and critic_network is not None:
        raise AlgorithmError(
            f"{agent.algo}: with shared encoders the actor_network holds the value. fix: no critic_network."
        )
    if agent.share_encoders and not is_shared:
        raise AlgorithmError(
            f"{agent.algo}: share_encoders=True needs a SharedActorCritic as actor_network. fix: leave it out."
        )
