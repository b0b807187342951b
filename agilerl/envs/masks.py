"""Action masks: conversion of all forms used by environments and callers to a canonical one.

The canonical mask of L lanes is a bool array [L, W], True = legal, where W = `spaces.mask_width(action space)`: one
entry per choice, component by component; two entries per bit of a MultiBinary (whether 0 is legal, whether 1 is); the
parts of Dict and Tuple actions one after the other. Environments, rollouts, replay and policies exchange this form.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from agilerl.core import foreign
from agilerl.core.spaces import mask_width, parts_of
from agilerl.core.tree import Tree
from agilerl.errors import EnvError, warn_once

MASK = "action_mask"  # key in infos and observations
MISNAMED = frozenset(
    ("action_masks", "actions_mask", "legal_actions", "valid_actions", "available_actions", "avail_actions")
)
"""Keys of infos under which other libraries keep masks; not read here."""
OF_WRAPPERS = {"gymnasium", "agilerl"}  # packages whose wrappers never provide masks
FINAL_MASK = "final_action_mask"  # key in infos: for the final observation of an ended episode


class MaskError(ValueError):
    """A mask that does not match its action space; `ActionMasks` adds its source."""


def component_sizes(space: Space[Any] | None) -> list[int]:
    """Return the number of choices per action component, in mask order: 2 for each bit, none for a Box."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return [] if space is None else [n for part in parts_of(space).values() for n in component_sizes(part)]


def warn_of_misnamed(info: Mapping[str, Any], name: str) -> None:
    """Warn once about an info with a mask under another library's key."""
    if MASK in info or MISNAMED.isdisjoint(info):
        return
    key = min(MISNAMED & info.keys())
    warn_once(
        f"misnamed masks of {name}",
        f"{name}: info[{key!r}] is ignored, so every action counts as legal. "
        f"fix: info[{MASK!r}], 1 = legal, if it is a mask.",
    )


def expected_form(space: Space[Any]) -> str:
    """Describe the accepted forms of one mask of the space."""
    width = mask_width(space)
    if isinstance(space, spaces.MultiBinary):
        bits = width // 2
        return f"{bits} entries (1 = the bit may be 1) or {width} (for each bit whether 0 and whether 1 is legal)"
    if isinstance(space, spaces.MultiDiscrete):
        sizes = component_sizes(space)
        counts = f"{', '.join(map(str, sizes[:8]))}{', ...' if len(sizes) > 8 else ''}"
        return f"{width} entries, one per choice of each component, or one array per component ({counts} entries)"
    if not width:
        return f"none, since {space} has no choices"
    if isinstance(space, spaces.Tuple):
        return f"{width} entries, or a tuple with one mask per part ({len(space.spaces)} parts)"
    if parts_of(space):
        return f"{width} entries, or one mask per part ({', '.join(parts_of(space))})"
    return f"{width} entries, one per action"


class ActionMasks:
    """Converter of masks of one action space.

    Args:
        space: of one action; None (no action space) and Box have no masks.
        name: of the environment or caller, for messages. error: exception for an invalid mask.
        nothing_legal: fix for a mask that allows nothing, for messages.
        fills: whether an empty mask at the end of an episode becomes all legal.

    Attributes:
        width: length of a canonical mask, 0 without masks.
    """

    def __init__(
        self,
        space: Space[Any] | None,
        name: str = "the environment",
        error: type[ValueError] = EnvError,
        nothing_legal: str = "at least one 1 for everything that is chosen, or end the episode",
        fills: bool = True,
    ) -> None:
        self.space, self.name, self.error, self.nothing_legal = space, name, error, nothing_legal
        self.fills = fills
        self._unit = "lane" if issubclass(error, EnvError) else "row"
        self.width, self._sizes = mask_width(space), component_sizes(space)
        self._starts = np.cumsum([0, *self._sizes[:-1]])

    # -- of infos ----------------------------------------------------------------------------------------------------

    def of(self, info: Mapping[str, Any] | None, num_lanes: int, is_over: np.ndarray | None = None) -> Any:
        """Return the masks [L, W] bool in the info of L lanes; None without masks.

        `info["action_mask"]` may be a stacked array, one mask (or None) per lane, a mask for a single lane, or the
        stacked masks of the components or parts. Lanes without a mask (None, or `_action_mask` False) allow everything.

        Args:
            is_over: [L] bool, lanes whose episode has ended: if no action is legal there, all become legal.

        Raises:
            EnvError: invalid form, values other than 0 and 1, or a mask that allows nothing.
        """
        masks = info.get(MASK) if info else None
        if masks is None or self.space is None:
            if info and self.space is not None and self.width:
                warn_of_misnamed(info, self.name)
            return None
        if not self.width:
            self._warn_useless()
            return None
        presence = None if info is None else info.get(f"_{MASK}")
        if presence is None and self._is_canonical(masks, num_lanes):
            return masks
        present = np.ones(num_lanes, bool) if presence is None else np.asarray(presence, bool).reshape(-1)
        return self._first_that_fits(f"info[{MASK!r}]", candidates(masks, num_lanes), num_lanes, present, is_over)

    def final(self, info: Mapping[str, Any] | None, num_lanes: int) -> Any:
        """Return the masks [L, W] of `StepBatch.final_obs`, or None without masks.

        `info["action_mask"]` belongs to the observation after a reset; if that differs from the final observation,
        lanes store the other mask as `info["final_action_mask"]`.
        """
        final_mask = info.get(FINAL_MASK) if info else None
        over = np.ones(num_lanes, bool)
        return self.of(info if final_mask is None else {MASK: final_mask}, num_lanes, over)

    def of_caller(self, masks: Any, count: int, what: str = MASK, is_over: np.ndarray | None = None) -> np.ndarray:
        """Convert a caller's mask, one per row (`count`) or one for all, to [count, W] bool; `is_over` as in `of`."""
        if self._is_canonical(masks, count):
            return self.rows(list(masks), what, is_over=is_over)
        is_batch = isinstance(masks, Mapping) or _is_sequence(masks) or np.ndim(masks) > 1
        ways = itertools.chain(candidates(masks, count) if is_batch else (), ([masks] * count,))
        return self._first_that_fits(what, ways, count, np.ones(count, bool), is_over)

    def _is_canonical(self, masks: Tree | None, num_lanes: int) -> bool:
        return type(masks) is np.ndarray and masks.dtype == bool and masks.shape == (num_lanes, self.width)

    def _first_that_fits(
        self,
        what: str,
        ways: Iterable[list[Any]],
        count: int,
        present: np.ndarray,
        is_over: np.ndarray | None,
    ) -> np.ndarray:
        """Return the rows of the first split of a batch that gives valid masks; else raise the first error."""
        first: ValueError | None = None
        for rows in ways:
            masks = [row if is_present else None for row, is_present in zip(rows, present, strict=True)]
            try:
                return self.rows(masks, what, is_over=is_over)
            except self.error as error:
                first = first or error
        if first is not None:
            raise first
        raise self.error(
            f"{self.name}: {what} must have one mask per lane; expected {count} of {expected_form(self._known)}. "
            "fix: None for a lane in which everything is legal."
        )

    @property
    def _known(self) -> Space[Any]:
        assert self.space is not None
        return self.space

    # -- of lanes ----------------------------------------------------------------------------------------------------

    def rows(
        self,
        lane_masks: Sequence[Any],
        what: str = MASK,
        lanes: Sequence[int] | None = None,
        is_over: np.ndarray | None = None,
    ) -> np.ndarray:
        """Convert masks of single lanes, each in any form, to [k, W] bool; None allows everything.

        Args:
            what: their source, for messages. lanes: the lanes' numbers, by default 0, 1, ...
            is_over: [k] bool, as in `of`.
        """
        numbers = range(len(lane_masks)) if lanes is None else lanes
        masks = self._stacked(lane_masks)
        if masks is None:
            masks = np.empty((len(lane_masks), self.width), bool)
            for row, value in enumerate(lane_masks):
                try:
                    masks[row] = flat_mask(self._known, value)
                except MaskError as fault:
                    raise self._wrong(what, numbers[row], str(fault)) from None
        if not self.width:
            return masks
        empty = ~np.logical_or.reduceat(masks, self._starts, axis=1)
        if not empty.any():
            return masks
        strict = empty.any(1) if is_over is None else empty.any(1) & ~is_over
        if strict.any():
            row = int(np.argmax(strict))
            part = int(np.argmax(empty[row]))
            which = f" for component {part}" if len(self._sizes) > 1 else ""
            raise self._wrong(what, numbers[row], f"allows no action{which}", self.nothing_legal)
        return masks | np.repeat(empty, self._sizes, axis=1) if self.fills else masks

    def one(self, mask: Tree, what: str = MASK, *, is_over: bool = False) -> np.ndarray:
        """Convert one mask in any form to [W] bool."""
        row: np.ndarray = self.rows([mask], what, is_over=np.array([is_over]))[0]
        return row

    def _stacked(self, rows: Sequence[Any]) -> np.ndarray | None:
        """Convert arrays [W] of one kind to [k, W] bool, the common case; None for everything else."""
        first = rows[0] if len(rows) else None
        if type(first) is not np.ndarray or first.dtype.kind not in "biu":
            return None
        kind, shape = first.dtype, (self.width,)
        if any(type(row) is not np.ndarray or row.dtype != kind or row.shape != shape for row in rows):
            return None
        masks = np.stack(rows)
        if kind.kind == "b":
            return masks
        as_bool = masks.astype(bool)
        return as_bool if np.array_equal(as_bool, masks) else None

    def _wrong(self, what: str, lane: int, fault: str, fix: str = "") -> ValueError:
        fix = fix or "a mask of that form, or None where everything is legal"
        return self.error(
            f"{self.name}, {self._unit} {lane}: {what} {fault}; expected for {self.space}: "
            f"{expected_form(self._known)}, 1 = legal and 0 = not. fix: {fix}."
        )

    def _warn_useless(self) -> None:
        warn_once(
            f"useless masks of {self.name}",
            f"{self.name} gives action masks, and {self.space} has no choices to mask: they are ignored. "
            "fix: leave them out, or clip actions in the environment.",
        )


def candidates(masks: Any, count: int) -> Iterator[list[Any]]:
    """Yield the ways to split a batch of masks into one for each of `count` lanes, the most common first."""
    if isinstance(masks, Mapping):
        names = [key for key in masks if not (str(key).startswith("_") and str(key)[1:] in masks)]
        columns = {key: _lane_by_lane(masks[key], count, masks.get(f"_{key}")) for key in names}
        if all(column is not None for column in columns.values()):
            yield [{key: column[lane] for key, column in columns.items()} for lane in range(count)]  # type: ignore[index]
    elif isinstance(masks, list | tuple) or np.ndim(masks):
        if len(masks) == count:
            yield list(masks)
        if isinstance(masks, list | tuple) and all(np.ndim(part) and len(part) == count for part in _sized(masks)):
            yield [tuple(part[lane] for part in masks) for lane in range(count)]
    if count == 1:
        yield [masks]


def _sized(parts: Sequence[Any]) -> Iterator[Any]:
    """Yield parts as sized objects; ragged ones are counted by their first axis."""
    for part in parts:
        yield part if isinstance(part, np.ndarray) else np.empty(len(part)) if isinstance(part, list | tuple) else part


def _lane_by_lane(values: Tree, count: int, present: Tree | None) -> list[Any] | None:
    """Split stacked masks of one part by lane; None if there is not one per lane."""
    rows = next(candidates(values, count), None)
    if rows is None or present is None:
        return rows
    return [row if is_present else None for row, is_present in zip(rows, np.asarray(present, bool), strict=True)]


# --- masks through wrappers ---


def gives_masks(env: foreign.Env) -> bool:
    """Whether an environment or wrapper may provide masks itself: wrappers of Gymnasium and of this package only pass
    on the masks of the inner environment."""
    methods = [getattr(type(env), name, None) for name in ("reset", "step")]
    packages = {
        "" if module is None else module.__name__.partition(".")[0] for module in map(inspect.getmodule, methods)
    }
    return not isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper) or not packages <= OF_WRAPPERS


def translation(env: Any, is_source: Callable[[Any], bool] = gives_masks) -> Callable[[Any], Any] | None:
    """Return the function from masks of the inner source to masks of the action space of `env`.

    An `ActionWrapper` from choices to choices allows what it maps to a legal action. Masks do not apply (None) to the
    actions of other wrappers that change the action space. Returns None without such a wrapper.
    """
    changing = []
    while not is_source(env):
        outer, inner = (foreign.action_space(one, "single_") or foreign.action_space(one) for one in (env, env.env))
        if outer is not inner:  # an equal space may have another meaning, for example as many skills
            changing.append((env, outer, inner))
        env = env.env

    def translate(mask: Tree | None) -> Any:
        for wrapper, outer, inner in reversed(changing):
            is_discrete = isinstance(outer, spaces.Discrete) and isinstance(inner, spaces.Discrete)
            if mask is None or not isinstance(wrapper, gymnasium.ActionWrapper) or not is_discrete:
                return None
            try:
                legal = flat_mask(inner, mask)
            except MaskError:  # reported when the mask is read
                return mask
            mask = np.array([legal[int(wrapper.action(outer.start + i) - inner.start)] for i in range(outer.n)])
            mask = mask if mask.any() else None
        return mask

    return translate if changing else None


# --- one mask -------------------------------------------------------------------------------------------------------


def flat_mask(space: Space[Any], mask: Tree | None) -> np.ndarray:
    """Convert one mask in any form to [W] bool; None allows everything.

    Raises:
        MaskError: invalid form, or values other than 0 and 1.
    """
    if mask is None:
        return np.ones(mask_width(space), bool)
    parts = parts_of(space)
    if parts:
        return _of_parts(space, parts, mask)
    pieces = list(_pieces(mask))
    sizes = component_sizes(space)
    if len(pieces) == len(sizes) and len(sizes) > 1:  # one array per component, as in space.sample(mask=...)
        for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
            if piece is not None and piece.size != size:
                raise MaskError(f"has {piece.size} entries for component {number}, which has {size} choices")
        pieces = [np.ones(size, bool) if piece is None else piece for piece, size in zip(pieces, sizes, strict=True)]
    if any(piece is None for piece in pieces):
        raise MaskError("has None among its entries")
    flat = np.concatenate([_bools(piece).ravel() for piece in pieces if piece is not None] or [np.zeros(0, bool)])
    if isinstance(space, spaces.MultiBinary) and 2 * flat.size == mask_width(space):
        return np.stack([np.ones_like(flat), flat], -1).ravel()  # 0 is legal for every bit
    if flat.size != mask_width(space):
        raise MaskError(f"has {flat.size} entries (shape {_shape(mask)})")
    return flat


def sample_mask(space: Space[Any], mask: np.ndarray) -> Any:
    """Convert a canonical mask [W] to the form of `space.sample(mask=...)`; None for a space without choices."""
    parts = parts_of(space)
    if parts:
        widths = [mask_width(part) for part in parts.values()]
        rows = np.split(mask, np.cumsum(widths)[:-1])
        part_masks = [sample_mask(part, row) for part, row in zip(parts.values(), rows, strict=True)]
        return dict(zip(space.spaces, part_masks, strict=True)) if isinstance(space, spaces.Dict) else tuple(part_masks)
    bits = mask.astype(np.int8)
    if isinstance(space, spaces.MultiBinary):  # 2 for an unconstrained bit
        pairs = bits.reshape(*space.shape, 2)
        return np.where(pairs.all(-1), 2, pairs[..., 1]).astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return _nest(iter(np.split(bits, np.cumsum(space.nvec.ravel())[:-1])), space.shape)
    return bits if mask_width(space) else None


def _nest(rows: Iterator[np.ndarray], shape: tuple[int, ...]) -> Any:
    return tuple(_nest(rows, shape[1:]) for _ in range(shape[0])) if shape else next(rows)


def _of_parts(space: Space[Any], parts: Mapping[str, Space[Any]], mask: Any) -> np.ndarray:
    """Convert the mask of a Dict or Tuple action: by key, part by part, or flat."""
    if isinstance(mask, Mapping):
        unknown = [str(key) for key in mask if str(key) not in parts]
        if unknown:
            raise MaskError(f"has the part {unknown[0]!r}, which the action does not have")
        part_masks = [mask.get(key) for key in (space.spaces if isinstance(space, spaces.Dict) else parts)]
    elif _is_sequence(mask) and not _is_flat(mask):
        if len(mask) != len(parts):
            raise MaskError(f"has {len(mask)} parts")
        part_masks = list(mask)
    else:
        flat = _bools(np.asarray(mask)).ravel()
        if flat.size != mask_width(space):
            raise MaskError(f"has {flat.size} entries (shape {_shape(mask)})")
        return flat
    flat_masks = []
    for (name, part), part_mask in zip(parts.items(), part_masks, strict=True):
        if not mask_width(part) and any(piece is not None and piece.size for piece in _pieces(part_mask)):
            raise MaskError(f"has entries for the part {name!r}, a {type(part).__name__} without choices")
        flat_masks.append(flat_mask(part, part_mask) if mask_width(part) else np.zeros(0, bool))
    return np.concatenate(flat_masks)


def _is_sequence(mask: object) -> bool:
    return isinstance(mask, list | tuple) or (isinstance(mask, np.ndarray) and mask.dtype == object)


def _is_flat(mask: Any) -> bool:
    """Whether a sequence contains numbers."""
    return all(part is not None and not _is_sequence(part) and np.ndim(part) == 0 for part in mask)


def _pieces(mask: Any) -> Iterator[np.ndarray | None]:
    """Iterate over the arrays in nested tuples and lists, in order; None stays None."""
    if mask is None:
        yield None
    elif _is_sequence(mask) and not (len(mask) and _is_flat(mask)):
        for part in mask:
            yield from _pieces(part)
    else:
        try:
            array = np.asarray(mask)
        except (TypeError, ValueError, RuntimeError):
            raise MaskError(f"is a {type(mask).__name__}") from None
        if not array.ndim:
            raise MaskError(f"is {mask!r}" if isinstance(mask, str | int | float | dict) else f"is {array}")
        yield array


def _bools(values: np.ndarray) -> np.ndarray:
    """Convert values 0 and 1 to bool; MaskError for others."""
    if values.dtype == object:
        values = np.array([np.nan if value is None else value for value in values.ravel().tolist()])
    if values.dtype == bool:
        return values
    if values.dtype.kind not in "iuf":
        raise MaskError(f"has entries of {values.dtype}")
    as_bool = values.astype(bool) if values.dtype.kind != "f" else values == 1
    wrong = values[as_bool != values]
    if wrong.size:
        raise MaskError(f"has the entry {wrong.ravel()[0]:g}")
    return np.asarray(as_bool)


def _shape(mask: Any) -> Any:
    try:
        return np.shape(mask)
    except ValueError:  # ragged
        return f"of {len(mask)} parts"
