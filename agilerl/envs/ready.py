"""Lanes in worker processes that do not wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agilerl.core import tree as trees
from agilerl.envs.healing import Fault, HealingLanes, PendingStep, Worker, wait_for
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError


class ReadyLanes(HealingLanes):
    """`HealingLanes` whose steps complete one by one: a slow lane does not hold up the others.

    `begin_step` sends actions to the lanes that are `active` and whose worker is idle. `finish_step` waits until at
    least one worker has answered, and returns all available answers: `StepBatch.mask` is True for the lanes whose step
    is complete. The others keep their last observation while their step runs; actions for them are ignored. Lanes of a
    worker are stepped one after another, so only a lane with a separate worker is independent of the others.

    Which lanes complete together depends on timing. Faults are those of `HealingLanes`, with a deadline for each worker
    that begins when its actions are sent. While a worker is being replaced, answers of the others are not read.

    Args: see `HealingLanes`.
    """

    backend = "asynchronous"

    def __init__(self, *args: Any, **options: Any) -> None:
        self._waiting: dict[Any, Worker] = {}  # line -> worker that is stepping
        super().__init__(*args, **options)
        self._in_progress = np.zeros(self.num_lanes, dtype=bool)  # lanes
        self._unreached: dict[int, Fault] = {}  # of workers to which no actions could be sent
        self._limits: dict[int, float] = {}  # time at which a worker's step counts as hung
        # Returned last for each lane: a worker that steps writes to its rows of the shared memory at any time.
        self._last: Any = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all lanes; a worker that is still stepping is stopped, and another one starts."""
        for worker in self._waiting.values():
            worker.stop()
        self._forget_steps()
        obs, info = super().reset(seeds)
        self._last = trees.copy(obs)
        return obs, info

    def begin_step(self, actions: trees.Tree, active: np.ndarray | None = None) -> PendingStep:
        """Send actions to idle workers. The `mask` of the result is that of all lanes whose step is in progress."""
        self._check_actions(actions)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        for worker in self._waiting.values():
            mask[worker.lanes] = False
        waiting, faults = self._send_step(actions, mask)
        self._limits |= {worker.number: time.monotonic() + self.deadline_s for worker in waiting.values()}
        self._waiting |= waiting
        self._unreached |= faults
        self._in_progress |= mask
        return PendingStep(self._last, self._in_progress.copy(), self._waiting, self._unreached)

    def finish_step(self, pending: PendingStep) -> StepBatch:
        """Wait for at least one of the steps in progress; return all that have completed."""
        infos, failed = self._answers()
        mask = np.zeros(self.num_lanes, dtype=bool)
        for number in (*infos, *(fault.worker for fault in failed)):
            rows = self.workers[number].lanes
            mask[rows], self._in_progress[rows] = self._in_progress[rows], False
        batch = self._batch(self._last, mask, infos, failed)
        healed = np.zeros(self.num_lanes, dtype=bool) if batch.healed is None else batch.healed
        last = trees.choose(batch.mask | healed, batch.obs, self._last)
        self._last = trees.copy(last)
        return replace(batch, obs=last, truncated=batch.truncated | healed)  # also of idle lanes, which act again

    def close(self) -> None:
        super().close()
        self._forget_steps()

    def _answers(self) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
        """Wait for the answer or the failure of at least one worker: (info by worker, faults)."""
        infos: dict[int, dict[str, Any]] = {}
        faults, self._unreached = self._unreached, {}
        while True:
            until = min((self._limits[worker.number] for worker in self._waiting.values()), default=0.0)
            patience_s = 0.0 if faults else max(0.0, until - time.monotonic())
            for line in wait_for(self._waiting, patience_s):
                self._receive(line, self._waiting.pop(line), infos, faults)
            now = time.monotonic()
            hung = [line for line, worker in self._waiting.items() if self._limits[worker.number] <= now]
            for worker in [self._waiting.pop(line) for line in hung]:
                faults[worker.number] = self._fault(worker, "hung", f"no answer after {self.deadline_s:g} s")
            if infos or faults or not self._waiting:
                return infos, [faults[number] for number in sorted(faults)]

    def _forget_steps(self) -> None:
        """Mark all workers as idle."""
        self._in_progress[:] = False
        self._waiting, self._unreached, self._limits = {}, {}, {}

    def _apply(self, functions: Sequence[Callable[[Any], Any]], what: str) -> list[Any]:
        if self._waiting:
            raise EnvError(f"{what}: {len(self._waiting)} workers are stepping. fix: finish_step() until none is.")
        return super()._apply(functions, what)
