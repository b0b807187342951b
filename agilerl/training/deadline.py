"""End of a budget in minutes: whether a run has time for another generation and for its final evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agilerl.ranks import Ranks

FINAL_SHARE, MIN_FINAL_EPISODES = 0.1, 2  # of the budget, set aside for the final evaluation; fewer say nothing
OVERRUN = 0.05  # of the budget, by which a generation may take longer than expected before it is given up


class TimeIsUp(Exception):  # an end, not an error
    """Raised between vector steps in a generation that takes longer than a budget in minutes can bear."""


@dataclass(frozen=True)
class Deadline:
    """Time at which a run must have ended, its final evaluation included.

    Attributes:
        begins, ends: readings of `clock`, in seconds.
        final_episodes: most episodes of the final evaluation that follows the run.
        clock: monotonic, in seconds.
    """

    begins: float
    ends: float
    final_episodes: int = 0
    clock: Callable[[], float] = time.perf_counter

    @classmethod
    def after(cls, minutes: float, final_episodes: int = 0, begins: float | None = None) -> Deadline:
        """Deadline of a budget that began at `begins`, a reading of `time.perf_counter`; None: now."""
        begins = time.perf_counter() if begins is None else begins
        return cls(begins, begins + 60 * minutes, final_episodes)

    @property
    def seconds(self) -> float:
        """Length of the whole budget."""
        return self.ends - self.begins

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.ends - self.clock()

    def check(self) -> None:
        """Raise `TimeIsUp` once a generation takes so long that it has to be given up."""
        if self.left < -OVERRUN * self.seconds:
            raise TimeIsUp

    def reserved_episodes(self, seconds_per_episode: float) -> int:
        """Episodes of the final evaluation for which time is set aside: fewer where they take long."""
        fitting = FINAL_SHARE * self.seconds / max(seconds_per_episode, 1e-9)
        return int(min(self.final_episodes, max(fitting, MIN_FINAL_EPISODES)))

    def episodes_left(self, seconds_per_episode: float) -> int:
        """Episodes of the final evaluation in the time that is left once the run has ended; 0 if hardly any fit."""
        fitting = int(min(self.final_episodes, self.left / max(seconds_per_episode, 1e-9)))
        return fitting if fitting >= min(MIN_FINAL_EPISODES, self.final_episodes) else 0

    def episodes_in(self, episodes: int, seconds_per_episode: float) -> int:
        """Return how many of some episodes fit before the final evaluation."""
        return max(0, min(episodes, int(self.room(0, seconds_per_episode) / max(seconds_per_episode, 1e-9))))

    def is_last(self, generation: float, episodes: int, seconds_per_episode: float) -> bool:
        """Whether the current generation must be the last one.

        Args:
            generation: expected seconds of the next generation.
            episodes: held-out episodes that confirm the best agents at the end of the run.
            seconds_per_episode: measured in the last evaluation.
        """
        return generation > self.room(episodes, seconds_per_episode)

    def room(self, episodes: int, seconds_per_episode: float) -> float:
        """Seconds for generations before the end of the run; see `is_last`."""
        return self.left - (episodes + self.reserved_episodes(seconds_per_episode)) * seconds_per_episode


MIN_SHARE = 0.25  # of a generation's steps for which a last one is worth it within a budget in minutes


class Pace:
    """Measured seconds of evaluations and confirmations, and what still fits before the deadline.

    All ranks answer as the main one does, whose clock and measurements count.

    Args:
        deadline: of a budget in minutes; without one there is time for everything. ranks: processes of this run.

    Attributes:
        evaluation: seconds of the last evaluation. per_episode: seconds of one of its episodes. per_confirmed: the same
            in the newest confirmation, as good agents' episodes may be long.
    """

    def __init__(self, deadline: Deadline | None, ranks: Ranks) -> None:
        self.deadline, self.ranks = deadline, ranks
        self.evaluation = self.per_episode = self.per_confirmed = 0.0

    @property
    def seconds_per_episode(self) -> float:
        """Expected seconds of a held-out episode."""
        return max(self.per_episode, self.per_confirmed)

    def evaluated(self, seconds: float, episodes: int) -> None:
        """Remember an evaluation."""
        self.evaluation, self.per_episode = seconds, seconds / max(1, episodes)

    def confirmed(self, seconds: float, episodes: int) -> None:
        """Remember a confirmation."""
        self.per_confirmed = seconds / max(1, episodes)

    def is_up(self, seconds: float, closing: int) -> bool:
        """Whether there is no time for another generation.

        Args:
            seconds: of that generation. closing: episodes that confirm the best agents at the end of the run.
        """
        if self.deadline is None:
            return False
        is_last = self.deadline.is_last(seconds, closing, self.seconds_per_episode)
        return bool(self.ranks.gather_plain(is_last)[0])

    def shortened(
        self, seconds: float, steps_made: int, following: int, closing: int, rounded: Callable[[int], int]
    ) -> int:
        """Return the steps of a last generation that still fits; 0 if hardly any would.

        Args:
            seconds: of the last generation, with its `steps_made` steps per member. following: steps of the next one if
                there were time for it. closing: as for `is_up`. rounded: steps -> those that a generation
                makes, multiples of the fewest.
        """
        assert self.deadline is not None
        room = self.deadline.room(closing, self.seconds_per_episode) - self.evaluation
        steps = min(following, int(room * steps_made / max(1e-9, seconds - self.evaluation)))
        fewest = rounded(1)
        whole = steps // fewest * fewest if steps >= MIN_SHARE * following else 0
        return int(self.ranks.gather_plain(max(0, whole))[0])

    def generations_in_time(self, seconds: float, generations: int) -> int | None:
        """Return how many more generations fit before the deadline if `generations` took `seconds`; None without one.

        None too before the first one.
        """
        if self.deadline is None or generations == 0:
            return None
        return max(0, round(self.deadline.left * generations / max(seconds, 1e-9)))

    def fitting(self, most: int) -> int:
        """Return how many of `most` held-out episodes there is time for."""
        if self.deadline is None:
            return most
        return int(self.ranks.gather_plain(self.deadline.episodes_in(most, self.seconds_per_episode))[0])
