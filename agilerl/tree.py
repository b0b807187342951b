"""Nested observations: a tensor or array, or a dict or tuple of such trees, as Dict and Tuple spaces nest them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Tree = Any


def map_leaves(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """The tree with `change` applied to every leaf; mappings (a TensorDict too) become dicts, tuples stay tuples."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(change, tree[key]) for key in tree.keys()}  # noqa: SIM118 (a TensorDict has rows)
    if isinstance(tree, tuple):
        return tuple(map_leaves(change, part) for part in tree)
    return change(tree)


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


def unbind(tree: Tree) -> list[Tree]:
    """Tensors [K, ...] as K trees of tensors [...], which are views."""
    if isinstance(tree, Mapping):
        parts = {key: unbind(part) for key, part in tree.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    return list(tree.unbind())


def concatenate(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Trees of tensors [B_i, ...] of one structure as one of [ΣB_i, ...]; along another axis if `dim` names it."""
    if isinstance(trees[0], Mapping):
        return {key: concatenate([tree[key] for tree in trees], dim) for key in trees[0]}
    return torch.cat(list(trees), dim)
