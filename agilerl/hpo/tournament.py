"""Tournament selection over a population of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from agilerl.core.arguments import Checked
from agilerl.core.ranges import Count
from agilerl.core.rng import Purpose, resolve_seed, stream
from agilerl.errors import ConfigError, warn_once


def rank(fitness: Sequence[float] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Rank of each member [N]: N-1 is the best; NaN ranks lowest; ties are broken in favour of the earlier member."""
    values = np.asarray(fitness, dtype=np.float64)
    order = np.lexsort((-np.arange(len(values)), np.where(np.isnan(values), -np.inf, values), ~np.isnan(values)))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values))
    return ranks


def tournament(
    fitness: Sequence[float] | NDArray[np.float64], size: int, count: int, rng: np.random.Generator, elitism: bool
) -> list[int]:
    """Select the positions [count] of the parents of the next population.

    With `elitism` the first is the best member. Each of the others is the best of `size` members drawn with
    replacement (Goldberg and Deb 1991). Members with NaN fitness only take part if there are no others.
    """
    ranks = rank(fitness)
    numbers = np.flatnonzero(~np.isnan(np.asarray(fitness, dtype=np.float64)))
    candidates = numbers if len(numbers) else np.arange(len(ranks))
    parents = [int(ranks.argmax())] if elitism else []
    while len(parents) < count:
        drawn = candidates[rng.integers(0, len(candidates), size=size)]
        parents.append(int(drawn[ranks[drawn].argmax()]))
    return parents[:count]


class Selectable(Protocol):
    """Interface required by tournament selection."""

    @property
    def index(self) -> int:
        """Unique id within the run."""

    @property
    def fitness(self) -> Sequence[float]:
        """Evaluations so far, oldest first."""

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """Return an independent copy, with a new index if given."""


Agent = TypeVar("Agent", bound=Selectable)


class SettingError(ConfigError, AssertionError):
    """A setting of selection or mutation is out of range; also an AssertionError, as published."""


def check_agents(population: Any, call: str) -> None:
    """Raise ConfigError unless `population` is a list or another sequence of agents."""
    is_list = isinstance(population, Iterable) and hasattr(population, "__len__") and not isinstance(population, str)
    wrong = [member for member in population if not hasattr(member, "__dict__")] if is_list else [population]
    if wrong:
        raise ConfigError(
            f"{call}(population) takes a list of agents; got {'one with ' if is_list else ''}"
            f"{'None' if wrong[0] is None else type(wrong[0]).__name__}. fix: {call}([agent, ...])."
        )


def nan_as_worst(fitness: Sequence[float]) -> list[float]:
    """Return fitness [N] for ranking, with NaN replaced by -inf."""
    return [value if value == value else -np.inf for value in fitness]


class TournamentSelection(Checked):
    """Select the parents of the next population, and clone them.

    Args:
        tournament_size: members drawn for each tournament, with replacement.
        elitism: whether the best member is carried over as the first of the new population.
        population_size: size of the new population, independent of the old one.
        eval_loop: fitness is the mean of a member's last `eval_loop` evaluations.
        seed: of the draws; one stream per call. None follows `torch.manual_seed`.

    Attributes:
        parents: after `select`, the index of the parent of each new member.
    """

    argument_error = SettingError

    def __init__(
        self, tournament_size: Count, elitism: bool, population_size: Count, eval_loop: Count = 1, *,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        self.tournament_size, self.elitism = int(tournament_size), bool(elitism)
        self.population_size, self.eval_loop = int(population_size), int(eval_loop)
        self.seed = resolve_seed(seed)
        self.calls = 0
        self.parents: list[int] = []

    def state(self) -> dict[str, int]:
        """State that the draws of the next call depend on."""
        return {"seed": self.seed, "calls": self.calls}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Restore the output of `state`."""
        self.seed, self.calls = int(state["seed"]), int(state["calls"])

    def fitness_of(self, agent: Selectable) -> float:
        """Mean of the last `eval_loop` evaluations; NaN if one of them is."""
        recent = list(agent.fitness)[-self.eval_loop :]
        if not recent:
            raise ConfigError(f"member {agent.index} has no fitness yet. fix: call agent.test(env) before selecting.")
        return float(np.mean(np.asarray(recent, dtype=np.float64)))

    def values(self, population: Sequence[Agent]) -> list[float]:
        """Return the value of each member [N] that tournaments compare: `fitness_of`."""
        return [self.fitness_of(agent) for agent in population]

    def select(self, population: Sequence[Agent]) -> tuple[Agent, list[Agent]]:
        """Return the best member (an independent clone with the same index) and the new population (all clones).

        New members get indices above the highest one; with elitism the first keeps the best one's index.
        """
        check_agents(population, "select")
        if not population:
            raise ConfigError("population is empty: there is nothing to select from. fix: at least one agent.")
        if self.population_size != len(population):
            warn_once(
                f"population size {len(population)} -> {self.population_size}",
                f"the population changes from {len(population)} to population_size={self.population_size} members",
            )
        best, new = self._select(population, self.population_size, range(len(population)))
        return best.clone(), new

    def select_part(self, population: Sequence[Agent], slots: Sequence[int]) -> tuple[bool, list[Agent]]:
        """Select the next members of some slots from the whole population, whose other members stay as they are.

        Returns:
            Whether the best of all is in these slots and carried over, as the first one; the new members, all clones.
        """
        best, new = self._select(population, len(slots), slots)
        return new[0].index == best.index, new

    def _select(self, population: Sequence[Agent], count: int, slots: Sequence[int]) -> tuple[Agent, list[Agent]]:
        """Return the best member and clones of `count` parents; with elitism the best one is first, if in `slots`."""
        fitness = self.values(population)
        rng = stream(self.seed, Purpose.SELECTION, self.calls)
        self.calls += 1
        place = int(rank(fitness).argmax())
        is_carried = self.elitism and place in slots
        chosen = tournament(fitness, self.tournament_size, count, rng, is_carried)
        self.parents = [population[i].index for i in chosen]
        first_index = max(agent.index for agent in population) + 1
        new = [population[place].clone()] if is_carried else []
        for index, parent in enumerate(chosen[len(new) :], first_index):
            new.append(population[parent].clone(index=index))
        return population[place], new
