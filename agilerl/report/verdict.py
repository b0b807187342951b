"""Verdict on an evolved run: whether the schedule of its winner or its final constants carry the gain, or neither."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.checkpoint import write_atomic
from agilerl.report.compare import FEW_SEEDS, probability_of_improvement
from agilerl.telemetry.evaluation import Evaluation, interval

ARMS = ("schedule", "constants", "founder")
PAIRS = (("schedule", "constants"), ("schedule", "founder"), ("constants", "founder"))
NAMES = {"schedule": "the schedule", "constants": "the final constants", "founder": "the founder's values"}
EVEN = 0.5  # probability of improvement without a difference
FILE = "verdict.json"


@dataclass(frozen=True)
class Chance:
    """Probability that a seed of `better` scores above a seed of `worse`, and its 95 % bootstrap interval."""

    better: str
    worse: str
    chance: float
    ci95: tuple[float, float]

    @property
    def sign(self) -> int:
        """1 if the interval lies above one half, -1 if below it, else 0."""
        return 1 if self.ci95[0] > EVEN else -1 if self.ci95[1] < EVEN else 0


@dataclass(frozen=True)
class Verdict:
    """Held-out scores of agents trained in three ways.

    Attributes:
        scores: mean return by arm and seed. episodes: of each score. env_steps: of each agent.
        missing: (arm, seed) of the runs that have no score yet.
    """

    scores: Mapping[str, Mapping[int, float]]
    episodes: int
    env_steps: int
    missing: tuple[tuple[str, int], ...] = ()

    @property
    def seeds(self) -> int:
        """Seeds of the arm with the fewest scores."""
        return min((len(self.scores.get(arm, {})) for arm in ARMS), default=0)

    def summary(self, arm: str) -> Evaluation | None:
        """Mean over the seeds of an arm with its 95 % bootstrap interval; None without a score."""
        values = list(self.scores.get(arm, {}).values())
        return Evaluation.from_returns(values, "seeds") if values else None

    def chances(self) -> list[Chance]:
        """Probabilities of improvement of the pairs whose arms have scores (Agarwal et al. 2021)."""
        chances = []
        for better, worse in PAIRS:
            ours, theirs = (list(self.scores.get(arm, {}).values()) for arm in (better, worse))
            if ours and theirs:
                chance, low, high = probability_of_improvement(ours, theirs)
                chances.append(Chance(better, worse, chance, (low, high)))
        return chances

    def sentence(self) -> str:
        """The verdict in one sentence; a difference needs an interval that excludes one half.

        Nothing that is worse than the founder's values carries a gain.
        """
        if self.seeds < FEW_SEEDS:
            return f"Too few seeds for a verdict: each way needs {FEW_SEEDS}, and has {self.seeds}."
        signs = {(chance.better, chance.worse): chance.sign for chance in self.chances()}
        schedule, total, constants = (signs[pair] for pair in PAIRS)
        if schedule > 0 and total >= 0:
            over = (
                "and better than the founder's values"
                if total > 0
                else "though not clearly better than the founder's values"
            )
            return f"The schedule carries the gain: it is better than its final constants, {over}."
        if constants > 0:
            how = "is worse than them" if schedule < 0 else "adds nothing that these seeds show"
            return f"The final constants carry the gain: they beat the founder's values, and the schedule {how}."
        if total > 0:
            return (
                "The schedule is better than the founder's values, but these seeds do not tell whether it or its final "
                "constants carry the gain."
            )
        worse = [NAMES[arm] for arm, sign in (("schedule", total), ("constants", constants)) if sign < 0]
        if worse:
            verb = "are" if len(worse) > 1 or worse[0].endswith("constants") else "is"
            return f"Neither carries a gain: {' and '.join(worse)} {verb} worse than the founder's values."
        return "Neither carries a gain that these seeds show over the founder's values."

    def lines(self) -> list[str]:
        """Scores, probabilities of improvement, and the sentence."""
        lines = []
        for arm in ARMS:
            score = self.summary(arm)
            if score is None:
                lines.append(f"{arm:<9}  no score yet")
                continue
            mean, low, high = interval(score.mean, *score.ci95)
            many = f"{len(score.returns)} {'seed' if len(score.returns) == 1 else 'seeds'}"
            lines.append(f"{arm:<9}  mean {mean}   95% CI {low}..{high} over {many}")
        for chance in self.chances():
            sure = f"95% CI {chance.ci95[0]:.2f}..{chance.ci95[1]:.2f}"
            lines.append(f"P({chance.better} better than {chance.worse}) = {chance.chance:.2f}   {sure}")
        if self.missing:
            lines.append(f"no score yet: {', '.join(f'{arm} of seed {seed}' for arm, seed in self.missing)}")
        return [*lines, self.sentence()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        arms: dict[str, Any] = {}
        for arm in ARMS:
            score = self.summary(arm)
            numbers = {} if score is None else {"mean": score.mean, "ci95": list(score.ci95)}
            arms[arm] = {"scores": {str(k): v for k, v in self.scores.get(arm, {}).items()}, **numbers}
        chances = [
            {"better": c.better, "worse": c.worse, "chance": c.chance, "ci95": [*c.ci95]} for c in self.chances()
        ]
        return {
            "episodes": self.episodes,
            "env_steps": self.env_steps,
            "arms": arms,
            "improvement": chances,
            "missing": [list(run) for run in self.missing],
            "verdict": self.sentence(),
        }

    def write(self, folder: Path, **more: Any) -> Path:
        """Write verdict.json into a folder, atomically; more: further entries."""
        path = folder / FILE
        write_atomic(path, json.dumps({**self.as_dict(), **more}, indent=2, allow_nan=False) + "\n")
        return path
