"""What a policy scores: the returns of its episodes and how sure their mean is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 5000


@dataclass(frozen=True)
class Evaluation:
    """Returns of full episodes that chose nothing.

    Attributes:
        mean, std: over the episodes; std with n - 1.
        iqm: mean of the middle half (25 % cut at each end).
        ci95: 95 % bootstrap interval of the mean.
        returns: one per episode.
        of: what they are of, in a text: episodes, or prompts of a split.
    """

    mean: float
    std: float
    iqm: float
    ci95: tuple[float, float]
    returns: tuple[float, ...]
    of: str = "episodes"

    @classmethod
    def from_returns(cls, returns: Sequence[float], of: str = "episodes") -> Evaluation:
        """Summarise returns; equal returns give an equal interval (the resampling has a seed of its own)."""
        values = np.asarray(returns, dtype=np.float64)
        if values.ndim != 1 or not len(values):
            raise ValueError(f"returns must hold at least one episode; got shape {values.shape}. fix: episodes >= 1.")
        cut = len(values) // 4
        middle = np.sort(values)[cut : len(values) - cut]
        draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
        low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
        std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        ci95, returns = (float(low), float(high)), tuple(values.tolist())
        return cls(float(values.mean()), std, float(middle.mean()), ci95, returns, of)

    @classmethod
    def from_dict(cls, entry: Any) -> Evaluation | None:
        """From `as_dict` in a run.json; None where that is missing or is not one."""
        returns = entry.get("returns") if isinstance(entry, Mapping) else None
        if not isinstance(returns, list) or not returns or not all(isinstance(r, int | float) for r in returns):
            return None
        return cls.from_returns(returns, str(entry.get("of", "episodes")))

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for a single episode, whose spread is unknown."""
        return 0.0 if math.isnan(self.std) else self.std / math.sqrt(len(self.returns))

    def as_dict(self) -> dict[str, Any]:
        """JSON values; std is null for a single episode."""
        std = None if math.isnan(self.std) else self.std
        lists = {"ci95": list(self.ci95), "returns": list(self.returns)}
        of = {} if self.of == "episodes" else {"of": self.of}
        return {"episodes": len(self.returns), **of, "mean": self.mean, "std": std, "iqm": self.iqm, **lists}

    def __str__(self) -> str:
        """`100 episodes: mean 224.1, 95% CI 214.0..233.0`."""
        mean, low, high = interval(self.mean, *self.ci95)
        return f"{len(self.returns)} {self.of}: mean {mean}, 95% CI {low}..{high}"


@dataclass(frozen=True)
class Baseline:
    """What uniformly random play scores in the environment of a run.

    Attributes:
        score: of whole episodes, None where none were played. skipped: why not.
        is_zero_sum: whether two agents gain what the other one loses, so that every team's return is zero.
    """

    score: Evaluation | None = None
    skipped: str = ""
    is_zero_sum: bool = False

    @classmethod
    def from_dict(cls, entry: Any) -> Baseline | None:
        """From `random_play` of a run.json; None where that is missing or is not one."""
        if not isinstance(entry, Mapping):
            return None
        returns = entry.get("returns")
        if isinstance(returns, list) and returns and all(isinstance(r, int | float) for r in returns):
            return cls(Evaluation.from_returns(returns), is_zero_sum=entry.get("zero_sum") is True)
        return cls(skipped=str(entry["skipped"])) if "skipped" in entry else None

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        if self.score is None:
            return {"skipped": self.skipped}
        return {**self.score.as_dict(), **({"zero_sum": True} if self.is_zero_sum else {})}

    def __str__(self) -> str:
        if self.score is None:
            return f"random play: not measured ({self.skipped})"
        mean, low, high = interval(self.score.mean, *self.score.ci95)
        return f"random play: mean {mean}, 95% CI {low}..{high} over {len(self.score.returns)} episodes"

    def verdict(self, mean: float, error: float = 0.0) -> int | None:
        """1 where a mean is above random play by more than two standard errors of the difference, -1 where it is below,
        0 where the two cannot be told apart; None where random play was not measured.

        Args:
            mean, error: of held-out episodes and its standard error.
        """
        if self.score is None:
            return None
        gap, noise = mean - self.score.mean, 2 * math.hypot(error, self.score.error)
        return 0 if abs(gap) <= noise else int(math.copysign(1, gap))


def interval(mean: float, low: float, high: float) -> tuple[str, str, str]:
    """A mean and its interval with the digits that the interval's width leaves a meaning: two of it, one at least.

    224.1 in 214.0..233.0; 0.74 in 0.65..0.82; 0.0123 in 0.0117..0.0129.
    """
    width = abs(high - low)
    scale = width if width > 0 else abs(mean) / 10  # no width: three digits of the value
    decimals = 1 if not scale > 0 or not math.isfinite(scale) else min(6, max(1, 1 - math.floor(math.log10(scale))))
    return f"{mean:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"
