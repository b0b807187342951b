"""Nested observations: a tensor or array, or a dict or tuple of such trees, as Dict and Tuple spaces nest them.

Leaves are numpy arrays or torch tensors. torch is imported only where needed: this module is imported by all others
and must be cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from agilerl.core import foreign

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor

Tree: TypeAlias = Union["np.ndarray", "np.generic", float, "Tensor", Mapping[Any, "Tree"], tuple["Tree", ...]]
"""Names for annotations of parameters; functions return `Any`, since a caller knows the form of its trees."""


def map_leaves(change: Callable[..., Any], tree: Tree, *others: Any) -> Any:
    """Apply `change` to every leaf; mappings (including TensorDicts) become dicts, tuples stay tuples.

    Args:
        others: trees with at least the parts of `tree`; their leaves are passed to `change` after the tree's.
    """
    if isinstance(tree, Mapping):
        return {
            key: map_leaves(change, tree[key], *(other[key] for other in others))
            for key in tree.keys()  # noqa: SIM118 (a TensorDict has rows)
        }
    if isinstance(tree, tuple):
        return tuple(map_leaves(change, *parts) for parts in zip(tree, *others, strict=True))
    return change(tree, *others)


def leaves(tree: Tree) -> Iterator[Any]:
    """Iterate over the leaves, in key order."""
    if isinstance(tree, Mapping):
        for key in tree.keys():  # noqa: SIM118
            yield from leaves(tree[key])
    elif isinstance(tree, tuple):
        for part in tree:
            yield from leaves(part)
    else:
        yield tree


def count_rows(tree: Tree) -> int:
    """Return the length of the shared leading axis; 0 for a tree without leaves."""
    return next((len(leaf) for leaf in leaves(tree)), 0)


def take(tree: Tree, rows: object) -> Any:
    """Select rows of a batch by an index, a slice, an index array or a boolean mask."""
    return map_leaves(lambda leaf: leaf[rows], tree)


def reshape(tree: Tree, *leading: int) -> Any:
    """Reshape leaves [L, ...] to [*leading, ...], as views."""
    return map_leaves(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), tree)


def copy(tree: Tree) -> Any:
    """Return a deep copy."""
    return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone(), tree)


def choose(rows: np.ndarray, where: Tree, otherwise: Tree) -> Any:
    """Select row by row: `where` where `rows` [L] bool is True, else `otherwise`. Returns new arrays."""

    def chosen(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        out = np.array(other)
        out[rows] = np.asarray(one)[rows]
        return out

    return map_leaves(chosen, where, otherwise)


def put(batch: Tree, lane: object, row: Tree) -> None:
    """Write one observation to row `lane` of `batch`, or several to as many rows, in place."""
    map_leaves(lambda leaf, part: leaf.__setitem__(lane, part), batch, row)


def stack(space: Space[Any] | None, rows: Sequence[Any]) -> Any:
    """Stack single observations to arrays [L, ...], nested like the space, in its dtype if it has one.

    Without a space they are nested like the rows.
    """
    inner = rows[0] if space is None else foreign.parts(space)
    subs: Any = {} if space is None else inner
    if isinstance(inner, Mapping):
        return {key: stack(subs.get(key), [row[key] for row in rows]) for key in inner}
    if isinstance(inner, tuple):
        return tuple(stack(subs[i] if subs else None, [row[i] for row in rows]) for i in range(len(inner)))
    dtype = None if space is None else space.dtype
    return np.stack([np.asarray(row, dtype) for row in rows])


def unbind(tree: Any) -> list[Any]:
    """Split leaves [K, ...] into K trees of leaves [...], as views."""
    if isinstance(tree, Mapping):
        parts = {key: unbind(part) for key, part in tree.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(tree, tuple):
        return list(zip(*map(unbind, tree), strict=True))
    return list(tree if isinstance(tree, np.ndarray) else tree.unbind())


def concatenate(trees: Sequence[Tree], dim: int = 0) -> Any:
    """Concatenate leaves [B_i, ...] to [ΣB_i, ...], or along axis `dim`."""

    def joined(*parts: Any) -> Any:
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts, dim)
        import torch  # lazy: see the module docstring

        return torch.cat(parts, dim)

    return map_leaves(joined, *trees)


def untuple(tree: Tree | None) -> Any:
    """Replace tuples by dicts: element i of a tuple becomes key `tuple_obs_i`, as in replay."""
    if isinstance(tree, tuple):
        tree = {f"tuple_obs_{i}": part for i, part in enumerate(tree)}
    return {key: untuple(part) for key, part in tree.items()} if isinstance(tree, Mapping) else tree
