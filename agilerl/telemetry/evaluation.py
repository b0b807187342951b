"""Scores of policies: returns of episodes with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

RESAMPLES = 5000
MIN_COMPARED, CHANCE = 5, 0.05  # for a standard error; probability of a difference by chance

Verdict = Literal["better", "worse", "no better", "unclear"]
Callback = Callable[[float, dict[str, Any]], None]  # called with the return of an episode and its last info


@dataclass(frozen=True)
class Evaluation:
    """Returns of held-out full episodes.

    Attributes:
        mean, std: over the episodes; std with n - 1.
        iqm: mean of the middle half (25 % cut at each end).
        ci95: 95 % bootstrap interval of the mean.
        returns: one per episode.
        of: unit of the returns, in messages: episodes, or prompts of a split.
    """

    mean: float
    std: float
    iqm: float
    ci95: tuple[float, float]
    returns: tuple[float, ...]
    of: str = "episodes"

    @classmethod
    def from_returns(cls, returns: Sequence[float], of: str = "episodes") -> Evaluation:
        """Summarise returns; equal returns give an equal interval (resampling has a fixed seed)."""
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
        """Restore from `as_dict` in a run.json; None if it is missing or malformed."""
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
    """Score of uniformly random play in the environment of a run.

    Attributes:
        score: of full episodes, None if none were played. skipped: the reason.
        is_zero_sum: whether it is a zero-sum game of two agents, in which every team's return is zero.
    """

    score: Evaluation | None = None
    skipped: str = ""
    is_zero_sum: bool = False

    @classmethod
    def from_dict(cls, entry: object) -> Baseline | None:
        """Restore from `random_play` of a run.json; None if it is missing or malformed."""
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

    def verdict(self, mean: float, error: float = 0.0, returns: Sequence[float] = ()) -> Verdict | None:
        """Compare a mean return with random play; None if random play was not measured.

        Better and worse: by more than two standard errors of the difference. No better: even two standard errors more
        would be a gain of less than the standard deviation of random returns. With fewer than `MIN_COMPARED` episodes
        standard errors are too uncertain themselves: all returns of one side must then exceed all of the other, in an
        arrangement that chance gives in less than one of twenty cases (the exact rank-sum test, Wilcoxon 1945).

        Args:
            mean, error: of held-out episodes and its standard error. returns: of these episodes, if known.
        """
        if self.score is None:
            return None
        random = self.score.returns
        gap, noise = mean - self.score.mean, 2 * math.hypot(error, self.score.error)
        direction: Verdict = "better" if gap > 0 else "worse"
        if min(len(random), len(returns) or MIN_COMPARED) < MIN_COMPARED:
            return direction if _are_separate(random, returns) else "unclear"
        if abs(gap) > noise:
            return direction
        return "no better" if gap + noise <= self.score.std else "unclear"


def _are_separate(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether all values of one side exceed all of the other, which chance gives with a probability below 0.05."""
    if not first or not second or 2 / math.comb(len(first) + len(second), len(first)) >= CHANCE:
        return False
    return max(first) < min(second) or max(second) < min(first)


def interval(mean: float, low: float, high: float) -> tuple[str, str, str]:
    """Format a mean and its interval with two significant digits of the interval's width, and at least one decimal.

    224.1 in 214.0..233.0; 0.74 in 0.65..0.82; 0.0123 in 0.0117..0.0129.
    """
    width = abs(high - low)
    scale = width if width > 0 else abs(mean) / 10  # no width: three digits of the value
    decimals = 1 if not scale > 0 or not math.isfinite(scale) else min(6, max(1, 1 - math.floor(math.log10(scale))))
    return f"{mean:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"
