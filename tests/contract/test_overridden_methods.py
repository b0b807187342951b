"""Published methods that a subclass overrides: training calls them, or names the one that it does not call."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import DQN, IPPO, PPO, TD3, find_algorithm
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core import foreign
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import cases
import test_families

# One of each loop and kind of agent; further algorithms in the same loops are slow.
RUNS = [
    *("dqn-n-step", "sac-box", "ppo-discrete", "ippo", "maddpg", "cqn", "rsnorm-dqn"),
    *(
        pytest.param(run, marks=pytest.mark.slow)
        for run in ("rainbow-priorities-n-step", "ddpg", "td3", "sac-discrete", "ppo-box-shared-encoders", "mappo",
                    "matd3", "cql", "iql", "td3bc", "bc")
    ),
]  # fmt: skip
OFFLINE = {"cqn", "cql", "iql", "td3bc", "bc"}


def run_of(monkeypatch: pytest.MonkeyPatch, run: str, methods: dict[str, Any]) -> tuple[list[Any], Any]:
    """Train a subclass with these methods in a golden case: (agents, fitness by generation)."""
    case = {"algo": "DQN", **cases.CASES[run], "steps": 120, "learner": "auto"}
    mine = type("Mine", (find_algorithm(case["algo"]),), methods)
    population = functools.partial(test_families.population_of, mine, wrapper_cls=case.get("wrapper"))
    monkeypatch.setattr(cases, "create_population", lambda *args, agent_wrapper=None, **more: population(*args, **more))
    last, fitness, _ = cases.trained(case)
    return last, fitness


def counted(base: type, name: str, calls: list[bool]) -> dict[str, Any]:
    """An override of a method that passes everything on, and notes the agent's mode."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(bool(self.training))
        return getattr(base, name)(self, *args, **kwargs)

    return {name: method}


@pytest.mark.parametrize("run", RUNS)
def test_get_action_is_called_in_training_and_in_evaluations(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    base = find_algorithm(cases.CASES[run].get("algo", "DQN"))
    last, fitness = run_of(monkeypatch, run, counted(base, "get_action", calls))
    assert False in calls, "evaluations play by it"
    assert (True in calls) == (run not in OFFLINE), "nothing acts in offline training"
    assert np.isfinite(fitness).all()
    assert all(type(getattr(agent, "unwrapped", agent)).__name__ == "Mine" for agent in last)


@pytest.mark.parametrize("run", RUNS)
def test_test_is_called(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def test(self: Any, env: Any, *args: Any, sum_scores: bool = True, **kwargs: Any) -> Any:
        found = 7.25 if sum_scores else np.full(len(self.agent_ids), 7.25)
        self.fitness.append(7.25)
        return found

    _, fitness = run_of(monkeypatch, run, {"test": test})
    if run != "rsnorm-dqn":
        assert set(np.ravel(fitness)) == {7.25}


class Left(DQN):
    """Never goes anywhere else."""

    def get_action(self, obs: Any, epsilon: float = 0.0, action_mask: Any = None) -> Any:
        return np.zeros(len(np.atleast_2d(obs)), np.int64)


class Seen(gym.Env[Any, Any]):
    """One step, whose reward is the action."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), float(np.sum(action)), True, False, {}


def test_what_get_action_says_is_done() -> None:
    env, memory = make_vect_envs(make_env=Seen, num_envs=2), ReplayBuffer(max_size=200)
    agents = Left.population(2, Seen.observation_space, Seen.action_space, seed=3, batch_size=8)
    _, fitness = train_off_policy(env, "Seen", "DQN", agents, memory, max_steps=80, evo_steps=40, verbose=False)
    assert np.asarray(memory.sample_from_indices(np.arange(40))["action"]).max() == 0
    assert set(np.ravel(fitness)) == {0.0}
    agent = agents[0]
    assert agent.test(env) == 0.0
    assert agent.evaluate(4, env=env).mean == 0.0
    assert agent.act(np.zeros(2, np.float32)) == 0
    assert agent.predict(np.zeros((3, 2), np.float32))[0].tolist() == [0, 0, 0]


class Timid(PPO):
    """Overrides a helper of the published `learn`, and its `get_action`, which plays the first action."""

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        action, *rest = super().get_action(obs, *args, **kwargs)
        return (np.zeros_like(action), *rest)

    def evaluate_actions(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not called")


def test_a_method_that_nothing_calls_is_named() -> None:
    env = make_vect_envs(make_env=Seen, num_envs=2)
    agents = Timid.population(2, Seen.observation_space, Seen.action_space, seed=3, batch_size=8, learn_step=16)
    with pytest.warns(AgileRLWarning, match=r"Timid overrides evaluate_actions, which training does not call\. fix: "):
        _, fitness = train_on_policy(env, "Seen", "PPO", agents, max_steps=64, evo_steps=32, verbose=False)
    assert set(np.ravel(fitness)) == {0.0}


@pytest.mark.parametrize("name", ["learn_batch", "make_batch", "soft_update", "action_noise", "report"])
def test_a_part_of_the_published_step_is_named_where_the_engine_learns(name: str) -> None:
    kind = type(f"Own{name}", (TD3,), counted(TD3, name, []))
    env, memory = make_vect_envs(make_env=lambda: BoxSeen(), num_envs=2), ReplayBuffer(max_size=200)
    agents = kind.population(2, Seen.observation_space, BoxSeen.action_space, seed=3, batch_size=8)
    with pytest.warns(AgileRLWarning, match=f"Own{name} overrides {name}, which training does not call"):
        train_off_policy(env, "Seen", "TD3", agents, memory, max_steps=80, evo_steps=40, verbose=False)
    own = type("CustomLearn", (kind,), counted(TD3, "learn", []))
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)
        agents = own.population(2, Seen.observation_space, BoxSeen.action_space, seed=3, batch_size=8)
        memory = ReplayBuffer(max_size=200)
        train_off_policy(env, "Seen", "TD3", agents, memory, max_steps=80, evo_steps=40, verbose=False)


class BoxSeen(Seen):
    """`Seen` with a continuous action."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)


@pytest.mark.parametrize("run", ["ppo-recurrent", "ippo-recurrent"])
def test_a_memory_and_an_own_get_action_are_refused(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = counted(find_algorithm(cases.CASES[run]["algo"]), "get_action", [])
    with pytest.raises(ConfigError, match="has a memory"):
        run_of(monkeypatch, run, methods)


def test_fused_members_cannot_bring_their_own_methods() -> None:
    env = make_vect_envs(make_env=Seen, num_envs=2)
    agents = Left.population(2, Seen.observation_space, Seen.action_space, seed=3)
    with pytest.raises(ConfigError, match=r"agent 0 brings its own get_action\(\)"):
        train_off_policy(env, "Seen", "DQN", agents, ReplayBuffer(max_size=200), learner="fused", verbose=False)


def test_overridden_methods_are_those_of_the_package() -> None:
    class Whole(DQN):
        def update(self, engine: Any, batch: Any) -> Any:
            return super().update(engine, batch)

    class Older(Left):
        pass

    assert foreign.overridden(Whole, "get_action", "update") == "update"
    assert foreign.overridden(Older, "get_action") == "get_action"
    assert foreign.overridden(find_algorithm("CQN"), "get_action", "update") is None, "the package's own"
    assert foreign.overridden(type("Bare", (), {"get_action": len}), "get_action") is None, "nothing is replaced"


def test_arguments_that_an_override_passes_on_are_those_of_the_method_below() -> None:
    class Passing(PPO):
        def get_action(self, obs: Any, **kwargs: Any) -> Any:
            return super().get_action(obs, **kwargs)

    agent = Passing(Seen.observation_space, Seen.action_space, seed=0)
    assert [foreign.takes(agent, "get_action", name) for name in ("epsilon", "action_mask", "training")] == [
        False, True, True,
    ]  # fmt: skip
    assert foreign.takes(IPPO, "get_action", "infos")


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(3, start=5), gym.spaces.MultiDiscrete([2, 3], start=[4, 9]), gym.spaces.MultiBinary(3)],
)
def test_greedy_actions_of_get_action_are_in_the_space(space: Any) -> None:
    agent, obs = PPO(Seen.observation_space, space, seed=0), np.zeros((4, 2), np.float32)
    action = agent.get_action(obs, training=False)[0]
    assert all(space.contains(row) for row in action)
    assert np.array_equal(action, agent.act(obs))


@pytest.mark.parametrize("kind", [DQN, TD3])
def test_a_criterion_that_is_assigned_is_refused(kind: Any) -> None:
    box = gym.spaces.Box(-1, 1, (2,))
    agent = kind(box, gym.spaces.Discrete(2) if kind is DQN else box)
    with pytest.raises(AlgorithmError, match=r"criterion is the loss that update computes.*fix: override update"):
        agent.criterion = object()
