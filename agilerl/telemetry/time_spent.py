"""Where the time of a run went, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

WORTH_SAYING_S, MOST, MUCH = 30.0, 0.5, 0.35  # seconds of a run; shares of its time
ACTING = "acting and environments"


@dataclass
class TimeSpent:
    """Wall seconds of a run since it was started or resumed.

    Attributes:
        collecting: acting, and waiting for environments, in training. learning: updates. evaluation: episodes of
            evaluations and confirmations. total: of everything. seconds_per_episode: in the last evaluation. Work of
            other processes than the one that trains is not included in the first two.
    """

    collecting: float = 0.0
    learning: float = 0.0
    evaluation: float = 0.0
    total: float = 0.0
    seconds_per_episode: float = 0.0

    @classmethod
    def from_dict(cls, entry: Any) -> TimeSpent | None:
        """Restore from the entry `time` of a run.json; None if it is missing or malformed."""
        names = {field.name for field in fields(cls)}
        is_whole = isinstance(entry, Mapping) and entry.keys() == names
        if not is_whole or not all(isinstance(value, int | float) for value in entry.values()):
            return None
        return cls(**entry)

    def as_dict(self) -> dict[str, float]:
        """JSON values, to the millisecond."""
        return {field.name: round(vars(self)[field.name], 3) for field in fields(self)}

    def shares(self) -> dict[str, float]:
        """Fractions of the time for acting (environments included), learning and evaluation; zeros before any."""
        parts = {ACTING: self.collecting, "learning": self.learning, "evaluation": self.evaluation}
        return {name: seconds / max(self.total, 1e-9) for name, seconds in parts.items()}

    def in_words(self, has_lane_workers: bool) -> str:
        """Describe the shares in one or two sentences; "" for a short run, or one that others trained.

        Args:
            has_lane_workers: whether environments step in processes of their own.
        """
        if self.total < WORTH_SAYING_S or not self.collecting + self.learning:
            return ""
        shares = self.shares()
        listed = [f"{100 * share:.0f} % into {name}" for name, share in shares.items()]
        return f"Of the time {', '.join(listed[:2])} and {listed[2]} went.{_advice(shares, has_lane_workers)}"


def _advice(shares: dict[str, float], has_lane_workers: bool) -> str:
    if shares["evaluation"] > MUCH:
        return " Fewer evaluation episodes would help (--set training.eval_share=0.2)."
    if shares[ACTING] > MOST:
        if has_lane_workers:
            return " More cores would help, or an environment that steps many copies at once."
        return " Environments in other processes may help (--set environment.healing=true)."
    if shares["learning"] > MOST:
        return " Fewer updates would help (a larger learn_step), or smaller networks."
    return ""
