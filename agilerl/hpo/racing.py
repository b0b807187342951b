"""Other ways than tournaments to go from one population to the next; each is an `Evolution`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from agilerl.errors import ConfigError
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.screening import best_returns, recent_returns
from agilerl.hpo.stopping import is_stuck
from agilerl.hpo.tournament import nan_as_worst
from agilerl.telemetry.record import Birth, MemberRecord


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


class Race(Evolution):
    """Members that are behind for certain end, and leave their environment steps to the others.

    A member ends where, over two generations in a row, the mean of its last training returns lies below that of the
    leader by more than `certainty` standard errors of their difference (races as of Maron and Moore 1994, "Hoeffding
    races", with the normal approximation in place of their bound), until `survivors` are left. Before members differ
    none ends, so that the race follows the pace of the environment.

    Args:
        survivors: members that are never ended. certainty: in standard errors.
    """

    def __init__(self, survivors: int = 1, certainty: float = 3.0) -> None:
        self.survivors, self.certainty = survivors, certainty
        self.behind: dict[int, int] = {}  # by member: generations in a row

    shrinks = True

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Those who are not behind for certain."""
        known = [recent_returns(agent) for agent in population]
        means = np.array([np.mean(each) if len(each) else np.nan for each in known])
        errors = np.array([np.std(each, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf for each in known])
        if np.isnan(means).all():
            return list(population), ()
        lead = int(np.nanargmax(means))
        gaps = (means[lead] - means) / np.maximum(np.hypot(errors, errors[lead]), 1e-12)
        self.behind = {
            agent.index: self.behind.get(agent.index, 0) + 1
            for agent, gap in zip(population, gaps.tolist(), strict=True)
            if gap > self.certainty
        }
        out = [slot for slot, agent in enumerate(population) if self.behind.get(agent.index, 0) >= 2]
        worst = sorted(out, key=lambda slot: means[slot])[: max(0, len(population) - self.survivors)]
        return [agent for slot, agent in enumerate(population) if slot not in worst], ()

    def state(self) -> dict[str, Any]:
        return {"behind": dict(self.behind)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.behind = {int(member): int(count) for member, count in state["behind"].items()}


class SuccessiveHalving(Evolution):
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
        self.begun = 0  # environment steps of one member before the first rung begins

    shrinks = True

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """The better half at a rung; in between what `then` makes of them."""
        for record in records:
            value = record.fitness if self.judge == "evaluation" else record.score
            if value is not None:
                self.seen.setdefault(record.id, []).append(float(value))
        steps = max(record.env_steps for record in records) - self.begun
        left = next((size for size, due in reversed(self.rungs) if steps >= due), len(population))
        if left < len(population):
            worth = [float(np.mean(self.seen[r.id])) if self.seen.get(r.id) else -np.inf for r in records]
            best = sorted(np.argsort([-value for value in nan_as_worst(worth)], kind="stable")[:left].tolist())
            self.seen = {}
            return [population[slot] for slot in best], ()
        if self.then is None or not self.then.is_on:
            return list(population), ()
        after, births = self.then.next(population, records, generation)
        return after, births

    def state(self) -> dict[str, Any]:
        inner = {} if self.then is None else self.then.state()
        return {**inner, "seen": {member: list(values) for member, values in self.seen.items()}, "begun": self.begun}

    def begin_anew(self, env_steps: int) -> None:
        """The rungs of new founders, who begin when a member has made so many steps."""
        self.seen, self.begun = {}, env_steps

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.begun = int(state["begun"])
        self.seen = {int(member): list(values) for member, values in state["seen"].items()}
        if self.then is not None:
            self.then.load_state(state)


class Restarts(Evolution):
    """Another evolution, and a population of new founders whenever nothing has got better for long.

    A race is greedy: who learns fast at first wins it, and may be stuck where slower ones would have passed. What was
    found is not lost, the run keeps its best agent. Training returns count where they are above fitness: a policy may
    do better by its draws than by its greedy actions, and learn for long before these show it (Swimmer-v5: 154 and
    rising for 52). Below it, where exploration puts them, they may rise because noise fades, and count for nothing;
    so do single lucky episodes, by the median.

    Args:
        inner: between restarts.
        found: makes a population by the number of the restart, 1 at first.
        patience: generations without a better one (`hpo.stopping.is_stuck`).
    """

    def __init__(self, inner: Evolution, found: Callable[[int], list[Any]], patience: int) -> None:
        self.inner, self.found, self.patience = inner, found, patience
        self.history: list[list[float]] = []  # fitness and training returns since the last founding
        self.number = 0
        self.highest = 0  # of the ids so far

    shrinks = True  # and grows

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """What `inner` makes of them, or new founders, who go on counting steps where the others stood."""
        self.history.append([*(record.fitness for record in records), best_returns(population)])
        self.highest = max(self.highest, *(agent.index for agent in population))
        if not is_stuck(self.history, self.patience):
            after, births = self.inner.next(population, records, generation)
            self.highest = max(self.highest, *(agent.index for agent in after))
            return after, births
        self.number += 1
        self.history, made = [], max(record.env_steps for record in records)
        self.inner.begin_anew(made)
        founders = self.found(self.number)
        for place, agent in enumerate(founders, self.highest + 1):
            agent.index, agent.steps = place, [made]
        return founders, tuple(Birth(agent.index, None, generation, "founder", "restart") for agent in founders)

    def state(self) -> dict[str, Any]:
        own = {"restart": self.number, "since": [list(row) for row in self.history], "highest": self.highest}
        return {**self.inner.state(), **own}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state(state)
        self.number, self.highest = int(state["restart"]), int(state["highest"])
        self.history = [list(row) for row in state["since"]]
