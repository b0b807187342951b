"""The replay buffer: uniform sampling, two published dialects, and an inner interface for the training engine.

Somewhat over 300 lines because the two published dialects are one class: both must see the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.data import Transition, to_tensordict, with_batch_axis
from agilerl.components.row_store import Path, Rows, RowStore, check_dtype, flatten, plan, put
from agilerl.errors import ConfigError, NotAvailableYetError, RunError, ShapeError, warn_once
from agilerl.rng import Purpose, resolve_seed, stream

# Names under which users keep the five fields -> the names that the engine reads.
ROLES = {"state": "obs", "observation": "obs", "next_state": "next_obs", "next_observation": "next_obs"}
ROLES |= {"terminated": "done", "termination": "done", "rewards": "reward", "actions": "action"}


class ReplayBuffer:
    """The last `max_size` transitions; sampling is uniform and with replacement (so any batch size is possible).

    Three interfaces to the same memory:

    * `add(TensorDict | Transition | dict)` and `sample(n)` -> TensorDict with the keys as added;
    * with `field_names`: `save_to_memory(*fields)` and `sample(n)` -> tuple of float tensors in that order;
    * for the engine: `write`, `sample_indices`, `gather`, without a TensorDict.

    Floating-point data are kept in `dtype`; integers, uint8 images and booleans keep theirs.

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
        size = max_size if max_size is not None else memory_size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError(f"max_size must be a positive integer (transitions kept); got {size!r}. fix: 100_000.")
        if field_names is not None:
            message = (
                "ReplayBuffer(memory_size=, field_names=) is the older form; use ReplayBuffer(max_size=) and add()."
            )
            warn_once("replay_buffer:field_names", message, DeprecationWarning)
        self.max_size = int(size)
        self.device = torch.device(device or "cpu")  # type: ignore[arg-type]
        self.dtype = check_dtype(dtype if isinstance(dtype, torch.dtype) else torch.float32)
        self.field_names = None if field_names is None else list(field_names)
        self.counter = 0
        self._rng = stream(resolve_seed(seed), Purpose.REPLAY)
        self._names: dict[str, str] = {}  # role -> the user's name for it
        self._store: RowStore | None = None
        self._size = 0
        self._position = 0

    # -- size --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        """Transitions in the buffer now; at most `max_size`. (`counter` is the number ever added.)"""
        return self._size

    @size.setter
    def size(self, value: int) -> None:
        if not 0 <= value <= self.max_size:
            raise ConfigError(f"size must be in 0..{self.max_size}; got {value}.")
        self._size = int(value)

    @property
    def is_full(self) -> bool:
        """Whether the next transition replaces the oldest one."""
        return self._size == self.max_size

    @property
    def initialized(self) -> bool:
        """Whether the fields are known: something has been added."""
        return self._store is not None

    @property
    def storage(self) -> Any:
        """The whole memory as a TensorDict of batch size [max_size]: views, unwritten rows too; None if new."""
        if self._store is None:
            return None
        return to_tensordict(self._named(self._store.views()), [self.max_size])

    def clear(self) -> None:
        """Forget everything, the fields too."""
        self._store, self._size, self._position, self.counter = None, 0, 0, 0
        self._names = {}

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
    ) -> int:
        """Add the rows of one vector step.

        Args:
            obs, next_obs: [L, ...] arrays (dicts and tuples of them for such spaces). `next_obs` is s' of the
                transition: the FINAL observation where the episode ended.
            action: [L] integers or [L, A].
            reward: [L].
            done: [L] terminated, not truncated: where the future is worth nothing.
            mask: [L] bool; rows where it is False are no transitions and are left out. None takes all.
            next_mask: [L, A] bool, the actions that are legal in `next_obs`; None: all. Kept if the first rows had one.

        Returns:
            The number of rows added.
        """
        rows: Rows = {}
        for name, value in zip(Transition.FIELDS, (obs, action, reward, next_obs, done), strict=True):
            flatten((name,), value, rows)
        kept = next((f for f in self._store.fields if f.path == ("next_mask",)), None) if self._store else None
        if next_mask is None and kept is not None:
            next_mask = np.ones((len(rows[("reward",)]), *kept.shape), dtype=bool)
        if next_mask is not None and (self._store is None or kept is not None):
            rows[("next_mask",)] = np.asarray(next_mask, dtype=bool)
        if mask is not None and not mask.all():
            rows = {path: values[mask] for path, values in rows.items()}
        return self._add(rows)

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
            next_mask: [..., B, A], non-zero where an action is legal in next_obs; only if it was stored.
        """
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to gather. fix: add transitions first.")
        data = self._store.gather(indices)
        out: dict[str, Any] = {}
        for field in self._store.fields:
            values, role = data[field.path], field.path[0]
            if role == "action" and not field.dtype.is_floating_point:
                values = values.long()
            elif field.columns is None and role in ("reward", "done"):
                values = values.to(self.dtype)
            is_number = role in ("reward", "done") or (role == "action" and not field.dtype.is_floating_point)
            is_single = field.shape == (1,) and (field.is_scalar or is_number)
            put(out, field.path, values.squeeze(-1) if is_single else values)
        return out

    # -- published: add and sample -----------------------------------------------------------------------------------

    def add(self, data: Any) -> None:
        """Add a batch: a TensorDict, a `Transition` or a (nested) dict whose leaves have a leading batch axis.

        Raises:
            ShapeError: no leading batch axis, or fields that differ from those added before.
        """
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
            role = ROLES.get(name, name)
            role = name if role in taken else role  # "state" beside "obs" is a field of its own
            taken.add(role)
            self._names.setdefault(role, name)
            flatten((role,), value, rows)
        self._add(rows)

    def sample(self, batch_size: int, return_idx: bool = False) -> Any:
        """A uniform sample, with replacement, as copies on the buffer's device.

        Returns:
            A TensorDict of batch size [batch_size] with the keys as added (and `idxs` [batch_size] with `return_idx`);
            with `field_names` a tuple of float tensors in their order (and the indices last). Scalars are [B, 1].
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size must be a positive integer (rows); got {batch_size}. fix: 64.")
        indices = self.sample_indices(self._rng, int(batch_size))
        assert self._store is not None
        data = self._store.gather(indices)
        idxs = torch.from_numpy(indices).to(self.device)
        if self.field_names is not None:
            named = self._named({path: values.to(self.dtype) for path, values in data.items()})
            fields = tuple(named[name] for name in self.field_names)
            return (*fields, idxs) if return_idx else fields
        restored = {field.path: data[field.path].to(field.dtype) for field in self._store.fields}
        named = self._named(restored)
        if return_idx:
            named["idxs"] = idxs
        return to_tensordict(named, [int(batch_size)])

    def save_to_memory(self, *fields: Any, is_vectorised: bool = False) -> None:
        """The older dialect: one transition, or one per environment, in the order of `field_names`."""
        if is_vectorised:
            self.save_to_memory_vect_envs(*fields)
        else:
            self.save_to_memory_single_env(*fields)

    def save_to_memory_single_env(self, *fields: Any) -> None:
        """The older dialect: one transition, without a batch axis."""
        self._save(with_batch_axis(fields))

    def save_to_memory_vect_envs(self, *fields: Any) -> None:
        """The older dialect: [L, ...] arrays, one row per environment."""
        self._save(fields)

    def _save(self, fields: Sequence[Any]) -> None:
        if self.field_names is None:
            raise ConfigError("save_to_memory() needs field_names. fix: ReplayBuffer(memory_size=, field_names=[...]).")
        if len(fields) != len(self.field_names):
            raise ShapeError(f"save_to_memory() takes {self.field_names}: got {len(fields)} values.")
        self.add(dict(zip(self.field_names, fields, strict=True)))

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Contents, counters and the generator of `sample` as nested dicts of tensors, numbers, strings; a copy."""
        rng: Any = self._rng.bit_generator.state
        return {
            "max_size": self.max_size,
            "counter": self.counter,
            "size": self._size,
            "position": self._position,
            "names": dict(self._names),
            "rng": {  # as text: the words have 128 bits
                **{key: str(value) for key, value in rng["state"].items()},
                **{key: str(rng[key]) for key in ("has_uint32", "uinteger")},
            },
            "rows": None if self._store is None else self._store.state(max(self._size, self._position)),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become the buffer that `state()` was taken from, to the bit; `max_size` must be the same.

        Raises:
            RunError: another `max_size`.
        """
        if state["max_size"] != self.max_size:
            raise RunError(
                f"the saved buffer has max_size {state['max_size']}, this one {self.max_size}. fix: make it as large."
            )
        rows = state["rows"]
        self._store = None if rows is None else RowStore.from_state(rows, self.max_size, self.dtype, self.device)
        self.counter, self._size, self._position = state["counter"], state["size"], state["position"]
        self._names = dict(state["names"])
        words = {key: int(value) for key, value in state["rng"].items()}
        self._rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "has_uint32": words.pop("has_uint32"),
            "uinteger": words.pop("uinteger"),
            "state": words,
        }

    # -- inside ------------------------------------------------------------------------------------------------------

    def _add(self, rows: Rows) -> int:
        if self._store is None:
            self._store = RowStore(plan(rows, self.dtype), self.max_size, self.dtype, self.device)
        count = added = self._store.check(rows)
        if count > self.max_size:  # only the last max_size would survive
            rows = {path: values[-self.max_size :] for path, values in rows.items()}
            self._position = (self._position + count - self.max_size) % self.max_size
            count = self.max_size
        first = min(count, self.max_size - self._position)
        if first == count:
            if count:
                self._store.write(self._position, rows)
        else:
            self._store.write(self._position, {path: values[:first] for path, values in rows.items()})
            self._store.write(0, {path: values[first:] for path, values in rows.items()})
        self._position = (self._position + count) % self.max_size
        self._size = min(self._size + count, self.max_size)
        self.counter += added
        return added

    def _named(self, data: Mapping[Path, Tensor]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        own = {ROLES.get(name, name): name for name in self.field_names or ()}
        for (role, *rest), values in data.items():
            put(out, (self._names.get(role, own.get(role, role)), *rest), values)
        return out


class PrioritizedReplayBuffer:
    """Prioritised replay; comes with the next release."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotAvailableYetError("PrioritizedReplayBuffer comes with the next release. fix: use ReplayBuffer.")


class MultiStepReplayBuffer:
    """n-step replay; comes with the next release."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotAvailableYetError("MultiStepReplayBuffer comes with the next release. fix: use ReplayBuffer.")
