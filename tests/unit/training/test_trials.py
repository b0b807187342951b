"""A short trial decides where environments step: in worker processes if they work there, else in this one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.cli.main import app
from agilerl.envs import healing
from agilerl.errors import EnvError
from agilerl.training.manifest import launch, step_cost
from agilerl.training.manifest.step_cost import COPIED, trial


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit the classes of this module, whatever threads earlier tests have left."""
    for module in (healing, step_cost):
        monkeypatch.setattr(module, "start_method", lambda: "fork")


SHARED = np.random.default_rng(3)  # every process has a copy of it
HERE = os.getpid()


class Computing(gym.Env[Any, Any]):
    """Episodes of ten steps of 0.3 ms of CPU time."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)
    made_here = False

    def __init__(self) -> None:
        Computing.made_here = True

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        end = time.process_time() + 3e-4
        while time.process_time() < end:
            pass
        self.steps += 1
        return self.observe(), 1.0, False, self.steps == 10, {}


class Copied(Computing):
    def observe(self) -> Any:
        return SHARED.uniform(-1, 1, 2).astype(np.float32)


class Unrepeatable(Computing):
    """Differs in every episode, and in every process."""

    def observe(self) -> Any:
        return np.frombuffer(os.urandom(2), np.uint8).astype(np.float32) / 255


class Drawing(Computing):
    def observe(self) -> Any:
        return np.random.uniform(-1, 1, 2).astype(np.float32)


class OnlyHere(Computing):
    def __init__(self) -> None:
        if os.getpid() != HERE:
            raise RuntimeError("the license allows one process")


class Exits(Computing):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if os.getpid() != HERE:
            os._exit(3)
        return super().reset(seed=seed)


class Batched(Computing):
    """Brings its own lanes."""

    def make_lanes(self, num_lanes: int, reset_ended: bool = True) -> Any:
        from agilerl.envs.lanes import SyncLanes

        lanes = SyncLanes([Computing] * num_lanes, reset_ended=reset_ended)
        return type("Own", (), {name: getattr(lanes, name) for name in ("reset", "step", "close", "num_lanes")})()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (step_cost, launch):
        monkeypatch.setattr(module, "available_cores", lambda: 2)
    monkeypatch.setattr(step_cost, "MIN_STEPS", 12)
    monkeypatch.setattr(Computing, "made_here", False)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Computing, ""),
        (Drawing, ""),
        (Unrepeatable, ""),
        (Copied, COPIED),
        (OnlyHere, "the license allows one process"),
        (Exits, "died: its process ended with exit code 3"),
    ],
)
def test_an_environment_is_tried_in_worker_processes_first(kind: Any, reason: str) -> None:
    tried = trial(kind.__name__, {}, kind)
    assert reason in tried.reason
    assert bool(reason) == bool(tried.reason)
    assert tried.action_space == spaces.Discrete(2)
    assert 3e-4 <= tried.cost.p50 < 0.01, "measured there or here"
    if kind is Computing:
        assert not Computing.made_here


def test_what_steps_as_one_batch_is_not_measured() -> None:
    assert trial("CartPole-v1", {}, None).cost is None
    assert trial("Batched", {}, Batched).cost is None


def test_actions_that_no_learner_takes_are_not_tried() -> None:
    assert trial("Computing", {}, Computing, is_wanted=lambda space: False).cost is None


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_where_processes_start_slowly_only_slow_steps_are_tried_there(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def tried(*arguments: Any) -> Any:
        calls.append(arguments)
        raise EnvError("no. fix: another one.")

    monkeypatch.setattr(step_cost, "start_method", lambda: method)
    monkeypatch.setattr(step_cost, "_tried", tried)
    assert trial("Computing", {}, Computing).reason == "no."
    monkeypatch.setattr(step_cost, "WORTH_WORKERS_S", 1.0)
    assert trial("Computing", {}, Computing).reason == ""
    assert len(calls) == 1


@pytest.mark.parametrize(("kind", "workers"), [(Computing, 2), (OnlyHere, None)])
def test_a_bare_command_falls_back_to_one_process_and_says_so(kind: Any, workers: int | None, tmp_path: Path) -> None:
    gym.register("Tried-v0", kind)
    try:
        words = ["train", "Tried-v0", "--algo", "DQN", "--steps", "40", "--population", "2", "--test-episodes", "2"]
        more = [("evo_steps", 40), ("num_envs", 4), ("eval_episodes", 2), ("target_score", "null")]
        settings = [word for name, value in more for word in ("--set", f"{name}={value}")]
        ended = CliRunner().invoke(app, [*words, *settings, "--out", str(tmp_path)])
    finally:
        del gym.registry["Tried-v0"]
    assert ended.exit_code == 0, ended.output
    expected = "environments step in 2 processes" if workers else "environments step in this process, as in several "
    assert expected in ended.output
    (folder,) = (tmp_path / "Tried-v0").iterdir()
    environment = agilerl.load(folder).manifest.environment
    assert (environment.num_workers, environment.healing) == (workers, False)
