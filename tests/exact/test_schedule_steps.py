"""Changes of a schedule by hand: which boundary makes which, what its record says, and what a resume goes on with."""

from __future__ import annotations

from typing import Any

import pytest

from agilerl.errors import RunError
from agilerl.hpo.schedule import Change, Schedule
from agilerl.telemetry.record import MemberRecord


class Agent:
    """What a schedule of hyperparameters needs of an agent."""

    def __init__(self, index: int = 0, **values: float) -> None:
        self.index, self.fitness, self.mut, self.mutation_record = index, [7.0], "None", None
        self.hooks = 0
        self.__dict__.update(values)

    def clone(self, index: int) -> Agent:
        child = Agent()
        child.__dict__.update({**self.__dict__, "index": index})
        return child

    def mutation_hook(self) -> None:
        self.hooks += 1


CHANGES = (
    Change(0, "rl_hp", "lr", {"lr": 9.0}, {"lr": 1.0}),
    Change(1000, "rl_hp", "lr", {"lr": 1.0}, {"lr": 2.0}),
    Change(1001, "rl_hp", "lr", {"lr": 2.0}, {"lr": 3.0}),
    Change(1500, "rl_hp", "gamma, lr", {"gamma": 0.9, "lr": 3.0}, {"gamma": 0.8, "lr": 4.0}),
    Change(2500, "rl_hp", "gamma", {"gamma": 0.8}, {"gamma": 0.7}),
)


def at(schedule: Schedule, agent: Any, steps: int) -> tuple[Any, Any]:
    """The agent and the births after a boundary at these steps of the agent."""
    record = MemberRecord(agent.index, 0, None, 0.0, 0.0, steps, 0, None, "founder", {}, "")
    (after,), births = schedule.next([agent], [record], steps // 500)
    return after, births


def test_a_change_is_made_at_the_boundary_of_its_steps_and_once() -> None:
    schedule, founder = Schedule(CHANGES, 3), Agent(lr=1.0, gamma=0.9)
    after, births = at(schedule, founder, 999)
    assert (after is founder, births) == (True, ())
    after, (birth,) = at(schedule, founder, 1000)
    assert (after.lr, after.index, after.hooks, founder.lr) == (2.0, 1, 1, 1.0)
    assert (birth.id, birth.parent, birth.generation, birth.kind, birth.path) == (1, 0, 2, "rl_hp", "lr")
    assert (birth.before, birth.after, birth.parent_fitness) == ({"lr": 1.0}, {"lr": 2.0}, 7.0)
    same, births = at(schedule, after, 1000)
    assert (same is after, births) == (True, ())
    last, (birth,) = at(schedule, after, 2000)  # two changes, with the values before the first and after the second
    assert (last.lr, last.gamma, last.index, last.hooks) == (4.0, 0.8, 2, 2)
    assert (birth.path, birth.before, birth.after) == (
        "lr, gamma", {"lr": 2.0, "gamma": 0.9}, {"lr": 4.0, "gamma": 0.8},
    )  # fmt: skip
    assert schedule.state() == {"seed": 3, "applied": 4}
    same, births = at(schedule, last, 2499)
    assert (same is last, births) == (True, ())
    end, (birth,) = at(schedule, last, 3000)
    assert (end.gamma, birth.before) == (0.7, {"gamma": 0.8})
    assert at(schedule, end, 9000) == (end, ())


def test_a_resumed_schedule_goes_on_after_the_changes_that_were_made() -> None:
    first = Schedule(CHANGES, 3)
    agent, _ = at(first, Agent(lr=1.0, gamma=0.9), 2000)
    second = Schedule(CHANGES, 0)
    second.load_state(first.state())
    assert (second.seed, second.applied) == (3, 4)
    after, (birth,) = at(second, agent, 2500)
    assert (after.lr, after.gamma, birth.path) == (4.0, 0.7, "gamma")
    for applied in (-1, 6):
        with pytest.raises(RunError, match=rf"has applied {applied} changes of a schedule that has 5"):
            second.load_state({"seed": 3, "applied": applied})
