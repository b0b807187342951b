"""Uniform replay: the published interface, and an internal one for the training engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.data import Transition, to_tensordict, with_batch_axis
from agilerl.components.ring import Part, RowRing
from agilerl.components.rows import Path, Rows, check_distinct, flatten
from agilerl.core.ranges import Count
from agilerl.core.rng import Purpose, resolve_seed, stream
from agilerl.core.transfer import as_device
from agilerl.core.tree import Tree
from agilerl.envs.protocol import AGENTS
from agilerl.envs.returned import short
from agilerl.errors import ConfigError, RunError, ShapeError, warn_once

# Users' names of the five fields -> internal names.
ROLES = {"state": "obs", "observation": "obs", "next_state": "next_obs", "next_observation": "next_obs"}
ROLES |= {"terminated": "done", "termination": "done", "rewards": "reward", "actions": "action"}
_PATHS: list[Path] = [(name,) for name in Transition.FIELDS]
# Example of a batch of L rows, for messages.
_BATCH = "{'obs': ..., 'action': ..., 'reward': ..., 'next_obs': ..., 'done': ...}"


class Draws(Part):
    """Generator of `sample`."""

    name, label, settings = "rng", "generator", ()
    follows_rows = False

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def state(self, ring: RowRing) -> dict[str, Any]:
        state: Any = self.rng.bit_generator.state
        words = {**state["state"], **{key: state[key] for key in ("has_uint32", "uinteger")}}
        return {key: str(word) for key, word in words.items()}  # of 128 bits

    def load_state(self, ring: RowRing, state: Mapping[str, Any]) -> None:
        words = {key: int(value) for key, value in state.items()}
        counters = {key: words.pop(key) for key in ("has_uint32", "uinteger")}
        self.rng.bit_generator.state = {"bit_generator": "PCG64", "state": words, **counters}


class ReplayBuffer(RowRing):
    """The last `max_size` transitions, sampled uniformly with replacement (so any batch size is possible).

    Three interfaces to the same memory:

    * `add(TensorDict | Transition | dict)` and `sample(n)` -> TensorDict with the keys as added;
    * with `field_names`: `save_to_memory(*fields)` and `sample(n)` -> tuple of float tensors in that order;
    * for the engine: `write`, `sample_indices`, `gather`, without a TensorDict.

    Floating-point data are stored in `dtype`; integers, uint8 images and booleans keep theirs.

    Memory per transition: small fields share one packed row, 4 bytes per number (in float32), with both observations.
    Images added by `write` are stored once: one image and 16 bytes, and one more image per episode, per lane, and for
    each of the n steps of a lane that a `MultiStepReplayBuffer` has open. `add` has no lanes: two images.
    `memory_bytes` is the sum.

    Args:
        max_size: transitions (published as `memory_size` in the older interface).
        device: device of the memory and of samples.
        dtype: dtype of floating-point fields: float32, float64 or float16.
        field_names: older interface: argument names of `save_to_memory`, in order.
        seed: seed of `sample`; None follows torch's seed.
    """

    _undone = (*RowRing._undone, "_draws", "_sampler")
    _sampler: Any = None  # of rows with unequal probability

    def __init__(
        self,
        max_size: Count | None = None,
        device: str | torch.device | Sequence[str] | None = "cpu",
        dtype: torch.dtype | str | torch.device | None = torch.float32,
        *,
        memory_size: Count | None = None,
        field_names: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        if isinstance(device, list | tuple):  # ReplayBuffer(10_000, ["state", ...], device): the older order
            field_names, device = device, dtype if isinstance(dtype, str | torch.device) else "cpu"
            dtype = torch.float32
        super().__init__(
            max_size if max_size is not None else memory_size,
            as_device(device or "cpu"),
            dtype if isinstance(dtype, torch.dtype) else torch.float32,
        )
        self.field_names = None if field_names is None else list(field_names)
        check_distinct("field_names", [ROLES.get(name, name) for name in self.field_names or ()])
        if field_names is not None:
            message = "ReplayBuffer(memory_size=, field_names=) is the older form; use max_size= and add()."
            warn_once("replay_buffer:field_names", message, DeprecationWarning)
        self._draws, self._has_seed = Draws(stream(resolve_seed(seed), Purpose.REPLAY)), seed is not None
        self._parts.append(self._draws)

    # -- the engine's interface --------------------------------------------------------------------------------------

    def write(
        self,
        obs: Tree,
        action: Tree,
        reward: Tree,
        next_obs: Tree,
        done: Tree,
        mask: np.ndarray | None = None,
        next_mask: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        lanes: np.ndarray | None = None,
        obs_mask: np.ndarray | None = None,
    ) -> int:
        """Add the rows of one vector step.

        An image is stored once for both transitions that contain it, as long as row l continues row l of the previous
        call; otherwise only memory is wasted.

        Args:
            obs, next_obs: [L, ...] arrays (dicts and tuples of them for such spaces). `next_obs` is s' of the
                transition: the FINAL observation where the episode ended.
            action: [L] integers or [L, A]. reward: [L], for several agents [L, M].
            done: [L] terminated, not truncated: no bootstrapping. For several agents [L, M].
            mask: [L] bool; rows where it is False are not transitions and are dropped. None keeps all.
            next_mask: [L, A] bool, legal actions in `next_obs`; None: all. Stored if the first rows had one; otherwise
                a warning is issued.
            truncated: [L] bool, where a time limit truncated the episode. One-step transitions bootstrap there as
                usual, so it is not stored; `MultiStepReplayBuffer` needs it.
            lanes: [L] int64, lane of each row, if not 0, 1, ...: only needed for deduplicated images. A lane may occur
                several times, in the order of its steps; lanes increase until the next steps of lanes begin.
            obs_mask: [L, A] bool, like `next_mask`, for `obs`.

        Returns:
            The number of rows added.
        """
        rows = self._step_rows((obs, action, reward, next_obs, done), next_mask, obs_mask)
        return self._add_step(rows, mask, truncated, lanes)

    def _add_step(
        self, rows: Rows, mask: np.ndarray | None, truncated: np.ndarray | None, lanes: np.ndarray | None
    ) -> int:
        """Implement `write` for checked rows."""
        rows = self._interned(rows, mask, lanes)
        added = self._append(rows)
        self._release(rows)
        return added

    @property
    def is_of_teams(self) -> bool:
        """Whether the rows are multi-agent transitions, with a reward and an end for each agent."""
        return is_team(self.fields)

    def interrupt(self, lanes: np.ndarray | None = None) -> int:
        """No-op for one-step replay; returns 0 rows added (see `MultiStepReplayBuffer`)."""
        return 0

    def _step_rows(
        self, transition: tuple[Any, ...], next_mask: np.ndarray | None, obs_mask: np.ndarray | None
    ) -> Rows:
        """Return the checked fields [L, ...] of one vector step, given its `Transition.FIELDS`."""
        if all(type(value) is np.ndarray and value.ndim for value in transition):
            rows = dict(zip(_PATHS, transition, strict=True))
        else:
            rows = flatten(zip(Transition.FIELDS, transition, strict=True))
        for name, legal in (("next_mask", next_mask), ("obs_mask", obs_mask)):
            field = self.fields.get((name,))
            if legal is None and field is not None:
                legal = np.ones((len(rows[("reward",)]), *field.shape), dtype=bool)
            if legal is not None and (field is not None or not self.fields):
                rows[(name,)] = np.asarray(legal, dtype=bool)
            elif legal is not None and not np.all(legal):
                warn_once(
                    "late masks",
                    "masks of legal actions are not kept: the first rows of this replay buffer came without one, so "
                    "updates count every action as legal. fix: info['action_mask'] from reset() on, ones where all "
                    "actions are legal.",
                )
        self._check(rows, in_lanes=True)
        return rows

    def _interned(self, rows: Rows, mask: np.ndarray | None, lanes: np.ndarray | None = None) -> Rows:
        """Return the rows that are transitions, with frame numbers instead of deduplicated images."""
        mask = None if mask is None or mask.all() else mask
        if self.frames is not None:
            return self.frames.intern(rows, mask, lanes)
        return rows if mask is None else {path: values[mask] for path, values in rows.items()}

    def follow_seed(self, seed: int) -> None:
        """Draw `sample` from the seed of a run from here on, unless the memory was created with a seed."""
        if not self._has_seed:
            self._draws.rng = stream(seed, Purpose.REPLAY)

    def sample_indices(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        """Sample row numbers `shape` int64 with replacement, uniformly or by priority; RunError if empty."""
        if self._size == 0:
            raise RunError("the replay buffer is empty: nothing to sample. fix: add transitions first.")
        if self._sampler is None:
            return rng.integers(0, self._size, shape, dtype=np.int64)
        indices: np.ndarray = self._sampler.draw(rng, shape)
        return indices

    def gather(self, indices: np.ndarray | Tensor) -> dict[str, Any]:
        """Return the transitions `indices` [..., B] as tensors on the buffer's device, without shared memory.

        Returns:
            obs, next_obs: [..., B, O] (or their own shape; dicts for Dict and Tuple spaces).
            action: [..., B] int64 for discrete actions, else [..., B, A].
            reward, done: [..., B] in the buffer's dtype, for several agents [..., B, M].
            next_mask, obs_mask: [..., B, A], non-zero for legal actions in next_obs and in obs; each only if it was
                stored.
        """
        if self._store is None:
            raise RunError("the replay buffer is empty: nothing to gather. fix: add transitions first.")
        data, out = self._gather(indices), dict[str, Any]()
        for path, field in self._kept_fields().items():
            values, role, is_number = data[path], path[0], field.is_scalar
            if role == "action" and not field.dtype.is_floating_point:
                values, is_number = values.long(), True
            elif role in ("reward", "done"):
                values = values if field.columns else values.to(self.dtype)
                is_number = is_number or (field.shape == (1,) and not self.is_of_teams)
            into = out
            for key in path[:-1]:
                into = into.setdefault(key, {})
            into[path[-1]] = values.squeeze(-1) if is_number and field.shape == (1,) else values
        return out

    # -- published: add and sample -----------------------------------------------------------------------------------

    def add(self, data: Any) -> None:
        """Add a batch: a TensorDict, a `Transition` or a (nested) dict whose leaves have a leading batch axis.

        The rows of a batch need not be consecutive, so both observations of each are stored. ShapeError: no leading
        batch axis, or fields that differ from those added before.
        """
        rows = self._batch_rows(data, ROLES)
        self._check(rows, in_lanes=False)
        rows = rows if self.frames is None else self.frames.intern_apart(rows)
        self._append(rows)
        self._release(rows)

    def _batch_rows(self, data: Any, roles: Mapping[str, str]) -> Rows:
        """Return the fields of a batch under internal names; `roles` maps the user's names."""
        batch = data.batch_size if hasattr(data, "batch_size") else None
        if batch is not None and len(batch) == 0:
            raise ShapeError("add() needs a leading batch axis; got batch_size []. fix: add(transition.unsqueeze(0)).")
        if not isinstance(data, Mapping):
            if not hasattr(data, "to_dict"):
                raise ShapeError(f"add() takes a TensorDict, or a dict; got {short(data)}. fix: add({_BATCH}).")
            data = data.to_dict()  # Transition, TensorDict or tensor class
        named = {}
        taken = set(data.keys())
        for name, value in data.items():
            role = roles.get(name, name)
            role = name if role in taken else role  # "state" beside "obs" is a separate field
            taken.add(role)
            self._names.setdefault(role, name)
            named[role] = value
        rows = flatten(named.items())
        if not rows:
            raise ShapeError(f"add() needs a batch with fields; got one without any. fix: add({_BATCH}).")
        return rows

    def sample(self, batch_size: int, return_idx: bool = False) -> Any:
        """Sample uniformly with replacement; copies on the buffer's device.

        Returns:
            A TensorDict of batch size [batch_size] with the keys as added (and `idxs` [batch_size] with `return_idx`);
            with `field_names` a tuple of float tensors in their order (and the indices last). Scalars are [B, 1].
        """
        indices = self._draw(batch_size)
        return self._batch(indices, torch.from_numpy(indices).to(self.device) if return_idx else None)

    def sample_from_indices(self, idxs: object) -> Any:
        """Return the rows `idxs` ([B] or [B, 1], integers) in the format of `sample`; ShapeError if one is missing."""
        return self._batch(self._live_rows(idxs).reshape(-1), None)

    def _draw(self, batch_size: int) -> np.ndarray:
        is_number = type(batch_size) is int or isinstance(batch_size, np.number | float | Tensor)
        if not is_number or batch_size < 1 or batch_size % 1:
            raise ConfigError(f"batch_size must be a positive integer (rows); got {batch_size!r}. fix: 64.")
        return self.sample_indices(self._draws.rng, int(batch_size))

    def _batch(self, indices: np.ndarray, idxs: Tensor | None) -> Any:
        """Return rows `indices` [B] in the published format of this buffer, with `idxs` if given."""
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
        return to_tensordict(named, batch_size=[len(indices)])

    # -- published: the older interface ------------------------------------------------------------------------------

    def save_to_memory(self, *fields: Any, is_vectorised: bool = False) -> None:
        """Older interface: add one transition, or one per environment, in the order of `field_names`.

        Args:
            fields: for a team dicts by agent. is_vectorised: whether they have a leading axis of environments.
        """
        if self.field_names is None:
            kind = type(self).__name__
            raise ConfigError(f"save_to_memory() needs field_names. fix: {kind}(memory_size=, field_names=[...]).")
        if len(fields) != len(self.field_names):
            raise ShapeError(f"save_to_memory() takes {self.field_names}: got {len(fields)} values.")
        self.add(dict(zip(self.field_names, fields if is_vectorised else with_batch_axis(fields), strict=True)))

    def save_to_memory_single_env(self, *fields: Any) -> None:
        """Older interface: add one transition, without a batch axis."""
        self.save_to_memory(*fields)

    def save_to_memory_vect_envs(self, *fields: Any) -> None:
        """Older interface: add [L, ...] arrays, one row per environment."""
        self.save_to_memory(*fields, is_vectorised=True)

    def _name(self, role: str) -> str:
        older = {ROLES.get(name, name): name for name in self.field_names or ()}
        return self._names.get(role, older.get(role, role))


def is_team(paths: Iterable[Path]) -> bool:
    """Whether fields of these paths belong to multi-agent transitions."""
    return any(path[:2] == ("obs", AGENTS) for path in paths)
