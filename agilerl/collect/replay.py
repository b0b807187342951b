"""Shared replay of the training loop: one memory, or a one-step memory paired with an n-step memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.core import foreign
from agilerl.core.tree import concatenate, map_leaves
from agilerl.envs.masks import ActionMasks
from agilerl.envs.protocol import StepBatch
from agilerl.errors import ConfigError


class SharedReplay:
    """Replay buffer shared by the population.

    Args:
        memory: buffer to sample from.
        n_step_memory: optional n-step transitions to learn from; `memory` then holds the one-step transitions that
            start at the same step, row by row.

    Attributes:
        prioritized: whether sampling is prioritized. rows: the memory whose rows are learned from.

    Raises:
        ConfigError: the two have different sizes, or already hold different experience.
    """

    def __init__(self, memory: Any, n_step_memory: Any = None) -> None:
        self.memory, self.n_step_memory = memory, n_step_memory
        self.rows = memory if n_step_memory is None else n_step_memory
        self.prioritized = foreign.has_methods(memory, "update_priorities")
        self._writes = foreign.has_methods(self.rows, "write")
        counter: Callable[[Any], int] = attrgetter("counter") if hasattr(memory, "counter") else len
        self.added = partial(counter, memory)  # transitions so far; the current size of a memory without a counter
        if n_step_memory is None:
            return
        if not isinstance(n_step_memory, MultiStepReplayBuffer):
            kind = type(n_step_memory).__name__
            raise ConfigError(f"n_step_memory must be a MultiStepReplayBuffer; got {kind}. fix: MultiStepReplayBuffer.")
        if isinstance(memory, MultiStepReplayBuffer) or not isinstance(memory, ReplayBuffer):
            kind = type(memory).__name__
            raise ConfigError(
                f"beside an n_step_memory the memory holds one-step transitions; got {kind}. "
                "fix: memory=PrioritizedReplayBuffer(...) or ReplayBuffer(...)."
            )
        if (memory.max_size, memory.counter) != (n_step_memory.max_size, n_step_memory.counter):
            raise ConfigError(
                "memory and n_step_memory must hold the same transitions, row by row: sizes "
                f"{memory.max_size} and {n_step_memory.max_size}, added so far {memory.counter} and "
                f"{n_step_memory.counter}. fix: make both with one max_size, and fill them together."
            )

    def named(self) -> dict[str, Any]:
        """Buffers by name, for checkpoints and shards."""
        both = {"memory": self.memory, "n_step_memory": self.n_step_memory}
        return {name: memory for name, memory in both.items() if memory is not None}

    def write(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        batch: StepBatch,
        masks: ActionMasks,
        obs_mask: np.ndarray | None = None,
    ) -> None:
        """Add one vector step; rows of `batch` with mask False are skipped.

        Args:
            masks: reads the legal actions in `batch.final_obs`.
            obs_mask: [L, W] bool, the legal actions in `obs`, for algorithms that learn from them.
        """
        if not self._writes:  # a custom memory
            fields = (obs, action, reward, batch.final_obs, batch.terminated)
            self.memory.save_to_memory(
                *(map_leaves(lambda x: np.asarray(x)[batch.mask], part) for part in fields), is_vectorised=True
            )
            return
        if batch.healed is not None:  # these episodes end at the previous step
            self.interrupt(np.flatnonzero(batch.healed))
        legal = masks.final(batch.info, len(batch.reward)) if batch.info else None
        terminated, cut = batch.terminated, batch.truncated
        if batch.team is not None:  # per agent
            over = (batch.terminated | batch.truncated)[:, None]  # ends all windows, also of agents that left earlier
            terminated, cut = batch.team.terminated, batch.team.truncated | over
            terminated = terminated | (
                batch.terminated[:, None] & ~batch.team.truncated
            )  # waiting agents end with their team
        rows = (obs, action, reward, batch.final_obs, terminated, batch.mask, legal, cut)
        optional = {} if obs_mask is None else {"obs_mask": obs_mask}  # custom memories need not support it
        self.rows.write(*rows, **optional)
        if self.n_step_memory is not None:
            self._follow()

    def interrupt(self, lanes: np.ndarray | None = None) -> None:
        """Truncate the open n-step windows of all lanes, or of `lanes` [k]: their episodes do not continue."""
        for memory in (self.n_step_memory, self.memory):
            if foreign.has_methods(memory, "interrupt"):
                memory.interrupt(*(() if lanes is None else (lanes,)))
        if self.n_step_memory is not None:
            self._follow()

    def _follow(self) -> None:
        finished = self.n_step_memory.last_one_step()
        if finished is not None:
            self.memory.write(**finished)

    def gather_both(self, indices: np.ndarray, gammas: list[float]) -> dict[str, Any]:
        """Return the one-step rows followed by those learned from: [updates, N, 2B] for indices [.., B].

        Args:
            gammas: [N] per-step discounts of the members, for the one-step transitions.
        """
        one_step, later = self.memory.gather(indices), self.rows.gather(indices)
        gamma = torch.tensor(gammas, dtype=torch.float64, device=one_step["done"].device).unsqueeze(1)
        if one_step["done"].dim() == 4:  # [updates, N, B, M] for teams
            gamma = gamma.unsqueeze(-1)
        one_step["discount"] = gamma * (1 - one_step["done"])
        joined: dict[str, Any] = concatenate([{name: rows[name] for name in later} for rows in (one_step, later)], 2)
        return joined

    def weights(self, indices: np.ndarray, beta: float) -> np.ndarray:
        """Importance-sampling weights of rows drawn by priority."""
        assert isinstance(self.memory, PrioritizedReplayBuffer)
        return self.memory.weights(indices, beta)
