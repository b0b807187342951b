"""Mapping of tensor entries when a network changes shape: the same rule for weights, targets and moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Index = NDArray[np.int64]
FRESH = -1
WIDE = 1024  # features; beyond that `refit` solves in row space


@dataclass(frozen=True, eq=False)
class Transfer:
    """Origin of each entry of a changed parameter.

    Attributes:
        index: per dimension, int64 [new size]: the old position of each new position, or -1 if it is fresh. An
            entry is old only if it is old in every dimension.
    """

    index: tuple[Index, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the new tensor."""
        return tuple(len(i) for i in self.index)

    def apply(self, old: Tensor | None, fresh: Tensor) -> Tensor:
        """Return a new tensor: old entries moved to their new places, all others from `fresh`.

        Args:
            old: the tensor before the change; None if the parameter did not exist.
            fresh: values of the new shape: new weights for a weight, the evaluation network's values for a target,
                zeros for an optimiser's moment. Not modified.
        """
        if tuple(fresh.shape) != self.shape:
            raise ValueError(f"fresh values must have shape {self.shape}; got {tuple(fresh.shape)}")
        result = fresh.detach().clone()
        if old is None:
            return result
        to = [torch.as_tensor(np.flatnonzero(index >= 0), device=fresh.device) for index in self.index]
        source = [torch.as_tensor(index[index >= 0], device=fresh.device) for index in self.index]
        if all(len(t) for t in to):
            moved = old.detach().to(device=fresh.device, dtype=fresh.dtype)[torch.meshgrid(*source, indexing="ij")]
            result[torch.meshgrid(*to, indexing="ij")] = moved
        return result


def same(size: int) -> Index:
    """Keep every position."""
    return np.arange(size, dtype=np.int64)


def fresh(size: int) -> Index:
    """Make every position new."""
    return np.full(size, FRESH, dtype=np.int64)


def grown(size: int, count: int) -> Index:
    """Append `count` new positions to `size` old ones."""
    return np.concatenate([same(size), fresh(count)])


def without(size: int, removed: Iterable[int]) -> Index:
    """Keep the remaining positions, in order, after removing `removed` from `size`."""
    return np.setdiff1d(same(size), np.fromiter(removed, dtype=np.int64))


def leading(old_size: int, new_size: int) -> Index:
    """Keep the overlapping leading block, as in the published library; the rest is fresh."""
    return np.where(same(new_size) < old_size, same(new_size), FRESH)


def leading_block(old_shape: Sequence[int], new_shape: Sequence[int]) -> Transfer:
    """Keep the overlapping leading hyper-rectangle of a tensor."""
    return Transfer(tuple(leading(o, n) for o, n in zip(old_shape, new_shape, strict=True)))


def prefixed(prefix: str, transfers: Mapping[str, Transfer]) -> dict[str, Transfer]:
    """Rename the transfers with a parent module's prefix."""
    return {f"{prefix}.{name}": transfer for name, transfer in transfers.items()}


def refit(features: Tensor, target: Tensor, weight: Tensor, bias: Tensor, ridge: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return weights that reproduce `target` from changed features: least squares with a ridge towards given weights.

    min over (W, b) of |ΦWᵀ + b − Z|² + λ·|W − W₀|², λ = `ridge` · mean diagonal of the centred ΦᵀΦ. If the given
    weights already fit exactly they are returned unchanged (up to rounding). With many more features than rows the same
    solution is computed in row space (the two forms of ridge regression are equal).

    Args:
        features: [B, I] current inputs of the layer; target: [B, O] its previous outputs.
        weight: [O, I] and bias: [O], the weights W₀ to stay close to.

    Returns:
        (weight [O, I], bias [O]) in the dtype of `weight`; solved in float64.
    """
    phi, z = features.double(), target.double()
    base = weight.detach().double()
    mean = phi.mean(0)
    residual = z - phi @ base.T
    offset = residual.mean(0)
    centred = phi - mean
    wide = phi.shape[1] > max(WIDE, len(phi))
    gram = centred @ centred.T if wide else centred.T @ centred
    mean_square = gram.diagonal().sum() / phi.shape[1] if wide else gram.diagonal().mean()
    gram.diagonal().add_(ridge * mean_square.clamp_min(1e-12))
    if wide:
        change = (centred.T @ torch.linalg.solve(gram, residual - offset)).T
    else:
        change = torch.linalg.solve(gram, centred.T @ (residual - offset)).T
    new_bias = offset - change @ mean
    return (base + change).to(weight), new_bias.to(bias)


RIDGES = (1e-4, 1e-2, 1.0, 100.0)  # the last one changes little but the bias


def best_ridge(features: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Select the ridge for `refit` that fits the second half of the rows best after refitting on the first half.

    With about as many features as rows, as for a flattened image, a weak ridge overfits the rows. Arguments as `refit`.
    """
    half = len(features) // 2
    if half < 2:
        return RIDGES[-1]
    errors = []
    for ridge in RIDGES:
        w, b = refit(features[:half], target[:half], weight, bias, ridge)
        errors.append(float((features[half:] @ w.T + b - target[half:]).norm()))
    return RIDGES[int(np.argmin(errors))]
