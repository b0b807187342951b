"""Other ways than tournaments to go from one population to the next; each is an `Evolution`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from agilerl.errors import ConfigError
from agilerl.telemetry.record import MemberRecord
from agilerl.training.evolution import Births, Evolution
from agilerl.training.result import ranked


def rungs_of(founders: int, budget: int, survivors: int = 1) -> list[tuple[int, int]]:
    """(members that are left, environment steps of one member after which they are) of successive halving.

    `budget` is of all founders together. Every rung gets an equal part of it, and half of the members go on to the next
    (Jamieson and Talwalkar 2016, arXiv:1502.07943, algorithm 1 with eta = 2), until `survivors` are left.
    """
    sizes = [founders]
    while sizes[-1] > survivors:
        sizes.append(max(survivors, sizes[-1] // 2))
    part, steps, rungs = budget / len(sizes), 0.0, []
    for size, left in pairwise(sizes):
        steps += part / size
        rungs.append((left, int(steps)))
    return rungs


class SuccessiveHalving:
    """Half of the members end at each rung, the worst ones; who is left trains on what they would have used.

    Args:
        founders: members at the start. budget: environment steps of all of them together.
        survivors: members that are left in the end.
        judge: "evaluation" ranks members by their fitness, "training" by the returns of the episodes that they finished
            while they learned, which cost no steps of their own; both are means over the generations since a rung.
        then: evolution between the rungs, and after the last one; None leaves the survivors as they are.
    """

    def __init__(
        self, founders: int, budget: int, survivors: int = 1, judge: str = "evaluation", then: Evolution | None = None
    ) -> None:
        if survivors > founders:
            raise ConfigError(f"evolution.survivors must not exceed the {founders} founders; got {survivors}.")
        self.rungs, self.judge, self.then = rungs_of(founders, budget, survivors), judge, then
        self.seen: dict[int, list[float]] = {}  # by member, since the last rung

    is_on = True
    shrinks = True

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """The better half at a rung; in between what `then` makes of them."""
        for record in records:
            value = record.fitness if self.judge == "evaluation" else record.score
            if value is not None:
                self.seen.setdefault(record.id, []).append(float(value))
        steps = max(record.env_steps for record in records)
        left = next((size for size, due in reversed(self.rungs) if steps >= due), len(population))
        if left < len(population):
            worth = [float(np.mean(self.seen[r.id])) if self.seen.get(r.id) else -np.inf for r in records]
            best = sorted(np.argsort([-value for value in ranked(worth)], kind="stable")[:left].tolist())
            self.seen = {}
            return [population[slot] for slot in best], ()
        if self.then is None or not self.then.is_on:
            return list(population), ()
        after, births = self.then.next(population, records, generation)
        return after, births

    def state(self) -> dict[str, Any]:
        inner = {} if self.then is None else self.then.state()
        return {**inner, "seen": {member: list(values) for member, values in self.seen.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seen = {int(member): list(values) for member, values in state["seen"].items()}
        if self.then is not None:
            self.then.load_state(state)
