"""Multi-agent proximal policy optimisation (Yu et al. 2022, arXiv:2103.01955)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl import tree
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.signatures import extends
from agilerl.algorithms.base.transitions import check_not_empty
from agilerl.algorithms.teams import actor_critics as team_actor_critics
from agilerl.algorithms.teams.on_policy import TeamPPO
from agilerl.components.running import RunningMeanStd
from agilerl.envs.teams import AGENTS, JOINT, PRESENT, STATE, TeamObservations
from agilerl.errors import ShapeError
from agilerl.networks.base import EvolvableNetwork
from agilerl.spaces import nested, space_from_json, space_to_json

MIN_RETURN_STD = 1e-2  # returns that hardly differ are no reason to magnify rounding


class MAPPO(TeamPPO):
    """PPO of every agent with a value that reads what all of them see, or the state of the environment.

    A value that several agents share is told which of them asks. It learns returns in units of their running deviation
    from their running mean (section 5.1 of the paper). Who is not there shows zeros, and its rows count for nothing.
    Policies are as of `IPPO`. With `recurrent=True` they are LSTMs, and values have no memory: what
    all agents see, or the state, tells more than one agent's memory.

    Args:
        state_space: of the environment's `state()`, where values read `obs["state"]` in place of all observations.
        normalize_values: False lets values be returns as they are.

    The other arguments are `IPPO`'s.

    Attributes:
        value_statistics: mean, var and count of the returns learned from, by group.
    """

    @extends(TeamPPO.__init__, before="action_scaling")
    def __init__(
        self,
        *args: Any,
        state_space: gym.Space[Any] | None = None,
        normalize_values: Annotated[bool, hp()] = True,
        **kwargs: Any,
    ) -> None:
        if state_space is not None:
            check_not_empty(f"{type(self).__name__}, state_space", "read", state_space)
        self.state_space, self.normalize_values = state_space, bool(normalize_values)  # `make_value` reads it
        self.value_statistics: dict[str, dict[str, float]] = {}
        super().__init__(*args, **kwargs)

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what all agents see, told which one of the group asks where there are several; without a memory."""
        more["recurrent"] = False
        space: gym.Space[Any] = self.team.joint_space if self.state_space is None else self.state_space
        count = len(self.grouped_agents[group])
        return team_actor_critics.make_network(self, group, space, seed, count if count > 1 else 0, **more)

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """What values of the agents of a group read: as rows [..., K·B, ...], what all see; where there are several,
        who of them asks, too."""
        count = len(self.grouped_agents[group])
        joint = obs[JOINT] if JOINT in obs else self._joint(obs)
        if count == 1:
            return (joint,)
        lead, like = obs[PRESENT].shape[:-1], next(iter(self.critics[group].parameters()))
        told = torch.eye(count, dtype=like.dtype, device=like.device)
        who = torch.cat([row.expand(*lead, count) for row in told], axis)
        return tree.map_leaves(lambda x: torch.cat([x] * count, axis), joint), who

    def _joint(self, obs: Any) -> Any:
        """What values read of a team's observations."""
        return obs[AGENTS] if self.state_space is None else obs[STATE]

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) [M]: what critics give, times the one and plus the other, are values."""
        usual = {"mean": 0.0, "var": 1.0}
        each = [self.value_statistics.get(self.get_group_id(agent), usual) for agent in self.agent_ids]
        mean, variance = (np.array([own[name] for own in each]) for name in ("mean", "var"))
        return mean, np.maximum(np.sqrt(variance), MIN_RETURN_STD) if self.value_statistics else np.sqrt(variance)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """Take the returns [rows, M] of those who count into the values' scale."""
        for group, own in zip(self.grouped_agents, self.groups_of_agents, strict=True):
            rows = returns[:, own][counts[:, own]]
            if not self.normalize_values or not np.isfinite(rows).all():  # of a team that has diverged
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
        """What of a team's observations [B, ...] a network reads: its agents', or what all see."""
        is_value = network.partition(".")[0] == "critics"
        return self._joint(observations) if is_value else super().observations_for(network, observations)

    def observed(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """As of every team; what the environment's state is stands under "state", where values read it.

        Raises:
            ShapeError: there is none.
        """
        if self.state_space is None:
            return super().observed(obs)  # type: ignore[arg-type]
        beside = obs.state if isinstance(obs, TeamObservations) else None  # as vectors show it
        shown = obs.get(STATE, beside)
        if shown is None:
            raise ShapeError(
                f"{self.algo}(state_space=) reads the environment's state, and none was given. "
                'fix: {**observations, "state": env.state()}.'
            )
        rows: Any = {a: own for a, own in obs.items() if a != STATE}
        rows = TeamObservations(rows, obs.present) if isinstance(obs, TeamObservations) else rows
        seen, lanes = super().observed(rows)  # type: ignore[arg-type]
        shape = nested(self.state_space)
        state = tree.map_leaves(lambda s, x: np.asarray(x).reshape(lanes, *(s.shape or ())), shape, shown)
        return {**seen, STATE: state}, lanes

    @property
    def row_input(self) -> Callable[[Any], Any]:
        joint = self.joint_network().row_input
        return team_actor_critics.row_input(self, lambda obs: {JOINT: joint(self._joint(obs))})

    def state(self) -> dict[str, Any]:
        own = {} if self.state_space is None else {"state_space": space_to_json(self.state_space)}
        return {**super().state(), **own}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "state_space" in state:
            self.state_space = space_from_json(state["state_space"])
