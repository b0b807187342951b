"""Action distributions as pure functions of a network's raw output and of supplied random numbers.

Leading axes are free: members [N], time, lanes or batch. Nothing here draws: who calls brings uniform numbers in
[0, 1) or standard normal ones, so that a row of members and one agent alone can be given the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.errors import ConfigError

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # the limits of the SAC authors' released code
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
ILLEGAL = -1e9  # exp gives exactly 0, and products with it stay finite, which the lowest number would not


# --- normal, and normal squashed by tanh ---------------------------------------------------------------------------


def split_normal(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Raw output [..., 2A] as (mean [..., A], log standard deviation [..., A] within its limits)."""
    mean, log_std = raw.chunk(2, -1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def normal_sample(raw: Tensor, numbers: Tensor) -> Tensor:
    """mean + std · ε; raw [..., 2A], standard normal numbers [..., A]; differentiable in `raw`."""
    mean, log_std = split_normal(raw)
    return mean + log_std.exp() * numbers


def normal_log_prob(raw: Tensor, value: Tensor) -> Tensor:
    """Σ_i log N(value_i; mean_i, std_i) [...]; raw [..., 2A], value [..., A]."""
    mean, log_std = split_normal(raw)
    scaled = (value - mean) * (-log_std).exp()
    return (-0.5 * scaled.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def normal_entropy(raw: Tensor) -> Tensor:
    """Σ_i (½ + ½ log 2π + log std_i) [...]."""
    _, log_std = split_normal(raw)
    return (log_std + 0.5 + HALF_LOG_TWO_PI).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which stays finite where tanh²u rounds to 1."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


def squashed_normal_sample(raw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u ~ N(mean, std²), and its log density (Haarnoja et al. 2018, arXiv:1812.05905, appendix C).

    log π(a) = Σ_i [log N(u_i; mean_i, std_i) − log(1 − tanh²u_i)], of actions in (-1, 1).

    Args:
        raw: [..., 2A]. numbers: [..., A] standard normal.

    Returns:
        (actions [..., A], log densities [...]), both differentiable in `raw`.
    """
    u = normal_sample(raw, numbers)
    return u.tanh(), normal_log_prob(raw, u) - log_tanh_slope(u).sum(-1)


def squashed_normal_log_prob(raw: Tensor, action: Tensor) -> Tensor:
    """Log density [...] of actions [..., A] in [-1, 1]; one that has been rounded to ±1 counts as the nearest below."""
    edge = 1 - torch.finfo(action.dtype).eps
    u = torch.atanh(action.clamp(-edge, edge))
    return normal_log_prob(raw, u) - log_tanh_slope(u).sum(-1)


# --- categorical, several categoricals, bits ------------------------------------------------------------------------


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., A] with a very low number where `mask` [..., A] is 0: probability exactly 0."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), ILLEGAL)


def categorical_sample(logits: Tensor, numbers: Tensor) -> Tensor:
    """Index by inversion of the distribution function; logits [..., A], uniform numbers [...]; int64 [...]."""
    cumulative = logits.softmax(-1).cumsum(-1)
    total = cumulative[..., -1:]
    chosen = (cumulative <= numbers.unsqueeze(-1) * total).sum(-1)
    # The number may round up to the total: the last action of positive probability, not a masked one behind it.
    return torch.minimum(chosen, (cumulative < total).sum(-1))


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """log softmax(logits)[action] [...]; action int64 [...]."""
    return logits.log_softmax(-1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """−Σ_a π(a) log π(a) [...]; an action of probability 0 adds 0."""
    log_probabilities = logits.log_softmax(-1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def multi_categorical_sample(logits: Tensor, numbers: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """One index per part: logits [..., ΣA], uniform numbers [..., D]; int64 [..., D]."""
    parts = torch.split(logits, list(sizes), -1)
    return torch.stack([categorical_sample(p, numbers[..., i]) for i, p in enumerate(parts)], -1)


def multi_categorical_log_prob(logits: Tensor, action: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sum over independent parts [...]; action [..., D]."""
    parts = [categorical_log_prob(p, action[..., i]) for i, p in enumerate(torch.split(logits, list(sizes), -1))]
    return torch.stack(parts, -1).sum(-1)


def multi_categorical_entropy(logits: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sum over independent parts [...]."""
    return torch.stack([categorical_entropy(part) for part in torch.split(logits, list(sizes), -1)], -1).sum(-1)


def multi_categorical_mode(logits: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The most probable index of each part, int64 [..., D]."""
    return torch.stack([part.argmax(-1) for part in torch.split(logits, list(sizes), -1)], -1)


def bernoulli_sample(logits: Tensor, numbers: Tensor) -> Tensor:
    """Bits in the dtype of `logits`: 1 where the uniform number lies below the probability; both [..., D]."""
    return (numbers < logits.sigmoid()).to(logits.dtype)


def bernoulli_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Sum over independent bits [...]; action [..., D] of 0 and 1."""
    return -F.binary_cross_entropy_with_logits(logits, action.to(logits), reduction="none").sum(-1)


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """Sum over independent bits [...]: p · softplus(−x) + (1 − p) · softplus(x)."""
    p = logits.sigmoid()
    return (p * F.softplus(-logits) + (1 - p) * F.softplus(logits)).sum(-1)


# --- one face for all of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActionDistribution:
    """What a policy's raw output means.

    Attributes:
        kind: "normal", "squashed", "categorical", "multi_categorical" or "bernoulli".
        sizes: (A,) for normal, squashed and categorical; the number of choices of each part for multi_categorical;
            (bits,) for bernoulli.
    """

    kind: str
    sizes: tuple[int, ...]

    @property
    def raw_size(self) -> int:
        """Width of the raw output."""
        return sum(self.sizes) * (2 if self.kind in ("normal", "squashed") else 1)

    @property
    def is_continuous(self) -> bool:
        """True where samples take standard normal numbers, False where they take uniform ones."""
        return self.kind in ("normal", "squashed")

    @property
    def numbers_shape(self) -> tuple[int, ...]:
        """Shape of the random numbers of one sample."""
        if self.kind == "categorical":
            return ()
        return (len(self.sizes),) if self.kind == "multi_categorical" else self.sizes

    def sample(self, raw: Tensor, numbers: Tensor, mask: Tensor | None = None) -> Tensor:
        """An action per row: raw [..., raw_size], numbers [..., *numbers_shape], mask [..., ΣA] 1 = legal."""
        if self.kind == "normal":
            return normal_sample(raw, numbers)
        if self.kind == "squashed":
            return squashed_normal_sample(raw, numbers)[0]
        logits = masked_logits(raw, mask)
        if self.kind == "categorical":
            return categorical_sample(logits, numbers)
        if self.kind == "multi_categorical":
            return multi_categorical_sample(logits, numbers, self.sizes)
        return bernoulli_sample(logits, numbers)

    def log_prob(self, raw: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log probability or density [...] of given actions."""
        if self.kind == "normal":
            return normal_log_prob(raw, action)
        if self.kind == "squashed":
            return squashed_normal_log_prob(raw, action)
        logits = masked_logits(raw, mask)
        if self.kind == "categorical":
            return categorical_log_prob(logits, action)
        if self.kind == "multi_categorical":
            return multi_categorical_log_prob(logits, action, self.sizes)
        return bernoulli_log_prob(logits, action)

    def entropy(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy [...] in nats. ConfigError for a squashed normal, which has no closed form: average −log π."""
        if self.kind == "normal":
            return normal_entropy(raw)
        if self.kind == "squashed":
            raise ConfigError("a squashed normal has no entropy in closed form. fix: average -log_prob of samples.")
        logits = masked_logits(raw, mask)
        if self.kind == "categorical":
            return categorical_entropy(logits)
        if self.kind == "multi_categorical":
            return multi_categorical_entropy(logits, self.sizes)
        return bernoulli_entropy(logits)

    def mode(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """The most probable action per row; of a squashed normal tanh(mean), its median."""
        if self.is_continuous:
            mean = split_normal(raw)[0]
            return mean.tanh() if self.kind == "squashed" else mean
        logits = masked_logits(raw, mask)
        if self.kind == "categorical":
            return logits.argmax(-1)
        if self.kind == "multi_categorical":
            return multi_categorical_mode(logits, self.sizes)
        return (logits > 0).to(raw.dtype)


def distribution_of(space: spaces.Space[Any], squash: bool = False) -> ActionDistribution:
    """The distribution over actions of a space; `squash` puts those of a Box through tanh.

    Raises:
        ConfigError: a kind of space that no policy here can sample from.
    """
    if isinstance(space, spaces.Box):
        size = max(1, int(torch.Size(space.shape).numel()))
        return ActionDistribution("squashed" if squash else "normal", (size,))
    if isinstance(space, spaces.Discrete):
        return ActionDistribution("categorical", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionDistribution("multi_categorical", tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return ActionDistribution("bernoulli", (int(torch.Size(space.shape).numel()),))
    raise ConfigError(f"actions must be Box, Discrete, MultiDiscrete or MultiBinary; got {space}.")
