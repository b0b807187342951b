"""Lanes that step in this process and in others at the same time, where steps take long enough; the same bits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from agilerl.core import foreign
from agilerl.core.tree import Tree
from agilerl.envs.generators import CONSTRUCTION, UNSEEDED, constructing
from agilerl.envs.healing import HealingLanes, describe, ready_within
from agilerl.envs.lanes import EnvFactory
from agilerl.envs.protocol import StepBatch
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

    Of W processes the k-th has the lanes k, k + W, ..., and steps them while the others step theirs. Lanes move at a
    reset with seeds, after which nothing depends on what their environments did before. Environments that cannot be
    constructed elsewhere stay.

    Args:
        lanes: all L of this process. make: creates lanes of this kind from factories. factory: of one environment.
        sharing: of all lanes of the same environments. reset_ended: see `SyncLanes`. spec: of a registered environment.

    Attributes:
        processes: that step the lanes now.
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
        self.lanes = self._local = lanes
        self.name, self.backend, self.num_lanes = lanes.name, lanes.backend, lanes.num_lanes
        self.single_observation_space = lanes.single_observation_space
        self.single_action_space = lanes.single_action_space
        self.team, self.processes = foreign.team(lanes), 1
        self.last_obs: Any = None
        self._make, self._factory, self._sharing, self._spec = make, factory, sharing, spec
        self._most, self._reset_ended = min(sharing.processes, self.num_lanes), reset_ended
        self._construction = CONSTRUCTION.get()
        self._shared: HealingLanes | None = None  # once other processes have been started
        self._waiting: dict[Any, Any] = {}  # connections of those that construct environments
        self._steps, self._seconds = 0, 0.0
        self._decide()

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        if seeds is not None and self._waiting:
            self._move()
        self.last_obs, info = self.lanes.reset(seeds)
        return self.last_obs, info

    def step(self, actions: Tree, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`."""
        is_timed = self._steps < TIMED_STEPS and self._most > 1 and self._shared is None
        begin = time.perf_counter() if is_timed else 0.0
        batch: StepBatch = self.lanes.step(actions, active)
        self.last_obs = batch.obs
        if is_timed:
            self._time(time.perf_counter() - begin, self.num_lanes if active is None else int(active.sum()))
        return batch

    def close(self) -> None:
        """Close the environments of all processes."""
        self._local.close()
        if self._shared is not None:
            self._shared.close()

    def _time(self, seconds: float, lanes: int) -> None:
        """Count a step of this many lanes, and decide after enough of them."""
        self._steps, self._seconds = self._steps + 1, self._seconds + seconds / max(1, lanes)
        if self._steps == TIMED_STEPS:
            self._sharing.seconds = self._seconds / self._steps
            self._decide()

    def _decide(self) -> None:
        """Start processes if the steps are known to be slow."""
        seconds = self._sharing.seconds
        if seconds is None or self._most < 2 or seconds * self.num_lanes < MIN_SECONDS:
            return
        try:
            with constructing(self._construction):
                self._shared = HealingLanes(
                    [self._factory] * self.num_lanes, num_workers=self._most, max_restarts=0, build=self._make,
                    reset_ended=self._reset_ended, spec=self._spec, description=describe(self.lanes), shares=True,
                )  # fmt: skip
            self._waiting = self._shared.begin_start()
        except Exception:  # what cannot be sent to another process stays here
            self._stay()

    def _move(self) -> None:
        """Move lanes to the processes that were started, if all are ready."""
        limit = time.monotonic() + START_SECONDS
        assert self._shared is not None
        for connection in self._waiting:
            if not ready_within([connection], max(0.0, limit - time.monotonic())):
                return
        try:
            self._shared.finish_start(self._waiting)
        except EnvError:
            self._stay()
            return
        self._waiting, self.processes = {}, self._most
        stay = self._local.envs[:: self._most]  # the others stay open: closing one may end what they share
        with constructing(UNSEEDED):
            self._shared.join(self._make([iter(stay).__next__] * len(stay), reset_ended=self._reset_ended))
        self.lanes = self._shared

    def _stay(self) -> None:
        if self._shared is not None:
            with contextlib.suppress(Exception):
                self._shared.close()
        self._shared, self._waiting, self._most = None, {}, 1
