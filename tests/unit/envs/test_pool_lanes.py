"""EnvPool's lanes over a stand-in with its interface: resting lanes, runs, what is recorded, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

import agilerl
from agilerl.algorithms import DQN
from agilerl.config import load_manifest, manifest_from
from agilerl.envs import pool
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError, EnvError, RunError, ShapeError
from agilerl.rollouts.evaluate import evaluate
from agilerl.training.manifest.environment_task import with_backend
from tests.unit.envs.pool_stand_in import install

SHORT: dict[str, Any] = {
    "steps": 256, "population": 2, "evo_steps": 128, "eval_episodes": 3, "confirm_episodes": 2, "learn_step": 64,
    "num_envs": 2, "seed": 7, "verbose": False, "target_score": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "is_installed", lambda: False)


@pytest.mark.parametrize("reset_ended", [True, False])
def test_lanes_step_as_those_of_gymnasium_whichever_rest(reset_ended: bool) -> None:
    ours = EnvPoolLanes("CartPole-v1", 5, reset_ended=reset_ended, max_episode_steps=30)
    make = lambda: gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=30)  # noqa: E731
    theirs = SyncLanes([make] * 5, reset_ended=reset_ended)
    rng, over, ends = np.random.default_rng(3), np.zeros(5, bool), np.zeros(2, int)
    for step in range(200):
        if step % 50 == 0:
            over[:] = False
            for obs, other in zip(ours.reset(np.arange(5) + step), theirs.reset(np.arange(5) + step), strict=True):
                np.testing.assert_array_equal(obs, other)
        active = (rng.random(5) < 0.7) & ~over
        actions = rng.integers(2, size=5)
        batch, other = ours.step(actions, active), theirs.step(actions, active)
        np.testing.assert_array_equal(batch.terminated, other.terminated & ~other.truncated)  # as EnvPool reports both
        for name in ("obs", "reward", "truncated", "final_obs", "mask"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(other, name), err_msg=f"{name}, {step}")
        over |= False if reset_ended else batch.terminated | batch.truncated
        ends += batch.terminated.sum(), batch.truncated.sum()
    assert ends.all()


def test_resting_lanes_are_not_sent() -> None:
    lanes = EnvPoolLanes("CartPole-v1", 4)
    lanes.reset(np.arange(4))
    active = np.array([True, False, True, False])
    before = lanes.reset(np.arange(4))[0]
    batch = lanes.step(np.ones(4, int), active)
    np.testing.assert_array_equal(batch.mask, active)
    np.testing.assert_array_equal(batch.obs[~active], before[~active])
    np.testing.assert_array_equal(lanes._pool.sent, [1, 0, 1, 0])
    lanes.step(np.ones(4, int), np.zeros(4, bool))
    np.testing.assert_array_equal(lanes._pool.sent, [1, 0, 1, 0])


class Pushing:
    """Member m pushes right whenever the pole leans by more than m hundredths of a radian: members last for others."""

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        return (obs[..., 2] > 0.01 * np.arange(len(obs))[:, None]).astype(int)


def test_an_evaluation_steps_each_lane_for_its_episode_alone() -> None:
    lanes, seeds = EnvPoolLanes("CartPole-v1", 6, reset_ended=False), np.array([11, 12, 13])
    together = evaluate(Pushing(), lanes, 2, 3, seeds)
    np.testing.assert_array_equal(lanes._pool.sent, together.lengths.ravel())
    assert len(np.unique(together.lengths)) > 2
    plain = make_vect_envs("CartPole-v1", 1).replicate(6, reset_ended=False)
    np.testing.assert_array_equal(evaluate(Pushing(), plain, 2, 3, seeds).returns, together.returns)


@pytest.mark.parametrize("carry", [False, True])
def test_a_run_on_other_lanes_with_the_same_episodes_is_the_same_run(carry: bool) -> None:
    runs = [
        agilerl.train("CartPole-v1", algo, **SHORT, **more, backend=backend, carry_envs=carry, out=None)
        for algo, more in (("DQN", {"learning_delay": 32, "batch_size": 16}), ("PPO", {}))
        for backend in ("gymnasium", "envpool")
    ]
    for plain, pooled in (runs[:2], runs[2:]):
        assert plain.result["updates"] > 0
        assert pooled.history == plain.history
        for name, tensor in plain.best.actor.state_dict().items():
            assert tensor.equal(pooled.best.actor.state_dict()[name])


def test_training_episodes_end_at_their_limit_and_evaluations_at_that_of_the_environment() -> None:
    limited = make_vect_envs("LunarLander-v3", 2, backend="envpool", max_episode_steps=7).replicate(1)
    limited.reset(np.arange(2))
    for step in range(1, 15):
        batch = limited.step(np.zeros(2, int))
        assert batch.truncated.all() == (step % 7 == 0)
    whole = make_vect_envs("LunarLander-v3", 2, backend="envpool").replicate(1)
    whole.reset(np.arange(2))
    assert not any(whole.step(np.zeros(2, int)).truncated.any() for _ in range(20))


def test_actions_outside_of_the_space_are_named() -> None:
    lanes = EnvPoolLanes("CartPole-v1", 2)
    with pytest.raises(EnvError, match="reset before the first step"):
        lanes.step(np.zeros(2, int))
    lanes.reset()
    with pytest.raises(ShapeError, match=r"shape \(2,\); got \(3,\)"):
        lanes.step(np.zeros(3, int))
    with pytest.raises(EnvError, match=r"0\.\.1; got 0\.\.2"):
        lanes.step(np.array([0, 2]))
    continuous = EnvPoolLanes("LunarLanderContinuous-v3", 1)
    continuous.reset()
    with pytest.raises(EnvError, match="finite actions; got nan"):
        continuous.step(np.array([[0.0, np.nan]]))


# -- manifests -----------------------------------------------------------------------------------------------------


def manifest(name: str = "LunarLander-v3", **environment: Any) -> Any:
    return manifest_from({"environment": {"name": name, **environment}}, "test")


def test_the_backend_counts_in_the_hash_where_it_was_chosen() -> None:
    assert manifest().environment.backend == "gymnasium"
    assert manifest(backend="gymnasium").hash() == manifest().hash()
    assert len({manifest(backend=backend).hash() for backend in ("gymnasium", "envpool", "auto")}) == 3


def test_auto_is_envpool_where_it_is_there_and_faster() -> None:
    def chosen(env: Any = None, **environment: Any) -> str:
        return str(with_backend(manifest(**environment, backend="auto"), env).environment.backend)

    assert chosen() == "envpool"
    assert chosen(name="BipedalWalker-v3") == "envpool"
    assert chosen(name="CartPole-v1") == "gymnasium"  # lanes of arrays
    assert chosen(name="FrozenLake-v1") == "gymnasium"  # not compared
    assert chosen(kwargs={"gravity": -9.0}) == "gymnasium"
    assert chosen(healing=True) == "gymnasium"
    assert chosen(env=lambda: gymnasium.make("LunarLander-v3")) == "gymnasium"
    assert make_vect_envs("LunarLander-v3", 1, backend="auto").backend == "envpool"


@pytest.mark.usefixtures("missing")
def test_without_envpool_auto_is_gymnasium_and_envpool_is_refused() -> None:
    assert with_backend(manifest(backend="auto")).environment.backend == "gymnasium"
    assert make_vect_envs("LunarLander-v3", 1, backend="auto").backend == "gymnasium"
    with pytest.raises(
        ConfigError, match=r'environment.backend=envpool: EnvPool is not installed. fix: pip install "a'
    ):
        agilerl.train("LunarLander-v3", "DQN", backend="envpool", out=None, verbose=False)
    with pytest.raises(EnvError, match="EnvPool is not installed"):
        make_vect_envs("LunarLander-v3", 1, backend="envpool")


@pytest.mark.parametrize(
    ("name", "environment", "named"),
    [
        ("Pendulum-v1", {}, "got 'Pendulum-v1'"),
        ("LunarLander-v3", {"kwargs": {"enable_wind": True}}, "got enable_wind"),
        ("LunarLander-v3", {"healing": True}, "without healing"),
    ],
)
def test_what_envpool_cannot_step_is_refused(name: str, environment: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"environment.backend=envpool: .*{named}"):
        with_backend(manifest(name, **environment, backend="envpool"))


def test_an_environment_handed_over_and_teams_have_no_backend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by their id"):
        with_backend(manifest(backend="envpool"), lambda: gymnasium.make("LunarLander-v3"))
    with pytest.raises(ConfigError, match=r"environment\.backend: means nothing to MADDPG"):
        manifest_from({"algorithm": {"name": "MADDPG"}, "environment": {"backend": "auto"}}, "test")


class OwnTest(DQN):
    """Evaluates itself."""

    def test(self, env: Any, *args: Any, **kwargs: Any) -> float:
        return 0.0


def test_agents_that_step_the_environments_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match="backend='envpool' steps the lanes of the training loops"):
        agilerl.train("CartPole-v1", OwnTest, **SHORT, backend="envpool", out=None)


def test_a_run_records_its_backend_and_resumes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SHORT, "backend": "auto"}
    monkeypatch.setattr(pool, "FAST", {})  # so that auto takes EnvPool for CartPole
    whole = agilerl.train("CartPole-v1", "DQN", learning_delay=32, **settings, out=tmp_path / "whole")
    half = agilerl.train(
        "CartPole-v1", "DQN", learning_delay=32, **settings, out=tmp_path / "half", callbacks=[lambda record: False]
    )
    assert len(half.history) == 1
    assert yaml.safe_load((half.path / "config.yaml").read_text())["environment"]["backend"] == "envpool"
    assert json.loads((half.path / "run.json").read_text())["env_backend"] == "envpool"
    assert load_manifest(half.path / "config.yaml").environment.backend == "envpool"
    before = (half.path / "run.json").read_bytes()
    with monkeypatch.context() as there:
        there.setattr(pool, "is_installed", lambda: False)
        with pytest.raises(
            RunError, match=r'EnvPool, which is not installed here.* fix: pip install "agilerl\[fast\]"'
        ):
            agilerl.resume(half.path, verbose=False)
    assert (half.path / "run.json").read_bytes() == before
    assert agilerl.resume(half.path, verbose=False).history == whole.history
