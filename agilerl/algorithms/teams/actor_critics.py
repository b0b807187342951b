"""Networks of on-policy teams: a policy and a value for each group, with one optimiser for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import config_of, fitting
from agilerl.algorithms.teams.networks import networks_by_group
from agilerl.core import tree
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.errors import AlgorithmError
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.distributions import distribution_of
from agilerl.networks.encoders import asks_for_memory
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.networks.value_networks import ValueNetwork

ADAM_EPS = 1e-5  # as in PPO
POLICY_KEYS = ("squash_output", "log_std_init", "action_scaling")  # `net_config` keys that values ignore


def checked_networks(team: MultiAgentRLAlgorithm, user_networks: Any, what: str) -> Mapping[str, EvolvableNetwork]:
    """Return networks by group; AlgorithmError for a recurrent one that also reads the agent's id."""
    networks = networks_by_group(team, f"{what}_networks", user_networks)
    for group, network in networks.items():
        if network.recurrent and isinstance(network, ContinuousQNetwork):
            raise AlgorithmError(
                f"{team.algo}: the {what} network of {group!r} is told who asks, which a recurrent one cannot take. "
                "fix: one without recurrent=True."
            )
    return networks


def make_policy(
    team: MultiAgentRLAlgorithm, group: str, seed: int, units: Mapping[str, Any], recurrent: bool
) -> StochasticActor:
    """Build a group's policy from the team's `net_config`.

    Args:
        units: `action_scaling`, `squash_output` and `log_std_init`, where `net_config` has none.
    """
    space, action = team.observation_space[group], team.action_space[group]
    config = dict(config_of(team, group))
    if not isinstance(action, gym.spaces.Box):
        config = {key: value for key, value in config.items() if key not in POLICY_KEYS}
    if recurrent:
        config["recurrent"] = True
    arguments = checked_arguments(fitting(config, space), StochasticActor)
    arguments.setdefault("action_scaling", units["action_scaling"])
    arguments.setdefault("squash_output", units["squash_output"] and isinstance(action, gym.spaces.Box))
    if distribution_of(action).has_normal:
        arguments.setdefault("log_std_init", units["log_std_init"])
    policy = StochasticActor(space, action, device=team.device, random_seed=seed, **arguments)
    if policy.action_scaling == "none":
        _begin_in_the_middle(policy)
    return policy


def _begin_in_the_middle(policy: StochasticActor) -> None:
    """Set the initial mean of Box actions to the middle of their bounds; squashed policies start there anyway.

    With an initial mean of 0 all samples may be out of bounds and clipped to one action, without a learning signal.
    """
    space = policy.action_space
    if policy.distribution.kind != "normal" or not isinstance(space, gym.spaces.Box):
        return
    middle = np.ravel(space.low).astype(np.float64) / 2 + np.ravel(space.high).astype(np.float64) / 2
    middle = np.where(np.isfinite(middle), middle, 0)  # open components have no middle
    with torch.no_grad():
        bias = policy.head_net.model.get_submodule("linear_output").get_parameter("bias")
        bias[: len(middle)] += torch.from_numpy(middle).to(bias)


def make_network(
    team: MultiAgentRLAlgorithm,
    group: str,
    space: gym.Space[Any],
    told: int,
    seed: int,
    recurrent: bool,
    scale_observations: bool,
) -> ValueNetwork | ContinuousQNetwork:
    """Build a value of observations of `space`; with `told` its head also reads the one-hot id of one of `told` agents.

    Unless `recurrent`, a recurrent encoder configuration is replaced by dense layers of the same width.
    """
    config = {key: value for key, value in config_of(team, group).items() if key not in POLICY_KEYS}
    if asks_for_memory(config) and not recurrent:
        config.pop("encoder_cls", None)
        width = (config.pop("encoder_config", None) or {}).get("hidden_state_size")
        config |= {} if width is None else {"encoder_config": {"hidden_size": [int(width)]}}
    config["recurrent"] = recurrent
    if isinstance(config.get("head_config"), Mapping):  # applies only to policies
        config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
    cls = ContinuousQNetwork if told else ValueNetwork
    arguments = checked_arguments(fitting(config, space), cls)
    arguments |= {"recurrent": recurrent, "scale_observations": scale_observations}
    if not told:
        return ValueNetwork(space, device=team.device, random_seed=seed, **arguments)
    one_hot = gym.spaces.Box(0, 1, (told,), np.float32)
    return ContinuousQNetwork(space, one_hot, device=team.device, random_seed=seed, **arguments)


def own_rows(obs: Any, agents: Sequence[str], axis: int) -> Any:
    """Concatenate the observations of a group's agents as rows."""
    seen = [obs[AGENTS][agent] for agent in agents]
    return seen[0] if len(seen) == 1 else tree.concatenate(seen, axis)


# --- observations -----------------------------------------------------------------------------------------------------


def row_input(
    policies: Mapping[str, EvolvableNetwork],
    device: torch.device | str,
    joint: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[Any], Any]:
    """Return a function that converts observations to inputs of networks over rows; `joint` adds inputs of values."""
    readers = {agent: policy.row_input for agent, policy in policies.items()}

    def prepare(obs: Any) -> dict[str, Any]:
        present = torch.as_tensor(obs[PRESENT], device=device)
        seen = {agent: read(obs[AGENTS][agent]) for agent, read in readers.items()}
        return {AGENTS: seen, **({} if joint is None else joint(obs)), PRESENT: present}

    return prepare
