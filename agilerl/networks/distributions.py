"""Action distributions, as pure functions of a network's raw output and supplied random numbers; joint actions.

Leading axes are arbitrary: members [N], time, lanes or batch. These functions draw no random numbers: the caller passes
uniform numbers in [0, 1) or standard normal ones, so that stacked members and a single agent can get the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.core.spaces import nested
from agilerl.core.tree import leaves
from agilerl.errors import AlgorithmError, ConfigError

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # limits in the SAC authors' released code
Draw = Callable[[tuple[int, ...]], Any]
Least = float | tuple[float, ...]  # one log standard deviation for all components of an action, or one for each
MIN_DATA_LOG_STD = -5.0  # for data sets, whose actions may be constant
MAX_HALF_RANGE = float(np.finfo(np.float32).max) / 2  # half of a range from which bounds are treated as infinite
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
MAX_JOINT_ACTIONS = 4096  # each is an output of the network
ILLEGAL = -1e9  # exp gives exactly 0, and products stay finite, unlike with the lowest number


# --- normal, and normal squashed by tanh ---------------------------------------------------------------------------


def split_normal(raw: Tensor, least: Least = LOG_STD_MIN) -> tuple[Tensor, Tensor]:
    """Split raw output [..., 2A] into (mean [..., A], clamped log standard deviation [..., A]).

    Args:
        least: lower limit of the log standard deviation, for all components or each; only if above the default limit.
    """
    mean, log_std = raw.chunk(2, -1)
    if isinstance(least, tuple):
        log_std, least = log_std.maximum(raw.new_tensor(least)), LOG_STD_MIN
    return mean, log_std.clamp(max(least, LOG_STD_MIN), LOG_STD_MAX)


def normal_sample(raw: Tensor, numbers: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """Return mean + std · ε; raw [..., 2A], standard normal numbers [..., A]; differentiable in `raw`."""
    mean, log_std = split_normal(raw, least)
    return mean + log_std.exp() * numbers


def normal_log_prob(raw: Tensor, value: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """Σ_i log N(value_i; mean_i, std_i) [...]; raw [..., 2A], value [..., A]."""
    mean, log_std = split_normal(raw, least)
    scaled = (value - mean) * (-log_std).exp()
    return (-0.5 * scaled.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which stays finite if tanh²u rounds to 1."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


def squashed_normal_sample(raw: Tensor, numbers: Tensor, least: Least = LOG_STD_MIN) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u ~ N(mean, std²), and its log density (Haarnoja et al. 2018, arXiv:1812.05905, appendix C).

    log π(a) = Σ_i [log N(u_i; mean_i, std_i) − log(1 − tanh²u_i)], for actions in (-1, 1).

    Args:
        raw: [..., 2A]. numbers: [..., A] standard normal. least: see `split_normal`, for u.

    Returns:
        (actions [..., A], log densities [...]), both differentiable in `raw`.
    """
    u = normal_sample(raw, numbers, least)
    return u.tanh(), normal_log_prob(raw, u, least) - log_tanh_slope(u).sum(-1)


def squashed_normal_log_prob(raw: Tensor, action: Tensor, least: Least = LOG_STD_MIN) -> Tensor:
    """Return the log density [...] of actions [..., A] in [-1, 1]; ±1 is replaced by the nearest number inside."""
    edge = 1 - torch.finfo(action.dtype).eps
    u = torch.atanh(action.clamp(-edge, edge))
    return normal_log_prob(raw, u, least) - log_tanh_slope(u).sum(-1)


def bounded_mean_log_prob(raw: Tensor, action: Tensor) -> Tensor:
    """Return the log density [...] of actions [..., A] in [-1, 1] under N(tanh(mean), std²), the squashed normal's
    mode.

    As in the released code of implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169), with its limits of log
    std: actions on the bounds, which are common in data, have a finite density, and do not pull the mean to infinity.

    Args:
        raw: [..., 2A].
    """
    mean, log_std = raw.chunk(2, -1)
    scaled = torch.cat((mean.tanh(), log_std.clamp(MIN_DATA_LOG_STD, LOG_STD_MAX)), -1)
    return normal_log_prob(scaled, action)


# --- categorical, several categoricals, bits ------------------------------------------------------------------------


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Set logits [..., A] to a very low number where `mask` [..., A] is 0: probability exactly 0."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), ILLEGAL)


def masked_bits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a mask to logits [..., bits]; a bit with one legal value takes it with log probability and entropy 0.

    Args:
        mask: [..., 2 · bits], two entries per bit: whether 0 and whether 1 is legal.
    """
    if mask is None:
        return logits
    may_be_0, may_be_1 = mask.bool().reshape(*mask.shape[:-1], -1, 2).unbind(-1)
    return logits.masked_fill(~may_be_1, ILLEGAL).masked_fill(~may_be_0, -ILLEGAL)


def categorical_sample(logits: Tensor, numbers: Tensor) -> Tensor:
    """Sample an index by inverting the cumulative distribution; logits [..., A], uniform numbers [...]; int64 [...]."""
    cumulative = logits.softmax(-1).cumsum(-1)
    total = cumulative[..., -1:]
    chosen = (cumulative <= numbers.unsqueeze(-1) * total).sum(-1)
    # The number may round up to the total: take the last action of positive probability, not a masked one behind it.
    return torch.minimum(chosen, (cumulative < total).sum(-1))


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Return log softmax(logits)[action] [...]; action int64 [...]."""
    return logits.log_softmax(-1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Return −Σ_a π(a) log π(a) [...]; an action of probability 0 contributes 0."""
    log_probabilities = logits.log_softmax(-1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


# --- common interface -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActionDistribution:
    """Distribution over the actions of one space, parameterised by a policy's raw output.

    Normal actions may be scaled (`centre`, `half`): mean, standard deviation, log densities and entropies are then in
    units of half a range around its centre; samples, modes and the actions passed to `log_prob` are in units of the
    space, not clipped.

    Attributes:
        kind: "normal", "squashed", "categorical", "multi_categorical", "bernoulli" or "joint".
        sizes: (A,) for normal, squashed and categorical; the number of choices of each component for
            multi_categorical; (bits,) for bernoulli; () for joint.
        least: lower limit of the log standard deviation of a normal or squashed one, for all components or for each.
        centre, half: of each component of a normal one, see `box_units`; empty if actions are in policy units.
        rounds: whether Box actions are rounded to the nearest integer for the environment.
        parts: independent distributions of a joint one. Its rows (raw output, numbers, action, mask) are the
            concatenated rows of its parts, each action as `columns` numbers.
    """

    kind: str
    sizes: tuple[int, ...]
    least: Least = LOG_STD_MIN
    centre: tuple[float, ...] = ()
    half: tuple[float, ...] = ()
    rounds: bool = False
    parts: tuple[ActionDistribution, ...] = ()

    @property
    def raw_size(self) -> int:
        """Width of the raw output."""
        if self.parts:
            return sum(part.raw_size for part in self.parts)
        return sum(self.sizes) * (2 if self.kind in ("normal", "squashed") else 1)

    @property
    def is_continuous(self) -> bool:
        """Whether samples use standard normal numbers only, rather than uniform ones or a mixture."""
        return self.kind in ("normal", "squashed")

    @property
    def has_normal(self) -> bool:
        """Whether some component is normally distributed."""
        return self.is_continuous or any(part.has_normal for part in self.parts)

    @property
    def columns(self) -> int:
        """Number of columns of a flattened action."""
        if self.parts:
            return sum(part.columns for part in self.parts)
        if self.kind == "categorical":
            return 1
        return len(self.sizes) if self.kind == "multi_categorical" else self.sizes[0]

    @property
    def mask_width(self) -> int:
        """Length of an action mask: one entry per choice, two per bit (0 legal, 1 legal), none for Box."""
        if self.parts:
            return sum(part.mask_width for part in self.parts)
        if self.is_continuous:
            return 0
        return sum(self.sizes) * (2 if self.kind == "bernoulli" else 1)

    @property
    def numbers_shape(self) -> tuple[int, ...]:
        """Shape of the random numbers of one sample."""
        if self.parts:
            return (sum(math.prod(part.numbers_shape) for part in self.parts),)
        if self.kind == "categorical":
            return ()
        return (len(self.sizes),) if self.kind == "multi_categorical" else self.sizes

    def draw(self, normal: Draw, uniform: Draw, shape: tuple[int, ...]) -> list[Any]:
        """Draw the random numbers of samples [*shape]: [*shape, *numbers_shape], for a joint distribution one array per
        part, with its columns in a last axis.

        Args:
            normal, uniform: functions that draw standard normal, and uniform numbers in [0, 1), of a shape.
        """
        if not self.parts:
            return [(normal if self.is_continuous else uniform)((*shape, *self.numbers_shape))]
        sizes = [(part, math.prod(part.numbers_shape)) for part in self.parts]
        return [(normal if part.is_continuous else uniform)((*shape, size)) for part, size in sizes]

    def log_std_columns(self) -> list[slice]:
        """Return the columns of the log standard deviations in the raw output."""
        if self.is_continuous:
            return [slice(self.sizes[0], 2 * self.sizes[0])]
        slices, start = [], 0
        for part in self.parts:
            slices += [slice(start + columns.start, start + columns.stop) for columns in part.log_std_columns()]
            start += part.raw_size
        return slices

    def sample(self, raw: Tensor, numbers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sample actions: raw [..., raw_size], numbers [..., *numbers_shape], mask [..., mask_width] 1 = legal."""
        if self.parts:
            part_numbers = torch.split(numbers, [math.prod(part.numbers_shape) for part in self.parts], -1)
            drawn = [x if part.numbers_shape else x[..., 0] for part, x in zip(self.parts, part_numbers, strict=True)]
            parts = zip(self._each(raw, mask), drawn, strict=True)
            return self._joined([(part, part.sample(part_raw, x, legal)) for (part, part_raw, legal), x in parts], raw)
        if self.kind == "normal":
            return self.in_space_units(normal_sample(raw, numbers, self.least))
        if self.kind == "squashed":
            return squashed_normal_sample(raw, numbers, self.least)[0]
        if self.kind == "bernoulli":
            logits = masked_bits(raw, mask)
            return (numbers < logits.sigmoid()).to(logits.dtype)  # 1 if the number is below the probability
        logits = masked_logits(raw, mask)
        if self.kind == "categorical":
            return categorical_sample(logits, numbers)
        return self._components(categorical_sample, logits, numbers)

    def log_prob(self, raw: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the log probability or density [...] of given actions; for a joint distribution the sum over parts."""
        if self.parts:
            parts = zip(self._each(raw, mask), self.split(action), strict=True)
            return torch.stack([part.log_prob(part_raw, x, legal) for (part, part_raw, legal), x in parts], -1).sum(-1)
        if self.kind == "normal":
            return normal_log_prob(raw, self.in_policy_units(action), self.least)
        if self.kind == "squashed":
            return squashed_normal_log_prob(raw, action, self.least)
        if self.kind == "bernoulli":
            logits = masked_bits(raw, mask)
            return -F.binary_cross_entropy_with_logits(logits, action.to(logits), reduction="none").sum(-1)
        log_probs = self._components(categorical_log_prob, masked_logits(raw, mask), action)
        return log_probs if self.kind == "categorical" else log_probs.sum(-1)

    def entropy(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the entropy [...] in nats; summed over the independent parts of a joint distribution.
        ConfigError for a squashed normal, which has no closed form: average −log π."""
        if self.parts:
            return torch.stack(
                [part.entropy(part_raw, legal) for part, part_raw, legal in self._each(raw, mask)], -1
            ).sum(-1)
        if self.kind == "normal":
            return (split_normal(raw, self.least)[1] + 0.5 + HALF_LOG_TWO_PI).sum(-1)  # Σ_i (½ + ½ log 2π + log std_i)
        if self.kind == "squashed":
            raise ConfigError("a squashed normal has no entropy in closed form. fix: average -log_prob of samples.")
        if self.kind == "bernoulli":
            logits = masked_bits(raw, mask)
            p = logits.sigmoid()
            return (p * F.softplus(-logits) + (1 - p) * F.softplus(logits)).sum(-1)
        entropies = self._components(categorical_entropy, masked_logits(raw, mask))
        return entropies if self.kind == "categorical" else entropies.sum(-1)

    def mode(self, raw: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the most probable action per row; for a squashed normal tanh(mean), its median."""
        if self.parts:
            return self._joined(
                [(part, part.mode(part_raw, legal)) for part, part_raw, legal in self._each(raw, mask)], raw
            )
        if self.is_continuous:
            mean = split_normal(raw)[0]
            return mean.tanh() if self.kind == "squashed" else self.in_space_units(mean)
        if self.kind == "bernoulli":
            return (masked_bits(raw, mask) > 0).to(raw.dtype)
        return self._components(lambda x: x.argmax(-1), masked_logits(raw, mask))

    # -- units of Box actions ------------------------------------------------------------------------------------------

    def in_space_units(self, action: Tensor) -> Tensor:
        """Convert Box actions [..., A] from policy units to the space: centre + half · a."""
        return action * action.new_tensor(self.half) + action.new_tensor(self.centre) if self.half else action

    def in_policy_units(self, action: Tensor) -> Tensor:
        """Invert `in_space_units`."""
        return (action - action.new_tensor(self.centre)) / action.new_tensor(self.half) if self.half else action

    # -- rows of a joint distribution ----------------------------------------------------------------------------------

    def split(self, action: Tensor) -> list[Tensor]:
        """Split rows [..., columns] of a joint action into the actions of its parts."""
        columns = torch.split(action, [part.columns for part in self.parts], -1)
        return [part.of_columns(x) for part, x in zip(self.parts, columns, strict=True)]

    def of_columns(self, row: Tensor) -> Tensor:
        """Convert a flattened action [..., columns] to this distribution's format: int64 [...] for one choice."""
        if self.kind == "categorical":
            return row[..., 0].long()
        return row if self.is_continuous or self.parts else row.long()

    def _each(self, raw: Tensor, mask: Tensor | None) -> list[tuple[ActionDistribution, Tensor, Tensor | None]]:
        """Return (part, its raw output, its mask) of each part."""
        raw_parts: Sequence[Tensor] = torch.split(raw, [part.raw_size for part in self.parts], -1)
        legal: Sequence[Tensor | None] = [None] * len(self.parts)
        if mask is not None:
            masks = torch.split(mask, [part.mask_width for part in self.parts], -1)
            legal = [x if part.mask_width else None for part, x in zip(self.parts, masks, strict=True)]
        return list(zip(self.parts, raw_parts, legal, strict=True))

    @staticmethod
    def _joined(actions: list[tuple[ActionDistribution, Tensor]], like: Tensor) -> Tensor:
        """Concatenate actions of the parts to rows [..., columns] of numbers."""
        rows = [x.unsqueeze(-1) if part.kind == "categorical" else x for part, x in actions]
        return torch.cat([x.to(like.dtype) for x in rows], -1)

    def _components(self, function: Callable[..., Tensor], logits: Tensor, *values: Tensor) -> Tensor:
        """Apply to one categorical [...], or to several separately, concatenated [..., D], like `values` [..., D]."""
        if self.kind == "categorical":
            return function(logits, *values)
        parts = torch.split(logits, list(self.sizes), -1)
        return torch.stack([function(part, *(v[..., i] for v in values)) for i, part in enumerate(parts)], -1)


def distribution_of(space: spaces.Space[Any], squash: bool = False, scaled: bool = False) -> ActionDistribution:
    """Return the distribution over actions of a space; for a Dict or Tuple the joint one of its parts.

    Args:
        squash: pass actions of a Box through tanh.
        scaled: normal actions are in units of half a range around the centre of their bounds (`box_units`), and
            integer Box actions are rounded to the nearest.

    Raises:
        ConfigError: unsupported kind of space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = tuple(distribution_of(part, squash, scaled) for part in leaves(nested(space)))
        if not parts:
            raise ConfigError(f"actions must have at least one part; got {space}.")
        return ActionDistribution("joint", (), parts=parts)
    if isinstance(space, spaces.Box):
        size = max(1, int(torch.Size(space.shape).numel()))
        centre, half = box_units(space) if scaled and not squash else ((), ())
        rounds = scaled and np.issubdtype(space.dtype, np.integer)
        return ActionDistribution("squashed" if squash else "normal", (size,), LOG_STD_MIN, centre, half, rounds)
    if isinstance(space, spaces.Discrete):
        return ActionDistribution("categorical", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionDistribution("multi_categorical", tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return ActionDistribution("bernoulli", (int(torch.Size(space.shape).numel()),))
    raise ConfigError(f"actions must be Box, (Multi)Discrete or MultiBinary, or a Dict or Tuple of these; got {space}.")


def box_units(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return centre and half of the range of each component, which map [-1, 1] to the bounds; empty for the identity.

    A component with an infinite bound keeps 0 and 1. So do bounds that represent infinity: those of float32, and of
    integers with 32 bits or more. A component with a single value has half a range of 1.
    """
    low, high = (np.ravel(bound).astype(np.float64) for bound in (space.low, space.high))
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        half, middle = high / 2 - low / 2, low / 2 + high / 2
    is_open = ~np.isfinite(half) | (half >= MAX_HALF_RANGE)
    if np.issubdtype(space.dtype, np.integer) and np.dtype(space.dtype).itemsize >= 4:
        limits: Any = np.iinfo(space.dtype)  # type: ignore[type-var]  # dtype was checked
        is_open |= (low <= float(limits.min) + 2) & (limits.min < 0) | (high >= float(limits.max) - 2)
    centre = np.where(is_open, 0.0, middle)
    half = np.where(is_open | (half < np.finfo(np.float32).tiny), 1.0, half)
    if (centre == 0).all() and (half == 1).all():
        return (), ()
    return tuple(centre.tolist()), tuple(half.tolist())


def uniform_action(
    kind: ActionDistribution, space: spaces.Space[Any], rng: np.random.Generator, shape: tuple[int, ...],
    mask: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Sample uniform legal actions [*shape, columns], flattened: Box components within their bounds.

    Components without two finite bounds, and squashed ones, are drawn from [-1, 1].

    Args:
        kind: the distribution of `space`. mask: [*shape, mask_width] 1 = legal.
    """
    if kind.parts:
        ends = np.cumsum([part.mask_width for part in kind.parts])[:-1]
        masks: Sequence[Any] = [None] * len(kind.parts) if mask is None else np.split(mask, ends, -1)
        parts = zip(kind.parts, leaves(nested(space)), masks, strict=True)
        return np.concatenate(
            [uniform_action(part, part_space, rng, shape, legal) for part, part_space, legal in parts], -1
        )
    if kind.is_continuous:
        drawn = rng.uniform(-1, 1, (*shape, kind.columns))
        centre, half = ((), ()) if kind.kind == "squashed" else box_units(space)  # type: ignore[arg-type]
        return (drawn * half + centre if half else drawn).astype(np.float32)
    (numbers,) = kind.draw(rng.standard_normal, rng.random, shape)
    legal = None if mask is None else torch.from_numpy(mask.astype(bool))
    actions = kind.sample(torch.zeros(*shape, kind.raw_size), torch.from_numpy(numbers).float(), legal).numpy()
    return np.asarray(actions[..., None] if kind.kind == "categorical" else actions, np.float32)


def least_log_std(space: spaces.Box, share: float, squash: bool = False) -> Least:
    """Return log(share · half of each component's range), in units of the space.

    A component without two finite bounds is treated as having range 2. A single number if all components are equal.

    Args:
        share: above 0.
        squash: the limit is in policy units, in which every range is (-1, 1): before tanh, or for scaled actions.
    """
    half = (np.ravel(space.high).astype(np.float64) - np.ravel(space.low).astype(np.float64)) / 2
    half = np.where((half > 0) & (half < np.finfo(np.float32).max / 2) & (not squash), half, 1.0)
    limits = tuple(float(x) for x in np.log(share * half))
    return limits[0] if len(set(limits)) == 1 else limits


def with_least(kind: ActionDistribution, space: spaces.Space[Any], share: float) -> ActionDistribution:
    """Return the distribution of a space with `least_log_std` as the lower limit of its normal parts.

    Args:
        share: above 0, as a fraction of half of each component's range.
    """
    if kind.parts:
        parts = zip(kind.parts, leaves(nested(space)), strict=True)
        return replace(kind, parts=tuple(with_least(part, part_space, share) for part, part_space in parts))
    if not isinstance(space, spaces.Box):
        return kind
    return replace(kind, least=least_log_std(space, share, kind.kind == "squashed" or bool(kind.half)))


# --- joint discrete actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JointActions:
    """All combinations of the components of a discrete action, numbered with the last component fastest (C order).

    Attributes:
        sizes: choices of each component. start: lowest value of each. shape: of an action; () for Discrete.
    """

    sizes: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, space: spaces.Space[Any], owner: str) -> JointActions:
        """Create from a space. `owner` names the caller, for messages.
        Raises AlgorithmError: unsupported space, or too many combinations."""
        if isinstance(space, spaces.Discrete):
            return cls((int(space.n),), (int(space.start),), ())
        if not isinstance(space, spaces.MultiDiscrete):
            raise AlgorithmError(
                f"{owner}: Action space must be either Discrete or MultiDiscrete; got {type(space).__name__} {space}. "
                "fix: SAC, TD3 or DDPG for Box actions."
            )
        joint = cls(tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist()), space.nvec.shape)
        if joint.count > MAX_JOINT_ACTIONS:
            raise AlgorithmError(
                f"{owner} has one value per combination of actions; {space} has {joint.count} combinations, more than "
                f"{MAX_JOINT_ACTIONS}. fix: PPO, whose policy chooses each component by itself."
            )
        return joint

    @property
    def count(self) -> int:
        """Number of combinations."""
        return int(np.prod(self.sizes, dtype=object))

    def encode(self, action: np.ndarray) -> np.ndarray:
        """Convert actions [..., *shape] of the space to indices [...] int64."""
        lead = action.shape[: action.ndim - len(self.shape)]
        parts = action.reshape(*lead, len(self.sizes)).astype(np.int64) - np.array(self.start)
        return cast(np.ndarray, np.ravel_multi_index(tuple(np.moveaxis(parts, -1, 0)), self.sizes))

    def decode(self, number: np.ndarray) -> np.ndarray:
        """Convert indices [...] to actions [..., *shape] int64 of the space."""
        parts = np.stack(np.unravel_index(np.asarray(number, np.int64), self.sizes), axis=-1) + np.array(self.start)
        decoded: np.ndarray = parts.reshape(*np.shape(number), *self.shape)
        return decoded

    def legal(self, mask: np.ndarray) -> np.ndarray:
        """Convert component masks [..., Σ sizes], 1 = legal, to masks [..., count] of the combinations."""
        if len(self.sizes) == 1:
            return mask
        joint = np.ones((*mask.shape[:-1], 1), bool)
        for part in np.split(mask.astype(bool), np.cumsum(self.sizes)[:-1], axis=-1):
            joint = (joint[..., :, None] & part[..., None, :]).reshape(*mask.shape[:-1], -1)
        return joint
