"""Alternatives to tournament selection: races, successive halving and restarts; each is an `Evolution`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from agilerl.errors import ConfigError
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.screening import best_returns, is_stuck, recent_returns
from agilerl.telemetry.record import Birth, MemberRecord


def rungs_of(founders: int, budget: int, survivors: int = 1) -> list[tuple[int, int]]:
    """Rungs of successive halving as (members left, environment steps per member at which they are left).

    `budget` is over all founders. Every rung gets an equal share of it, and half of the members continue to the next
    one (Jamieson and Talwalkar 2016, arXiv:1502.07943, algorithm 1 with eta = 2), until `survivors` are left.
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
    """Early stopping of members significantly behind the leader; their environment steps go to the others.

    A member is stopped if, over two consecutive generations, the mean of its recent training returns is below the
    leader's by more than `certainty` standard errors of the difference (racing, Maron and Moore 1994, "Hoeffding
    races", with a normal approximation instead of their bound), until `survivors` are left. No member is stopped before
    members differ, so the race adapts to the pace of the environment.

    Args:
        survivors: minimum number of members. certainty: in standard errors.
    """

    def __init__(self, survivors: int = 1, certainty: float = 3.0) -> None:
        self.survivors, self.certainty = survivors, certainty
        self.behind: dict[int, int] = {}  # member id -> consecutive generations behind

    shrinks = True
    sets_size = False

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Return the members that are not significantly behind the leader."""
        returns = [recent_returns(agent) for agent in population]
        means = np.array([np.mean(each) if len(each) else np.nan for each in returns])
        errors = np.array([np.std(each, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf for each in returns])
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
    """Stop the worse half of the members at each rung; the survivors get the released steps.

    Args:
        members: at the start. budget: environment steps of all of them together; new founders of a restart have what is
            left of it. survivors: members left at the end.
        judge: "evaluation" ranks members by fitness, "training" by the returns of their training episodes, which need
            no additional steps; both are averaged over the generations since the last rung. A generation without a
            finished episode has no score.
        until: share of the budget that has rungs; the survivors train on for the rest.
    """

    def __init__(
        self, members: int, budget: int, survivors: int = 1, judge: str = "evaluation", until: float = 1.0
    ) -> None:
        if survivors > members:
            raise ConfigError(f"evolution.survivors must not exceed the founders; got {survivors}. fix: {members}.")
        self.members, self.budget, self.survivors, self.judge, self.until = members, budget, survivors, judge, until
        self.seen: dict[int, list[float]] = {}  # member id -> scores since the last rung
        self.begun = 0  # environment steps per member at which the first rung starts
        self.spent: int | None = 0  # environment steps of all members until then; None: not told yet

    shrinks = True

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """Rungs of the present founders, counted from `begun` (`rungs_of`)."""
        left = max(0, self.budget - (self.spent or 0))
        return rungs_of(self.members, int(left * self.until), self.survivors)

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Return the better half at a rung, else all members.

        A member that has diverged is last, as nothing is known about the copy in its place.
        """
        for record in records:
            value = record.fitness if self.judge == "evaluation" else record.score
            if value is not None:
                self.seen.setdefault(record.id, []).append(float(value))
        for agent, record in zip(population, records, strict=True):
            if agent.index != record.id:  # a copy in the place of a diverged member
                self.seen.pop(record.id, None)
        steps = max(record.env_steps for record in records) - self.begun
        left = next((size for size, due in reversed(self.rungs) if steps >= due), len(population))
        if left < len(population):
            worth = [_mean_of_finite(self.seen.get(record.id, [])) for record in records]
            best = sorted(np.argsort([-value for value in worth], kind="stable")[:left].tolist())
            self.seen = {}
            return [population[slot] for slot in best], ()
        return list(population), ()

    def state(self) -> dict[str, Any]:
        seen = {member: list(values) for member, values in self.seen.items()}
        return {"seen": seen, "begun": self.begun, **({"spent": self.spent} if self.spent else {})}

    def begin_anew(self, env_steps: int) -> None:
        """Restart the rungs for new founders, which start at `env_steps` steps per member."""
        self.seen, self.begun, self.spent = {}, env_steps, None

    def budget_left(self, env_steps: int) -> None:
        """Plan the rungs of new founders over the steps that are left; other rungs stay."""
        if self.spent is None:
            self.spent = self.budget - env_steps

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.begun, self.spent = int(state["begun"]), int(state.get("spent", 0))  # missing before a restart
        self.seen = {int(member): list(values) for member, values in state["seen"].items()}


def _mean_of_finite(values: Sequence[float]) -> float:
    """Return the mean of the finite values, −∞ without any."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else -np.inf


class Restarts(Evolution):
    """Wrap another evolution, and start a population of new founders on a plateau.

    A race is greedy: it may select fast learners that plateau below slower ones. The run keeps its best agent across
    restarts. Training returns count if they are above fitness: a stochastic policy may improve long before its greedy
    actions do (Swimmer-v5: training returns of 154 and rising, at a fitness of 52). Below fitness, where exploration
    puts them, they may rise because noise decays, and are ignored. The median excludes single lucky episodes.

    Args:
        inner: evolution between restarts.
        found: creates a population from the number of the restart, starting at 1.
        patience: generations without improvement (`hpo.stopping.is_stuck`).
    """

    def __init__(self, inner: Evolution, found: Callable[[int], list[Any]], patience: int) -> None:
        self.inner, self.found, self.patience = inner, found, patience
        self.shrinks, self.sets_size = inner.shrinks, inner.sets_size
        self.history: list[list[float]] = []  # fitness and training returns since the last restart
        self.number = 0
        self.highest = 0  # largest id so far

    @property
    def shares_budget(self) -> bool:
        return True  # new founders may be more members than those before

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Apply `inner`, or return new founders, which continue the step count of the previous population."""
        self.history.append([*(record.fitness for record in records), best_returns(population)])
        self.highest = max(self.highest, *(agent.index for agent in population))
        if not is_stuck(self.history, self.patience):
            after, births = self.inner.next(population, records, generation)
            self.highest = max(self.highest, *(agent.index for agent in after))
            return after, births
        self.number += 1
        self.history, env_steps = [], max(record.env_steps for record in records)
        self.inner.begin_anew(env_steps)
        founders = self.found(self.number)
        for place, agent in enumerate(founders, self.highest + 1):
            agent.index, agent.steps = place, [env_steps]
        return founders, tuple(Birth(agent.index, None, generation, "founder", "restart") for agent in founders)

    def budget_left(self, env_steps: int) -> None:
        self.inner.budget_left(env_steps)

    def renamed(self, ids: Mapping[int, int]) -> None:
        self.inner.renamed(ids)

    def state(self) -> dict[str, Any]:
        counters = {"restart": self.number, "since": [list(row) for row in self.history], "highest": self.highest}
        return {**self.inner.state(), **counters}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state(state)
        self.number, self.highest = int(state["restart"]), int(state["highest"])
        self.history = [list(row) for row in state["since"]]
