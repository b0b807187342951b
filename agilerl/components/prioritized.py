"""Prioritised replay: transitions with large errors are sampled more often, with smaller weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.ring import Part, RowRing
from agilerl.components.segment_tree import MinSegmentTree, SumSegmentTree
from agilerl.components.uniform import ReplayBuffer
from agilerl.core.ranges import Fraction, NonNegative, Positive, check
from agilerl.envs.returned import short
from agilerl.errors import ConfigError, RunError, ShapeError

MIN_PRIORITY = 1e-5  # a row of priority 0 would never be sampled, and its weight would be infinite

CORRECTION = "0 no correction, 1 full correction"


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
    check("start", start, Fraction, 0.4, unit=CORRECTION)
    check("budget", budget, Positive, 200_000, unit="environment steps of the run")
    check("steps_done", steps_done, NonNegative, 0, unit="environment steps so far")
    return 1.0 if steps_done >= budget else min(1.0, start + (1.0 - start) * (steps_done / budget))


class Priorities(Part):
    """Sampling of rows in proportion to priority^alpha.

    Attributes:
        max_priority: the largest priority so far, before the exponent.
        sums, minima: trees over priority^alpha of every row.
    """

    name, label, settings = "priorities", "priorities", ("alpha",)

    def __init__(self, ring: RowRing, alpha: float) -> None:
        self.alpha = float(alpha)
        self.reserve(ring)

    def reserve(self, ring: RowRing) -> None:
        self.max_priority = 1.0
        self.sums, self.minima = SumSegmentTree(ring.max_size), MinSegmentTree(ring.max_size)

    clear = reserve

    @property
    def memory_bytes(self) -> int:  # type: ignore[override]
        """Bytes of the two trees: 32 to 64 per row."""
        return self.sums.memory_bytes + self.minima.memory_bytes

    def draw(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        """Sample places `shape` int64 with replacement, out of those that were written."""
        return self.sums.find(rng.random(shape) * self.sums.total)

    def scaled(self, priorities: object) -> np.ndarray:
        """Return priority^alpha, bounded so that every row can be sampled and a full buffer has a finite sum."""
        limits = np.finfo(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            powers = np.asarray(priorities, dtype=np.float64) ** self.alpha
            return np.clip(powers, limits.tiny, limits.max / (2 * self.sums.capacity))

    def set(self, places: np.ndarray, scaled: np.ndarray, largest: float) -> None:
        """Set priority^alpha of `places` [k]; `max_priority` only rises."""
        self.sums.set(places, scaled)
        self.minima.set(places, scaled)
        self.max_priority = max(self.max_priority, largest)

    def _set_range(self, start: int, stop: int, scaled: np.ndarray | float) -> None:
        self.sums.set_range(start, stop, scaled)
        self.minima.set_range(start, stop, scaled)

    def write(self, ring: RowRing, start: int, stop: int) -> None:
        self._set_range(start, stop, self.scaled([self.max_priority])[0])

    def resize(self, ring: RowRing, before: int) -> None:
        self.write(ring, before, len(ring))
        self.sums.set_range(len(ring), before, 0.0)
        self.minima.set_range(len(ring), before, np.inf)

    def keep(self, ring: RowRing, places: np.ndarray) -> None:
        scaled, largest = self.sums[places], self.max_priority
        self.reserve(ring)
        self.max_priority = largest
        self._set_range(0, len(places), scaled)

    def state(self, ring: RowRing) -> dict[str, Any]:
        scaled = torch.from_numpy(self.sums[: len(ring)])
        return {**super().state(ring), "max_priority": self.max_priority, "scaled": scaled}

    def load_state(self, ring: RowRing, state: Mapping[str, Any]) -> None:
        self.reserve(ring)
        self.max_priority = state["max_priority"]
        self._set_range(0, len(ring), state["scaled"].cpu().numpy())


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

    Raises:
        ConfigError: alpha is negative or not finite.
    """

    _sampler: Priorities

    def __init__(
        self,
        max_size: int,
        alpha: NonNegative = 0.6,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        seed: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(max_size, device=device, dtype=dtype, seed=seed, **more)
        self.alpha, self._sampler = float(alpha), Priorities(self, alpha)
        self._parts.append(self._sampler)

    @property
    def max_priority(self) -> float:
        """The largest priority so far, before the exponent."""
        return self._sampler.max_priority

    # -- the engine's interface --------------------------------------------------------------------------------------

    def weights(self, indices: np.ndarray | Tensor, beta: float) -> np.ndarray:
        """Return importance weights of the rows `indices` [...]: float64 [...] in (0, 1], 1 for the least likely row.

        Args:
            indices: rows in the buffer. beta: 0 (no correction) to 1 (full correction), see `beta_schedule`.

        Raises:
            ConfigError: beta outside of [0, 1].
            ShapeError: an index outside of the rows in the buffer.
        """
        check("beta", beta, Fraction, 0.4, unit=CORRECTION)
        scaled: np.ndarray = self._sampler.sums[self._live_rows(indices)]
        return np.asarray((self._sampler.minima.minimum / scaled) ** beta)

    def update_priorities(self, idxs: object, priorities: object) -> None:
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
            what = f"update_priorities() got {len(rows)} indices and {len(values)} priorities"
            raise ShapeError(f"{what}. fix: one priority for each of batch['idxs'].")
        is_bad = ~(np.isfinite(values) & (values >= 0))
        if is_bad.any():
            at = int(np.argmax(is_bad))
            raise ConfigError(
                f"priorities must be finite and 0 or more; got {values[at]} for row {rows[at]} ({is_bad.sum()} of "
                f"{len(values)} are bad). fix: pass abs(td_error), and look for a diverged network."
            )
        if len(rows):
            values = np.maximum(values, MIN_PRIORITY)
            self._sampler.set(rows, self._sampler.scaled(values), float(values.max()))

    def priority_changes(self) -> dict[str, Any]:
        """Return the priorities set since the savepoint, of rows that are in memory now; RunError without a savepoint.

        Returns:
            rows: [k] int64, numbers counted from the first row ever added, ascending: all rows added since, and those
                whose priority differs from that at the savepoint.
            scaled: [k] float64, priority^alpha. max_priority: the largest priority so far, before the exponent.
        """
        saved, sums = self._active_savepoint("priority_changes()"), self._sampler.sums
        rows = self.counter - 1 - (self._position - 1 - np.arange(len(self))) % self.max_size
        places = np.argsort(rows)
        rows = rows[places]
        changed = (rows >= saved["counter"]) | (sums[places] != saved["_sampler"].sums[places])
        return {"rows": rows[changed], "scaled": sums[places[changed]], "max_priority": self.max_priority}

    def apply_priorities(self, changes: Mapping[str, Any]) -> None:
        """Set priorities by row number; rows that are no longer in memory are skipped, and `max_priority` only rises.

        Args:
            changes: result of `priority_changes`, in any order of the rows.

        Raises:
            RunError: a row has not been added yet.
        """
        rows = np.asarray(changes["rows"])
        if rows.max(initial=-1) >= self.counter:
            raise RunError(
                f"apply_priorities() got priorities up to row {rows.max()}; {self.counter} rows were added so far. "
                "fix: write the rows first."
            )
        places = self._places(rows)
        is_here = (rows >= self.counter - self.max_size) & (places < len(self))
        self._sampler.set(places[is_here], np.asarray(changes["scaled"])[is_here], float(changes["max_priority"]))

    def written(self) -> dict[str, Any]:
        """See `RowRing.written`; includes the priorities set since the savepoint."""
        changes = self.priority_changes()
        return {"first": self._active_savepoint("written()")["counter"], **super().written(), "priorities": changes}

    def write_rows(self, written: Mapping[str, Any]) -> None:
        """See `RowRing.write_rows`; priorities of rows that several copies have changed are those written last."""
        shift, first, changes = self.counter - written["first"], written["first"], written["priorities"]
        super().write_rows(written)
        rows = np.asarray(changes["rows"])
        self.apply_priorities({**changes, "rows": np.where(rows < first, rows, rows + shift)})

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
