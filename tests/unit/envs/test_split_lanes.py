"""Lanes that move to other processes have the bits of those that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from process_kinds import GlobalGenerators, OneShot, Plain, SeedsGlobally
from test_global_generators import Team

from agilerl.core import foreign
from agilerl.envs import healing, split
from agilerl.envs.generators import Construction, constructing
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.replacing import ReplacingLanes
from agilerl.envs.split import Sharing, SplitLanes
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError

SEEDS = np.arange(7) + 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes move at the first reset after they were timed, whatever the time; workers inherit this module's classes."""
    monkeypatch.setattr(split, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(split, "START_SECONDS", 30.0)
    monkeypatch.setattr(split, "TIMED_STEPS", 2)
    monkeypatch.setattr(healing, "start_method", lambda: "fork")


class Masked(Plain):
    """Forbids the action that was taken last; not at the start of an episode."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "action_mask": np.array([action != 0, action != 1])}


class Nested(Plain):
    """Observes a Dict of arrays of different types."""

    observation_space: Any = gym.spaces.Dict(
        {"number": gym.spaces.Box(-10, 10, (2,), np.float32), "image": gym.spaces.Box(0, 255, (2, 3), np.uint8)}
    )

    def _observe(self) -> Any:
        number = super()._observe()
        return {"number": number, "image": np.full((2, 3), int(abs(number[0]) * 20), np.uint8)}


class Decided(Team):
    """Takes the first agent's action by itself in some steps."""

    def step(self, actions: Any) -> Any:
        *result, _ = super().step(actions)
        chosen = {"env_defined_actions": np.array(1)} if self.age % 2 else {}
        return *result, {"a": chosen, "b": {}}


def parted(kind: Any, processes: int, count: int = 7, make: Callable[..., Any] = SyncLanes, **more: Any) -> SplitLanes:
    reset_ended = more.get("reset_ended", True)
    lanes = make([kind] * count, reset_ended=reset_ended)
    return SplitLanes(lanes, make, kind, Sharing(processes), reset_ended)


def record(lanes: Any, rounds: int = 3, steps: int = 8) -> list[Any]:
    """What lanes return in several rounds with seeds, and one without; in some steps lanes idle."""
    draws, rows = np.random.default_rng(0), []
    for round_number in range(rounds + 1):
        rows.append(lanes.reset(SEEDS[: lanes.num_lanes] + 100 * round_number if round_number < rounds else None))
        for step in range(steps):
            active = draws.random(lanes.num_lanes) < 0.6 if step % 3 == 1 else None
            batch = lanes.step(draws.integers(0, 2, actions_of(lanes)), active)
            rows.append([
                batch.obs, batch.reward, batch.terminated, batch.truncated, batch.final_obs, batch.mask, batch.info,
                None if batch.team is None else vars_of(batch.team),
            ])  # fmt: skip
    return rows


def actions_of(lanes: Any) -> Any:
    return lanes.num_lanes if foreign.team(lanes) is None else (lanes.num_lanes, lanes.team.width)


def vars_of(step: Any) -> list[Any]:
    return [step.reward, step.terminated, step.truncated, step.acted, step.defined]


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        np.testing.assert_array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("kind", [Plain, Masked, Nested, GlobalGenerators, SeedsGlobally])
def test_lanes_that_moved_have_the_bits_of_one_process(kind: Any, processes: int) -> None:
    with constructing(Construction(5, True)):
        plain, lanes = SyncLanes([kind] * 7), parted(kind, processes)
        expected, moved = record(plain), record(lanes)
    assert lanes.processes == processes
    lanes.close()
    assert_equal(moved, expected)


def test_teams_that_moved_have_the_bits_of_one_process() -> None:
    plain, lanes = TeamLanes([Decided] * 3), parted(Decided, 2, 3, TeamLanes)
    expected, moved = record(plain), record(lanes)
    assert lanes.processes == 2
    lanes.close()
    assert_equal(moved, expected)


def test_quick_steps_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_SECONDS", 60.0)
    lanes = parted(Plain, 2)
    record(lanes)
    assert (lanes.processes, lanes.lanes.num_lanes) == (1, 7)


def test_a_measured_cost_holds_for_all_lanes_of_the_environment() -> None:
    sharing = Sharing(2)
    timed = SplitLanes(SyncLanes([Plain] * 4), SyncLanes, Plain, sharing, True)
    record(timed, rounds=1)
    later = SplitLanes(SyncLanes([Plain] * 4), SyncLanes, Plain, sharing, True)
    later.reset(SEEDS[:4])
    assert (sharing.seconds is not None, later.processes) == (True, 2)
    timed.close()
    later.close()


def test_an_environment_that_can_be_made_once_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneShot, "made", False)
    lanes = SplitLanes(SyncLanes([OneShot]), SyncLanes, OneShot, Sharing(2), True)
    record(lanes)
    assert lanes.processes == 1
    lanes.close()


class Once(Plain):
    """Can be made in one process only, twice there."""

    made = 0

    def __init__(self) -> None:
        Once.made += 1
        if Once.made > 2:
            raise RuntimeError("no more licences")


def test_lanes_stay_where_their_environments_cannot_be_made_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Once, "made", 0)
    lanes = parted(Once, 2, 2)
    plain = record(SyncLanes([Plain] * 2))
    assert_equal(record(lanes), plain)
    assert lanes.processes == 1


class Failing(Plain):
    """Fails in the 18th step of its process's second environment."""

    steps = 0

    def step(self, action: Any) -> Any:
        Failing.steps += 1
        if Failing.steps == 18:
            raise RuntimeError("connection lost")
        return super().step(action)


def test_a_fault_in_another_process_is_one_of_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "steps", 0)
    lanes = parted(Failing, 2, 2)
    with pytest.raises(EnvError, match="connection lost"):
        record(lanes)
    lanes.close()


def test_lanes_whose_environment_failed_are_made_again_and_move_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "steps", 0)
    lanes = ReplacingLanes(lambda: parted(Failing, 2, 2), max_restarts=4)
    rows = record_of(lanes)
    assert len(lanes.faults) >= 1
    assert sum(not row.mask.all() for row in rows) == len(lanes.faults)
    lanes.close()


def record_of(lanes: Any) -> list[Any]:
    rows = []
    for number in range(3):
        lanes.reset(SEEDS[:2] + number)
        rows += [lanes.step(np.zeros(2, int)) for _ in range(8)]
    return rows
