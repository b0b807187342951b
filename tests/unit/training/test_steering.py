"""Requests between two generations: what each does to the members, their pins and the births."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.collect.fitness import MeanReturn
from agilerl.hpo.evolution import Family
from agilerl.runs.steering import Inbox, Request, Taken
from agilerl.telemetry.record import Birth
from agilerl.training.steering import (
    AFTER_SELECTION,
    Members,
    SteeringWheel,
    after_selection,
    before_selection,
    described,
)


class Agent:
    """A member with two hyperparameters and a fitness."""

    def __init__(self, index: int, lr: float = 1.0, fitness: float = 0.0, tau: float = 0.5) -> None:
        self.index, self.lr, self.tau, self.fitness, self.mut, self.hooks = index, lr, tau, [fitness], "None", 0
        self.mutation_record: Any = None

    def clone(self, index: int) -> Agent:
        return Agent(index, self.lr, self.fitness[-1], self.tau)

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
    population = Members([Agent(8), Agent(9)], 5, 10, (Birth(8, 1, 5, "none"), Birth(9, 0, 5, "none")))
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
    ("after", "expected"),
    [
        ({"lr": 4.0, "tau": 0.2}, ("rl_hp", "tau", {"tau": 0.1}, {"tau": 0.2}, 0.0)),
        ({"lr": 4.0}, ("none", "", None, None, None)),
        ({}, ("none", "", None, None, None)),
    ],
)
def test_a_birth_with_several_new_values_shows_those_that_no_pin_has_undone(
    after: dict[str, float], expected: tuple[Any, ...]
) -> None:
    steering, population = wheel(), members(1.0, 2.0)
    carry_out(steering, population, Request("pin", 1, "lr", 3.0))
    child, before = Agent(20, lr=4.0), {name: {"lr": 3.0, "tau": 0.1}[name] for name in after}
    (birth,) = steering.inherit([child], (Birth(20, 10, 6, "rl_hp", ", ".join(after), before, after, 0.0, 2.0),))
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


def with_protected(steering: SteeringWheel, after: list[int], births: list[int], sets_size: bool = True) -> Any:
    before = [Agent(slot, fitness=float(slot)) for slot in range(4)]
    there = {agent.index: agent for agent in before}
    agents = [there.get(index) or Agent(index) for index in after]
    kept, left = steering.keep_protected(before, agents, tuple(Birth(i, 3, 6, "none") for i in births), sets_size)
    return [agent.index for agent in kept], [birth.id for birth in left]


def test_a_protected_member_takes_the_place_of_a_newborn() -> None:
    steering = wheel()
    steering.protected = {1}
    assert with_protected(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 1, 11, 12], [11, 12])  # that of its slot
    steering.protected = {0}
    assert with_protected(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 10, 11, 0], [10, 11])  # not the elite's
    steering.protected = {3}
    assert with_protected(steering, [3, 10, 11, 12], [10, 11, 12]) == ([3, 10, 11, 12], [10, 11, 12])


def test_a_protected_member_stays_in_a_race_and_takes_a_place_of_a_rung() -> None:
    steering = wheel()
    steering.protected = {0}
    assert with_protected(steering, [1, 3], [], sets_size=False) == ([0, 1, 3], [])
    assert with_protected(steering, [1, 3], [], sets_size=True) == ([0, 3], [])  # that of the least fit


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


# --- several requests between the same two generations ----------------------------------------------------------------


def test_requests_to_one_member_are_one_birth() -> None:
    population = members(1.0, 2.0)
    lr, tau, again = Request("set", 1, "lr", 3.0), Request("pin", 1, "tau", 0.1), Request("set", 1, "lr", 4.0)
    events = carry_out(wheel(), population, lr, tau, again)
    assert [(agent.index, agent.lr, agent.tau) for agent in population.agents] == [(0, 1.0, 0.5), (10, 4.0, 0.1)]
    before, after = {"lr": 1.0, "tau": 0.5}, {"lr": 4.0, "tau": 0.1}
    assert births_of(population) == [Birth(10, 1, 5, "steered", "lr, tau", before, after, 0.0, 2.0)]
    assert [event.result for event in events] == [{"born": [10]}] * 3
    record = population.agents[1].mutation_record
    assert (record.path, record.before, record.after) == ("lr, tau", before, after)
    assert population.next_id == 11


def test_a_value_that_is_set_twice_shows_the_parents_and_the_last_one() -> None:
    population = members(1.0, 2.0)
    carry_out(wheel(), population, Request("set", None, "lr", 3.0), Request("set", 1, "lr", 4.0))
    assert births_of(population) == [
        Birth(10, 0, 5, "steered", "lr", 1.0, 3.0, 0.0, 1.0),
        Birth(11, 1, 5, "steered", "lr", 1.0, 4.0, 0.0, 2.0),
    ]


def test_later_requests_follow_a_changed_member_and_not_its_children() -> None:
    selected = (Birth(7, 3, 5, "none"),)
    population = Members([Agent(3), Agent(7)], 5, 8, selected)  # 3 is the elite, 7 its child by selection
    requests = [Request("set", 3, "lr", 3.0), Request("set", 3, "tau", 0.1), Request("clone", 3)]
    events = carry_out(wheel(), population, *requests)
    assert [event.result for event in events] == [{"born": [8]}, {"born": [8]}, {"born": [9], "instead_of": 7}]
    assert [(agent.index, agent.lr, agent.tau) for agent in population.agents] == [(8, 3.0, 0.1), (9, 3.0, 0.1)]
    assert [birth.parent for birth in births_of(population)] == [3, 3]  # 8 has never trained without its copy


def test_later_requests_follow_the_changed_children_of_an_ended_member() -> None:
    selected = (Birth(7, 3, 5, "none"), Birth(8, 3, 5, "none"), Birth(9, 4, 5, "none"))
    population = Members([Agent(7), Agent(8), Agent(9)], 5, 10, selected)
    events = carry_out(wheel(), population, Request("set", 3, "lr", 3.0), Request("set", 3, "tau", 0.1))
    assert [event.result for event in events] == [{"born": [10, 11]}] * 2
    assert [(agent.index, agent.lr, agent.tau) for agent in population.agents] == [
        (10, 3.0, 0.1),
        (11, 3.0, 0.1),
        (9, 1.0, 0.5),
    ]


def test_a_member_whose_place_a_copy_has_taken_has_left() -> None:
    population = members(1.0, 2.0, 3.0)
    requests = [Request("set", 0, "lr", 3.0), Request("clone", 2), Request("set", 0, "tau", 0.1), Request("clone", 1)]
    changed, copied, late, again = carry_out(wheel(), population, *requests)
    assert changed.result == {"born": []}  # the copy has its place
    assert copied.result == {"born": [], "instead_of": 0}  # and the next one has it now
    assert late.result == {"refused": "member 0 has left the population"}
    assert again.result == {"born": [12], "instead_of": 0}
    assert births_of(population) == [Birth(12, 1, 5, "steered", "", None, None, 0.0, 2.0)]


def test_pin_and_unpin_follow_the_order_of_asking() -> None:
    pin, unpin = Taken("a", 5, Request("pin", 1, "lr", 3.0)), Taken("b", 5, Request("unpin", 1, "lr"))
    for requests, pins in (([pin, unpin], {}), ([unpin, pin], {"lr": 3.0})):
        steering = wheel()
        population, _ = between_generations(steering, requests, members(1.0, 2.0))
        assert steering.pins.get(10, {}) == pins
        assert population.agents[1].lr == 3.0


def test_unpin_alone_comes_before_selection_alone() -> None:
    """So that the mutation of the same moment may change the value."""
    unpin, pin = Taken("a", 5, Request("unpin", None, "lr")), Taken("b", 5, Request("pin", None, "lr", 3.0))
    assert (before_selection([unpin]), after_selection([unpin], {})) == ([unpin], [])
    assert (before_selection([unpin, pin]), after_selection([unpin, pin], {})) == ([unpin], [pin])


ASKED = [
    Request(action, member, **more)
    for action, more in (
        ("set", {"name": "lr", "value": 3.0}), ("set", {"name": "tau", "value": 0.1}),
        ("pin", {"name": "lr", "value": 4.0}), ("unpin", {"name": "lr"}), ("evaluate", {}),
    )
    for member in (0, 1, 2, None)
] + [Request(action, member) for action in ("clone", "remove", "protect", "unprotect") for member in (0, 1, 2)] + [
    Request("stop")
]  # fmt: skip


def between_generations(
    steering: SteeringWheel, requests: list[Taken], population: Members, *, selects: bool = False, shrinks: bool = False
) -> tuple[Members, Any]:
    """What the loop does between two generations; selection replaces members 0 and 1 by children of the others."""
    events: dict[str, Any] = {}
    for event in steering.carry_out(before_selection(requests), population, shrinks=shrinks):
        events[event.request] = event
    agents, next_id, selected = population.agents, population.next_id, []
    if selects:
        parents, agents = agents, []
        for agent in parents:
            if agent.index in (0, 1):
                parent = parents[-1] if agent.index else agent  # 1 has no children, 0 has one
                selected.append(Birth(next_id, parent.index, 5, "none"))
                agent, next_id = parent.clone(next_id), next_id + 1
            agents.append(agent)
    after = Members(list(agents), 5, next_id, tuple(selected))
    for event in steering.carry_out(after_selection(requests, events), after, shrinks=shrinks):
        events.setdefault(event.request, event)
    return after, [events[taken.id] for taken in requests]


@pytest.mark.parametrize("selects", [False, True])
@pytest.mark.parametrize("shrinks", [False, True])
def test_two_requests_of_any_kinds_end_in_members_with_one_birth_each(selects: bool, shrinks: bool) -> None:
    for first, second in itertools.product(ASKED, ASKED):
        requests = [Taken(str(at), 5, request) for at, request in enumerate((first, second))]
        population, events = between_generations(
            wheel(), requests, members(1.0, 3.0, 2.0), selects=selects, shrinks=shrinks
        )
        ids, before = population.ids, set(population.replaced)
        assert len(ids) == len(set(ids))
        assert [event.request for event in events] == ["0", "1"]
        assert set(population.born) <= set(ids)
        Family([Agent(0)]).add(births_of(population), population.agents)
        agents = {agent.index: agent for agent in population.agents}
        for birth in births_of(population):
            assert birth.parent in before
            assert birth.parent not in population.born
            one = len(birth.path.split(", ")) == 1
            changes = {birth.path: birth.after} if one else birth.after
            values = {name: value for name, value in vars(agents[birth.id]).items() if name in ("lr", "tau")}
            assert {**values, **({} if birth.path == "" else changes)} == values
        for event in events:
            if event.action in AFTER_SELECTION:
                assert set(event.result.get("born", ())) <= set(ids)
