"""Lanes in this process whose environments are replaced when they raise or return invalid results."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.envs.generators import CONSTRUCTION, constructing
from agilerl.envs.healing import Fault, derived_seeds
from agilerl.envs.protocol import StepBatch, TeamStep
from agilerl.errors import EnvError


class ReplacingLanes:
    """Lanes of this process that survive a rare fault, like `HealingLanes` with one worker, without overhead.

    On a fault the step of all lanes is lost (mask False), their episodes are truncated, and all environments are
    created again with seeds derived from the previous ones. Crashes and hangs affect this process.

    Args:
        build: creates `SyncLanes` or `TeamLanes`. max_restarts: maximum replacements; the next fault is raised.

    Attributes:
        faults: all failures so far.

    Raises:
        EnvError: from `reset` and `step`: a fault after `max_restarts` replacements, or one if no step was ever made.
    """

    def __init__(self, build: Callable[[], Any], max_restarts: int) -> None:
        self._build, self._construction, self.max_restarts = build, CONSTRUCTION.get(), max_restarts
        self.lanes: Any = build()
        self.name, self.num_lanes, self.backend = self.lanes.name, self.lanes.num_lanes, self.lanes.backend
        self.single_observation_space = self.lanes.single_observation_space
        self.single_action_space = self.lanes.single_action_space
        self.faults: list[Fault] = []
        self._seeds: tuple[int, ...] | None = None
        self._has_stepped = False  # at all: a fault of each step is a mistake

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        if seeds is not None:
            self._seeds = tuple(np.asarray(seeds).tolist())
        try:
            result: tuple[Any, dict[str, Any]] = self.lanes.reset(seeds)
            return result
        except EnvError as error:
            return self._replace(error)

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `StepBatch.healed` [L] is set after a replacement."""
        before = self.lanes.last_obs
        try:
            batch: StepBatch = self.lanes.step(actions, active)
        except EnvError as error:
            if before is None:  # no reset so far
                raise
            obs, info = self._replace(error)
            lost = np.zeros(self.num_lanes, dtype=bool)
            cut = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
            healed = np.ones(self.num_lanes, dtype=bool)
            info = {**info, "healed": healed.copy()}
            reward, before = np.zeros(self.num_lanes), trees.copy(before)
            return StepBatch(obs, reward, lost, cut, before, lost.copy(), info, self._team_step(), healed)
        self._has_stepped = True
        return batch

    def _team_step(self) -> TeamStep | None:
        """Return a step in which no agent of a team has a transition."""
        team = foreign.team(self.lanes)
        if team is None:
            return None
        shape = self.num_lanes, len(team.agents)
        return TeamStep(np.zeros(shape), *np.zeros((3, *shape), bool))

    def _replace(self, error: EnvError) -> tuple[Any, dict[str, Any]]:
        """Create all environments again and start their next episodes."""
        if self.faults and not self._has_stepped:
            raise error
        if len(self.faults) >= self.max_restarts:
            if self.faults:
                error.add_note(f"{self.max_restarts} faults before this one were survived, which is max_restarts.")
            raise error
        text = "".join(traceback.format_exception(error))
        self.faults.append(Fault("failed", -1, (0, self.num_lanes - 1), self._seeds, str(error), text))
        with contextlib.suppress(Exception):
            self.lanes.close()
        with constructing(self._construction._replace(replacement=len(self.faults))):
            self.lanes = self._build()
        self._seeds = derived_seeds(self._seeds, len(self.faults), self.num_lanes)
        return self.reset(np.array(self._seeds))

    def close(self) -> None:
        self.lanes.close()
