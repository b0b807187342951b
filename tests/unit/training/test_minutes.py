"""A budget in minutes: as many steps as fit at the measured speed, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms.dqn import DQN
from agilerl.api import build_manifest
from agilerl.cli.main import app
from agilerl.config import apply_overrides
from agilerl.core.options import LoopOptions
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError
from agilerl.hpo.screening import affordable
from agilerl.ranks import ONE
from agilerl.runs.checkpoints import read_checkpoint
from agilerl.runs.request import RunRequest
from agilerl.telemetry.console import pace
from agilerl.telemetry.time_spent import TimeSpent
from agilerl.training.deadline import Deadline, Pace
from agilerl.training.manifest import launch
from agilerl.training.manifest import time_budget as measured
from agilerl.training.manifest.step_cost import StepCost
from agilerl.training.random_play import random_play

SMALL: dict[str, Any] = {"num_envs": 4, "learn_step": 64, "evo_steps": 256, "population": 2}


def manifest(**more: Any) -> Any:
    settings = {name: value for name, value in SMALL.items() if name != "population"}
    return build_manifest("CartPole-v1", "PPO", preset=False, population=2, overrides={**settings, **more})


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[int]:
    """Trials whose generations of two members, 512 steps, take so many seconds each; how many there were."""
    clock, heard = iter(range(100)), [0]
    monkeypatch.setattr(measured.time, "perf_counter", lambda: seconds * next(clock))

    def run(setup: Any, **rest: Any) -> None:
        own, callbacks = setup.manifest.training, setup.request.callbacks
        assert (own.evo_steps, own.max_steps, own.target_score) == (256, 2048, None)
        for made in range(512, 2 * 2048 + 1, 512):
            heard[0] += 1
            if callbacks[0].on_generation(type("Record", (), {"population_env_steps": made})) is False:
                return

    monkeypatch.setattr(measured, "run_manifest", run)
    return heard


def test_the_budget_is_what_fits_at_the_measured_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of 2 x 256 steps take two seconds each: 256 steps a second. The trial takes 6 of 606 seconds; in the
    other ten minutes, with a quarter for evaluation, that is 122,880 steps, 61,440 of each member; twice as many are
    allowed, unless a schedule has to reach its end."""
    heard = pretend(monkeypatch, 2.0)
    steps, rate, expected = measured.steps_in(manifest(), None, "cpu", 10.1)
    assert (steps, rate, expected) == (2 * 61_440, 256.0, pytest.approx(10.1))
    pretend(monkeypatch, 2.0)
    assert measured.steps_in(manifest(clip_schedule="linear"), None, "cpu", 10.1)[0] == 61_440
    heard = pretend(monkeypatch, 2.0)
    measured.steps_in(manifest(), None, "cpu", 10.1)
    assert heard == [2], "the first one warms up, the second takes more than a second"
    pretend(monkeypatch, 2.0)
    assert measured.steps_in(manifest(), None, "cpu", 0.01)[0] == 64, "one generation of 16 vector steps at least"


def test_environments_that_are_slow_to_make_are_not_made_for_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members with four lanes of 0.5 s: 4 s to make, more than a twentieth of a minute, and less than of two."""
    heard = pretend(monkeypatch, 2.0)
    cost = StepCost(1e-4, 1e-4, 1e-4, 20, 1e-4, 0.5)
    monkeypatch.setattr(measured, "cost_of", lambda *_, **__: cost)
    assert measured.steps_in(manifest(), None, "cpu", 1.0)[1] == pytest.approx(10_000)
    assert heard == [0]
    measured.steps_in(manifest(), None, "cpu", 2.0)
    assert heard[0] > 0


def test_a_generation_at_least_is_one_of_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2.0)
    assert measured.steps_in(manifest(evo_first=32), None, "cpu", 0.01)[0] == 32


def lengths(of: Any) -> tuple[Any, ...]:
    training = of.training
    learn_step = of.algorithm.hyperparameters.get("learn_step")
    return training.evo_first, training.evo_steps, learn_step, training.eval_share


def test_generations_are_as_short_as_the_budget_asks_for() -> None:
    """At 100 steps a second of two members, four minutes hold 12,000 steps of each: a sixteenth is 750, an eighth
    1,500."""
    long = manifest(evo_steps=10_000, learn_step=2_048)
    assert lengths(measured.with_short_generations(long, 100.0, 4.0)) == (750, 1_500, 750, 0.3)
    assert lengths(measured.with_short_generations(long, 100.0, 0.01)) == (64, 64, 64, 0.3), "16 steps of 4 lanes"
    doubling = manifest(evo_first=500, evo_steps=10_000)
    assert lengths(measured.with_short_generations(doubling, 100.0, 4.0)) == (500, 1_500, 64, 0.3)
    assert lengths(measured.with_short_generations(manifest(eval_share=0.1), 100.0, 4.0))[1:] == (256, 64, 0.1)
    team = build_manifest("mpe2.simple_tag_v3", "MADDPG", preset=False, population=4, overrides={"evo_steps": 10_000})
    assert lengths(measured.with_short_generations(team, 1_000.0, 1.0))[:2] == (937, 1_875)
    data = build_manifest("CartPole-v1", "CQN", preset=False, population=2, overrides={"dataset": "run"})
    assert lengths(measured.with_short_generations(data, 1e3, 1.0))[3] is None, "its steps are updates"
    prompts = build_manifest("arithmetic/addition-2", "GRPO", population=4)
    measured.check_minutes(prompts, 3.0)
    assert lengths(measured.with_short_generations(prompts, 50.0, 3.0))[:2] == (140, 281), "2,250 prompts of each"


def test_a_range_of_rollouts_is_kept() -> None:
    long = manifest(evo_steps=10_000, learn_step=2_048)
    ranged = apply_overrides(long, {"mutation.rl_hp_selection": {"learn_step": {"min": 1_024, "max": 4_096}}})
    assert measured.with_short_generations(ranged, 100.0, 4.0).algorithm.hyperparameters["learn_step"] == 2_048


@pytest.mark.parametrize(
    ("room", "length", "expected"),
    [
        (10_000.0, 100.0, (4, 8)),  # 100 episodes fit, 32 are asked for
        (2_400.0, 100.0, (4, 6)),  # 24 episodes of four members
        (700.0, 100.0, (3, 2)),  # 7: two of each of three members
        (500.0, 100.0, (2, 2)),
        (-50.0, 100.0, (1, 2)),
        (100.0, 0.0, (4, 8)),  # no length is known
    ],
)
def test_an_evaluation_leaves_out_episodes_before_members(
    room: float, length: float, expected: tuple[int, int]
) -> None:
    assert affordable(room, length, 4, 8) == expected


@pytest.mark.thorough
def test_evaluation_is_bounded_where_episodes_are_long() -> None:
    """Episodes of 250 steps (Pendulum-like time limits): evaluations, scored again where selection asks for it, and
    confirmations of a run with `eval_share` take at most 0.3 and 0.2 of its training steps; without it they take
    several times as many."""
    gym.register("Long-v0", entry_point=Long)
    try:
        shares = []
        for more in ({"eval_share": 0.3}, {}):
            settings = {"num_envs": 4, "learn_step": 64, "evo_steps": 1_024, "eval_episodes": 8, "confirm_episodes": 32,
                        "elite_rescore_episodes": 16}  # fmt: skip
            run = agilerl.train(
                "Long-v0", "PPO", preset=False, steps=8_192, population=2, out=None, verbose=False, **settings, **more
            )
            shares.append(run.result["evaluation_env_steps"] / run.result["env_steps_population"])
    finally:
        gym.registry.pop("Long-v0")
    assert shares[0] <= 0.55
    assert shares[1] > 2.0


class Long(Episodes):
    """Episodes of 250 steps."""

    length, is_cut = 250, True

    def reward(self, action: Any) -> float:
        return float(action)


def test_the_time_that_is_left_is_that_of_the_nearer_limit() -> None:
    """1,000 of 100,000 steps in 10 seconds: 990 seconds of steps, and 50 until the minutes are up."""
    assert pace(1_000, 1_000, 100_000, 1, 10.0).endswith("left 16:30")
    assert pace(1_000, 1_000, 100_000, 1, 10.0, time_limit=60.0).endswith("left 00:50")
    assert pace(1_000, 1_000, 1_500, 1, 10.0, time_limit=60.0).endswith("left 00:05")
    timed = Pace(Deadline(0.0, 100.0, clock=lambda: 40.0), ONE)
    assert timed.generations_in_time(30.0, 2) == 4, "60 seconds are left, a generation takes 15"
    assert (timed.generations_in_time(0.0, 0), Pace(None, ONE).generations_in_time(30.0, 2)) == (None, None)


def test_what_is_fast_is_tried_for_longer_and_what_is_slow_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = pretend(monkeypatch, 1e-3)
    assert measured.steps_in(manifest(), None, "cpu", 1.0)[1] == pytest.approx(512_000)
    assert heard == [8], "all of the trial, 2,048 steps of each member"
    heard = pretend(monkeypatch, 12.0)
    assert measured.steps_in(manifest(), None, "cpu", 1.0)[1] == pytest.approx(512 / 12)
    assert heard == [1], "twelve seconds are enough, with what it took to begin"


@pytest.mark.parametrize(
    ("learn_step", "lanes", "rollout", "tried"),
    [(64, 4, 64, 256), (2048, 4, 256, 256), (2048, 64, 512, 512)],
)
def test_rollouts_of_a_trial_are_short(learn_step: int, lanes: int, rollout: int, tried: int) -> None:
    trial = measured.trial_of(manifest(learn_step=learn_step, num_envs=lanes))
    assert (trial.algorithm.hyperparameters["learn_step"], trial.training.evo_steps) == (rollout, tried)
    assert trial.training.eval_steps == 1


def test_a_trial_that_is_stopped_is_no_measurement() -> None:
    """The signal comes while the second generation is made, where a run would come back with an agent to show."""
    looks = iter(range(100))

    def check() -> None:
        if next(looks) > 80:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured.steps_in(manifest(), None, "cpu", 1.0, check)
    assert next(looks) >= 82, "it was looked at in the trial"


def test_a_run_with_minutes_records_steps_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = agilerl.train("CartPole-v1", "PPO", preset=False, minutes=1e-4, seed=2, out=tmp_path, **SMALL)
    assert run.manifest.training.max_steps == 64
    said = capsys.readouterr().out
    assert said.startswith("measuring how many steps fit into 0.0001 minutes\n")
    assert (
        "one generation (64 steps of each member) and the final evaluation take longer than 0.0001 minutes; both run "
        "anyway. fix: --steps for less\n"
    ) in said
    assert "minutes: at most 64 steps of each member, at " in said
    assert agilerl.load(run.path).manifest.training.max_steps == 64


@pytest.mark.parametrize(("minutes", "said"), [(0, "must be above 0"), (float("nan"), "must be above 0")])
def test_no_minutes_at_all_are_a_mistake(minutes: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        agilerl.train("CartPole-v1", "PPO", preset=False, minutes=minutes, out=None, verbose=False)


def test_two_budgets_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="steps and minutes are both budgets"):
        agilerl.train("CartPole-v1", minutes=1, steps=100, out=None)
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--minutes", "1", "--steps", "100"])
    assert (done.exit_code, "both budgets" in done.output) == (2, True)


def test_a_wrong_budget_is_a_mistake_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(launch.step_cost, "with_lane_workers", lambda manifest, *rest: calls.append(manifest))
    with pytest.raises(ConfigError, match="minutes must be above 0"):
        launch.resolved(manifest(), RunRequest(device="cpu", minutes=0.0, uses_spare_cores=True))
    assert calls == []


@pytest.mark.parametrize("value", [True, "soon", [1]])
def test_minutes_that_are_no_number_are_named(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"minutes must be a number above 0; got .* fix: minutes=10"):
        agilerl.train("CartPole-v1", minutes=value, out=None)
    with pytest.raises(ConfigError, match=r"minutes must be a number above 0; got .* fix: minutes=10"):
        agilerl.resume(tmp_path, minutes=value)


def test_minutes_may_be_a_text_as_steps_may(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[Any] = []
    monkeypatch.setattr(agilerl.api, "run_training", lambda _, request: budgets.append(request.minutes))
    for value in ("1.5", np.float32(1.5), 2):
        with pytest.raises(AttributeError):  # there is no run
            agilerl.train("CartPole-v1", minutes=value, out=None)
    assert budgets == [1.5, 1.5, 2.0]
    assert {type(minutes) for minutes in budgets} == {float}


def test_a_dry_run_says_that_the_budget_is_measured() -> None:
    said = "# in place of training.max_steps: what fits into {}, measured when it begins"
    untuned, tuned, asked, short = (
        CliRunner().invoke(app, ["train", *words, "--dry-run"]).output
        for words in (
            ["FrozenLake-v1"],
            ["CartPole-v1"],
            ["CartPole-v1", "--minutes", "3"],
            ["CartPole-v1", "--minutes", "1"],
        )
    )
    assert said.format("10 minutes") in untuned
    assert "minutes" not in tuned
    assert said.format("3 minutes") in asked
    assert said.format("1 minute") in short
    assert "minutes" not in CliRunner().invoke(app, ["train", "FrozenLake-v1", "--steps", "100", "--dry-run"]).output


@pytest.mark.parametrize(
    ("left", "generation", "episodes", "is_last"),
    [(101.0, 60.0, 10, False), (99.0, 60.0, 10, True), (99.0, 59.0, 9, False), (5.0, 0.0, 0, True)],
)
def test_the_last_generation_leaves_time_for_the_final_evaluation(
    left: float, generation: float, episodes: int, is_last: bool
) -> None:
    """The final evaluation has 30 episodes of one second: 60 + 10 + 30 seconds follow."""
    deadline = Deadline(0.0, 1_000.0, final_episodes=30, clock=lambda: 1_000.0 - left)
    assert deadline.is_last(generation, episodes, 1.0) is is_last


@pytest.mark.parametrize(
    ("seconds_per_episode", "reserved", "left"), [(0.1, 100, 100), (2.0, 50, 15), (4.0, 25, 7), (90.0, 2, 0)]
)
def test_the_final_evaluation_plays_fewer_episodes_where_they_take_long(
    seconds_per_episode: float, reserved: int, left: int
) -> None:
    """A tenth of 1,000 seconds is set aside for it, and 30 seconds are left in the end."""
    deadline = Deadline(0.0, 1_000.0, final_episodes=100, clock=lambda: 970.0)
    assert deadline.reserved_episodes(seconds_per_episode) == reserved
    assert deadline.episodes_left(seconds_per_episode) == left
    assert Deadline(0.0, 1_000.0, 1, lambda: 970.0).episodes_left(20.0) == 1, "never more than were asked for"


class Ticking:
    """A clock on which each generation takes a million seconds."""

    def __init__(self) -> None:
        self.generations = 0

    def on_generation(self, record: Any) -> None:
        self.generations += 1

    def __call__(self) -> float:
        return 1e6 * self.generations  # whatever the machine takes is nothing beside it


def timed(monkeypatch: pytest.MonkeyPatch, out: Path, generations: int, **more: Any) -> Any:
    """A run whose time is up after so many generations."""
    clock = Ticking()
    deadline = Deadline(0.0, 1e6 * (generations - 1) - 1.0, 0, clock)
    monkeypatch.setattr(Deadline, "after", lambda *_: deadline)
    monkeypatch.setattr(measured, "steps_in", lambda *_: (8 * 256, 1e3, 1.0))
    more = {"callbacks": [clock], **CLOCKED, **more}
    return agilerl.train("CartPole-v1", "PPO", preset=False, minutes=1.0, out=out, verbose=False, **more)


CLOCKED: dict[str, Any] = {
    **SMALL,
    "seed": 2,
    "eval_episodes": 4,
    "confirm_episodes": 8,
    "target": 1e6,
    "eval_share": 10.0,
}


def result_of(run: Any) -> dict[str, Any]:
    return {name: value for name, value in run.result.items() if "seconds" not in name}


def weights_of(run: Any) -> list[Any]:
    return [value.tolist() for value in run.best.actor.state_dict().values()]


@pytest.mark.thorough
def test_a_run_whose_time_was_up_is_repeated_by_its_configuration_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = timed(monkeypatch, tmp_path / "timed", 3)
    assert (run.result["stopped"], run.result["generations"]) == ("minutes", 3)
    assert run.result["confirmations"] > 0, "the best agents are confirmed, as in a last generation"
    training = agilerl.load(run.path).manifest.training
    assert (training.max_steps, training.stop_after) == (8 * 256, 3 * 256)
    again = agilerl.train(config=run.path / "config.yaml", env="CartPole-v1", out=tmp_path / "again", verbose=False)
    assert result_of(again) == result_of(run)
    assert (again.history, weights_of(again)) == (run.history, weights_of(run))
    resumed = agilerl.resume(run.path, verbose=False)
    whole = agilerl.train("CartPole-v1", "PPO", preset=False, steps=8 * 256, out=None, verbose=False, **CLOCKED)
    assert (resumed.result["stopped"], resumed.history) == ("budget", whole.history)
    assert resumed.manifest.training.stop_after is None
    members = [[value.tolist() for value in agent.actor.state_dict().values()] for agent in resumed.population]
    assert members == [[value.tolist() for value in agent.actor.state_dict().values()] for agent in whole.population]


def test_a_new_budget_of_steps_replaces_the_end_of_a_timed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = timed(monkeypatch, tmp_path / "timed", 1)
    assert (run.result["generations"], run.manifest.training.stop_after) == (1, 256)
    longer = apply_overrides(run.manifest, {"training.max_steps": 512})
    assert (longer.training.max_steps, longer.training.stop_after) == (512, None)
    assert apply_overrides(run.manifest, {"training.eval_episodes": 2}).training.stop_after == 256


def test_the_final_evaluation_of_the_command_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, after = list[int](), Deadline.after

    def deadline(minutes: float, episodes: int, begins: float) -> Deadline:
        asked.append(episodes)
        return after(minutes, episodes, begins)

    monkeypatch.setattr(Deadline, "after", deadline)
    words = ["train", "CartPole-v1", "--algo", "PPO", "--no-preset", "--minutes", "0.0001", "--test-episodes", "3"]
    done = CliRunner().invoke(app, [*words, "--set", "evo_steps=256", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked == [3]


class Seconds:
    """A clock that stands still until `on_generation`, and then takes the seconds of the next entry."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now = list(seconds), 0.0

    def on_generation(self, record: Any) -> None:
        self.now += self.seconds.pop(0) if self.seconds else 0.0

    def __call__(self) -> float:
        return self.now


def test_a_last_generation_is_shortened_to_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generations take 10 seconds on this clock; after two of them 14 of 34 are left, and half of a third one is 15."""
    clock = Seconds(10.0, 10.0)
    monkeypatch.setattr(Deadline, "after", lambda *_: Deadline(0.0, 34.0, 0, clock))
    monkeypatch.setattr(measured, "steps_in", lambda *_: (8 * 256, 1e3, 1.0))
    asked = list[float]()
    monkeypatch.setattr(Pace, "is_up", lambda pace, seconds, closing: asked.append(seconds) or len(asked) == 2)
    monkeypatch.setattr(Pace, "shortened", lambda pace, seconds, made, following, *more: following // 2)
    more = {**CLOCKED, "evo_steps": 512, "callbacks": [clock]}
    run = agilerl.train("CartPole-v1", "PPO", preset=False, minutes=1.0, out=tmp_path / "timed", verbose=False, **more)
    assert (run.result["stopped"], run.result["generations"]) == ("minutes", 3)
    assert run.result["env_steps_member"] == 512 + 512 + 256
    again = agilerl.train(config=run.path / "config.yaml", env="CartPole-v1", out=tmp_path / "again", verbose=False)
    assert (again.history, weights_of(again)) == (run.history, weights_of(run))
    assert result_of(again) == result_of(run)


@pytest.mark.parametrize(
    ("left", "seconds", "expected"),
    [
        (40.0, 20.0, 512),  # 30 seconds before the final evaluation, of which 2 are evaluation: 18 a generation's steps
        (16.0, 20.0, 0),  # 4 of 18 seconds: less than a quarter
        (22.0, 20.0, 256),  # 10 of 18
        (-5.0, 20.0, 0),
    ],
)
def test_the_steps_of_a_last_generation_fit(left: float, seconds: float, expected: int) -> None:
    """512 steps took `seconds`, two of them evaluation; the final evaluation has 10 episodes of a second."""

    pace = Pace(Deadline(0.0, 1_000.0, 10, lambda: 1_000.0 - left), ONE)
    pace.evaluated(2.0, episodes=2)
    for rounded in (lambda steps: max(1, steps // 256) * 256, lambda steps: -(-steps // 256) * 256):
        assert pace.shortened(seconds, 512, 512, 0, rounded) == expected, "whole vector steps, and whole rollouts"


@pytest.mark.thorough
def test_a_generation_that_takes_much_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first generation time is up: the second one ends at its first vector step, the first one counts."""
    clock = Seconds(1_000.0)
    monkeypatch.setattr(Deadline, "after", lambda *_: Deadline(0.0, 900.0, 0, clock))
    monkeypatch.setattr(measured, "steps_in", lambda *_: (8 * 256, 1e3, 1.0))
    more = {**CLOCKED, "callbacks": [clock]}
    run = agilerl.train("CartPole-v1", "PPO", preset=False, minutes=15.0, out=tmp_path / "timed", verbose=False, **more)
    assert (run.result["stopped"], run.result["generations"]) == ("minutes", 1)
    assert (run.result["env_steps_member"], run.manifest.training.stop_after) == (256, 256)
    assert run.best is not None
    assert agilerl.load(run.path).history == run.history
    whole = agilerl.train("CartPole-v1", "PPO", preset=False, steps=8 * 256, out=None, verbose=False, **CLOCKED)
    resumed = agilerl.resume(run.path, verbose=False)
    assert resumed.history == whole.history


def test_a_resumed_run_may_have_a_budget_in_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 steps in 4 seconds: at most 2 · 60 · 0.5 · 64 more ones in half a minute."""
    run = agilerl.train("CartPole-v1", "PPO", preset=False, steps=256, out=tmp_path, verbose=False, **CLOCKED)
    clock = Seconds(20.0, 20.0, 20.0)
    monkeypatch.setattr(Deadline, "after", lambda *_: Deadline(0.0, 30.0, 0, clock))
    (saved,) = (run.path / "checkpoints").glob("gen-*")
    seconds = float(read_checkpoint(saved).body["counters"]["seconds"])
    resumed = agilerl.resume(run.path, minutes=0.5, verbose=False, callbacks=[clock])
    assert resumed.result["stopped"] == "minutes"
    most = resumed.manifest.training.max_steps
    assert most == pytest.approx(256 + 60 * 256 / seconds, abs=1)
    assert resumed.manifest.training.stop_after == resumed.result["env_steps_member"] > 256
    with pytest.raises(ConfigError, match="both budgets"):
        agilerl.resume(run.path, minutes=1.0, steps=100)


def test_where_the_time_went_is_said_with_what_would_help() -> None:
    spent = TimeSpent(collecting=60.0, learning=20.0, evaluation=10.0, total=100.0)
    assert spent.in_words(has_lane_workers=True) == (
        "Of the time 60 % into acting and environments, 20 % into learning and 10 % into evaluation went. "
        "More cores would help, or an environment that steps many copies at once."
    )
    assert "healing=true" in spent.in_words(has_lane_workers=False)
    assert "learn_step" in TimeSpent(10.0, 80.0, 5.0, 100.0).in_words(False)
    assert "evaluation episodes" in TimeSpent(40.0, 10.0, 45.0, 100.0).in_words(False)
    assert TimeSpent(40.0, 30.0, 20.0, 100.0).in_words(False).endswith("went.")
    assert TimeSpent(4.0, 3.0, 2.0, 10.0).in_words(False) == "", "not of a short run"
    assert TimeSpent.from_dict(spent.as_dict()) == spent
    assert [TimeSpent.from_dict(entry) for entry in (None, {"total": 1.0}, {**spent.as_dict(), "total": "x"})] == [
        None, None, None,
    ]  # fmt: skip
    assert TimeSpent(0.0, 0.0, 60.0, 100.0).in_words(False) == "", "others trained"


def test_random_play_takes_little_of_a_budget_in_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two episodes at least; more while they take less than half a hundredth of the time."""
    env, options = make_vect_envs("CartPole-v1", num_envs=2), LoopOptions(max_steps=1_000_000)
    agent = DQN(env.single_observation_space, env.single_action_space)
    played = {
        seconds: random_play(env, agent, options, 4, 0, deadline=Deadline(0.0, seconds)).score
        for seconds in (1e-9, 1e9)
    }
    assert {seconds: len(score.returns) for seconds, score in played.items() if score} == {1e-9: 2, 1e9: 20}
    whole = random_play(env, agent, options, 4, 0).score
    assert whole.returns[:2] == played[1e-9].returns  # type: ignore[union-attr]
    env.close()
