"""Prioritised replay: transitions with large errors are sampled more often, with smaller weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.row_store import Rows
from agilerl.components.segment_tree import MinTree, SumTree
from agilerl.components.uniform import ReplayBuffer
from agilerl.core.options import is_number
from agilerl.envs.returned import short
from agilerl.errors import ConfigError, RunError, ShapeError

MIN_PRIORITY = 1e-5  # a row of priority 0 would never be sampled, and its weight would be infinite


def beta_schedule(start: float, steps_done: float, budget: float) -> float:
    """Return the importance-sampling exponent after part of a run (Schaul et al. 2016, arXiv:1511.05952, section 3.4).

    beta = start + (1 - start) * steps_done / budget: linear, exactly 1 when the budget is spent, and constant after.
    The correction is complete only at the end, where convergence requires unbiased updates.

    Args:
        start: beta_0 in [0, 1].
        steps_done, budget: environment steps (transitions of all lanes), both in the same unit; budget > 0.

    Raises:
        ConfigError: start outside of [0, 1], budget not above 0, or a negative or non-finite number of steps.
    """
    _check_beta("start", start)
    if not (math.isfinite(budget) and budget > 0):
        raise ConfigError(f"budget must be above 0 (environment steps of the run); got {budget}. fix: max_steps.")
    if not (math.isfinite(steps_done) and steps_done >= 0):
        raise ConfigError(f"steps_done must be 0 or more (environment steps so far); got {steps_done}.")
    return 1.0 if steps_done >= budget else min(1.0, start + (1.0 - start) * (steps_done / budget))


@dataclass(frozen=True, slots=True)
class PriorityChanges:
    """Priorities set since a savepoint.

    Attributes:
        rows: [k] int64, numbers of rows counted from the first ever added, ascending.
        scaled: [k] float64, priority^alpha. max_priority: the largest priority so far, before the exponent.
    """

    rows: np.ndarray
    scaled: np.ndarray
    max_priority: float


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay in proportion to priority (Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.4).

    P(i) = p_i^alpha / sum_k p_k^alpha;   w_i = (N P(i))^-beta / max_j (N P(j))^-beta

    A new row gets the largest priority so far (1 at first), so that it is sampled soon. The largest weight is taken
    over all rows in the buffer, not over the batch: a row's weight does not depend on the rest of its batch, so members
    with different batch sizes get the same correction. Since N and the sum cancel,
    w_i = (min_j p_j^alpha / p_i^alpha)^beta, which is at most 1.

    Departs from the paper: points are drawn independently rather than one from each of B equal ranges (appendix B.2.1),
    so that a draw has any shape and its first rows do not depend on how many follow; and priorities below 1e-5 count
    as 1e-5.

    Two interfaces: published `sample(batch_size, beta)` and `update_priorities(idxs, priorities)`; for the engine
    additionally `sample_indices`, `gather` and `weights`.

    Args:
        max_size: transitions. alpha: priority exponent, 0 (uniform) or more; 1 is proportional.
        device, dtype, seed: see `ReplayBuffer`.

    Attributes:
        max_priority: the largest priority so far, before the exponent.

    Raises:
        ConfigError: alpha is negative or not finite.
    """

    def __init__(
        self,
        max_size: int,
        alpha: float = 0.6,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        seed: int | None = None,
        **more: Any,
    ) -> None:
        if not (is_number(alpha) and 0 <= alpha < math.inf):
            raise ConfigError(f"alpha must be 0 or more (exponent of the priorities); got {alpha!r}. fix: 0.6.")
        super().__init__(max_size, device=device, dtype=dtype, seed=seed, **more)
        self.alpha = float(alpha)
        self._forget()
        self._saved_priorities: tuple[np.ndarray, float] | None = None  # leaves [max_size] and max_priority

    def _forget(self) -> None:
        self.max_priority = 1.0
        self._sums, self._minima = SumTree(self.max_size), MinTree(self.max_size)

    def reserve(self, rows: int) -> None:
        """Reserve rows and their priorities."""
        super().reserve(rows)
        self._forget()

    def clear(self) -> None:
        super().clear()
        self._forget()

    @property
    def memory_bytes(self) -> int:
        """See `ReplayBuffer.memory_bytes`; includes the two trees: 32 to 64 bytes per transition."""
        return super().memory_bytes + self._sums.memory_bytes + self._minima.memory_bytes

    # -- the engine's interface --------------------------------------------------------------------------------------

    def sample_indices(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        """Sample row numbers `shape` int64, row i with probability P(i), with replacement; RunError if empty."""
        if len(self) == 0:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        return self._sums.find(rng.random(shape) * self._sums.total)

    def weights(self, indices: np.ndarray | Tensor, beta: float) -> np.ndarray:
        """Return importance weights of the rows `indices` [...]: float64 [...] in (0, 1], 1 for the least likely row.

        Args:
            indices: rows in the buffer. beta: 0 (no correction) to 1 (full correction), see `beta_schedule`.

        Raises:
            ConfigError: beta outside of [0, 1].
            ShapeError: an index outside of the rows in the buffer.
        """
        _check_beta("beta", beta)
        scaled: np.ndarray = self._sums[self._live_rows(indices)]
        return np.asarray((self._minima.minimum / scaled) ** beta)

    def update_priorities(self, idxs: Any, priorities: Any) -> None:
        """Set the priorities of the rows `idxs`; for duplicates the last one counts.

        Args:
            idxs: rows in the buffer, any shape, array or tensor.
            priorities: as many numbers, any shape: absolute TD errors or another measure of surprise.

        Raises:
            ConfigError: a priority is negative, infinite or not a number.
            ShapeError: counts differ, or an index outside of the rows in the buffer.
        """
        rows = self._live_rows(idxs).reshape(-1)
        values = priorities.detach().cpu().double().numpy() if isinstance(priorities, Tensor) else priorities
        try:
            values = np.asarray(values, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise ConfigError(f"priorities must be numbers; got {short(values)}. fix: pass abs(td_error).") from None
        if len(values) != len(rows):
            raise ShapeError(
                f"update_priorities() got {len(rows)} indices and {len(values)} priorities. "
                "fix: one priority for each of batch['idxs']."
            )
        is_bad = ~(np.isfinite(values) & (values >= 0))
        if is_bad.any():
            at = int(np.argmax(is_bad))
            raise ConfigError(
                f"priorities must be finite and 0 or more; got {values[at]} for row {rows[at]} ({is_bad.sum()} of "
                f"{len(values)} are bad). fix: pass abs(td_error), and look for a diverged network."
            )
        if not len(rows):
            return
        values = np.maximum(values, MIN_PRIORITY)
        scaled = self._scaled(values)
        self._sums.set(rows, scaled)
        self._minima.set(rows, scaled)
        self.max_priority = max(self.max_priority, float(values.max()))

    def priority_changes(self) -> PriorityChanges:
        """Return the priorities set since the savepoint, of rows that are in memory now; RunError without a savepoint.

        These are all rows added since, and those whose priority differs from that at the savepoint.
        """
        counter = self._active_savepoint("priority_changes()").counter
        assert self._saved_priorities is not None
        places = np.arange(len(self))
        rows = self.counter - 1 - (self._position - 1 - places) % self.max_size
        changed = (rows >= counter) | (self._sums[places] != self._saved_priorities[0][places])
        order = np.argsort(rows[changed])
        return PriorityChanges(rows[changed][order], self._sums[places[changed][order]], self.max_priority)

    def apply_priorities(self, changes: PriorityChanges) -> None:
        """Set priorities by row number; rows that are no longer in memory are skipped, and `max_priority` only rises.

        Raises:
            RunError: a row has not been added yet.
        """
        rows = changes.rows
        if len(rows) and rows[-1] >= self.counter:
            raise RunError(
                f"apply_priorities() got priorities up to row {rows[-1]}; {self.counter} rows were added so far. "
                "fix: write the rows first."
            )
        places = self._places(rows)
        is_here = (rows >= self.counter - self.max_size) & (places < len(self))
        self._sums.set(places[is_here], changes.scaled[is_here])
        self._minima.set(places[is_here], changes.scaled[is_here])
        self.max_priority = max(self.max_priority, changes.max_priority)

    def written(self) -> dict[str, Any]:
        """See `RowRing.written`; includes the priorities set since the savepoint."""
        changes, out = self.priority_changes(), super().written()
        priorities = {"rows": changes.rows, "scaled": changes.scaled, "max_priority": changes.max_priority}
        return {"first": self._active_savepoint("written()").counter, **out, "priorities": priorities}

    def write_rows(self, written: Mapping[str, Any]) -> None:
        """See `RowRing.write_rows`; priorities of rows that several copies have changed are those written last."""
        base, first, changes = self.counter, written["first"], written["priorities"]
        super().write_rows(written)
        rows = np.asarray(changes["rows"])
        rows = np.where(rows < first, rows, rows - first + base)
        order = np.argsort(rows, kind="stable")
        scaled = np.asarray(changes["scaled"])[order]
        self.apply_priorities(PriorityChanges(rows[order], scaled, float(changes["max_priority"])))

    # -- published ---------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, beta: float = 0.4) -> Any:  # type: ignore[override]  # as published
        """Return a prioritised sample, with replacement, as copies on the buffer's device.

        A TensorDict of batch size [batch_size] with the keys as added, `weights` [B, 1] (importance weights) and
        `idxs` [B, 1] int64 (rows, for `update_priorities`).
        """
        indices = self._draw(batch_size)
        batch = self._batch(indices, torch.from_numpy(indices).to(self.device).unsqueeze(-1))
        weights = torch.from_numpy(self.weights(indices, beta)).unsqueeze(-1)
        batch["weights"] = weights.to(self.device, torch.promote_types(self.dtype, torch.float32))
        return batch

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        """See `ReplayBuffer.state`; includes the priorities."""
        priorities = {
            "alpha": self.alpha,
            "max_priority": self.max_priority,
            "scaled": torch.from_numpy(self._live_leaves()),
        }
        return {**super().state(rows=rows), "priorities": priorities}

    def _restore(self, state: Mapping[str, Any]) -> None:
        """See `RowRing._restore`; RunError without priorities or for another alpha: priority^alpha is stored."""
        priorities = state.get("priorities")
        if priorities is None:
            raise RunError("the saved buffer has no priorities. fix: load it into a ReplayBuffer.")
        if priorities["alpha"] != self.alpha:
            raise RunError(
                f"the saved buffer has alpha {priorities['alpha']}, this one {self.alpha}. fix: use the same."
            )
        super()._restore(state)
        self._forget()
        self.max_priority = priorities["max_priority"]
        self._set_range(0, len(self), priorities["scaled"].cpu().numpy())

    def keep_rows(self, rows: np.ndarray) -> None:
        scaled, largest = self._sums[self._places(rows)], self.max_priority
        super().keep_rows(rows)
        self._forget()
        self.max_priority = largest
        self._set_range(0, len(self), scaled)

    def savepoint(self) -> None:
        """See `ReplayBuffer.savepoint`; copies all priorities."""
        super().savepoint()
        self._saved_priorities = (self._sums[:], self.max_priority)

    def rollback(self) -> None:
        super().rollback()
        assert self._saved_priorities is not None
        (scaled, self.max_priority), self._saved_priorities = self._saved_priorities, None
        self._sums.set_range(0, self.max_size, scaled)
        self._minima.set_range(0, self.max_size, np.where(scaled > 0, scaled, np.inf))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _scaled(self, priorities: np.ndarray) -> np.ndarray:
        """Return priority^alpha, bounded so that every row can be sampled and a full buffer has a finite sum."""
        limits = np.finfo(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            return np.clip(priorities**self.alpha, limits.tiny, limits.max / (2 * self.max_size))

    def _set_range(self, start: int, stop: int, scaled: np.ndarray | float) -> None:
        self._sums.set_range(start, stop, scaled)
        self._minima.set_range(start, stop, scaled)

    def _live_leaves(self) -> np.ndarray:
        return np.asarray(self._sums[: len(self)])

    def _put(self, start: int, rows: Rows, count: int) -> None:
        super()._put(start, rows, count)
        self._set_range(start, start + count, self._scaled(np.array([self.max_priority]))[0])

    def _resized(self, before: int) -> None:
        super()._resized(before)
        if len(self) > before:
            self._set_range(before, len(self), self._scaled(np.array([self.max_priority]))[0])
        self._sums.set_range(len(self), before, 0.0)
        self._minima.set_range(len(self), before, np.inf)


def _check_beta(name: str, beta: float) -> None:
    try:
        is_valid = 0.0 <= beta <= 1.0
    except (TypeError, ValueError):  # no number
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{name} must be in [0, 1] (0 no correction, 1 full correction); got {beta!r}. fix: 0.4.")
