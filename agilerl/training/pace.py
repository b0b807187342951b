"""How long episodes take, and what a budget in minutes leaves time for."""

from __future__ import annotations

from collections.abc import Callable

from agilerl.ranks import Ranks
from agilerl.training.deadline import Deadline

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
