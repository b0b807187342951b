"""Uniform replay: the published way in and out, and an inner interface for the training engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.data import Transition, to_tensordict
from agilerl.components.older_dialect import ROLES, OlderDialect, own_names, warn_of_field_names
from agilerl.components.ring import RowRing
from agilerl.components.row_store import Rows, flatten, put
from agilerl.errors import ConfigError, RunError, ShapeError
from agilerl.rng import Purpose, resolve_seed, stream


class ReplayBuffer(OlderDialect, RowRing):
    """The last `max_size` transitions; sampling is uniform and with replacement (so any batch size is possible).

    Three interfaces to the same memory:

    * `add(TensorDict | Transition | dict)` and `sample(n)` -> TensorDict with the keys as added;
    * with `field_names`: `save_to_memory(*fields)` and `sample(n)` -> tuple of float tensors in that order;
    * for the engine: `write`, `sample_indices`, `gather`, without a TensorDict.

    Floating-point data are kept in `dtype`; integers, uint8 images and booleans keep theirs.

    Memory per transition: small fields lie in one packed row, 4 bytes a number (in float32), with both observations.
    Images that come by `write` are kept once: one image and 16 bytes, and one image more per episode, per lane, and for
    each of the n steps of a lane that a `MultiStepReplayBuffer` has open. `add` knows no lanes: two images.
    `memory_bytes` is the sum.

    Args:
        max_size: transitions (published as `memory_size` in the older dialect).
        device: where the memory is and samples come out.
        dtype: of floating-point fields: float32, float64 or float16.
        field_names: the older dialect: names of the arguments of `save_to_memory`, in order.
        seed: of `sample`; None follows torch's seed.
    """

    def __init__(
        self,
        max_size: int | None = None,
        device: str | torch.device | Sequence[str] | None = "cpu",
        dtype: torch.dtype | str | torch.device | None = torch.float32,
        *,
        memory_size: int | None = None,
        field_names: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        if isinstance(device, list | tuple):  # ReplayBuffer(10_000, ["state", ...], device): the older order
            field_names, device = device, dtype if isinstance(dtype, str | torch.device) else "cpu"
            dtype = torch.float32
        super().__init__(
            max_size if max_size is not None else memory_size,
            torch.device(device or "cpu"),  # type: ignore[arg-type]
            dtype if isinstance(dtype, torch.dtype) else torch.float32,
        )
        self.field_names = warn_of_field_names(field_names)
        self._rng = stream(resolve_seed(seed), Purpose.REPLAY)

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
        """Add the rows of one vector step.

        An image is kept once for both transitions that it belongs to, as long as row l follows on row l of the call
        before; where it does not, nothing but memory is lost.

        Args:
            obs, next_obs: [L, ...] arrays (dicts and tuples of them for such spaces). `next_obs` is s' of the
                transition: the FINAL observation where the episode ended.
            action: [L] integers or [L, A].
            reward: [L].
            done: [L] terminated, not truncated: where the future is worth nothing.
            mask: [L] bool; rows where it is False are no transitions and are left out. None takes all.
            next_mask: [L, A] bool, the actions that are legal in `next_obs`; None: all. Kept if the first rows had one.
            truncated: [L] bool, where a time limit cut the episode off. A one-step transition bootstraps there as
                anywhere else, so it is not kept; `MultiStepReplayBuffer` needs it.
            lanes: [L] int64, whose rows they are, if not of lanes 0, 1, ...: only images kept once need it. A lane may
                come several times, in the order of its steps; lanes rise until the next steps of lanes begin.
            obs_mask: [L, A] bool, as `next_mask`, of `obs`.

        Returns:
            The number of rows added.
        """
        rows = self._interned(self._step_rows(obs, action, reward, next_obs, done, next_mask, obs_mask), mask, lanes)
        added = self._append(rows)
        self._release(rows)
        return added

    def interrupt(self, lanes: np.ndarray | None = None) -> int:
        """The lanes do not go on where they were: of no concern here; 0 rows added (see `MultiStepReplayBuffer`)."""
        return 0

    def _step_rows(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        done: Any,
        next_mask: np.ndarray | None,
        obs_mask: np.ndarray | None = None,
    ) -> Rows:
        """The checked fields [L, ...] of one vector step."""
        rows: Rows = {}
        for name, value in zip(Transition.FIELDS, (obs, action, reward, next_obs, done), strict=True):
            if type(value) is np.ndarray and value.ndim:
                rows[name,] = value
            else:
                flatten((name,), value, rows)
        for name, legal in (("next_mask", next_mask), ("obs_mask", obs_mask)):
            kept = None if self._fields is None else self._fields.get((name,))
            if legal is None and kept is not None:
                legal = np.ones((len(rows[("reward",)]), *kept.shape), dtype=bool)
            if legal is not None and (self._fields is None or kept is not None):
                rows[(name,)] = np.asarray(legal, dtype=bool)
        self._check(rows, in_lanes=True)
        return rows

    def _interned(self, rows: Rows, mask: np.ndarray | None, lanes: np.ndarray | None = None) -> Rows:
        """The rows that are transitions, with frame numbers instead of images that are kept once."""
        mask = None if mask is None or mask.all() else mask
        if self._frames is not None:
            return self._frames.intern(rows, mask, lanes)
        return rows if mask is None else {path: values[mask] for path, values in rows.items()}

    def sample_indices(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        """Row numbers `shape` int64, uniform over the rows in the buffer, with replacement.

        Raises:
            RunError: the buffer is empty.
        """
        if self._size == 0:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        return rng.integers(0, self._size, shape, dtype=np.int64)

    def gather(self, indices: np.ndarray | Tensor) -> dict[str, Any]:
        """The transitions `indices` [..., B] as tensors on the buffer's device; no memory is shared with the buffer.

        Returns:
            obs, next_obs: [..., B, O] (or their own shape; dicts for Dict and Tuple spaces).
            action: [..., B] int64 for discrete actions, else [..., B, A].
            reward, done: [..., B] in the buffer's dtype.
            next_mask, obs_mask: [..., B, A], non-zero where an action is legal in next_obs, and in obs; each only if it
                was stored.
        """
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to gather. fix: add transitions first.")
        data, out = self._gather(indices), dict[str, Any]()
        for field in self._kept_fields().values():
            values, role = data[field.path], field.path[0]
            if role == "action" and not field.dtype.is_floating_point:
                values = values.long()
            elif field.columns is None and role in ("reward", "done"):
                values = values.to(self.dtype)
            is_number = role in ("reward", "done") or (role == "action" and not field.dtype.is_floating_point)
            is_single = field.shape == (1,) and (field.is_scalar or is_number)
            values = values.squeeze(-1) if is_single else values
            if len(field.path) == 1:
                out[role] = values
            else:
                put(out, field.path, values)
        return out

    # -- published: add and sample -----------------------------------------------------------------------------------

    def add(self, data: Any) -> None:
        """Add a batch: a TensorDict, a `Transition` or a (nested) dict whose leaves have a leading batch axis.

        The rows of a batch need not follow on one another, so both observations of each are kept.

        Raises:
            ShapeError: no leading batch axis, or fields that differ from those added before.
        """
        rows = self._batch_rows(data, ROLES)
        self._check(rows, in_lanes=False)
        rows = rows if self._frames is None else self._frames.intern_apart(rows)
        self._append(rows)
        self._release(rows)

    def _batch_rows(self, data: Any, roles: Mapping[str, str]) -> Rows:
        """The fields of a batch, under the names that the engine reads: `roles` says which user's name is which."""
        batch = data.batch_size if hasattr(data, "batch_size") else None
        if batch is not None and len(batch) == 0:
            raise ShapeError("add() needs a leading batch axis; got batch_size []. fix: add(transition.unsqueeze(0)).")
        if isinstance(data, Transition):
            data = data.to_dict()
        elif not isinstance(data, Mapping):
            data = data.to_dict()  # TensorDict and tensor classes
        rows: Rows = {}
        taken = set(data.keys())
        for name, value in data.items():
            role = roles.get(name, name)
            role = name if role in taken else role  # "state" beside "obs" is a field of its own
            taken.add(role)
            self._names.setdefault(role, name)
            flatten((role,), value, rows)
        return rows

    def sample(self, batch_size: int, return_idx: bool = False) -> Any:
        """A uniform sample, with replacement, as copies on the buffer's device.

        Returns:
            A TensorDict of batch size [batch_size] with the keys as added (and `idxs` [batch_size] with `return_idx`);
            with `field_names` a tuple of float tensors in their order (and the indices last). Scalars are [B, 1].
        """
        indices = self._draw(batch_size)
        return self._batch(indices, torch.from_numpy(indices).to(self.device) if return_idx else None)

    def sample_from_indices(self, idxs: Any) -> Any:
        """The rows `idxs` ([B] or [B, 1], integers) as `sample` gives them.

        Raises:
            ShapeError: an index outside of the rows in the buffer.
        """
        return self._batch(self._live_rows(idxs).reshape(-1), None)

    def _draw(self, batch_size: int) -> np.ndarray:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be a positive integer (rows); got {batch_size}. fix: 64.")
        return self.sample_indices(self._rng, int(batch_size))

    def _batch(self, indices: np.ndarray, idxs: Tensor | None) -> Any:
        """Rows `indices` [B] in the published dialect of this buffer, with `idxs` if they are given."""
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        data = self._gather(indices)
        if self.field_names is not None:
            named = self._named({path: values.to(self.dtype) for path, values in data.items()})
            fields = tuple(named[name] for name in self.field_names)
            return fields if idxs is None else (*fields, idxs)
        named = self._named({field.path: data[field.path].to(field.dtype) for field in self._kept_fields().values()})
        if idxs is not None:
            named["idxs"] = idxs
        return to_tensordict(named, [len(indices)])

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        """Contents, counters and the generator of `sample` as nested dicts of tensors, numbers, strings; a copy."""
        rng: Any = self._rng.bit_generator.state
        words = {  # as text: the words have 128 bits
            **{key: str(value) for key, value in rng["state"].items()},
            **{key: str(rng[key]) for key in ("has_uint32", "uinteger")},
        }
        return {**super().state(rows=rows), "rng": words}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        words = {key: int(value) for key, value in state["rng"].items()}
        self._rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "has_uint32": words.pop("has_uint32"),
            "uinteger": words.pop("uinteger"),
            "state": words,
        }

    def _name(self, role: str) -> str:
        return self._names.get(role, own_names(self.field_names).get(role, role))
