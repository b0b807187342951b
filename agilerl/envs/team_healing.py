"""Multi-agent lanes in worker processes that are replaced if they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl.envs.healing import HealingLanes, SharedRows
from agilerl.envs.protocol import DEFINED, StepBatch, TeamStep
from agilerl.envs.team import Team
from agilerl.envs.teams import TeamLanes


class HealingTeamLanes(HealingLanes):
    """`HealingLanes` of parallel environments: a worker runs `TeamLanes`.

    Anything that `TeamLanes` rejects is a failure, including an agent that vanishes. In a step with a replaced worker
    no agent of its lanes has a transition.

    Args:
        with_state: see `TeamLanes`. others: see `HealingLanes`; `max_restarts=0` disables replacement.

    Attributes:
        team: agents and their spaces.
    """

    backend = "healing_teams"
    team: Team

    def __init__(self, factories: Sequence[Callable[[], Any]], *, with_state: bool = False, **options: Any) -> None:
        self.with_state = with_state
        self._defined: np.ndarray | None = None
        super().__init__(factories, **options)

    def _share(self, context: Any) -> SharedRows:
        width = sum(part.stop - part.start for part in self.team.columns.values())
        memory = SharedTeams(context, self.single_observation_space, self.num_lanes, len(self.team.agents), width)
        self._steps = memory.steps()
        return memory

    def _built(self) -> Callable[..., Any]:
        return partial(TeamLanes, with_state=self.with_state)

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        self._defined = None
        return super().reset(seeds)

    def _team_step(self, mask: np.ndarray) -> TeamStep:
        reward, flags, defined = self._steps
        rows = mask[:, None]
        terminated, truncated, acted = flags & rows
        done = np.where(rows, defined, np.nan)
        return TeamStep(
            np.where(rows, reward, 0.0), terminated, truncated, acted, None if np.isnan(done).all() else done
        )

    def _keep_masks(self, infos: dict[int, dict[str, Any]]) -> None:
        super()._keep_masks(infos)
        for number, info in infos.items():
            rows = self.workers[number].lanes
            if self._defined is not None:
                self._defined[rows] = np.nan
            if DEFINED in info:
                if self._defined is None:
                    self._defined = np.full((self.num_lanes, info[DEFINED].shape[1]), np.nan)
                self._defined[rows] = info[DEFINED]

    def _info(self) -> dict[str, Any]:
        return super()._info() if self._defined is None else {**super()._info(), DEFINED: self._defined.copy()}


class SharedTeams(SharedRows):
    """`SharedRows` with the fields of `TeamStep`: rewards, flags and environment-defined actions, by agent."""

    def __init__(self, context: Any, space: Space[Any], count: int, agents: int, width: int) -> None:
        super().__init__(context, space, count)
        self.team_layout = [((count, agents), np.float64), ((3, count, agents), bool), ((count, width), np.float64)]
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.team_layout]
        self.team_blocks = [context.RawArray("b", max(1, size)) for size in sizes]

    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of the memory: reward [L, M], flags [3, L, M] (terminated, truncated, acted), defined [L, A]."""
        reward, flags, defined = (
            np.frombuffer(block, dtype=dtype, count=int(np.prod(shape))).reshape(shape)
            for block, (shape, dtype) in zip(self.team_blocks, self.team_layout, strict=True)
        )
        return reward, flags, defined

    def keep(self, batch: StepBatch, rows: slice) -> None:
        assert batch.team is not None
        reward, flags, defined = self.steps()
        reward[rows] = batch.team.reward
        flags[:, rows] = batch.team.terminated, batch.team.truncated, batch.team.acted
        defined[rows] = np.nan if batch.team.defined is None else batch.team.defined
