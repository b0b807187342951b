"""Lanes that step in this process and in others at the same time, where steps take long enough; the same bits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.envs.generators import CONSTRUCTION, UNSEEDED, constructing
from agilerl.envs.healing import HealingLanes, copy_rows, describe, ready_within
from agilerl.envs.lanes import UNMARKED, EnvFactory, LaneInfo
from agilerl.envs.masks import FINAL_MASK, MASK
from agilerl.envs.protocol import StepBatch, TeamStep
from agilerl.errors import EnvError

MIN_SECONDS = 400e-6  # of a step of all lanes in one process, below which a hand-over would cost more than it brings
TIMED_STEPS = 32
START_SECONDS = 0.25  # that a reset waits for processes which are about to be ready


@dataclass
class Sharing:
    """How lanes of the same environments are shared out.

    Attributes:
        processes: that may step them, this one included. seconds: of one step, measured; None until then.
    """

    processes: int
    seconds: float | None = None


class SplitLanes:
    """L environments of this process, most of which move to other processes once their steps prove to be slow.

    Process k of W has the lanes k, k + W, ... and steps them while the others step theirs. Lanes move at a reset with
    seeds, after which nothing depends on what the environments did before. Environments that cannot be constructed
    elsewhere stay.

    Args:
        lanes: all L of this process. make: creates lanes of this kind from factories. factory: of one environment.
        sharing: of all lanes of the same environments. reset_ended: see `SyncLanes`. spec: of a registered environment.
    """

    def __init__(
        self,
        lanes: Any,
        make: Callable[..., Any],
        factory: EnvFactory,
        sharing: Sharing,
        reset_ended: bool,
        spec: EnvSpec | None = None,
    ) -> None:
        self.lanes = self._whole = lanes
        self.name, self.backend, self.num_lanes = lanes.name, lanes.backend, lanes.num_lanes
        self.single_observation_space = lanes.single_observation_space
        self.single_action_space = lanes.single_action_space
        self.team = foreign.team(lanes)
        self._make, self._factory, self._sharing, self._spec = make, factory, sharing, spec
        self._most, self._reset_ended = min(sharing.processes, self.num_lanes), reset_ended
        self._construction = CONSTRUCTION.get()
        self._others: list[HealingLanes] = []  # that are being started, or step
        self._waiting: list[dict[Any, Any]] = []  # for their first answers
        self.processes = 1  # that step lanes
        self._steps, self._seconds = 0, 0.0
        self._info = LaneInfo(self.num_lanes)
        self.last_obs: Any = None
        self._decide()

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        if seeds is not None and self._waiting:
            self._split()
        if self.processes == 1:
            self.last_obs, info = self.lanes.reset(seeds)
            return trees.copy(self.last_obs), info
        parts = [None if seeds is None else np.asarray(seeds)[rows] for rows in self._rows]
        pending = [other.begin_reset(part) for other, part in zip(self._others, parts[1:], strict=True)]
        results = [self.lanes.reset(parts[0])]
        results += [other.finish_reset(begun) for other, begun in zip(self._others, pending, strict=True)]
        self.last_obs = self._joined([obs for obs, _ in results])
        self._info.clear()
        self._note_infos([info for _, info in results])
        return trees.copy(self.last_obs), self._info.copies()

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`."""
        if self.processes == 1:
            begin = time.perf_counter()
            whole: StepBatch = self.lanes.step(actions, active)
            self.last_obs = whole.obs
            if self._steps < TIMED_STEPS and self._most > 1:
                self._time(time.perf_counter() - begin, self.num_lanes if active is None else int(active.sum()))
            return whole
        masks = [None if active is None else np.asarray(active, bool)[rows] for rows in self._rows]
        pending = [
            other.begin_step(trees.take(actions, rows), mask)
            for other, rows, mask in zip(self._others, self._rows[1:], masks[1:], strict=True)
        ]
        parts: list[StepBatch] = [self.lanes.step(trees.take(actions, self._rows[0]), masks[0])]
        parts += [other.finish_step(begun) for other, begun in zip(self._others, pending, strict=True)]
        return self._batch(parts)

    def close(self) -> None:
        """Close the environments of all processes."""
        self._whole.close()
        for other in self._others:
            other.close()

    @property
    def _rows(self) -> list[slice]:
        return [slice(first, None, self.processes) for first in range(self.processes)]

    # -- moving --------------------------------------------------------------------------------------------------------

    def _time(self, seconds: float, lanes: int) -> None:
        """Count a step of this many lanes, and decide after enough of them."""
        self._steps, self._seconds = self._steps + 1, self._seconds + seconds / max(1, lanes)
        if self._steps == TIMED_STEPS:
            self._sharing.seconds = self._seconds / self._steps
            self._decide()

    def _decide(self) -> None:
        """Start processes if the steps are known to be slow."""
        seconds = self._sharing.seconds
        if seconds is None or self._most < 2 or self._others or seconds * self.num_lanes < MIN_SECONDS:
            return
        try:
            for first in range(1, self._most):
                share = [self._factory] * len(range(first, self.num_lanes, self._most))
                with constructing(self._construction._replace(first=first, step=self._most)):
                    other = HealingLanes(
                        share, num_workers=1, max_restarts=0, reset_ended=self._reset_ended, spec=self._spec,
                        build=self._make, description=describe(self.lanes),
                    )  # fmt: skip
                self._others.append(other)
                self._waiting.append(other.begin_start())
        except Exception:  # what cannot be sent to another process stays here
            self._stay()

    def _split(self) -> None:
        """Move lanes to the processes that were started, if they are ready."""
        limit = time.monotonic() + START_SECONDS
        for waiting in self._waiting:
            if not ready_within(waiting, max(0.0, limit - time.monotonic())):
                return
        try:
            for other, waiting in zip(self._others, self._waiting, strict=True):
                other.finish_start(waiting)
        except EnvError:
            self._stay()
            return
        self._waiting = []
        stay = self.lanes.envs[:: self._most]  # the others stay open: closing one may end what they share
        with constructing(UNSEEDED):
            self.lanes = self._make([iter(stay).__next__] * len(stay), reset_ended=self._reset_ended)
        self.processes = self._most

    def _stay(self) -> None:
        for other in self._others:
            with contextlib.suppress(Exception):
                other.close()
        self._others, self._waiting, self._most = [], [], 1

    # -- joining -------------------------------------------------------------------------------------------------------

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Join trees of arrays [L / W, ...] of all processes: [L, ...]."""
        empty = lambda x: np.empty((self.num_lanes, *x.shape[1:]), x.dtype)  # noqa: E731
        whole = trees.map_leaves(empty, parts[0])
        for rows, part in zip(self._rows, parts, strict=True):
            copy_rows(whole, rows, part)
        return whole

    def _note_infos(self, infos: Sequence[dict[str, Any]]) -> None:
        for rows, info in zip(self._rows, infos, strict=True):
            self._info.unmark(rows)
            for key in UNMARKED.keys() & info.keys():
                self._info.write(key, rows, info[key], info[key].shape[1])

    def _batch(self, parts: list[StepBatch]) -> StepBatch:
        self._note_infos([part.info for part in parts])
        info = self._info.copies()
        if any(FINAL_MASK in part.info for part in parts):
            info[FINAL_MASK] = info[MASK].copy()
            for rows, part in zip(self._rows, parts, strict=True):
                if MASK in part.info:
                    info[FINAL_MASK][rows] = part.info.get(FINAL_MASK, part.info[MASK])
        names = ("obs", "reward", "terminated", "truncated", "final_obs", "mask")
        joined = {name: self._joined([getattr(part, name) for part in parts]) for name in names}
        self.last_obs = joined["obs"]
        return StepBatch(**joined, info=info, team=self._team_step([part.team for part in parts]))

    def _team_step(self, parts: Sequence[TeamStep | None]) -> TeamStep | None:
        steps = [part for part in parts if part is not None]
        if not steps:
            return None
        names = ("reward", "terminated", "truncated", "acted")
        joined = {name: self._joined([getattr(step, name) for step in steps]) for name in names}
        if any(step.defined is not None for step in steps):
            width = next(step.defined.shape[1] for step in steps if step.defined is not None)
            joined["defined"] = self._joined([
                np.full((len(step.reward), width), np.nan) if step.defined is None else step.defined for step in steps
            ])  # fmt: skip
        return TeamStep(**joined)
