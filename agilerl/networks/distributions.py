"""Actions: distributions as pure functions of a network's raw output and of supplied random numbers, and choices.

Leading axes are free: members [N], time, lanes or batch. Nothing here draws: who calls brings uniform numbers in
[0, 1) or standard normal ones, so that a row of members and one agent alone can be given the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.errors import AlgorithmError, ConfigError

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # the limits of the SAC authors' released code
Least = float | tuple[float, ...]  # log standard deviation of all components of an action, or of each
LEAST_LOG_STD = -5.0  # of data, whose actions may be all the same
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
MOST = 4096  # joint actions; each is an output of the network
ILLEGAL = -1e9  # exp gives exactly 0, and products with it stay finite, which the lowest number would not


# --- normal, and normal squashed by tanh ---------------------------------------------------------------------------


def split_normal(raw: Tensor, least: Least = LOG_STD_MIN) -> tuple[Tensor, Tensor]:
    """Raw output [..., 2A] as (mean [..., A], log standard deviation [..., A] within its limits).

    Args:
        least: of the log standard deviation, for all components or for each; the lower limit where it is above that.
    """
    mean, log_std = raw.chunk(2, -1)
    if isinstance(least, tuple):
        log_std, least = log_std.maximum(raw.new_tensor(least)), LOG_STD_MIN
    return mean, log_std.clamp(max(least, LOG_STD_MIN), LOG_STD_MAX)


def normal_sample(raw: Tensor, numbers: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """mean + std · ε; raw [..., 2A], standard normal numbers [..., A]; differentiable in `raw`."""
    mean, log_std = split_normal(raw, least)
    return mean + log_std.exp() * numbers


def normal_log_prob(raw: Tensor, value: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """Σ_i log N(value_i; mean_i, std_i) [...]; raw [..., 2A], value [..., A]."""
    mean, log_std = split_normal(raw, least)
    scaled = (value - mean) * (-log_std).exp()
    return (-0.5 * scaled.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which stays finite where tanh²u rounds to 1."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


def squashed_normal_sample(raw: Tensor, numbers: Tensor, least: Least = LOG_STD_MIN) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u ~ N(mean, std²), and its log density (Haarnoja et al. 2018, arXiv:1812.05905, appendix C).

    log π(a) = Σ_i [log N(u_i; mean_i, std_i) − log(1 − tanh²u_i)], of actions in (-1, 1).

    Args:
        raw: [..., 2A]. numbers: [..., A] standard normal. least: as of `split_normal`, of u.

    Returns:
        (actions [..., A], log densities [...]), both differentiable in `raw`.
    """
    u = normal_sample(raw, numbers, least)
    return u.tanh(), normal_log_prob(raw, u, least) - log_tanh_slope(u).sum(-1)


def squashed_normal_log_prob(raw: Tensor, action: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """Log density [...] of actions [..., A] in [-1, 1]; one that has been rounded to ±1 counts as the nearest below."""
    edge = 1 - torch.finfo(action.dtype).eps
    u = torch.atanh(action.clamp(-edge, edge))
    return normal_log_prob(raw, u, least) - log_tanh_slope(u).sum(-1)


def bounded_mean_log_prob(raw: Tensor, action: Tensor) -> Tensor:
    """Log density [...] of actions [..., A] in [-1, 1] under N(tanh(mean), std²): the squashed one's mode.

    That of the released code of implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169), with its limits of
    log std: actions on the bounds, of which data are full, have a density like any other, and pull no mean to infinity.

    Args:
        raw: [..., 2A].
    """
    mean, log_std = raw.chunk(2, -1)
    scaled = torch.cat((mean.tanh(), log_std.clamp(LEAST_LOG_STD, LOG_STD_MAX)), -1)
    return normal_log_prob(scaled, action)


# --- categorical, several categoricals, bits ------------------------------------------------------------------------


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., A] with a very low number where `mask` [..., A] is 0: probability exactly 0."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), ILLEGAL)


def masked_bits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., bits] that decide every bit of which `mask` [..., 2 · bits] allows one value: probability exactly 1.

    Args:
        mask: for each bit whether 0 is legal and whether 1 is, 1 = legal.
    """
    if mask is None:
        return logits
    may_be_0, may_be_1 = mask.bool().reshape(*mask.shape[:-1], -1, 2).unbind(-1)
    return logits.masked_fill(~may_be_1, ILLEGAL).masked_fill(~may_be_0, -ILLEGAL)


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


# --- one face for all of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActionDistribution:
    """What a policy's raw output means.

    Attributes:
        kind: "normal", "squashed", "categorical", "multi_categorical" or "bernoulli".
        sizes: (A,) for normal, squashed and categorical; the number of choices of each part for multi_categorical;
            (bits,) for bernoulli.
        least: of the log standard deviation of a normal or squashed one, for all components or for each.
    """

    kind: str
    sizes: tuple[int, ...]
    least: Least = LOG_STD_MIN

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
        """An action per row: raw [..., raw_size], numbers [..., *numbers_shape], mask [..., W] 1 = legal."""
        if self.kind == "normal":
            return normal_sample(raw, numbers, self.least)
        if self.kind == "squashed":
            return squashed_normal_sample(raw, numbers, self.least)[0]
        logits = self._masked(raw, mask)
        if self.kind == "bernoulli":
            return (numbers < logits.sigmoid()).to(logits.dtype)  # 1 where the number lies below the probability
        if self.kind == "categorical":
            return categorical_sample(logits, numbers)
        return self._components(categorical_sample, logits, numbers)

    def log_prob(self, raw: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log probability or density [...] of given actions."""
        if self.kind == "normal":
            return normal_log_prob(raw, action, self.least)
        if self.kind == "squashed":
            return squashed_normal_log_prob(raw, action, self.least)
        logits = self._masked(raw, mask)
        if self.kind == "bernoulli":
            return -F.binary_cross_entropy_with_logits(logits, action.to(logits), reduction="none").sum(-1)
        found = self._components(categorical_log_prob, logits, action)
        return found if self.kind == "categorical" else found.sum(-1)

    def entropy(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy [...] in nats. ConfigError for a squashed normal, which has no closed form: average −log π."""
        if self.kind == "normal":
            return (split_normal(raw, self.least)[1] + 0.5 + HALF_LOG_TWO_PI).sum(-1)  # Σ_i (½ + ½ log 2π + log std_i)
        if self.kind == "squashed":
            raise ConfigError("a squashed normal has no entropy in closed form. fix: average -log_prob of samples.")
        logits = self._masked(raw, mask)
        if self.kind == "bernoulli":
            p = logits.sigmoid()
            return (p * F.softplus(-logits) + (1 - p) * F.softplus(logits)).sum(-1)
        found = self._components(categorical_entropy, logits)
        return found if self.kind == "categorical" else found.sum(-1)

    def mode(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """The most probable action per row; of a squashed normal tanh(mean), its median."""
        if self.is_continuous:
            mean = split_normal(raw)[0]
            return mean.tanh() if self.kind == "squashed" else mean
        logits = self._masked(raw, mask)
        if self.kind == "bernoulli":
            return (logits > 0).to(raw.dtype)
        return self._components(lambda x: x.argmax(-1), logits)

    def _masked(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """Logits by which nothing illegal is chosen; mask [..., W] as of `envs.masks`."""
        return masked_bits(raw, mask) if self.kind == "bernoulli" else masked_logits(raw, mask)

    def _components(self, function: Callable[..., Tensor], logits: Tensor, *values: Tensor) -> Tensor:
        """Of one categorical [...]; of several, each by itself, side by side [..., D], as `values` [..., D] are."""
        if self.kind == "categorical":
            return function(logits, *values)
        parts = torch.split(logits, list(self.sizes), -1)
        return torch.stack([function(part, *(v[..., i] for v in values)) for i, part in enumerate(parts)], -1)


def distribution_of(space: spaces.Space[Any], squash: bool = False) -> ActionDistribution:
    """The distribution over actions of a space; `squash` puts those of a Box through tanh.
    Raises ConfigError: a kind of space that no policy here can sample from."""
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


def least_log_std(space: spaces.Box, share: float, squash: bool = False) -> Least:
    """log(share · half of each component's range), of (-1, 1) before tanh where actions are squashed.

    A component without two finite bounds counts as one of range 2. One number where all components have the same.

    Args:
        share: above 0.
    """
    half = (np.ravel(space.high).astype(np.float64) - np.ravel(space.low).astype(np.float64)) / 2
    half = np.where((half > 0) & (half < np.finfo(np.float32).max / 2) & (not squash), half, 1.0)
    found = tuple(float(x) for x in np.log(share * half))
    return found[0] if len(set(found)) == 1 else found


# --- choices as numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JointActions:
    """All combinations of the components of an action, numbered with the last component fastest (C order).

    Attributes:
        sizes: choices of each component. start: lowest value of each. shape: of an action; () for Discrete.
    """

    sizes: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, space: spaces.Space[Any], owner: str) -> JointActions:
        """The choices of a space. `owner` names who needs it, for the messages.
        Raises AlgorithmError: another kind of space, or more combinations than a network can list."""
        if isinstance(space, spaces.Discrete):
            return cls((int(space.n),), (int(space.start),), ())
        if not isinstance(space, spaces.MultiDiscrete):
            raise AlgorithmError(
                f"{owner}: Action space must be either Discrete or MultiDiscrete; got {type(space).__name__} {space}. "
                "fix: SAC, TD3 or DDPG for Box actions."
            )
        made = cls(tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist()), space.nvec.shape)
        if made.count > MOST:
            raise AlgorithmError(
                f"{owner} has one value per combination of actions; {space} has {made.count} combinations, more than "
                f"{MOST}. fix: PPO, whose policy chooses each component by itself."
            )
        return made

    @property
    def count(self) -> int:
        """Number of combinations."""
        return int(np.prod(self.sizes, dtype=object))

    def encode(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., *shape] of the space as numbers [...] int64."""
        lead = action.shape[: action.ndim - len(self.shape)]
        parts = action.reshape(*lead, len(self.sizes)).astype(np.int64) - np.array(self.start)
        return cast(np.ndarray, np.ravel_multi_index(tuple(np.moveaxis(parts, -1, 0)), self.sizes))

    def decode(self, number: np.ndarray) -> np.ndarray:
        """Numbers [...] as actions [..., *shape] int64 of the space."""
        parts = np.stack(np.unravel_index(np.asarray(number, np.int64), self.sizes), axis=-1) + np.array(self.start)
        decoded: np.ndarray = parts.reshape(*np.shape(number), *self.shape)
        return decoded

    def legal(self, mask: np.ndarray) -> np.ndarray:
        """Masks [..., Σ sizes] of the components, 1 = legal, as masks [..., count] of the combinations."""
        if len(self.sizes) == 1:
            return mask
        joint = np.ones((*mask.shape[:-1], 1), bool)
        for part in np.split(mask.astype(bool), np.cumsum(self.sizes)[:-1], axis=-1):
            joint = (joint[..., :, None] & part[..., None, :]).reshape(*mask.shape[:-1], -1)
        return joint
