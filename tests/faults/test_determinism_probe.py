"""Whether the environment does the same for the same seed: looked at once, recorded, and said where it does not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from faulty import Faulty, tokens
from faulty_runs import SMALL, StopAfter, newest, run_in

import agilerl
from agilerl.algorithms import DQN, TD3
from agilerl.collect.determinism import VECTOR_STEPS, Probe, probe_determinism
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning

SHARED = np.random.default_rng(0)  # a generator that every copy draws from, as an unseeded one is


class Noisy(gym.Env[np.ndarray, Any]):
    """Episodes of 30 steps; `where` says which of its numbers come from the shared generator, from step `since` on."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(self, where: str = "", since: int = 0) -> None:
        self.where, self.since = where, since

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.see("reset"), {}

    def noise(self, where: str) -> float:
        rng = SHARED if self.where == where and self.time >= self.since else self.np_random
        return float(rng.uniform(-1, 1))

    def see(self, where: str) -> np.ndarray:
        return np.array([self.noise(where), self.time / 30], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        ends = self.where == "end" and self.time >= self.since and SHARED.random() < 0.5
        return self.see("obs"), self.noise("reward"), ends, self.time >= 30, {}


def agent(kind: Any = DQN, action_space: Any = Noisy.action_space) -> Any:
    return kind(Noisy.observation_space, action_space)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", Probe(True)),
        ("reset", Probe(False, "the observations after reset(seed)")),
        ("obs", Probe(False, "the observations at step 7")),
        ("reward", Probe(False, "the rewards at step 7")),
    ],
)
def test_two_copies_are_compared_in_all_that_they_give(where: str, expected: Probe) -> None:
    env = make_vect_envs(make_env=partial(Noisy, where, 0 if where == "reset" else 7), num_envs=2)
    assert probe_determinism(env, agent(), 3, 10**6) == expected


def test_ends_are_compared_too() -> None:
    env = make_vect_envs(make_env=partial(Noisy, "end", 20), num_envs=4)
    found = probe_determinism(env, agent(), 3, 10**6)
    assert found.is_deterministic is False
    assert found.difference.startswith("the ends at step 2")


class Counted(Noisy):
    """Counts its steps, over all copies."""

    steps = 0

    def step(self, action: Any) -> Any:
        Counted.steps += 1
        return super().step(action)


@pytest.mark.parametrize(("budget", "steps"), [(39_999, 0), (40_000, 2 * VECTOR_STEPS * 2)])
def test_it_takes_at_most_one_percent_of_the_run(budget: int, steps: int) -> None:
    Counted.steps = 0
    env = make_vect_envs(make_env=Counted, num_envs=2)
    found = probe_determinism(env, agent(), 3, budget)
    assert (found.is_deterministic, Counted.steps) == (True if steps else None, steps)


def test_an_environment_that_was_handed_over_is_not_touched() -> None:
    Counted.steps = 0
    assert probe_determinism(gym.vector.SyncVectorEnv([Counted] * 2), agent(), 3, 10**9) == Probe(None)
    assert Counted.steps == 0


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MaskedCartPole-v1"])
def test_what_is_shipped_is_deterministic_on_every_back_end(env_id: str) -> None:
    for options in ({}, {"healing": True, "num_workers": 1}):
        env = make_vect_envs(env_id, num_envs=2, **options)
        kind = TD3 if isinstance(env.single_action_space, gym.spaces.Box) else DQN
        acting = kind(env.single_observation_space, env.single_action_space)
        assert probe_determinism(env, acting, 0, 10**6) == Probe(True)
        env.close()


def test_agents_that_draw_nothing_leave_the_actions_to_the_space() -> None:
    env = make_vect_envs("Pendulum-v1", num_envs=2)
    assert probe_determinism(env, object(), 0, 10**6) == Probe(True)


def test_an_environment_that_is_replaced_meanwhile_tells_nothing(tmp_path: Path) -> None:
    env = make_vect_envs(make_env=partial(Faulty, "raise", tokens(tmp_path / "t", 1), at=5), num_envs=2, healing=True)
    assert probe_determinism(env, agent(), 0, 10**6) == Probe(None, "an environment had to be replaced at step 5")
    env.close()


def test_a_signal_ends_it_between_two_steps() -> None:
    env = make_vect_envs(make_env=Noisy, num_envs=2)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_determinism(env, agent(), 0, 10**6, check)


RUN: dict[str, Any] = {
    **{k: v for k, v in SMALL.items() if k != "env"}, "steps": 100_000, "algo": "DQN", "learning_delay": 10**6,
    "max_size": 10**6 + 1,
}  # fmt: skip


def begun(make: Callable[[], Any], out: Path) -> tuple[Path, list[str]]:
    """A run of which the first two generations were made; what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = agilerl.train(make, **RUN, out=out, verbose=False, sinks=[StopAfter(2)])
    assert run.interrupted
    path = run_in(out)
    assert path is not None
    return path, [str(w.message) for w in caught if issubclass(w.category, AgileRLWarning)]


def facts(path: Path) -> tuple[Any, Any]:
    content = json.loads((path / "run.json").read_text())
    return content["deterministic"], content["exact_resume"]


def test_the_outcome_is_recorded_and_said_once(tmp_path: Path) -> None:
    path, said = begun(partial(Noisy, "reward"), tmp_path / "noisy")
    (message,) = (text for text in said if "deterministic" in text)
    assert "is not deterministic: two copies with the same seed and actions differ in the rewards at step 1." in message
    assert "A resumed run will not equal one that never stopped. fix:" in message
    assert facts(path) == (False, False)
    assert newest(path).body["run"]["deterministic"] is False
    with pytest.warns(AgileRLWarning, match=r"is not deterministic\. A resumed run will not equal"):
        agilerl.resume(path, env=partial(Noisy, "reward"), verbose=False, sinks=[StopAfter(1)])
    assert facts(path) == (False, False)


def test_a_deterministic_environment_is_recorded_without_a_word(tmp_path: Path) -> None:
    path, said = begun(Noisy, tmp_path / "plain")
    assert not any("deterministic" in text for text in said)
    assert facts(path) == (True, True)
    Counted.steps = 0
    agilerl.resume(path, env=Noisy, verbose=False, sinks=[StopAfter(1)])
    assert facts(path) == (True, True)
    assert newest(path).body["run"]["deterministic"] is True


def test_without_a_run_directory_nothing_is_probed(tmp_path: Path) -> None:
    Counted.steps = 0
    agilerl.train(Counted, **{**RUN, "steps": 160}, out=None, verbose=False)
    trained = Counted.steps
    Counted.steps = 0
    agilerl.train(Counted, **{**RUN, "steps": 160}, out=tmp_path, verbose=False)
    assert Counted.steps == trained, "and a run this short is not probed either"
