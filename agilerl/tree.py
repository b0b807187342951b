"""Nested observations: a tensor or array, or a dict or tuple of such trees, as Dict and Tuple spaces nest them.

Leaves are numpy arrays or tensors of torch, which is imported where a function cannot do without it: this module is
below everything and costs nothing to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agilerl import foreign

Tree = Any


def map_leaves(change: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with `change` applied to every leaf; mappings (a TensorDict too) become dicts, tuples stay tuples.

    Args:
        others: trees with at least the parts of `tree`; `change` is given their leaves after its own.
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
    """Every leaf, in the order of the keys."""
    if isinstance(tree, Mapping):
        for key in tree.keys():  # noqa: SIM118
            yield from leaves(tree[key])
    elif isinstance(tree, tuple):
        for part in tree:
            yield from leaves(part)
    else:
        yield tree


def count_rows(tree: Tree) -> int:
    """The length of the leading axis, which all leaves share; 0 for a tree without leaves."""
    return next((len(leaf) for leaf in leaves(tree)), 0)


def take(tree: Tree, rows: Any) -> Tree:
    """Rows of a batch: an index, a slice, an index array or a boolean mask."""
    return map_leaves(lambda leaf: leaf[rows], tree)


def reshape(tree: Tree, *leading: int) -> Tree:
    """[L, ...] -> [*leading, ...] as views."""
    return map_leaves(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), tree)


def copy(tree: Tree) -> Tree:
    """A copy that shares no memory."""
    return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone(), tree)


def choose(rows: np.ndarray, where: Tree, otherwise: Tree) -> Tree:
    """Row by row: `where` where `rows` [L] bool is True, else `otherwise`. New arrays."""

    def chosen(one: Any, other: Any) -> np.ndarray:
        out = np.array(other)
        out[rows] = np.asarray(one)[rows]
        return out

    return map_leaves(chosen, where, otherwise)


def put(batch: Tree, lane: Any, row: Tree) -> None:
    """Write one observation into row `lane` of `batch`, or several into as many rows, in place."""
    map_leaves(lambda leaf, own: leaf.__setitem__(lane, own), batch, row)


def stack(space: Any, rows: Sequence[Tree]) -> Tree:
    """Rows of single observations -> arrays [L, ...], nested as the space is, in its dtype where it has one.

    Without a space they are nested as the rows are.
    """
    inner = rows[0] if space is None else foreign.parts(space)
    subs: Any = {} if space is None else inner
    if isinstance(inner, Mapping):
        return {key: stack(subs.get(key), [row[key] for row in rows]) for key in inner}
    if isinstance(inner, tuple):
        return tuple(stack(subs[i] if subs else None, [row[i] for row in rows]) for i in range(len(inner)))
    dtype = None if space is None else space.dtype
    return np.stack([np.asarray(row, dtype) for row in rows])


def unbind(tree: Tree) -> list[Tree]:
    """Leaves [K, ...] as K trees of leaves [...], which are views."""
    if isinstance(tree, Mapping):
        parts = {key: unbind(part) for key, part in tree.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(tree, tuple):
        return list(zip(*map(unbind, tree), strict=True))
    return list(tree if isinstance(tree, np.ndarray) else tree.unbind())


def concatenate(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Leaves [B_i, ...] of one structure as [ΣB_i, ...]; along another axis if `dim` names it."""

    def joined(*parts: Any) -> Any:
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts, dim)
        import torch  # not at the top: see above

        return torch.cat(parts, dim)

    return map_leaves(joined, *trees)


def untuple(tree: Tree) -> Tree:
    """Dicts of dicts instead of tuples inside: element i of a tuple becomes key `tuple_obs_i`, as in a replay."""
    if isinstance(tree, tuple):
        tree = {f"tuple_obs_{i}": part for i, part in enumerate(tree)}
    return {key: untuple(part) for key, part in tree.items()} if isinstance(tree, Mapping) else tree
