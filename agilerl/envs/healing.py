"""Lanes in worker processes that are replaced when they die, raise, hang or return what is not an observation."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from agilerl import tree as trees
from agilerl.envs.contract import name_of
from agilerl.envs.healing_crew import Crew, Fault, start_method
from agilerl.envs.healing_worker import SharedRows
from agilerl.envs.lanes import EnvFactory, check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError, ShapeError


class HealingLanes:
    """L environments in a few worker processes of several lanes each, which replaces workers that fail.

    A worker checks what its environments return (`agilerl.envs.contract`) before it writes them to shared memory. A
    worker that dies, raises, returns anything else than observations, or has no answer after `deadline_s` is killed and
    started again, its lanes with seeds derived from those they had. That step of ALL its lanes is no transition (mask
    False), the running episodes are `truncated`, `info["healed"]` [L] marks them, `faults` lists what happened.
    Episodes of other lanes are not touched, and without faults the number of workers changes nothing.

    Args:
        factories: one callable per lane, each giving a fresh Gymnasium environment of the same spaces.
        num_workers: processes; by default one per core, at most 4 and at most L.
        deadline_s: for an answer. max_restarts: of these lanes, in all; one more is an error.
        reset_ended: as of `SyncLanes`. spec: of a registered environment. name: for messages.

    Raises:
        EnvError: from `reset` and `step`, when a worker fails and `max_restarts` have been made.
    """

    backend = "healing"

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        *,
        num_workers: int | None = None,
        deadline_s: float = 60.0,
        max_restarts: int = 10,
        reset_ended: bool = True,
        spec: EnvSpec | None = None,
    ) -> None:
        check_options(num_workers, deadline_s, max_restarts)
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        num_lanes = len(factories)
        self.num_lanes, self.deadline_s, self.max_restarts = num_lanes, float(deadline_s), int(max_restarts)
        single = factories[0]()
        self.name = name_of(single)
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        self._memory = SharedRows.allocate(multiprocessing.get_context(), self.single_observation_space, num_lanes)
        self._obs, self._final, self._reward, self._flags = self._memory.arrays()
        self._masks: np.ndarray | None = None
        self._is_reset = False
        self._crew = Crew(
            factories,
            min(num_lanes, num_workers or min(4, os.cpu_count() or 1)),
            self._memory,
            reset_ended=reset_ended,
            spec=spec,
            deadline_s=deadline_s,
            max_restarts=max_restarts,
            name=self.name,
        )

    @property
    def restarts(self) -> int:
        """Workers that have been replaced so far."""
        return self._crew.restarts

    @property
    def faults(self) -> list[Fault]:
        """Every failure so far."""
        return self._crew.faults

    # -- what lanes do ---------------------------------------------------------------------------------------------

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every lane; `seeds` [L] integers, or None to go on with each lane's generator."""
        numbers = check_seeds(seeds, self.num_lanes)
        self._masks = None
        infos, failed = self._crew.reset(numbers)
        for fault in failed:
            infos[fault.worker] = self._crew.heal(fault)
        self._keep_masks(infos)
        self._is_reset = True
        return trees.copy(self._obs), self._info()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `info["healed"]` [L] is there where a worker was replaced."""
        if not self._is_reset:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if len(actions) != self.num_lanes:
            raise ShapeError(f"actions must have one row per lane: expected {self.num_lanes}, got {len(actions)}.")
        before = trees.copy(self._obs)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        asked = {
            w.number: ("step", actions[w.lanes], None if active is None else mask[w.lanes])
            for w in self._crew.workers
            if mask[w.lanes].any()
        }
        infos, failed = self._crew.ask(asked)
        reward, (terminated, truncated) = np.where(mask, self._reward, 0.0), self._flags & mask
        final, healed = trees.choose(mask, self._final, before), np.zeros(self.num_lanes, dtype=bool)
        final_masks = self._final_masks(infos)
        for fault in failed:
            rows = self._crew.workers[fault.worker].rows
            infos[fault.worker] = self._crew.heal(fault)
            healed[rows], mask_before = True, mask[rows]
            reward[rows], terminated[rows], truncated[rows], mask[rows] = 0.0, False, mask_before, False
        final = trees.choose(healed, before, final) if failed else final
        self._keep_masks(infos)
        info = {**self._info(), **final_masks, **({"healed": healed} if failed else {})}
        return StepBatch(trees.copy(self._obs), reward, terminated, truncated, final, mask, info)

    def close(self) -> None:
        """End all workers."""
        self._crew.close()
        self._is_reset = False

    # -- masks of legal actions --------------------------------------------------------------------------------------

    def _keep_masks(self, infos: dict[int, dict[str, Any]]) -> None:
        for number, info in infos.items():
            if "action_mask" in info:
                given = info["action_mask"]
                if self._masks is None:
                    self._masks = np.ones((self.num_lanes, given.shape[1]), dtype=bool)
                self._masks[self._crew.workers[number].lanes] = given

    def _final_masks(self, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        found = {n: i for n, i in infos.items() if "final_action_mask" in i}
        if not found or self._masks is None:
            return {}
        masks = self._masks.copy()
        for number, info in infos.items():
            if "action_mask" in info:
                masks[self._crew.workers[number].lanes] = info.get("final_action_mask", info["action_mask"])
        return {"final_action_mask": masks}

    def _info(self) -> dict[str, Any]:
        return {} if self._masks is None else {"action_mask": self._masks.copy()}


def check_options(num_workers: int | None, deadline_s: float, max_restarts: int) -> None:
    """Raise EnvError for options that make no sense."""
    if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 1):
        raise EnvError(f"num_workers must be a positive integer (processes) or None; got {num_workers!r}. fix: None.")
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise EnvError(f"deadline_s must be above 0 (seconds for one step); got {deadline_s!r}. fix: 60.")
    if isinstance(max_restarts, bool) or max_restarts < 0:
        raise EnvError(f"max_restarts must be 0 or more; got {max_restarts!r}. fix: 10.")


__all__ = ["Fault", "HealingLanes", "start_method"]
