"""From windows of n steps to rows: what lies under the n-step buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agilerl.components.frames import FRAME, NEXT_FRAME
from agilerl.components.row_store import Field, Path, Rows, plan
from agilerl.components.uniform import ReplayBuffer
from agilerl.components.windows import Finished, LaneWindows
from agilerl.errors import ConfigError, RunError, ShapeError

CUTS = ("truncated", "truncation")  # names under which a user's batch may say that a time limit ended the episode
FROM_LAST_STEP = {"next_obs", "done", "next_mask", *CUTS}  # all other fields are those of the first step
DISCOUNT: Path = ("discount",)


class NStepRows(ReplayBuffer):
    """A replay buffer whose rows are made from the windows of its lanes; see `MultiStepReplayBuffer`.

    Args:
        max_size, device, dtype, seed: as for `ReplayBuffer`.
        n_step: steps of a whole window. gamma: discount per step.
    """

    def __init__(
        self,
        max_size: int,
        n_step: int,
        gamma: float,
        device: str | torch.device | None,
        dtype: torch.dtype,
        seed: int | None,
    ) -> None:
        if isinstance(n_step, bool) or not isinstance(n_step, int | np.integer) or n_step < 1:
            raise ConfigError(f"n_step must be a positive integer (steps per window); got {n_step!r}. fix: 3.")
        if not (math.isfinite(gamma) and 0 <= gamma <= 1):
            raise ConfigError(f"gamma must be in [0, 1] (discount per step); got {gamma}. fix: 0.99.")
        super().__init__(max_size, device=device, dtype=dtype, seed=seed)
        self.n_step, self.gamma = int(n_step), float(gamma)
        self._windows: LaneWindows | None = None
        self._finished: Finished | None = None  # of the last call
        self._earlier: tuple[Rows, np.ndarray] | None = None  # 1-step rows that the last call has given up; their lanes

    def _kept_fields(self) -> dict[Path, Field]:
        fields = super()._kept_fields()
        return {**fields, DISCOUNT: Field(DISCOUNT, (1,), self.dtype, True, (0, 1))} if fields else {}

    def _check(self, rows: Rows, in_lanes: bool) -> None:
        if DISCOUNT in rows:
            raise ShapeError("the field 'discount' is the buffer's own. fix: give yours another name.")
        for role in ("reward", "done"):
            values = rows.get((role,))
            if values is not None and values.shape[1:] not in ((), (1,)):
                raise ShapeError(f"n-step rows need one {role} each; got rows of shape {list(values.shape[1:])}.")
        super()._check(rows, in_lanes)

    def _make_windows(self, num_lanes: int) -> LaneWindows:
        assert self._fields is not None
        fields = tuple(self._fields.values())
        if self._frames is not None:
            shared = {(role, *part) for role in ("obs", "next_obs") for part in self._frames.fields}
            numbers = {path: np.zeros(0, np.int64) for path in (FRAME, NEXT_FRAME)}
            fields = (*(field for field in fields if field.path not in shared), *plan(numbers, self.dtype))
        return LaneWindows(self.n_step, self.gamma, fields, num_lanes)

    def _meet(self, num_lanes: int) -> int:
        """Be ready for a step of `num_lanes` lanes; returns the rows added because there were others before."""
        self._earlier, self._finished = None, None
        added = 0
        if self._windows is not None and self._windows.num_lanes != num_lanes:
            added = self._flush()
            rows = self._one_step_rows()
            self._earlier = None if rows is None else (rows, self._one_step_lanes())
            self._finished = None
            if self._frames is not None:
                for path in (FRAME, NEXT_FRAME):
                    self._frames.release(self._windows.rows[path].reshape(-1))
            self._windows = None
        if self._windows is None:
            self._windows = self._make_windows(num_lanes)
        return added

    def _take(self, rows: Rows, reward: np.ndarray, ended: np.ndarray, lanes: np.ndarray) -> int:
        """Checked, interned rows [k] of `lanes` [k] into the windows; reward and ended are [L]."""
        assert self._windows is not None
        if self._frames is not None:  # the ring of steps holds the references that the rows came with
            for path in (FRAME, NEXT_FRAME):
                self._frames.release(self._windows.upcoming(path, lanes))
        return self._keep(self._windows.push(rows, reward.reshape(-1)[lanes], ended[lanes], lanes))

    def _flush(self, lanes: np.ndarray | None = None) -> int:
        return 0 if self._windows is None else self._keep(self._windows.flush(lanes))

    def _keep(self, finished: Finished) -> int:
        """Add the rows of finished windows."""
        self._finished = finished
        if not len(finished):
            return 0
        assert self._windows is not None
        rows = {
            path: values[finished.last if path[0] in FROM_LAST_STEP else finished.first, finished.lane]
            for path, values in self._windows.rows.items()
        }
        rows[("reward",)] = finished.total.reshape(rows[("reward",)].shape)
        goes_on = rows[("done",)].reshape(-1) == 0
        rows[DISCOUNT] = self._windows.powers[finished.steps] * goes_on
        return self._append(rows)

    def _steps_at(self, places: np.ndarray, lanes: np.ndarray) -> Rows:
        """Single steps of `lanes` [k] at `places` [k] of their rings, with their images; scalars [k]."""
        assert self._windows is not None
        assert self._fields is not None
        rows: dict[Path, Any] = {path: values[places, lanes] for path, values in self._windows.rows.items()}
        if self._frames is not None:
            for path in (FRAME, NEXT_FRAME):
                rows[path] = rows[path][:, None]
            self._frames.expand(rows)
        return {path: v.cpu().numpy() if isinstance(v := rows[path], torch.Tensor) else v for path in self._fields}

    def _one_step_rows(self) -> Rows | None:
        """The 1-step transitions of the rows of the last call, in their order."""
        finished = self._finished
        now = None if not finished else self._steps_at(finished.first, finished.lane)
        if self._earlier is None:
            return now
        earlier = self._earlier[0]
        return earlier if now is None else {path: np.concatenate([v, now[path]]) for path, v in earlier.items()}

    def _one_step_lanes(self) -> np.ndarray:
        """[K] the lanes of `_one_step_rows`."""
        parts = [] if self._earlier is None else [self._earlier[1]]
        parts += [] if self._finished is None else [self._finished.lane]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def keep_rows(self, rows: np.ndarray) -> None:
        self._windows, self._finished, self._earlier = None, None, None  # open ones may hold what is lost
        super().keep_rows(rows)

    # -- state -------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        super().clear()
        self._windows, self._finished, self._earlier = None, None, None

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        """As `ReplayBuffer.state`, with the open windows."""
        open_windows = None if self._windows is None else self._windows.state()
        own = {"n_step": self.n_step, "gamma": self.gamma, "open": open_windows}
        return {**super().state(rows=rows), "windows": own}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """As `ReplayBuffer.load_state`; n_step and gamma must be the same, because the sums are what is kept.

        Raises:
            RunError: another `max_size`, `n_step` or `gamma`, or the state of a buffer without windows.
        """
        own = state.get("windows")
        if own is None:
            raise RunError("the saved buffer has no n-step windows. fix: load it into a ReplayBuffer.")
        for name in ("n_step", "gamma"):
            if own[name] != getattr(self, name):
                raise RunError(
                    f"the saved buffer has {name} {own[name]}, this one {getattr(self, name)}. fix: use the same."
                )
        super().load_state(state)
        self._windows, self._finished, self._earlier = None, None, None
        if own["open"] is not None:
            self._windows = self._make_windows(int(own["open"]["num_lanes"]))
            self._windows.load_state(own["open"])
