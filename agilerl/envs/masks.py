"""Masks of legal actions: every form in which environments and callers give them, read by one reader.

The canonical mask of L lanes is a bool array [L, W], True = legal, where W = `spaces.mask_width(action space)`: one
entry per choice, component by component; two entries per bit of a MultiBinary (whether 0 is legal, whether 1 is); the
parts of Dict and Tuple actions one after the other. Environments, rollouts, replay and policies exchange this form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.errors import EnvError, warn_once
from agilerl.spaces import mask_width, parts_of

MASK = "action_mask"  # key of infos and of observations
MISNAMED = frozenset(
    ("action_masks", "actions_mask", "legal_actions", "valid_actions", "available_actions", "avail_actions")
)
"""Keys of infos under which other libraries keep masks; not read here."""
FINAL_MASK = "final_action_mask"  # key of infos: of the final observation, where an episode has ended


class MaskError(ValueError):
    """A mask of another form than its action space asks for; `ActionMasks` adds where it comes from."""


def component_sizes(space: Space[Any] | None) -> list[int]:
    """Choices of each component of an action, in the order of its mask: 2 for each bit, none for a Box."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return [] if space is None else [n for part in parts_of(space).values() for n in component_sizes(part)]


def warn_of_misnamed(info: Mapping[str, Any], name: str) -> None:
    """Warn once of an info that keeps a mask under a key of another library."""
    if MASK in info or MISNAMED.isdisjoint(info):
        return
    key = min(MISNAMED & info.keys())
    warn_once(
        f"misnamed masks of {name}",
        f"{name}: info[{key!r}] is ignored, so every action counts as legal. "
        f"fix: info[{MASK!r}], 1 = legal, if it is a mask.",
    )


def expected_form(space: Space[Any]) -> str:
    """The forms of one mask of the space, in words."""
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
    if parts_of(space):
        return f"{width} entries, or one mask per part ({', '.join(parts_of(space))})"
    return f"{width} entries, one per action"


class ActionMasks:
    """The reader of masks of one action space.

    Args:
        space: of one action; None (an environment that has none) and Box have no masks.
        name: of the environment or caller, for messages. error: raised for a mask of a wrong form.
        nothing_legal: what to do about a mask that allows nothing, for messages.
        fills: whether everything counts as legal where an episode has ended and nothing is; False leaves it so.

    Attributes:
        width: entries of a canonical mask, 0 where there are none.
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
        """The masks [L, W] bool in the info of L lanes; None where it has none.

        `info["action_mask"]` may be a stacked array, one mask (or None) per lane, a mask for a single lane, or the
        stacked masks of the components or parts. Lanes without a mask (None, or `_action_mask` False) may do anything.

        Args:
            is_over: [L] bool, lanes whose episode has ended: nothing need be legal there, and all counts as legal.

        Raises:
            EnvError: a mask of another form, with other values than 0 and 1, or one that allows nothing.
        """
        given = info.get(MASK) if info else None
        if given is None or self.space is None:
            if info and self.space is not None and self.width:
                warn_of_misnamed(info, self.name)
            return None
        if not self.width:
            self._warn_useless()
            return None
        presence = None if info is None else info.get(f"_{MASK}")
        if presence is None and self._is_canonical(given, num_lanes):
            return given
        there = np.ones(num_lanes, bool) if presence is None else np.asarray(presence, bool).reshape(-1)
        return self._first_that_fits(f"info[{MASK!r}]", candidates(given, num_lanes), num_lanes, there, is_over)

    def final(self, info: Mapping[str, Any] | None, num_lanes: int) -> Any:
        """The masks [L, W] of `StepBatch.final_obs`; None where the environment gives none.

        `info["action_mask"]` belongs to the observation after a reset; where they differ, lanes leave the other one as
        `info["final_action_mask"]`.
        """
        known = info.get(FINAL_MASK) if info else None
        over = np.ones(num_lanes, bool)
        return self.of(info if known is None else {MASK: known}, num_lanes, over)

    def of_caller(self, given: Any, count: int, what: str = MASK, is_over: np.ndarray | None = None) -> np.ndarray:
        """A caller's mask, one for each of `count` rows or one for all, as [count, W] bool; `is_over` as of `of`."""
        if self._is_canonical(given, count):
            return self.rows(list(given), what, is_over=is_over)
        is_batch = isinstance(given, Mapping) or _is_sequence(given) or np.ndim(given) > 1
        ways = itertools.chain(candidates(given, count) if is_batch else (), ([given] * count,))
        return self._first_that_fits(what, ways, count, np.ones(count, bool), is_over)

    def _is_canonical(self, given: Any, num_lanes: int) -> bool:
        return type(given) is np.ndarray and given.dtype == bool and given.shape == (num_lanes, self.width)

    def _first_that_fits(
        self,
        what: str,
        ways: Iterable[list[Any]],
        count: int,
        there: np.ndarray,
        is_over: np.ndarray | None,
    ) -> np.ndarray:
        """The rows of the first way to divide a batch that gives masks; else the error of the first one."""
        first: ValueError | None = None
        for rows in ways:
            given = [row if is_there else None for row, is_there in zip(rows, there, strict=True)]
            try:
                return self.rows(given, what, is_over=is_over)
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
        given: Sequence[Any],
        what: str = MASK,
        lanes: Sequence[int] | None = None,
        is_over: np.ndarray | None = None,
    ) -> np.ndarray:
        """Masks of single lanes, each in any form, as [k, W] bool; None allows everything.

        Args:
            what: their source, for messages. lanes: the lanes' numbers, by default 0, 1, ...
            is_over: [k] bool, as of `of`.
        """
        numbers = range(len(given)) if lanes is None else lanes
        masks = self._stacked(given)
        if masks is None:
            masks = np.empty((len(given), self.width), bool)
            for row, value in enumerate(given):
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

    def one(self, given: Any, what: str = MASK, *, is_over: bool = False) -> np.ndarray:
        """One mask in any form as [W] bool."""
        row: np.ndarray = self.rows([given], what, is_over=np.array([is_over]))[0]
        return row

    def _stacked(self, given: Sequence[Any]) -> np.ndarray | None:
        """Arrays [W] of one kind as [k, W] bool, which is the usual case; None for everything else."""
        first = given[0] if len(given) else None
        if type(first) is not np.ndarray or first.dtype.kind not in "biu":
            return None
        kind, shape = first.dtype, (self.width,)
        if any(type(row) is not np.ndarray or row.dtype != kind or row.shape != shape for row in given):
            return None
        masks = np.stack(given)
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


def candidates(given: Any, count: int) -> Iterator[list[Any]]:
    """The ways in which a batch of masks can be divided into one for each of `count` lanes, the usual one first."""
    if isinstance(given, Mapping):
        names = [key for key in given if not (str(key).startswith("_") and str(key)[1:] in given)]
        columns = {key: _lane_by_lane(given[key], count, given.get(f"_{key}")) for key in names}
        if all(column is not None for column in columns.values()):
            yield [{key: column[lane] for key, column in columns.items()} for lane in range(count)]  # type: ignore[index]
    elif isinstance(given, list | tuple) or np.ndim(given):
        if len(given) == count:
            yield list(given)
        if isinstance(given, list | tuple) and all(np.ndim(part) and len(part) == count for part in _sized(given)):
            yield [tuple(part[lane] for part in given) for lane in range(count)]
    if count == 1:
        yield [given]


def _sized(parts: Sequence[Any]) -> Iterator[Any]:
    """Parts as something that has a length; what is ragged counts by its first axis."""
    for part in parts:
        yield part if isinstance(part, np.ndarray) else np.empty(len(part)) if isinstance(part, list | tuple) else part


def _lane_by_lane(values: Any, count: int, present: Any) -> list[Any] | None:
    """Stacked masks of one part, lane by lane; None where they are not one for each lane."""
    rows = next(candidates(values, count), None)
    if rows is None or present is None:
        return rows
    return [row if there else None for row, there in zip(rows, np.asarray(present, bool), strict=True)]


# --- one mask -------------------------------------------------------------------------------------------------------


def flat_mask(space: Space[Any], given: Any) -> np.ndarray:
    """One mask in any form as [W] bool; None allows everything.

    Raises:
        MaskError: another form, or other values than 0 and 1.
    """
    if given is None:
        return np.ones(mask_width(space), bool)
    parts = parts_of(space)
    if parts:
        return _of_parts(space, parts, given)
    pieces = list(_pieces(given))
    sizes = component_sizes(space)
    if len(pieces) == len(sizes) and len(sizes) > 1:  # one array per component, as space.sample(mask=...) takes them
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
        raise MaskError(f"has {flat.size} entries (shape {_shape(given)})")
    return flat


def sample_mask(space: Space[Any], mask: np.ndarray) -> Any:
    """A canonical mask [W] in the form that `space.sample(mask=...)` takes; None for a space without choices."""
    parts = parts_of(space)
    if parts:
        widths = [mask_width(part) for part in parts.values()]
        rows = np.split(mask, np.cumsum(widths)[:-1])
        each = [sample_mask(part, row) for part, row in zip(parts.values(), rows, strict=True)]
        return dict(zip(space.spaces, each, strict=True)) if isinstance(space, spaces.Dict) else tuple(each)
    bits = mask.astype(np.int8)
    if isinstance(space, spaces.MultiBinary):  # 2 for a bit that is free
        pairs = bits.reshape(*space.shape, 2)
        return np.where(pairs.all(-1), 2, pairs[..., 1]).astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return _nest(iter(np.split(bits, np.cumsum(space.nvec.ravel())[:-1])), space.shape)
    return bits if mask_width(space) else None


def _nest(rows: Iterator[np.ndarray], shape: tuple[int, ...]) -> Any:
    return tuple(_nest(rows, shape[1:]) for _ in range(shape[0])) if shape else next(rows)


def _of_parts(space: Space[Any], parts: Mapping[str, Space[Any]], given: Any) -> np.ndarray:
    """The mask of a Dict or Tuple action: by key, part by part, or flat."""
    if isinstance(given, Mapping):
        unknown = [str(key) for key in given if str(key) not in parts]
        if unknown:
            raise MaskError(f"has the part {unknown[0]!r}, which the action has not")
        each = [given.get(key) for key in (space.spaces if isinstance(space, spaces.Dict) else parts)]
    elif _is_sequence(given) and not _is_flat(given):
        if len(given) != len(parts):
            raise MaskError(f"has {len(given)} parts")
        each = list(given)
    else:
        flat = _bools(np.asarray(given)).ravel()
        if flat.size != mask_width(space):
            raise MaskError(f"has {flat.size} entries (shape {_shape(given)})")
        return flat
    found = []
    for (name, part), own in zip(parts.items(), each, strict=True):
        if not mask_width(part) and any(piece is not None and piece.size for piece in _pieces(own)):
            raise MaskError(f"has entries for the part {name!r}, a {type(part).__name__} without choices")
        found.append(flat_mask(part, own) if mask_width(part) else np.zeros(0, bool))
    return np.concatenate(found)


def _is_sequence(given: Any) -> bool:
    return isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.dtype == object)


def _is_flat(given: Any) -> bool:
    """Whether a sequence consists of numbers."""
    return all(part is not None and not _is_sequence(part) and np.ndim(part) == 0 for part in given)


def _pieces(given: Any) -> Iterator[np.ndarray | None]:
    """The arrays in a nest of tuples and lists, in their order; None stays None."""
    if given is None:
        yield None
    elif _is_sequence(given) and not (len(given) and _is_flat(given)):
        for part in given:
            yield from _pieces(part)
    else:
        try:
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError):
            raise MaskError(f"is a {type(given).__name__}") from None
        if not array.ndim:
            raise MaskError(f"is {given!r}" if isinstance(given, str | int | float | dict) else f"is {array}")
        yield array


def _bools(values: np.ndarray) -> np.ndarray:
    """Values 0 and 1 as bool; MaskError for others."""
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


def _shape(given: Any) -> Any:
    try:
        return np.shape(given)
    except ValueError:  # ragged
        return f"of {len(given)} parts"
