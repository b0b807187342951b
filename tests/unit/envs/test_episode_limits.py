"""Evaluations end in environments that never do, and say what has cut them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import TimeLimit
from small_envs import Episodes

import agilerl
from agilerl import errors
from agilerl.algorithms import DQN
from agilerl.algorithms.base import evaluation
from agilerl.algorithms.base.evaluation import EvaluatedIn
from agilerl.collect.evaluator import Evaluator
from agilerl.core.options import LoopOptions
from agilerl.envs.limits import DEFAULT_EPISODE_LIMIT, EpisodeLimit, time_limit
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, EnvError

SMALL = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


class NeverEnds(Episodes):
    """One point a step, for ever."""

    length = None


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


def agent_for(env: Any) -> DQN:
    return DQN(env.observation_space, env.action_space, net_config=SMALL, seed=0)


def test_the_limit_of_an_environment_is_read_through_whatever_is_around_it() -> None:
    assert time_limit(gym.make("CartPole-v1")) == 500
    assert time_limit(gym.make("CartPole-v1", max_episode_steps=7)) == 7
    assert time_limit(gym.wrappers.TransformReward(TimeLimit(NeverEnds(), 30), float)) == 30
    assert time_limit(make_vect_envs("CartPole-v1", 2, max_episode_steps=9)) == 9
    assert time_limit(make_vect_envs(num_envs=2, make_env=lambda: TimeLimit(NeverEnds(), 11))) == 11
    assert time_limit(make_vect_envs("CliffWalking-v1", 2)) is None
    assert time_limit(NeverEnds()) is None


def test_healing_environments_say_the_limit_that_their_processes_keep() -> None:
    vector = make_vect_envs(num_envs=1, make_env=lambda: TimeLimit(NeverEnds(), 12), healing=True, num_workers=1)
    assert time_limit(vector) == 12
    vector.close()


def test_a_limit_is_asked_for_or_the_environments_or_follows_from_training() -> None:
    assert EpisodeLimit.of(NeverEnds(), 40, 5000) == EpisodeLimit(40, False, "NeverEnds")
    assert EpisodeLimit.of(TimeLimit(NeverEnds(), 30), None, 5000) == EpisodeLimit(None, False, "NeverEnds")
    assert EpisodeLimit.of(NeverEnds(), None, 5000) == EpisodeLimit(5000, True, "NeverEnds")
    assert EpisodeLimit.of(NeverEnds(), None, 10) == EpisodeLimit(DEFAULT_EPISODE_LIMIT, True, "NeverEnds")


def test_evaluations_of_a_run_are_as_long_as_a_generation_of_training_and_say_so_once() -> None:
    env = make_vect_envs(num_envs=2, make_env=NeverEnds)
    evaluator = Evaluator(env, LoopOptions(evo_steps=2 * 1300, eval_episodes=2), 0)
    assert evaluator.limit == EpisodeLimit(1300, True, "NeverEnds")
    assert Evaluator(env, LoopOptions(eval_steps=25), 0).limit.steps == 25


def test_agents_are_tested_and_evaluated_to_a_limit() -> None:
    agent = agent_for(NeverEnds())
    with pytest.warns(AgileRLWarning, match=r"NeverEnds has no time limit: 1 of 1 .* after 1000 steps .*eval_steps"):
        assert agent.test(NeverEnds()) == DEFAULT_EPISODE_LIMIT
    assert agent.test(NeverEnds(), max_steps=5) == 5
    assert agent.evaluate(2, env=NeverEnds(), max_steps=6).returns == (6.0, 6.0)
    agent.evaluated_in = EvaluatedIn(None, eval_steps=8)
    assert agent.evaluate(1, env=NeverEnds()).returns == (8.0,)
    agent.evaluated_in = EvaluatedIn(None, None, training=DEFAULT_EPISODE_LIMIT + 1)
    assert agent.evaluate(1, env=NeverEnds()).returns == (DEFAULT_EPISODE_LIMIT + 1.0,)


def test_copies_of_the_process_play_waves_of_an_evaluation_with_the_same_returns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A part whose copy is killed is played in this process."""

    class Killed(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **options: Any) -> Any:
            if os.getpid() != here and (tmp_path / "token").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(**options)

    here, maker = os.getpid(), partial(gym.make, "CartPole-v1", max_episode_steps=300)
    agent = agent_for(maker())
    agent.evaluated_in = EvaluatedIn(lambda: Killed(maker()))
    monkeypatch.setattr(evaluation, "MAX_LANES", 4)
    expected = agent.evaluate(15, seed=3).returns
    assert len(set(expected)) > 3
    for processes, token in ((2, False), (3, False), (8, False), (3, True)):
        agent.evaluated_in.processes = processes
        if token:
            (tmp_path / "token").touch()
        assert agent.evaluate(15, seed=3).returns == expected
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("limit", [None, 20])
def test_a_run_without_a_time_limit_ends_and_its_closing_episodes_are_as_long_as_the_others(
    limit: int | None, tmp_path: Any
) -> None:
    more: dict[str, Any] = {} if limit is None else {"eval_steps": limit}
    settings = {"num_envs": 2, "evo_steps": 20, "eval_episodes": 1, "elite_rescore_episodes": 0, "latent_dim": 8}
    with pytest.warns(AgileRLWarning) if limit is None else _nothing():
        run = agilerl.train(NeverEnds, "DQN", population=1, steps=20, out=tmp_path, verbose=False, **settings, **more)
        expected = float(limit or DEFAULT_EPISODE_LIMIT)
        assert run.history == [[expected]]
        assert run.best.evaluate(episodes=2).returns == (expected, expected)
    loaded = agilerl.load(run.path)
    assert loaded.best.evaluate(episodes=1, env=NeverEnds()).returns == (expected,)
    with pytest.raises(
        EnvError, match=r"an object, which is not saved, or there was none\. fix: agent\.evaluate\(env=my_env\)"
    ):
        loaded.best.evaluate(episodes=1)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_the_command_takes_a_limit_and_says_what_it_cannot_evaluate(tmp_path: Any) -> None:
    from typer.testing import CliRunner

    from agilerl.cli.main import app

    small = {"population": 1, "steps": 8, "num_envs": 1, "evo_steps": 8, "eval_episodes": 1, "verbose": False}
    by_id = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **small)
    found = CliRunner().invoke(app, ["evaluate", str(by_id.path), "--episodes", "2", "--max-steps", "3"])
    assert found.exit_code == 0
    assert "mean          3.00" in found.stdout
    handed = agilerl.train(lambda: gym.make("CartPole-v1"), "DQN", out=tmp_path, **small)
    refused = CliRunner().invoke(app, ["evaluate", str(handed.path)])
    assert refused.exit_code == 2
    assert "a script handed over" in refused.stderr
    assert f"agilerl.load('{handed.path}').best.evaluate(env=...)" in refused.stderr


def test_an_environment_that_was_handed_over_is_known_to_copies_but_not_to_files() -> None:
    import pickle

    run = agilerl.train(
        gym.make("CartPole-v1"), population=1, steps=8, out=None, verbose=False, num_envs=1, evo_steps=8
    )
    twin = run.best.clone()
    assert twin.evaluate(episodes=3).returns == run.best.evaluate(episodes=3).returns
    assert pickle.loads(pickle.dumps(twin.evaluated_in)).env is None


def test_warnings_of_mujoco_are_heard_instead_of_written_into_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = [None]
    module: Any = types.ModuleType("mujoco")
    module.get_mju_user_warning = lambda: heard[-1]
    module.set_mju_user_warning = heard.append
    monkeypatch.setitem(sys.modules, "mujoco", module)
    make_vect_envs(num_envs=2, make_env=NeverEnds)
    assert len(heard) == 2, "set once, and then there is a listener"
    with pytest.warns(AgileRLWarning, match=r"MuJoCo: Nan in QPOS at DOF 0\. The simulation is unstable\."):
        heard[-1]("Nan in QPOS at DOF 0. The simulation is unstable. Time = 0.1.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heard[-1]("Nan in QPOS at DOF 0. The simulation is unstable. Time = 0.2.")  # said once
