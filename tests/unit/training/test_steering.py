"""Requests between two generations: what each does to the members, their pins and the births."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.runs.steering import Inbox, Request, Taken
from agilerl.sources.source import MeanReturn
from agilerl.telemetry.record import Birth
from agilerl.training.steering import Members, SteeringWheel, described


class Agent:
    """A member with one hyperparameter and a fitness."""

    def __init__(self, index: int, lr: float = 1.0, fitness: float = 0.0) -> None:
        self.index, self.lr, self.fitness, self.mut, self.hooks = index, lr, [fitness], "None", 0
        self.mutation_record: Any = None

    def clone(self, index: int) -> Agent:
        return Agent(index, self.lr, self.fitness[-1])

    def mutation_hook(self) -> None:
        self.hooks += 1


def wheel() -> SteeringWheel:
    return SteeringWheel(Inbox(None))


def members(*fitness: float) -> Members:
    return Members([Agent(slot, fitness=value) for slot, value in enumerate(fitness)], 5, 10)


def births_of(population: Members) -> list[Birth]:
    return list(population.born.values())


def carry_out(steering: SteeringWheel, population: Members, *requests: Request, **more: Any) -> list[Any]:
    return steering.carry_out([Taken(str(i), 5, one) for i, one in enumerate(requests)], population, **more)


def test_set_gives_one_member_a_value_as_a_birth() -> None:
    population = members(1.0, 2.0)
    (event,) = carry_out(wheel(), population, Request("set", 1, "lr", 3.0, "why", "ada"))
    assert [(agent.index, agent.lr) for agent in population.agents] == [(0, 1.0), (10, 3.0)]
    assert births_of(population) == [Birth(10, 1, 5, "steered", "lr", 1.0, 3.0, 0.0, 2.0)]
    assert (event.generation, event.reason, event.author, event.result) == (5, "why", "ada", {"born": [10]})
    assert population.agents[1].hooks == 1  # so that optimisers take the new rate
    assert described(event) == "steering: set lr of member 1 to 3.0 (why), member 10"


def test_a_request_that_was_refused_at_the_door_changes_nothing() -> None:
    population = members(1.0, 2.0)
    (event,) = wheel().carry_out([Taken("a", 5, Request("set", 1, "lr", -3.0), "lr must be above 0")], population)
    assert [agent.index for agent in population.agents] == [0, 1]
    assert births_of(population) == []
    assert event.result == {"refused": "lr must be above 0"}


def test_set_reaches_every_member() -> None:
    population = members(1.0, 2.0, 3.0)
    (event,) = carry_out(wheel(), population, Request("set", None, "lr", 3.0))
    assert [agent.index for agent in population.agents] == event.result["born"] == [10, 11, 12]
    assert {agent.lr for agent in population.agents} == {3.0}


def test_set_reaches_the_children_of_a_member_that_selection_has_just_replaced() -> None:
    population = members(1.0, 2.0)
    population.agents = [Agent(8), Agent(9)]
    population.selected = (Birth(8, 1, 5, "none"), Birth(9, 0, 5, "none"))
    carry_out(wheel(), population, Request("set", 1, "lr", 3.0))
    assert [(agent.index, agent.lr) for agent in population.agents] == [(10, 3.0), (9, 1.0)]
    assert births_of(population)[-1].parent == 8


def test_a_member_that_has_left_is_refused_with_the_reason() -> None:
    population = members(1.0, 2.0)
    (event,) = carry_out(wheel(), population, Request("set", 7, "lr", 3.0))
    assert event.result == {"refused": "member 7 has left the population"}
    assert births_of(population) == []
    assert described(event) == "steering: set lr of member 7 to 3.0 was refused: member 7 has left the population"


def test_a_pin_holds_in_descendants_until_it_is_lifted() -> None:
    steering, population = wheel(), members(1.0, 2.0)
    carry_out(steering, population, Request("pin", 1, "lr", 3.0))
    child, grandchild = Agent(20, lr=4.0), Agent(21, lr=5.0)
    births = steering.inherit([child], (Birth(20, 10, 6, "rl_hp", "lr", 3.0, 4.0, 0.1, 2.0),))
    assert child.lr == 3.0
    assert births == (Birth(20, 10, 6, "none", parent_fitness=2.0),)  # the pin has undone its only change
    births = steering.inherit([grandchild], (Birth(21, 20, 7, "architecture", "encoder.add_node", [8], [9]),))
    assert (grandchild.lr, births[0].path) == (3.0, "encoder.add_node")
    carry_out(steering, Members([grandchild], 8, 30), Request("unpin", 21, "lr"))
    free = Agent(22, lr=6.0)
    steering.inherit([free], (Birth(22, 21, 8, "rl_hp", "lr", 3.0, 6.0),))
    assert free.lr == 6.0


@pytest.mark.parametrize(
    ("kind", "after", "expected"),
    [
        ("rl_hp", {"lr": 4.0, "tau": 0.2}, ("rl_hp", "tau", {"tau": 0.1}, {"tau": 0.2}, 0.0)),
        ("rl_hp", {"lr": 4.0}, ("none", "", None, None, None)),
        ("rl_hp", {}, ("none", "", None, None, None)),
        ("restart", {"lr": 4.0}, ("restart", "", {}, {}, 0.0)),  # its weights are drawn anew all the same
    ],
)
def test_a_birth_with_several_new_values_shows_those_that_no_pin_has_undone(
    kind: str, after: dict[str, float], expected: tuple[Any, ...]
) -> None:
    steering, population = wheel(), members(1.0, 2.0)
    carry_out(steering, population, Request("pin", 1, "lr", 3.0))
    child, before = Agent(20, lr=4.0), {name: {"lr": 3.0, "tau": 0.1}[name] for name in after}
    (birth,) = steering.inherit([child], (Birth(20, 10, 6, kind, ", ".join(after), before, after, 0.0, 2.0),))
    assert child.lr == 3.0
    assert birth == Birth(20, 10, 6, *expected, 2.0)


def test_set_moves_a_pinned_value() -> None:
    steering, population = wheel(), members(1.0, 2.0)
    carry_out(steering, population, Request("pin", 1, "lr", 3.0), Request("set", 10, "lr", 2.0))
    child = Agent(20, lr=9.0)
    steering.inherit([child], (Birth(20, 10, 6, "none"),))
    assert child.lr == 2.0


def test_a_copy_takes_the_place_of_the_worst_member_that_is_not_protected() -> None:
    steering, population = wheel(), members(3.0, -np.inf, np.nan, 2.0)
    carry_out(steering, population, Request("protect", 1), Request("clone", 0))
    assert [agent.index for agent in population.agents] == [0, 1, 10, 3]
    assert births_of(population) == [Birth(10, 0, 5, "steered", "", None, None, 0.0, 3.0)]


def test_a_member_without_others_is_not_copied_over_itself() -> None:
    (event,) = carry_out(wheel(), members(1.0), Request("clone", 0))
    assert "no other member" in event.result["refused"]


@pytest.mark.parametrize(("shrinks", "after"), [(False, [0, 10, 2]), (True, [0, 2])])
def test_a_removed_member_leaves_or_becomes_a_copy_of_the_best(shrinks: bool, after: list[int]) -> None:
    population = members(1.0, 5.0, 3.0)
    carry_out(wheel(), population, Request("remove", 1), shrinks=shrinks)
    assert [agent.index for agent in population.agents] == after
    assert [birth.parent for birth in births_of(population)] == ([] if shrinks else [2])


def test_the_last_member_stays() -> None:
    population = members(1.0)
    (event,) = carry_out(wheel(), population, Request("remove", 0), shrinks=True)
    assert event.result == {"refused": "it is the only member"}
    assert len(population.agents) == 1


def test_an_agent_that_cannot_be_copied_is_refused() -> None:
    population = Members([SimpleNamespace(index=0, fitness=[1.0]), Agent(1)], 5, 10)
    (event,) = carry_out(wheel(), population, Request("set", 0, "lr", 3.0))
    assert "no clone()" in event.result["refused"]


def test_evaluate_returns_held_out_scores() -> None:
    events = carry_out(
        wheel(), members(1.0, 2.0), Request("evaluate"), evaluate=lambda agent: MeanReturn(agent.index + 0.5, 0.1, 8)
    )
    assert events[0].result["scores"]["1"] == {"mean": 1.5, "error": 0.1, "episodes": 8}
    assert described(events[0]) == "steering: evaluate of all: 0: 0.5, 1: 1.5"
    (without,) = carry_out(wheel(), members(1.0), Request("evaluate", 0))
    assert described(without) == "steering: evaluate of member 0: 0: unknown"


def after_selection(steering: SteeringWheel, after: list[int], births: list[int], sets_size: bool = True) -> Any:
    before = [Agent(slot, fitness=float(slot)) for slot in range(4)]
    there = {agent.index: agent for agent in before}
    agents = [there.get(index) or Agent(index) for index in after]
    kept, left = steering.keep_protected(before, agents, tuple(Birth(i, 3, 6, "none") for i in births), sets_size)
    return [agent.index for agent in kept], [birth.id for birth in left]


def test_a_protected_member_takes_the_place_of_a_newborn() -> None:
    steering = wheel()
    steering.protected = {1}
    assert after_selection(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 1, 11, 12], [11, 12])  # that of its slot
    steering.protected = {0}
    assert after_selection(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 10, 11, 0], [10, 11])  # not the elite's
    steering.protected = {3}
    assert after_selection(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 10, 11, 12], [10, 11, 12])


def test_a_protected_member_stays_in_a_race_and_takes_a_place_of_a_rung() -> None:
    steering = wheel()
    steering.protected = {0}
    assert after_selection(steering, [1, 3], [], sets_size=False) == ([0, 1, 3], [])
    assert after_selection(steering, [1, 3], [], sets_size=True) == ([0, 3], [])  # that of the least fit


def test_protection_passes_to_the_changed_copy_and_ends() -> None:
    steering, population = wheel(), members(1.0, 2.0)
    carry_out(steering, population, Request("protect", 1), Request("set", 1, "lr", 2.0))
    assert steering.protected == {10}
    carry_out(steering, population, Request("unprotect", 10))
    assert steering.protected == set()


def test_the_state_comes_back_as_plain_data() -> None:
    steering, population = wheel(), members(1.0, 2.0)
    assert steering.state() == {}
    carry_out(steering, population, Request("pin", 1, "lr", 3.0), Request("protect", 0))
    other = wheel()
    other.load_state(steering.state())
    assert (other.pins, other.protected) == ({10: {"lr": 3.0}}, {0})
    other.forget_others(population.agents[:1])
    assert (other.pins, other.protected) == ({}, {0})
