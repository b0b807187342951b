"""Multi-agent proximal policy optimisation (Yu et al. 2022, arXiv:2103.01955)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Unpack

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import OF_WEIGHTS, hp
from agilerl.algorithms.base.on_policy import TeamOptions, unpacked
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.transitions import check_not_empty
from agilerl.algorithms.teams.names import Spaces
from agilerl.algorithms.teams.on_policy import TeamPPO
from agilerl.algorithms.teams.policies import row_input
from agilerl.components.running import RunningMeanStd
from agilerl.core import tree
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive
from agilerl.core.spaces import nested, parts_of, space_from_json, space_to_json
from agilerl.envs.protocol import AGENTS, JOINT, PRESENT, STATE, TeamObservations
from agilerl.errors import ShapeError
from agilerl.networks.base import EvolvableNetwork

OF_STATE = "state()"  # name of the statistics of the environment's state
# Locals of the constructor that are no arguments of `TeamPPO`.
NOT_SHARED = ("self", "__class__", "options", "state_space", "normalize_values")
MIN_RETURN_STD = 1e-2  # nearly equal returns must not amplify rounding errors


class MAPPO(TeamPPO):
    """PPO for every agent, with a value that reads the observations of all agents, or the environment's state.

    A value shared by several agents also reads the one-hot id of the agent. Returns are normalised by their running
    mean and standard deviation (section 5.1 of the paper). Observations of absent agents are zeros, and their rows are
    masked. Policies are those of `IPPO`.

    Args:
        recurrent: recurrent encoders (LSTM) of the policies, with a hidden state per agent and episode. Values are
            feed-forward: the joint observation, or the state, is more informative than one agent's history.
        state_space: space of the environment's `state()`; values then read `obs["state"]` instead of all observations.
        normalize_values: normalise returns; False learns them in their own units.

    See `IPPO` for the other arguments.

    Attributes:
        value_statistics: mean, var and count of the returns learned from, by group.
    """

    @unpacked
    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "fewer steps of less noise from a rollout")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[Count, hp(1024, "each member of a population has fewer steps")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[NonNegative, hp(fixed=OF_WEIGHTS)] = 0.6,
        clip_coef: Annotated[Positive, hp()] = 0.2,
        ent_coef: Annotated[NonNegative, hp()] = 0.01,
        vf_coef: Annotated[NonNegative, hp()] = 0.5,
        max_grad_norm: Annotated[Positive | None, hp()] = 0.5,
        target_kl: Annotated[Positive | None, hp()] = None,
        normalize_images: bool = True,
        update_epochs: Annotated[Count, hp(10, "the paper's, for control")] = 4,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        critic_networks: Mapping[str, EvolvableNetwork] | None = None,
        action_batch_size: Count | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        num_envs: Count = 1,
        state_space: gym.Space[Any] | None = None,
        normalize_values: Annotated[bool, hp()] = True,
        seed: int | None = None,
        **options: Unpack[TeamOptions],
    ) -> None:
        shared: dict[str, Any] = {name: value for name, value in locals().items() if name not in NOT_SHARED}
        if state_space is not None:
            check_not_empty(f"{type(self).__name__}, state_space", "read", state_space)
        self.state_space, self.normalize_values = state_space, bool(normalize_values)  # `value_space` reads it
        self.value_statistics: dict[str, dict[str, float]] = {}
        super().__init__(**shared, **options)

    def value_space(self, group: str) -> tuple[gym.Space[Any], int]:
        """Return (space of the joint observation or state, number of agents if several share the value)."""
        space: gym.Space[Any] = self.team.joint_space if self.state_space is None else self.state_space
        count = len(self.grouped_agents[group])
        return space, count if count > 1 else 0

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """Return the value inputs of a group of K agents, rows [..., K·B, ...]: joint observations, ids if K > 1."""
        count = len(self.grouped_agents[group])
        joint = obs[JOINT] if JOINT in obs else self._joint(obs)
        if count == 1:
            return (joint,)
        lead, like = obs[PRESENT].shape[:-1], next(iter(self.critics[group].parameters()))
        identity = torch.eye(count, dtype=like.dtype, device=like.device)
        one_hot = torch.cat([row.expand(*lead, count) for row in identity], axis)
        return tree.map_leaves(lambda x: torch.cat([x] * count, axis), joint), one_hot

    def value_parts(self, group: str, normalised: Sequence[str]) -> Sequence[str]:
        """Return the groups of all agents whose observations have vectors, in the order of the joint observation.

        A value of the environment's state has separate statistics. Empty if policies and value read different vectors.
        """
        critic = self.critics[group]
        if self.state_space is not None:
            return (OF_STATE,) if any(critic.vector_widths) else ()
        groups = [self.get_group_id(agent) for agent in parts_of(critic.observation_space)]
        names = [name for name in groups if name in normalised]
        widths = [sum(self.actors[name].vector_widths) for name in names]
        return names if sum(widths) == sum(critic.vector_widths) else ()

    def _joint(self, obs: Any) -> Any:
        """Return the part of a team's observations that values read."""
        return obs[AGENTS] if self.state_space is None else obs[STATE]

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean, deviation) [M]; values are critic outputs · deviation + mean."""
        usual = {"mean": 0.0, "var": 1.0}
        each = [self.value_statistics.get(self.get_group_id(agent), usual) for agent in self.agent_ids]
        mean, variance = (np.array([statistics[name] for statistics in each]) for name in ("mean", "var"))
        return mean, np.maximum(np.sqrt(variance), MIN_RETURN_STD) if self.value_statistics else np.sqrt(variance)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """Update the value scale with returns [rows, M]; `counts` [rows, M] selects entries."""
        for group, members in zip(self.grouped_agents, self.groups_of_agents, strict=True):
            rows = returns[:, members][counts[:, members]]
            if not self.normalize_values or not np.isfinite(rows).all():  # the team has diverged
                continue
            seen = RunningMeanStd()
            if group in self.value_statistics:
                seen.load_state({**self.value_statistics[group], "epsilon": seen.epsilon})
            seen.update(rows)
            values = {"mean": float(seen.mean), "var": float(seen.var), "count": seen.count}
            self.value_statistics = {**self.value_statistics, group: values}

    def joint_network(self) -> EvolvableNetwork:
        network: EvolvableNetwork = self.critics[self.shared_agent_ids[0]]
        return network

    def observations_for(self, network: str, observations: Any) -> Any:
        """Return the part of a team's observations [B, ...] that a network reads: its agents', or all."""
        is_value = network.partition(".")[0] == "critics"
        return self._joint(observations) if is_value else super().observations_for(network, observations)

    def probe_actions(self, network: str, count: int = 256) -> Tensor | None:
        """Return the one-hot ids [K, B, K] that the value of a group of K agents reads."""
        agents, obs = self.agents_of(network), self.probe_observations(count)
        if obs is None:
            return None
        ids: Tensor = self.value_inputs(obs, network.partition(".")[2], 0)[1]
        return ids.reshape(len(agents), -1, len(agents))

    def observed(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Convert observations by agent as every team, with the environment's state under "state" if values read it.

        Raises:
            ShapeError: no state was given.
        """
        if self.state_space is None:
            return super().observed(obs)  # type: ignore[arg-type]
        beside = obs.state if isinstance(obs, TeamObservations) else None  # from vector environments
        shown = obs.get(STATE, beside)
        if shown is None:
            raise ShapeError(
                f"{self.algo}(state_space=) reads the environment's state, and none was given. "
                'fix: {**observations, "state": env.state()}.'
            )
        rows: Any = {a: agent_obs for a, agent_obs in obs.items() if a != STATE}
        rows = TeamObservations(rows, obs.present) if isinstance(obs, TeamObservations) else rows
        seen, lanes = super().observed(rows)  # type: ignore[arg-type]
        shape = nested(self.state_space)
        state = tree.map_leaves(lambda s, x: np.asarray(x).reshape(lanes, *(s.shape or ())), shape, shown)
        return {**seen, STATE: state}, lanes

    @property
    def row_input(self) -> Callable[[Any], Any]:
        joint = self.joint_network().row_input
        return row_input(self.agent_policies(), self.device, lambda obs: {JOINT: joint(self._joint(obs))})

    def state(self) -> dict[str, Any]:
        extra = {} if self.state_space is None else {"state_space": space_to_json(self.state_space)}
        return {**super().state(), **extra}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "state_space" in state:
            self.state_space = space_from_json(state["state_space"])
