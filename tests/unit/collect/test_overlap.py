"""Updates that run while lanes step, and several updates per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_envs import Episodes, PlainCartPole

import agilerl
from agilerl.algorithms import find_algorithm
from agilerl.collect.acting import Acting
from agilerl.collect.updates import Schedule, Updates
from agilerl.envs.adapters import ChannelsFirstLanes
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.observed_masks import MaskedObservations
from agilerl.envs.protocol import begin_step, finish_step
from agilerl.errors import AlgorithmError, ConfigError

SMALL: dict[str, Any] = {
    "population": 2, "steps": 96, "num_envs": 2, "evo_steps": 48, "eval_episodes": 1, "eval_steps": 20, "seed": 5,
    "learning_delay": 8, "batch_size": 8, "confirm_episodes": 0, "preset": False, "verbose": False, "out": None,
}  # fmt: skip


def facts(run: Any) -> tuple[Any, ...]:
    weights = [value.tolist() for value in run.best.actor.state_dict().values()]
    scores = [agent.scores for agent in run.population]
    return run.history, weights, run.result["updates"], run.result["env_steps_population"], scores


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["DQN", "MaskedDQN"])
def test_the_results_do_not_depend_on_where_the_lanes_step(algo: str) -> None:
    env = PlainCartPole if algo == "DQN" else MaskedImages
    here, apart = (
        agilerl.train(env, "DQN", overlap=True, learn_step=0.5, **{"environment.healing": healing}, **SMALL)
        for healing in (False, True)
    )
    assert here.result["updates"] > 0
    assert facts(here) == facts(apart)


def test_updates_run_during_the_next_step_and_see_the_steps_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def spy(cls: Any, name: str, label: Any) -> None:
        original = vars(cls)[name]

        def called(self: Any, *arguments: Any, **named: Any) -> Any:
            calls.append(label(self, *arguments, **named))
            return original(self, *arguments, **named)

        monkeypatch.setattr(cls, name, called)

    spy(Acting, "begin", lambda self: "begin")
    spy(Acting, "wait", lambda self: "wait")
    spy(Acting, "step", lambda self: "step")
    spy(Updates, "learn", lambda self, index, is_whole=True: f"learn {index} of {self.replay.memory.counter}")
    spy(Updates, "finish", lambda self: "finish")
    three = {**SMALL, "steps": 6, "evo_steps": 6}
    agilerl.train(PlainCartPole, "DQN", overlap=True, **three)
    assert calls == [
        "begin", "wait", "finish", "begin", "learn 0 of 4", "wait", "finish", "begin", "learn 1 of 8", "wait", "finish",
        "learn 2 of 12", "finish",
    ]  # fmt: skip
    calls.clear()
    agilerl.train(PlainCartPole, "DQN", overlap=False, **three)
    assert calls == ["step", "learn 0 of 4", "step", "learn 1 of 8", "step", "learn 2 of 12"]


def test_overlap_changes_what_is_learned() -> None:
    """Actions come from weights one vector step older, so that the two are different runs."""
    greedy = {**SMALL, "random_steps": 0}
    one, other = (agilerl.train("Pendulum-v1", "DDPG", overlap=overlap, **greedy) for overlap in (False, True))
    assert facts(one)[2:4] == facts(other)[2:4], "as many updates and steps"
    assert facts(one)[1] != facts(other)[1]


class MaskedImages(Episodes):
    """Images [2, 3, 1] with a mask beside them; episodes of five steps."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(0.0, 1.0, (6,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )
    action_space, length = spaces.Discrete(3), 5

    def observe(self) -> Any:
        mask = np.ones(3, np.int8)
        mask[self.np_random.integers(3)] = 0
        return {"observation": self.np_random.random(6, np.float32), "action_mask": mask}

    def reward(self, action: Any) -> float:
        return float(action)


class Images(Episodes):
    """Random images [2, 3, 1], with the channel last; action 1 ends an episode."""

    observation_space = spaces.Box(0, 255, (2, 3, 1), np.uint8)

    def observe(self) -> np.ndarray:
        return self.np_random.integers(0, 255, (2, 3, 1), np.uint8)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.observe(), 0.0, bool(action), False, {}


@pytest.mark.parametrize(("env", "wrap"), [(MaskedImages, MaskedObservations), (Images, ChannelsFirstLanes)])
@pytest.mark.parametrize("kind", [SyncLanes, HealingLanes])
def test_a_step_in_two_halves_is_a_step(env: Any, wrap: Any, kind: Any) -> None:
    whole, halves = wrap(SyncLanes([env] * 3)), wrap(kind([env] * 3))
    seeds = np.arange(3)
    first, second = whole.reset(seeds), halves.reset(seeds)
    np.testing.assert_equal(first, second)
    for actions in ([0, 1, 0], [1, 1, 0], [1, 0, 1]):
        one = whole.step(np.array(actions))
        other = finish_step(halves, begin_step(halves, np.array(actions)))
        for name in ("obs", "reward", "terminated", "truncated", "final_obs", "mask"):
            np.testing.assert_equal(getattr(one, name), getattr(other, name))
        assert one.info.keys() == other.info.keys()
    halves.close()


@pytest.mark.parametrize(
    ("learn_step", "num_envs", "expected"),
    [
        (1, 8, (1, 8)),
        (3, 8, (1, 2)),
        (8, 8, (1, 1)),
        (20, 8, (2, 1)),
        (0.5, 2, (1, 4)),
        (0.1, 1, (1, 10)),  # 1 / 0.1 is not less than ten
        (0.3, 2, (1, 6)),
    ],
)
def test_updates_per_vector_step(learn_step: float, num_envs: int, expected: tuple[int, int]) -> None:
    assert Schedule.of(learn_step, num_envs) == Schedule(*expected)


@pytest.mark.parametrize("algo", ["DQN", "RainbowDQN", "DDPG", "TD3", "SAC"])
def test_a_step_may_have_several_updates(algo: str) -> None:
    """12 vector steps of one member with two lanes, four updates in each; Rainbow's windows hold back the first two."""
    env = PlainCartPole if algo in ("DQN", "RainbowDQN") else "Pendulum-v1"
    one = {**SMALL, "population": 1, "steps": 24, "evo_steps": 24, "learning_delay": 0, "batch_size": 2}
    run = agilerl.train(env, algo, learn_step=0.5, **one)
    assert run.result["updates"] == 4 * (10 if algo == "RainbowDQN" else 12)


@pytest.mark.parametrize("value", [2.5, 0, -0.5, float("nan")])
def test_other_fractions_are_refused(value: float) -> None:
    space, actions = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
    with pytest.raises(AlgorithmError, match=r"learn_step must be .*fix: learn_step=5"):
        find_algorithm("DQN")(space, actions, learn_step=value)
    with pytest.raises(ConfigError, match="learn_step must be a whole number, or a fraction above 0 and below 1; got"):
        agilerl.train("CartPole-v1", "DQN", learn_step=value, out=None)
    with pytest.raises(AlgorithmError, match="learn_step must be an integer"):
        find_algorithm("PPO")(space, actions, learn_step=0.5)


def test_the_population_finds_how_many_updates_a_step_needs() -> None:
    ranges = {"learn_step": {"min": 0.25, "max": 1}}
    run = agilerl.train(
        PlainCartPole, "DQN", learn_step=0.5,
        **{**SMALL, "population": 4, "mutation.rl_hp_selection": ranges, "evolution.founders": "spread"},
    )  # fmt: skip
    values = [agent.learn_step for agent in run.population]
    assert all(0.25 <= value <= 1 for value in values)
    assert len(set(values)) > 1
