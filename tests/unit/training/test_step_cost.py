"""The cost of an environment's steps, and the learner, the lanes and the budget that follow from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.api import starting_manifest
from agilerl.cli.main import app
from agilerl.config import apply_overrides, preset_for
from agilerl.envs.vector import HealingVectEnv, make_vect_envs
from agilerl.training.manifest import step_cost
from agilerl.training.manifest.environment_task import make_environments
from agilerl.training.manifest.step_cost import (
    Clocks,
    StepCost,
    Trial,
    few_steps_algorithm,
    measure,
    with_lane_workers,
)
from agilerl.training.manifest.time_budget import steps_of_simulator


class Simulator(gym.Env[Any, Any]):
    """Episodes of ten steps; each step computes for 3 units of time, the second one 50, and a reset 7.

    `load` gives the wall seconds that others take of a core while this process computes for so many.
    """

    wall, cpu, waits = 0.0, 0.0, 0
    load: Callable[[float], float] = staticmethod(lambda seconds: 0.0)

    def __init__(self, actions: spaces.Space[Any] | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Discrete(3) if actions is None else actions
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.compute(7.0)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.spend()
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {}

    def spend(self) -> None:
        self.compute(50.0 if self.steps == 2 else 3.0)

    @staticmethod
    def compute(seconds: float) -> None:
        Simulator.wall += seconds + Simulator.load(seconds)
        Simulator.cpu += seconds

    @staticmethod
    def sleep(seconds: float) -> None:
        Simulator.wall += seconds
        Simulator.waits += 1


def clocks() -> Clocks:
    return Clocks(Simulator.wall, Simulator.cpu, Simulator.waits)


def measured(make: Any, minutes: float | None = None) -> StepCost:
    with contextlib.closing(make_vect_envs(make_env=make)) as env:
        cost = measure(env, clocks, minutes=minutes)
    assert cost is not None
    return cost


def test_a_measurement_takes_quantiles_of_steps_without_resets() -> None:
    """9 of 10 steps take 3; the first one is a warm-up. More than a second: 6 steps are enough.

    The mean counts 50 as its 40.6 of the 95 % quantile, and a sixth of the reset of 7.
    """
    cost = measured(Simulator)
    assert (cost.p50, cost.reset, cost.steps) == (3.0, 7.0, 5)
    assert cost.p95 == pytest.approx(np.quantile([50.0, 3.0, 3.0, 3.0, 3.0], 0.95))
    assert cost.mean == pytest.approx((40.6 + 4 * 3.0) / 5 + 7.0 / 6)
    assert str(cost) == "a step takes 3 s (95 % below 41 s), a reset 7 s, on average 12 s a step with resets"


class Filling(Simulator):
    """Episodes of 200 steps: 20 of 2 ms, as a road is empty at first, then of 18 ms. A reset takes a second."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Simulator.wall += 1.0 - 7.0
        Simulator.cpu += 1.0 - 7.0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.compute(0.002 if self.steps <= 20 else 0.018)
        return np.zeros(2, np.float32), 1.0, self.steps == 200, False, {}


def test_a_measurement_lasts_for_an_episode_whose_beginning_is_cheap() -> None:
    """199 steps: 19 of 2 ms and 180 of 18 ms, and a reset of 1 s for 200."""
    cost, short = measured(Filling, minutes=10.0), measured(Filling)
    assert (cost.steps, cost.p50) == (199, pytest.approx(0.018))
    assert cost.mean == pytest.approx((19 * 0.002 + 180 * 0.018) / 199 + 1.0 / 200)
    assert short.steps == 20 - 1 + 54, "a second of steps after the first reset"


def test_long_episodes_end_a_measurement_after_a_thousand_steps() -> None:
    class Endless(Simulator):
        def step(self, action: Any) -> Any:
            self.compute(1e-5)
            return np.zeros(2, np.float32), 1.0, False, False, {}

    cost = measured(Endless)
    assert cost.steps == step_cost.MAX_STEPS
    assert cost.mean == pytest.approx(1e-5 + 7.0 / (step_cost.MAX_STEPS + 1))


class OneStep(Simulator):
    """Episodes of one step."""

    def step(self, action: Any) -> Any:
        obs, reward, _, *rest = super().step(action)
        return obs, reward, True, *rest


def test_slow_resets_of_short_episodes_do_not_make_a_measurement_long() -> None:
    """Six episodes are enough; every step takes its 3 s and the reset before it."""
    begun = Simulator.wall
    cost = measured(OneStep)
    assert (cost.p50, cost.reset, cost.mean) == (3.0, 7.0, 10.0)
    assert Simulator.wall - begun == 6 * (7.0 + 3.0)


class Short(Simulator):
    """Steps of 0.2 ms, every fourth one of 2 ms; a reset takes 1 ms, the first one of the process 9."""

    is_first = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Simulator.wall, Simulator.cpu = Simulator.wall - 7.0, Simulator.cpu - 7.0
        self.compute(0.009 if self.is_first else 0.001)
        self.is_first = False
        return super().reset(seed=seed)

    def spend(self) -> None:
        self.pass_time(0.002 if self.steps % 4 == 0 else 0.0002)

    pass_time = staticmethod(Simulator.compute)


class Waiting(Short):
    """The same steps, which wait for a simulator in another process."""

    pass_time = staticmethod(Simulator.sleep)


LOADS: dict[str, Any] = {
    "idle": lambda seconds: 0.0,
    "one process more": lambda seconds: seconds,
    "a slice of 4 ms now and then": lambda seconds: 0.004 if round(1e7 * Simulator.cpu) % 7 == 0 else 0.0,
    "twenty processes more": lambda seconds: 20 * seconds,
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", [Short, Waiting])
def test_a_measurement_does_not_depend_on_who_else_uses_the_machine(
    kind: Any, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten steps two take 2 ms and eight 0.2, 0.56 ms on average; a tenth of a reset of 1 ms comes to that."""
    monkeypatch.setattr(Simulator, "load", staticmethod(LOADS[load]))
    monkeypatch.setattr(kind, "is_first", True)
    cost = measured(kind)
    assert cost.reset == pytest.approx(0.001), "not the first one"
    assert cost.p50 == pytest.approx(0.0002)
    assert cost.mean == pytest.approx(0.00056 + 0.0001, rel=0.02)


def test_a_call_counts_by_its_cpu_seconds_unless_it_waits() -> None:
    begin = Clocks(10.0, 5.0, 3)
    assert begin.until(Clocks(12.0, 5.5, 3)) == 0.5, "another process had the core"
    assert begin.until(Clocks(12.0, 5.5, 4)) == 2.0, "it has slept"
    assert begin.until(Clocks(12.0, 13.0, 3)) == 2.0, "four threads"


def test_the_clocks_tell_computing_from_waiting() -> None:
    """A sleep is a wait, computing is none: both for 5 ms of CPU time or more."""
    before, begun = Clocks.read(), time.process_time()
    while time.process_time() < begun + 0.005:
        pass
    computed = Clocks.read()
    time.sleep(0.005)
    slept = Clocks.read()
    assert 0.005 <= before.until(computed) <= computed.cpu - before.cpu
    assert slept.waits > computed.waits
    assert computed.until(slept) >= 0.005


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_lanes_that_step_as_one_batch_are_not_measured(env_id: str) -> None:
    env = make_vect_envs(env_id)
    assert measure(env) is None
    env.close()


@pytest.mark.parametrize(
    ("space", "algorithm"),
    [
        (spaces.Discrete(4), "DQN"),
        (spaces.Box(-1.0, 1.0, (2,)), "SAC"),
        (spaces.Box(-np.inf, np.inf, (2,)), None),
        (spaces.MultiBinary(3), None),
    ],
)
def test_the_learner_for_few_steps_follows_the_actions(space: spaces.Space[Any], algorithm: str | None) -> None:
    assert few_steps_algorithm(space) == algorithm


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`put(seconds, cores, reason)`: what a trial gives, on a machine of so many cores."""

    def put(seconds: float, cores: int, reason: str = "") -> None:
        def tried(name: str, kwargs: Any, env: Any, minutes: Any, is_wanted: Any = lambda space: True) -> Trial:
            with contextlib.closing(make_vect_envs(name)) as made:
                space = made.single_action_space
            return Trial(StepCost(seconds, seconds, seconds, 20, seconds) if is_wanted(space) else None, space, reason)

        monkeypatch.setattr(step_cost, "trial", tried)
        monkeypatch.setattr(step_cost, "available_cores", lambda: cores)

    gym.register("Simulated-v0", Simulator, reward_threshold=9.0, max_episode_steps=10)
    gym.register("SimulatedBox-v0", lambda: Simulator(spaces.Box(-1.0, 1.0, (1,))))
    yield put
    for name in ("Simulated-v0", "SimulatedBox-v0"):
        gym.registry.pop(name)


def test_few_steps_are_learned_from_many_times(slow: Any) -> None:
    """10 minutes at 10 ms on 2 cores are 120,000 steps, of which three quarters remain beside evaluation."""
    slow(0.01, 2)
    manifest, note = starting_manifest("Simulated-v0", None, None, minutes=10.0)
    training, environment = manifest.training, manifest.environment
    assert (manifest.algorithm.name, training.pop_size * training.max_steps) == ("DQN", 90_000)
    assert (environment.healing, environment.num_workers, environment.num_envs) == (True, 2, 2)
    assert (training.evo_first, training.evo_steps) == (50, 90_000 // 4 // 24)
    assert (training.target_score, training.overlap) == (9.0, True)
    assert manifest.algorithm.hyperparameters["learn_step"] == 0.125
    assert note.startswith(
        "a step takes 10 ms (95 % below 10 ms), a reset 10 ms, on average 10 ms a step with resets: about 90k"
    )


@pytest.mark.parametrize(
    ("seconds", "minutes", "algo", "expected"),
    [
        (0.01, 20.0, None, "DQN"),  # 180,000 steps
        (0.002, 30.0, None, "PPO"),  # 1,350,000 steps
        (0.0005, 0.1, None, "PPO"),  # few steps, but of a fast environment: the updates would take the time
        (0.01, 10.0, "PPO", "PPO"),
        (0.01, 10.0, "SAC", "SAC"),  # asked for, with the settings of its own preset
        (0.01, None, None, "PPO"),  # a budget in steps is the same everywhere
        (0.01, 10.0, None, "DQN"),
    ],
)
def test_the_algorithm_follows_the_budget(
    slow: Any, seconds: float, minutes: float | None, algo: str | None, expected: str
) -> None:
    slow(seconds, 2)
    manifest, note = starting_manifest("Simulated-v0", algo, None, minutes=minutes)
    assert manifest.algorithm.name == expected
    assert bool(note) == manifest.training.overlap == (expected == "DQN")


@pytest.mark.parametrize(("minutes", "expected"), [(11.0, "SAC"), (12.0, "PPO")])
def test_box_actions_are_learned_by_sac_from_fewer_steps(slow: Any, minutes: float, expected: str) -> None:
    """Of 10 ms on 2 cores, 99,000 and 108,000 steps fit."""
    slow(0.01, 2)
    manifest, _ = starting_manifest("SimulatedBox-v0", None, None, minutes=minutes)
    assert manifest.algorithm.name == expected


def test_box_actions_are_learned_by_sac_with_a_lane_for_each_core(slow: Any) -> None:
    slow(0.05, 16)
    manifest, note = starting_manifest("SimulatedBox-v0", None, None, minutes=5.0)
    assert (manifest.algorithm.name, manifest.training.pop_size) == ("SAC", 2)
    assert (manifest.environment.num_envs, manifest.environment.num_workers) == (8, 16)
    assert "in 16 processes" in note


@pytest.mark.parametrize(("seconds", "expected"), [(0.05, 0.125), (0.005, 0.25), (0.00125, 1), (0.001, 1)])
def test_faster_simulators_leave_less_time_for_updates(slow: Any, seconds: float, expected: float) -> None:
    """Eight updates of SAC for each step are for steps of 10 ms; a step of 1.25 ms leaves time for one."""
    slow(seconds, 2)
    manifest, _ = starting_manifest("SimulatedBox-v0", None, None, minutes=1.0)
    assert manifest.algorithm.hyperparameters["learn_step"] == pytest.approx(expected)


def test_an_environment_with_a_preset_keeps_its_algorithm(slow: Any) -> None:
    slow(0.05, 2)
    assert starting_manifest("LunarLander-v3", None, None, minutes=1.0) == (preset_for("LunarLander-v3"), "")


@pytest.mark.parametrize(
    ("seconds", "cores", "is_worth"),
    [(0.00011, 4, False), (0.0005, 1, False), (0.0005, 4, True), (0.00013, 2, True)],
)
def test_lanes_step_in_workers_where_that_saves_more_than_it_costs(
    slow: Any, seconds: float, cores: int, is_worth: bool
) -> None:
    """32 lanes of 0.13 ms take 4.2 ms in one process and 2.1 in two."""
    slow(seconds, cores)
    manifest = apply_overrides(preset_for("Simulated-v0", "PPO"), {"environment.num_envs": 8})
    changed, note = with_lane_workers(manifest, None, cores)
    assert (changed.environment.healing, changed.environment.num_workers) == (False, cores if is_worth else None)
    assert note.endswith(f": environments step in {cores} processes" if is_worth else "")


@pytest.mark.parametrize(
    ("start", "minutes", "num_envs"), [(0.9, 1.0, 8), (3.0, None, 8), (3.0, 10.0, 3), (3.0, 60.0, 8), (30.0, 1.0, 1)]
)
def test_members_have_as_many_environments_as_the_budget_leaves_time_to_make(
    slow: Any, monkeypatch: pytest.MonkeyPatch, start: float, minutes: float | None, num_envs: int
) -> None:
    """A sixteenth of ten minutes are 37.5 s: 12 environments that start for 3 s, 3 of each of four members."""
    slow(0.0002, 2)
    cost = StepCost(0.0002, 0.0002, 0.0002, 20, 0.0002, start)
    monkeypatch.setattr(step_cost, "trial", lambda *_: Trial(cost, spaces.Discrete(2)))
    manifest = apply_overrides(preset_for("Simulated-v0", "PPO"), {"environment.num_envs": 8})
    changed, note = with_lane_workers(manifest, None, 2, minutes)
    assert changed.environment.num_envs == num_envs
    assert ("to make" in note) == (start > 1.0 and minutes is not None)


def test_an_environment_is_tried_once_for_all_that_follows_from_its_cost(
    slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a start of 3 s, a sixteenth of a minute makes one environment of each of four members."""
    names = []

    def trial(name: str, *_: Any) -> Trial:
        names.append(name)
        return Trial(StepCost(0.01, 0.01, 0.01, 20, 0.01, 3.0), spaces.Discrete(2))

    slow(0.01, 2)
    monkeypatch.setattr(step_cost, "trial", trial)
    trials: Any = {}
    manifest, _ = starting_manifest("Simulated-v0", None, None, minutes=1.0, trials=trials)
    assert (manifest.environment.num_envs, manifest.training.pop_size) == (1, 4)
    cost = step_cost.cost_of(manifest, None, 1.0, trials)
    assert cost.start == 3.0
    assert names == ["Simulated-v0"]
    other = apply_overrides(manifest, {"environment.kwargs": {"size": 2}})
    step_cost.cost_of(other, None, 1.0, trials)
    assert names == ["Simulated-v0"] * 2, "another environment is measured"


def test_lanes_step_here_where_environments_do_not_work_in_processes(slow: Any) -> None:
    slow(0.01, 2, "the license allows one")
    manifest = preset_for("Simulated-v0", "PPO")
    same, note = with_lane_workers(manifest, None, 2)
    assert same is manifest
    assert note.endswith("environments step in this process, as in several the license allows one")
    few, note = starting_manifest("Simulated-v0", None, None, minutes=20.0)
    assert (few.algorithm.name, few.environment.of_workers) == ("DQN", {})
    assert note.endswith("environments step in this process, as in several the license allows one")
    assert few.training.pop_size * few.training.max_steps == 90_000, "of one core"


def test_few_lanes_stay_where_a_round_trip_costs_as_much(slow: Any) -> None:
    slow(0.0002, 2)
    manifest = apply_overrides(preset_for("Simulated-v0", "PPO"), {"environment.num_envs": 1})
    assert with_lane_workers(manifest, None, 2)[0] is manifest
    one = apply_overrides(manifest, {"environment.num_envs": 8, "environment.num_workers": 1})
    assert with_lane_workers(one, None, 2)[0] is one, "a number of workers decides"


def test_a_number_of_workers_is_enough_to_have_them() -> None:
    manifest = preset_for("CartPole-v1", "PPO")
    two, one, healing = (
        apply_overrides(manifest, {f"environment.{name}": value}).environment
        for name, value in (("num_workers", 2), ("num_workers", 1), ("healing", True))
    )
    options = {"num_workers": 2, "deadline_s": 60.0}
    assert (two.of_workers, one.of_workers) == (options, {})
    assert healing.of_workers == {**options, "num_workers": None, "healing": True, "max_restarts": 10}
    train_env, _ = make_environments(apply_overrides(manifest, {"environment.num_workers": 2}), None)
    with contextlib.closing(train_env):
        assert isinstance(train_env, HealingVectEnv)
        lanes = train_env.replicate(2)
        assert ([worker.is_local for worker in lanes.workers], lanes.max_restarts) == ([True, False], 10)


def test_the_budget_of_a_slow_simulator_needs_no_trial(slow: Any) -> None:
    """Two processes at 50 ms make 40 steps a second: 600 for each of four members in a minute, and as many again."""
    cost = StepCost(0.04, 0.06, 0.1, 20, 0.05)
    lanes = {"environment.healing": True, "environment.num_workers": 2, "training.evo_steps": 50}
    manifest = apply_overrides(preset_for("Simulated-v0", "DQN"), {**lanes, "training.evo_first": None})
    assert steps_of_simulator(manifest, cost, 1.0) == (1_200, 40.0, 1.0)
    long = apply_overrides(manifest, {"training.evo_steps": 6_000})
    assert steps_of_simulator(long, cost, 1.0) == (1_200, 40.0, 1.0), "generations are shortened to the budget"
    steps, _, minutes = steps_of_simulator(long, cost, 0.01)
    assert (steps, minutes) == (128, pytest.approx(128 * 4 * 1.25 / 40 / 60)), "16 vector steps of 8 lanes at least"


@pytest.mark.thorough
def test_a_bare_command_trains_a_slow_simulator_on_its_budget(slow: Any, tmp_path: Any) -> None:
    slow(0.002, 2)
    words = ["train", "Simulated-v0", "--minutes", "0.02", "--test-episodes", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "a step takes 2 ms" in done.output
    (folder,) = (tmp_path / "Simulated-v0").iterdir()
    manifest = agilerl.load(folder).manifest
    assert (manifest.algorithm.name, manifest.environment.healing, manifest.training.overlap) == ("DQN", True, True)
