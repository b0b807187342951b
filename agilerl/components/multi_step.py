"""n-step replay: each row holds the rewards of up to n steps and the state after them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from agilerl.components.data import to_tensordict
from agilerl.components.n_step_rows import CUTS, NStepRows
from agilerl.components.older_dialect import ROLES
from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.components.row_store import Rows, put
from agilerl.errors import ShapeError


class MultiStepReplayBuffer(NStepRows):
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

    A window goes on from call to call, row l after row l. Where that is not so although no episode has ended (the
    environments were reset, another member's lanes follow) call `interrupt` first; a call with another number of lanes
    does that by itself.

    Args:
        max_size: rows.
        n_step: steps of a whole window, 1 or more.
        gamma: discount per step, in [0, 1]; the rewards are summed when a row is written.
        device, dtype, seed: as for `ReplayBuffer`.
        reward_key, done_key, ns_key: names in the batches given to `add`; the names that `ReplayBuffer` knows
            (`next_state`, `terminated`, `termination`, ...) are found without them.

    Raises:
        ConfigError: n_step or gamma out of range.
    """

    def __init__(
        self,
        max_size: int,
        n_step: int = 3,
        gamma: float = 0.99,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        reward_key: str = "reward",
        done_key: str = "done",
        ns_key: str = "next_obs",
        seed: int | None = None,
    ) -> None:
        super().__init__(max_size, n_step, gamma, device, dtype, seed)
        self.reward_key, self.done_key, self.ns_key = reward_key, done_key, ns_key

    # -- the engine's interface --------------------------------------------------------------------------------------

    def write(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        done: Any,
        mask: np.ndarray | None = None,
        next_mask: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        lanes: np.ndarray | None = None,
        obs_mask: np.ndarray | None = None,
    ) -> int:
        """Take one vector step into the windows, and add the rows of those that it finishes.

        Args:
            obs, action, reward, next_obs, done, mask, next_mask, obs_mask: as for `ReplayBuffer.write`. Rows where mask
                is False are in no window and end none.
            truncated: [L] bool, where a time limit cut the episode off; None: nowhere.
            lanes: must be None; a window needs every step of every lane.

        Returns:
            The number of rows added.
        """
        if lanes is not None:
            raise ShapeError("n-step rows are made of all lanes at once: lanes must be None. fix: give whole steps.")
        rows = self._step_rows(obs, action, reward, next_obs, done, next_mask, obs_mask)
        count = len(rows[("reward",)])
        cut = np.zeros(count, dtype=bool) if truncated is None else _flags("truncated", truncated, count)
        kept = np.arange(count) if mask is None else np.flatnonzero(mask)
        rewards = np.asarray(rows[("reward",)], dtype=np.float64)
        ended = _flags("done", rows[("done",)], count) | cut
        added = self._meet(count)
        return added + self._take(self._interned(rows, mask), rewards, ended, kept)

    def interrupt(self, lanes: np.ndarray | None = None) -> int:
        """End all open windows, or those of `lanes` [k], as truncated: they bootstrap from the last s' of their lanes.

        To be called when the environments were reset outside of an episode's end, and before other lanes follow.

        Returns:
            The number of rows added; `last_one_step` has their 1-step transitions.
        """
        self._earlier, self._finished = None, None
        return self._flush(lanes)

    def last_one_step(self) -> dict[str, Any] | None:
        """The 1-step transitions of the rows that the last `write`, `add` or `interrupt` added, in their order.

        Returns:
            Host arrays [K, ...] under the names of the arguments of `write` (dicts for Dict and Tuple spaces; `lanes`
            says whose they are), copies; None if there were none. To be fetched before the next call; not part of the
            state.
        """
        rows = self._one_step_rows()
        if rows is None:
            return None
        out: dict[str, Any] = {"lanes": self._one_step_lanes()}
        for path, values in rows.items():
            put(out, path, values)
        return out

    # -- published ---------------------------------------------------------------------------------------------------

    def add(self, data: Any, truncated: Any = None) -> Any:
        """Take one step of each lane (the rows of the batch) into the windows.

        Args:
            data: as for `ReplayBuffer.add`, with a reward, next observation and done for each row.
            truncated: [L] bool, where a time limit cut the episode off, as it cannot be told from `done`. A key
                `truncated` or `truncation` of the batch says the same.

        Returns:
            The 1-step transitions of the rows added here, a TensorDict [K] for a second buffer's `add`, or None as long
            as no window is finished.

        Raises:
            ShapeError: a needed field is missing, or the fields differ from those added before.
        """
        rows = self._step_of(data)
        count = len(rows[("reward",)])
        ended = _flags("done", rows[("done",)], count)
        for given in (truncated, *(rows.get((name,)) for name in CUTS)):
            if given is not None:
                ended = ended | _flags("truncated", given, count)
        reward = np.asarray(rows[("reward",)], dtype=np.float64)
        self._meet(count)
        rows = rows if self._frames is None else self._frames.intern_apart(rows)
        self._take(rows, reward, ended, np.arange(count))
        one_step = self._one_step_rows()
        return None if one_step is None else self._published(one_step)

    @property
    def n_step_buffer(self) -> deque[Any]:
        """The last steps that every lane has had since the last interrupt, oldest first, as TensorDicts [L]: copies."""
        steps: deque[Any] = deque(maxlen=self.n_step)
        if self._windows is not None:
            lanes = np.arange(self._windows.num_lanes)
            steps.extend(self._published(self._steps_at(places, lanes)) for places in self._windows.recent())
        return steps

    # -- inside ------------------------------------------------------------------------------------------------------

    def _published(self, rows: Rows) -> Any:
        """Rows [k] as a TensorDict under the user's names, scalars [k, 1]."""
        assert self._fields is not None
        data = {path: torch.from_numpy(v).reshape(len(v), *self._fields[path].shape) for path, v in rows.items()}
        return to_tensordict(self._named(data), [len(next(iter(rows.values())))], self.device)

    def _keys(self) -> tuple[tuple[str, str, str], ...]:
        """(engine's name of a field, user's name, argument that says so)."""
        return (
            ("reward", self.reward_key, "reward_key"),
            ("done", self.done_key, "done_key"),
            ("next_obs", self.ns_key, "ns_key"),
        )

    def _step_of(self, data: Any) -> Rows:
        """A batch as checked fields, with a reward, a next observation and done in it."""
        own = {key: role for role, key, _ in self._keys() if key != role}
        rows = self._batch_rows(data, {**ROLES, **own})
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


def _flags(name: str, values: Any, count: int) -> np.ndarray:
    """`values` as [count] bool."""
    values = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if values.size != count:
        raise ShapeError(f"{name} needs one value per lane: expected [{count}]; got {list(values.shape)}.")
    flags: np.ndarray = values.reshape(count) != 0
    return flags


class PrioritizedMultiStepReplayBuffer(PrioritizedReplayBuffer, MultiStepReplayBuffer):
    """Prioritised replay over n-step rows alone: one buffer instead of a prioritised and an n-step one.

    Args:
        max_size, n_step, gamma: as for `MultiStepReplayBuffer`.
        alpha, device, dtype, seed: as for `PrioritizedReplayBuffer`.
        keys: `reward_key`, `done_key`, `ns_key`.
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
