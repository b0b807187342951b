"""Who is whose child: ids are never used twice, and what is copied from the fittest counts as that."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from agilerl.hpo.evolution import Family, TournamentEvolution
from agilerl.telemetry.record import Birth
from agilerl.training.quarantine import DivergedError, Quarantine
from agilerl.views.report.summary import _line


class Agent:
    """What selection and healing need of an agent."""

    def __init__(self, index: int, fitness: float = 0.0) -> None:
        self.index, self.fitness, self.mut = index, [fitness], "None"

    def clone(self, index: int | None = None, wrap: bool = True) -> Agent:
        return Agent(self.index if index is None else index, self.fitness[-1])


def test_ids_of_members_that_have_ended_are_not_given_again() -> None:
    family = Family([Agent(0), Agent(1), Agent(4)])
    assert family.next_id == 5
    left = [Agent(0), Agent(1)]  # 4 has ended
    quarantine = Quarantine()
    quarantine.reasons = {1: "its loss is not finite"}
    births = family.add(quarantine.heal(left, [3.0, -math.inf], 1, family.next_id), left)
    assert [(birth.id, birth.parent, birth.path) for birth in births] == [(5, 0, "member 1")]
    assert [agent.index for agent in left] == [0, 5]
    assert quarantine.healed == {5}


def test_a_copy_is_never_of_a_member_that_has_diverged() -> None:
    """Member 1 has played no episode to its end, so both have a fitness of −∞."""
    quarantine = Quarantine()
    quarantine.reasons = {0: "its weights are not finite"}
    population = [Agent(0, -math.inf), Agent(1, -math.inf)]
    (birth,) = quarantine.heal(population, [-math.inf, -math.inf], 1, 5)
    assert (birth.id, birth.parent) == (5, 1)
    quarantine.reasons = {0: "its weights are not finite", 1: "its loss is not finite"}
    with pytest.raises(DivergedError, match=r"every member that trains has diverged \(member 0: .*; member 1: "):
        quarantine.heal([Agent(0), Agent(1)], [-math.inf, -math.inf], 1, 5)


def test_evolution_every_few_generations_leaves_the_population_in_between() -> None:
    founders, calls = [Agent(0), Agent(1)], list[int]()
    parts = SimpleNamespace(select=lambda population: (population[0], population), parents=[0, 1])
    mutation = SimpleNamespace(mutation=lambda agents: calls.append(len(agents)) or agents)
    scheme = TournamentEvolution(parts, mutation, every=2)
    assert scheme.next(founders, [], 1) == (founders, ())
    assert calls == []
    scheme.next(founders, [], 2)
    assert calls == [2]


def test_a_birth_under_a_used_id_gets_one_of_its_own() -> None:
    """An own scheme, or a tournament after members have ended, counts on from the highest id of the population."""
    family = Family([Agent(0), Agent(1), Agent(2)])
    after = [Agent(0), Agent(2)]
    births = family.add([Birth(2, 0, 1, "rl_hp")], after)
    assert [birth.id for birth in births] == [after[1].index] == [3]
    assert family.parents == {0: None, 1: None, 2: None, 3: 0}


def test_a_mutated_elite_is_another_agent_but_in_the_published_functions() -> None:
    class Tournament:
        parents = (1, 0)

        def select(self, population: Any) -> Any:
            return population[1], [population[1].clone(), population[0].clone(index=2)]

    class Mutation:
        def mutation(self, population: Any) -> Any:
            for agent in population:
                agent.mut = "lr"
            return population

    for keeps, ids in ((False, [3, 2]), (True, [1, 2])):
        agents = [Agent(0, 1.0), Agent(1, 2.0)]
        family = Family(agents)
        after, births = TournamentEvolution(Tournament(), Mutation(), keeps_elite_id=keeps).next(agents, [], 1)
        births = family.add(births, after, [0, 1])
        assert [agent.index for agent in after] == ids, "the published functions keep the elite's id"
        assert [(birth.id, birth.parent, birth.parent_fitness) for birth in births] == [(ids[0], 1, 2.0), (2, 0, 1.0)]
        assert family.labels == dict.fromkeys(ids, "lr")


def test_records_in_which_an_elite_is_its_own_parent_have_a_line() -> None:
    births = [Birth(0, None, 0, "founder"), Birth(0, 0, 1, "rl_hp", "lr")]
    assert _line(SimpleNamespace(lineage=births, best=0)) == [births[1]]  # type: ignore[arg-type]


def test_only_copies_of_the_fittest_and_their_children_get_its_fitness() -> None:
    """3 is a copy, 4 a child of it; 2 played no episode and was not evaluated, and 5 is its child."""
    quarantine = Quarantine()
    quarantine.healed = {3}
    population = [Agent(0, 7.0), *(Agent(index, -math.inf) for index in (2, 3, 4, 5))]
    quarantine.forgive(population, [7.0, -math.inf], [Birth(4, 3, 1, "none"), Birth(5, 2, 1, "none")])
    assert [agent.fitness[-1] for agent in population] == [7.0, -math.inf, 7.0, 7.0, -math.inf]


def test_a_healed_copy_ranks_last_until_selection_is_over() -> None:
    """With the fitness of the fittest its copy would count as a second one in tournaments and ranks."""
    quarantine = Quarantine()
    quarantine.reasons = {7: "its loss is not finite"}
    population = [Agent(2, 1.0), Agent(7, 9.0), Agent(4, 5.0)]
    fitness = [1.0, -math.inf, 5.0]
    (birth,) = quarantine.heal(population, fitness, 3, 8)
    assert (birth.id, birth.parent, birth.kind, birth.parent_fitness) == (8, 4, "healed", 5.0)
    assert [(agent.index, agent.fitness[-1]) for agent in population] == [(2, 1.0), (8, -math.inf), (4, 5.0)]
    child = population[1].clone(9)
    stranger = Agent(6, -math.inf)  # without an episode: nothing is known of it
    quarantine.forgive([*population, child, stranger], fitness, [Birth(9, 8, 3, "none"), Birth(6, 2, 3, "none")])
    assert [population[1].fitness[-1], child.fitness[-1], stranger.fitness[-1]] == [5.0, 5.0, -math.inf]
