"""Members whose numbers have left the real line: found, kept apart, and replaced at the end of the generation.

What holds, per member and vector step:

* before every vector step its weights are looked at; from the step on before which they are not finite it acts no
  longer, its lanes rest, and nothing of it goes into the shared replay;
* an action that is not finite is never taken, and its member is quarantined with that step;
* after every vector step its loss is looked at; a loss or a priority that is not finite quarantines it as well, and
  such priorities are never stored;
* its row of a fused update cannot reach another's: every operation over rows keeps them apart.

A quarantined member counts as −∞ in selection and is replaced by a copy of the fittest one, also without evolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl import foreign
from agilerl.errors import AlgorithmError
from agilerl.sources.divergence import is_finite
from agilerl.sources.source import Tally
from agilerl.telemetry.record import Birth

WORST = float("-inf")


class DivergedError(AlgorithmError):
    """Every member of the population has diverged: there is nobody to go on with."""


def all_diverged(agents: Sequence[Any], reasons: Mapping[int, str]) -> DivergedError:
    """The error where no member is left; `reasons` by member id."""
    each = "; ".join(f"member {agent.index}: {reasons[agent.index]}" for agent in agents)
    return DivergedError(
        f"every member that trains has diverged ({each}). fix: a smaller learning rate, scaled rewards "
        "(training.reward_scale), or bounds on lr in mutation.rl_hp_selection."
    )


class Quarantine:
    """What the loop does with members that have diverged.

    Attributes:
        reasons: id of a quarantined member -> why; of the running generation.
        healed: ids of the copies that `heal` has put in place of them.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.healed: set[int] = set()

    def inspect(self, population: Sequence[Any], tallies: Sequence[Tally]) -> list[Any]:
        """The members that may be evaluated; the others are remembered, and their fitness is −∞ from here on.

        Raises:
            DivergedError: there are none.
        """
        self.reasons = {}
        for agent, tally in zip(population, tallies, strict=True):
            reason = tally.fault or (None if is_finite(agent) else "its weights are not finite")
            if reason is not None:
                self.reasons[agent.index] = reason
        finite = [agent for agent in population if agent.index not in self.reasons]
        if not finite:
            raise all_diverged(population, self.reasons)
        return finite

    def fitness(self, population: Sequence[Any], values: dict[int, float]) -> list[float]:
        """Fitness of all, from those of the members that were evaluated (by id): NaN and the missing are −∞."""
        for index, value in values.items():
            if value != value:
                self.reasons[index] = "its fitness is not a number"
        found = [WORST if agent.index in self.reasons else values[agent.index] for agent in population]
        if all(value == WORST for value in found) and len(self.reasons) == len(population):
            raise all_diverged(population, self.reasons)
        return found

    def heal(self, population: list[Any], fitness: Sequence[float], generation: int, next_id: int) -> list[Birth]:
        """Put copies of the fittest member in place of the quarantined ones, in `population` itself.

        A copy's last fitness stays −∞ until `forgive`, so that selection does not count the fittest twice. Agents
        without `clone` stay what they are.

        Args:
            next_id: id of the first copy; the others follow.
        """
        elite = population[int(np.argmax(fitness))]
        births: list[Birth] = []
        self.healed = set()
        if not foreign.has_methods(elite, "clone"):
            return births
        for slot, agent in enumerate(population):
            if agent.index not in self.reasons:
                continue
            copy = elite.clone(index=next_id + len(births))
            if copy.fitness:
                copy.fitness[-1] = WORST
            population[slot] = copy
            why: dict[str, Any] = {"after": self.reasons[agent.index], "parent_fitness": max(fitness)}
            births.append(Birth(copy.index, elite.index, generation, "healed", f"member {agent.index}", **why))
        self.healed = {birth.id for birth in births}
        return births

    def forgive(self, population: Sequence[Any], fitness: Sequence[float], births: Sequence[Birth]) -> None:
        """After selection: copies that lived, and their children, have the fitness of the one they were made from.

        Other members whose fitness is −∞ keep it: nothing is known of them (`hpo.screening`).

        Args:
            births: those that selection led to.
        """
        copies = self.healed | {birth.id for birth in births if birth.parent in self.healed}
        for agent in population:
            if agent.index in copies and agent.fitness and agent.fitness[-1] == WORST:
                agent.fitness[-1] = max(fitness)
