"""n-step replay: each row holds the rewards of up to n steps and the state after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agilerl.components.data import to_tensordict
from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.components.ring import Part, RowRing
from agilerl.components.rows import Field, Path, Rows, host_array, plan, put
from agilerl.components.storage import FRAME, NEXT_FRAME
from agilerl.components.uniform import ROLES, ReplayBuffer, is_team
from agilerl.components.windows import Finished, LaneWindows
from agilerl.core.ranges import Count, Fraction
from agilerl.core.tree import Tree
from agilerl.errors import ShapeError

CUTS = ("truncated", "truncation")  # keys by which a user's batch may mark truncation
FROM_LAST_STEP = {"next_obs", "done", "next_mask", *CUTS}  # all other fields are those of the first step
DISCOUNT: Path = ("discount",)


class NStep(Part):
    """Accumulator of n-step rows: the open windows of all lanes.

    Attributes:
        windows: None before the first step. finished: windows completed by the last call.
        earlier: 1-step rows of windows that it interrupted before, of a different number of lanes.
    """

    name, label, settings = "windows", "n-step windows", ("n_step", "gamma")

    def __init__(self, n_step: int, gamma: float) -> None:
        self.n_step, self.gamma = n_step, gamma
        self.windows: LaneWindows | None = None
        self.begin()

    def begin(self) -> None:
        """Start a call, which has not completed a window yet."""
        self.finished: Finished | None = None
        self.earlier: Rows | None = None

    def clear(self, ring: RowRing) -> None:
        self.windows = None
        self.begin()

    def keep(self, ring: RowRing, places: np.ndarray) -> None:
        self.clear(ring)  # open windows may hold what is lost

    def open(self, ring: RowRing, num_lanes: int) -> LaneWindows:
        """Create empty windows over `num_lanes` lanes."""
        fields = ring.fields
        agents = fields["reward",].shape[0] if is_team(fields) else 0
        if ring.frames is not None:
            shared = {(role, *part) for role in ("obs", "next_obs") for part in ring.frames.fields}
            numbers = {path: np.zeros(0, np.int64) for path in (FRAME, NEXT_FRAME)}
            rest = {path: field for path, field in fields.items() if path not in shared}
            fields = rest | {field.path: field for field in plan(numbers, ring.dtype)}
        self.windows = LaneWindows(self.n_step, self.gamma, tuple(fields.values()), num_lanes, agents)
        return self.windows

    def state(self, ring: RowRing) -> dict[str, Any]:
        return {**super().state(ring), "open": None if self.windows is None else self.windows.state()}

    def load_state(self, ring: RowRing, state: Mapping[str, Any]) -> None:
        self.clear(ring)
        if state["open"] is not None:
            self.open(ring, int(state["open"]["num_lanes"])).load_state(state["open"])


class MultiStepReplayBuffer(ReplayBuffer):
    """Replay of n-step transitions (Sutton and Barto 2018, equation 7.1; Hessel et al. 2018, arXiv:1710.02298).

    A row that begins at step t of a lane holds

        reward R = sum_{j=0}^{k-1} gamma^j r_{t+j},   next_obs = s' of step t+k-1,   discount = gamma^k (1 - terminated)

    so that the target is R + discount * v(next_obs). k is n, or less where the lane's episode ends before: no window
    reaches past an end. A window that ends by truncation bootstraps from the FINAL observation (done = 0), one that
    ends by termination does not (done = 1, discount = 0).

    Every 1-step transition gets exactly one row. The 1-step transitions of the rows just added, in the same order, are
    what `add` returns and what `last_one_step` gives: put into a second buffer of the same `max_size`, its row i and
    row i here begin with the same observation and action. In the training loop:

        n_step_memory.write(obs, action, reward, next_obs, done, mask, next_mask, truncated)
        rows = n_step_memory.last_one_step()
        if rows is not None:
            memory.write(**rows)

    With several agents each has its own R, up to the step that ends it, and its own discount, which is 0 if a step of
    the window has ended it. A window ends for all agents if one of them is truncated: v(next_obs) refers to a single
    time.

    A window continues from call to call, row l after row l. If it does not although no episode has ended (the
    environments were reset, another member's lanes follow), call `interrupt` first; a call with a different number of
    lanes does that itself.

    Args:
        max_size: rows. n_step: steps of a whole window, 1 or more.
        gamma: discount per step, in [0, 1]; rewards are summed when a row is written.
        device, dtype, seed: see `ReplayBuffer`.
        reward_key, done_key, ns_key: names in the batches given to `add`; the names that `ReplayBuffer` knows
            (`next_state`, `terminated`, `termination`, ...) are recognised without them.

    Raises:
        ConfigError: n_step or gamma out of range.
    """

    _undone = (*ReplayBuffer._undone, "_steps")

    def __init__(
        self,
        max_size: int,
        n_step: Count = 3,
        gamma: Fraction = 0.99,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        reward_key: str = "reward",
        done_key: str = "done",
        ns_key: str = "next_obs",
        seed: int | None = None,
    ) -> None:
        super().__init__(max_size, device=device, dtype=dtype, seed=seed)
        self.n_step, self.gamma = int(n_step), float(gamma)
        self._steps = NStep(self.n_step, self.gamma)
        self._parts.append(self._steps)
        self.reward_key, self.done_key, self.ns_key = reward_key, done_key, ns_key

    # -- the engine's interface --------------------------------------------------------------------------------------

    def _add_step(
        self, rows: Rows, mask: np.ndarray | None, truncated: np.ndarray | None, lanes: np.ndarray | None
    ) -> int:
        """Add one vector step to the windows, and store the rows of finished ones.

        Rows where `mask` is False are in no window and end none. `lanes` must be None: a window needs every step.
        """
        if lanes is not None:
            raise ShapeError("n-step rows need all lanes at once: lanes must be None. fix: write whole steps.")
        count = len(rows[("reward",)])
        lane_rows = np.arange(count) if mask is None else np.flatnonzero(mask)
        if self.is_of_teams:  # other agents continue
            cuts = np.zeros((count, 1), bool) if truncated is None else np.asarray(truncated, bool).reshape(count, -1)
            is_end: np.ndarray = np.any(cuts, axis=1) | np.all(rows["done",] != 0, axis=1)
        else:
            cut = np.zeros(count, dtype=bool) if truncated is None else lane_flags("truncated", truncated, count)
            is_end = lane_flags("done", rows[("done",)], count) | cut
        added = self._meet(count)
        return added + self._take(self._interned(rows, mask), is_end[lane_rows], lane_rows)

    def interrupt(self, lanes: np.ndarray | None = None) -> int:
        """End all open windows, or those of `lanes` [k], as truncated: they bootstrap from the last s' of their lanes.

        Call it when the environments were reset outside of an episode's end, and before other lanes follow. Returns the
        number of rows added; `last_one_step` returns their 1-step transitions.
        """
        self._steps.begin()
        return self._flush(lanes)

    def last_one_step(self) -> dict[str, Any] | None:
        """Return the 1-step transitions of the rows that the last `write`, `add` or `interrupt` added, in order.

        Returns:
            Copied host arrays [K, ...] under the argument names of `write` (dicts for Dict and Tuple spaces; `lanes`
            gives their lanes); None if there were none. Call it before the next write; not part of the state.
        """
        rows = self._one_step()
        if rows is None:
            return None
        out: dict[str, Any] = {}
        for path, values in rows.items():
            put(out, path, values)
        return out

    # -- published ---------------------------------------------------------------------------------------------------

    def add(self, data: object, truncated: Tree | None = None) -> Any:
        """Add one step of each lane (the rows of the batch) to the windows.

        Args:
            data: see `ReplayBuffer.add`; needs a reward, next observation and done for each row.
            truncated: [L] bool, where a time limit truncated the episode, which `done` does not show. Alternatively a
                key `truncated` or `truncation` of the batch.

        Returns:
            The 1-step transitions of the rows added here, a TensorDict [K] for a second buffer's `add`, or None if no
            window is finished.

        Raises:
            ShapeError: a required field is missing, or the fields differ from those added before.
        """
        rows = self._step_of(data)
        count = len(rows[("reward",)])
        is_end = lane_flags("done", rows[("done",)], count)
        for flags in (truncated, *(rows.get((name,)) for name in CUTS)):
            if flags is not None:
                is_end = is_end | lane_flags("truncated", flags, count)
        self._meet(count)
        rows = rows if self.frames is None else self.frames.intern_apart(rows)
        self._take(rows, is_end, np.arange(count))
        one_step = self._one_step()
        return None if one_step is None else self._published(one_step)

    @property
    def n_step_buffer(self) -> deque[Any]:
        """Copies of the last steps common to all lanes since the last interrupt, oldest first, as TensorDicts [L]."""
        steps, windows = deque[Any](maxlen=self.n_step), self._steps.windows
        if windows is not None:
            lanes = np.arange(windows.num_lanes)
            steps.extend(self._published(self._steps_at(places, lanes)) for places in windows.recent())
        return steps

    # -- inside ------------------------------------------------------------------------------------------------------

    def _kept_fields(self) -> dict[Path, Field]:
        fields = super()._kept_fields()
        if not fields:
            return {}
        agents = fields["reward",].shape[0] if self.is_of_teams else 0
        shape, width = ((agents,), agents) if agents else ((1,), 1)
        return {**fields, DISCOUNT: Field(DISCOUNT, shape, self.dtype, not agents, (0, width))}

    def _check(self, rows: Rows, in_lanes: bool) -> None:
        if DISCOUNT in rows:
            raise ShapeError("the field name 'discount' is reserved. fix: another name.")
        for role in ("reward", "done"):
            values = rows.get((role,))
            if values is not None and values.shape[1:] not in ((), (1,)) and not is_team(rows):
                raise ShapeError(f"n-step rows need one {role} each; got rows of shape {list(values.shape[1:])}.")
        super()._check(rows, in_lanes)

    def _meet(self, num_lanes: int) -> int:
        """Prepare for a step of `num_lanes` lanes; return the rows added by interrupting previous ones."""
        steps, added = self._steps, 0
        steps.begin()
        if steps.windows is not None and steps.windows.num_lanes != num_lanes:
            added = self._flush()
            steps.earlier, steps.finished = self._one_step(), None
            if self.frames is not None:
                for path in (FRAME, NEXT_FRAME):
                    self.frames.release(steps.windows.rows[path].reshape(-1))
            steps.windows = None
        if steps.windows is None:
            steps.open(self, num_lanes)
        return added

    def _take(self, rows: Rows, is_end: np.ndarray, lanes: np.ndarray) -> int:
        """Push checked, interned rows [k] of `lanes` [k] into the windows."""
        windows, reward = self._steps.windows, np.asarray(rows["reward",], dtype=np.float64)
        assert windows is not None
        if self.frames is not None:  # the ring of steps holds the rows' references
            for path in (FRAME, NEXT_FRAME):
                self.frames.release(windows.upcoming(path, lanes))
        if self.is_of_teams:
            return self._keep(windows.push(rows, reward, is_end, lanes, np.asarray(rows["done",]) != 0))
        return self._keep(windows.push(rows, reward.reshape(-1), is_end, lanes))

    def _flush(self, lanes: np.ndarray | None = None) -> int:
        return 0 if self._steps.windows is None else self._keep(self._steps.windows.flush(lanes))

    def _keep(self, finished: Finished) -> int:
        """Store the rows of finished windows."""
        self._steps.finished = finished
        if not len(finished):
            return 0
        windows = self._steps.windows
        assert windows is not None
        rows = {
            path: values[finished.last if path[0] in FROM_LAST_STEP else finished.first, finished.lane]
            for path, values in windows.rows.items()
        }
        rows[("reward",)] = finished.total.reshape(rows[("reward",)].shape)
        if finished.ended is None:
            rows[DISCOUNT] = windows.powers[finished.steps] * (rows[("done",)].reshape(-1) == 0)
        else:
            rows["done",] = (finished.ended | (rows["done",] != 0)).astype(rows["done",].dtype)
            rows[DISCOUNT] = windows.powers[finished.steps][:, None] * (rows["done",] == 0)
        return self._append(rows)

    def _steps_at(self, places: np.ndarray, lanes: np.ndarray) -> Rows:
        """Return single steps of `lanes` [k] at `places` [k] of their rings, with their images; scalars [k]."""
        assert self._steps.windows is not None
        rows: dict[Path, Any] = {path: values[places, lanes] for path, values in self._steps.windows.rows.items()}
        if self.frames is not None:
            for path in (FRAME, NEXT_FRAME):
                rows[path] = rows[path][:, None]
            self.frames.expand(rows)
        return {path: v.cpu().numpy() if isinstance(v := rows[path], torch.Tensor) else v for path in self.fields}

    def _one_step(self) -> Rows | None:
        """Return the 1-step transitions of the rows of the last call, in order, after their `lanes`."""
        finished, earlier = self._steps.finished, self._steps.earlier
        if not finished:
            return earlier
        now: Rows = {("lanes",): finished.lane, **self._steps_at(finished.first, finished.lane)}
        return now if earlier is None else {path: np.concatenate([v, now[path]]) for path, v in earlier.items()}

    def _published(self, rows: Rows) -> Any:
        """Return rows [k] as a TensorDict under the user's names, scalars [k, 1]."""
        data = {path: torch.from_numpy(rows[path]).reshape(-1, *field.shape) for path, field in self.fields.items()}
        return to_tensordict(self._named(data), batch_size=[len(rows["reward",])], device=self.device)

    def _keys(self) -> tuple[tuple[str, str, str], ...]:
        """Return (internal field name, user's name, argument that sets it)."""
        arguments = {"reward": "reward_key", "done": "done_key", "next_obs": "ns_key"}
        return tuple((role, vars(self)[argument], argument) for role, argument in arguments.items())

    def _step_of(self, data: object) -> Rows:
        """Convert a batch to checked fields, with a reward, a next observation and done."""
        custom_roles = {key: role for role, key, _ in self._keys() if key != role}
        rows = self._batch_rows(data, {**ROLES, **custom_roles})
        names = sorted({self._name(path[0]) for path in rows})
        for role, key, argument in self._keys():
            if not any(path[0] == role for path in rows):
                raise ShapeError(f"n-step rows need a field {role!r}; got {names}. fix: pass {argument}=<its name>.")
            if key != role and self._name(role) != key:
                raise ShapeError(
                    f"{argument}={key!r}: expected a field of that name and none that is called {role!r}; got {names}. "
                    f"fix: {argument}={role!r}, or rename the other."
                )
        self._check(rows, in_lanes=False)
        return rows


def lane_flags(name: str, values: Tree, count: int) -> np.ndarray:
    """Return `values` as [count] bool."""
    values = host_array(values)
    if values.size != count:
        raise ShapeError(f"{name} needs one value per lane: expected [{count}]; got {list(values.shape)}.")
    return np.asarray(values.reshape(count) != 0)


class PrioritizedMultiStepReplayBuffer(PrioritizedReplayBuffer, MultiStepReplayBuffer):
    """Prioritised replay over n-step rows: one buffer instead of a prioritised and an n-step one.

    Args:
        max_size, n_step, gamma: see `MultiStepReplayBuffer`.
        alpha, device, dtype, seed: see `PrioritizedReplayBuffer`. keys: `reward_key`, `done_key`, `ns_key`.
    """

    def __init__(
        self,
        max_size: int,
        n_step: int = 3,
        gamma: float = 0.99,
        alpha: float = 0.6,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        seed: int | None = None,
        **keys: str,
    ) -> None:
        super().__init__(max_size, alpha, device, dtype, seed=seed, n_step=n_step, gamma=gamma, **keys)
