"""Quarantine of diverged members: detected, isolated, and replaced at the end of the generation.

Guarantees per member and vector step:

* weights are checked before every vector step; once they are not finite, the member stops acting, its lanes rest, and
  none of its transitions enter the shared replay;
* a non-finite action is never executed, and its member is quarantined at that step;
* the loss is checked after every vector step; a non-finite loss or priority quarantines the member, and such
  priorities are never stored;
* its row of a fused update does not affect other rows, as no operation mixes rows.

On an accelerator, where each check waits for the device, learning from transitions checks weights and losses every
`collect.divergence.CHECK_INTERVAL` vector steps instead.

A quarantined member has fitness −∞ in selection and is replaced by a copy of the fittest member, also without
evolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agilerl.collect.collector import Tally
from agilerl.collect.divergence import is_finite
from agilerl.core import foreign
from agilerl.errors import AlgorithmError
from agilerl.telemetry.record import Birth

WORST = float("-inf")


class DivergedError(AlgorithmError):
    """All members of the population have diverged, so training cannot continue."""


def all_diverged(agents: Sequence[Any], reasons: Mapping[int, str]) -> DivergedError:
    """Build the error raised when no member is left; `reasons` by member id."""
    members = "; ".join(f"member {agent.index}: {reasons[agent.index]}" for agent in agents)
    return DivergedError(
        f"every member that trains has diverged ({members}). fix: a smaller learning rate, scaled rewards "
        "(training.reward_scale), or bounds on lr in mutation.rl_hp_selection."
    )


class Quarantine:
    """Handling of diverged members in the training loop.

    Attributes:
        reasons: id of a quarantined member -> reason; for the current generation.
        healed: ids of the copies that `heal` put in their place.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.healed: set[int] = set()

    def inspect(self, population: Sequence[Any], tallies: Sequence[Tally]) -> list[Any]:
        """Return the members to evaluate; diverged ones are recorded and get fitness −∞.

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
        """Extend the fitness of evaluated members (by id) to all; NaN and missing values become −∞."""
        for index, value in values.items():
            if value != value:
                self.reasons[index] = "its fitness is not a number"
        fitness = [WORST if agent.index in self.reasons else values[agent.index] for agent in population]
        if all(value == WORST for value in fitness) and len(self.reasons) == len(population):
            raise all_diverged(population, self.reasons)
        return fitness

    def heal(self, population: list[Any], fitness: Sequence[float], generation: int, next_id: int) -> list[Birth]:
        """Replace quarantined members by copies of the fittest one, in place.

        The last fitness of a copy stays −∞ until `forgive`, so that selection does not count the fittest twice. Agents
        without `clone` are left unchanged.

        Args:
            next_id: id of the first copy; the others follow.
        Raises:
            DivergedError: all have diverged.
        """
        finite = [slot for slot, agent in enumerate(population) if agent.index not in self.reasons]
        if not finite:
            raise all_diverged(population, self.reasons)
        elite = population[max(finite, key=lambda slot: fitness[slot])]  # fitness may be −∞ without an episode
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
        """After selection, give surviving copies and their children the fitness of their source.

        Other members with fitness −∞ keep it, as nothing is known about them (`hpo.screening`).

        Args:
            births: births by selection.
        """
        copies = self.healed | {birth.id for birth in births if birth.parent in self.healed}
        for agent in population:
            if agent.index in copies and agent.fitness and agent.fitness[-1] == WORST:
                agent.fitness[-1] = max(fitness)
