"""Skills: a reward of one's own, and a policy that selects among trained skills."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.errors import EnvError
from agilerl.utils.utils import make_skill_vect_envs
from agilerl.wrappers.learning import Skill, SkillSelection


class Line(gym.Env[np.ndarray, int]):
    """A place on a line, moved by −1 or 1; the reward is the place, and 3 ends the episode."""

    observation_space = gym.spaces.Box(-9, 9, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def step(self, action: int) -> Any:
        self.place += 2 * int(action) - 1
        return self.seen(), float(self.place), self.place >= 3, self.place <= -3, {"place": self.place}


class Left(Skill):
    """Being on the left pays."""

    def skill_reward(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Any:
        return observation, -reward, terminated, truncated, {**info, "paid": reward}


class Always:
    """An agent that does one thing."""

    def __init__(self, action: int) -> None:
        self.action = action

    def act(self, observation: np.ndarray) -> int:
        return self.action


def test_a_skill_changes_what_a_step_returns_and_nothing_without_a_reward_of_its_own() -> None:
    env = Left(Line())
    env.reset(seed=0)
    assert env.step(0) == (np.array([-1]), 1.0, False, False, {"place": -1, "paid": -1.0})
    plain = Skill(Line())
    plain.reset()
    assert plain.step(0)[1] == -1.0


def test_skills_are_vectorised_by_id() -> None:
    class Upside(Skill):
        def skill_reward(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Any:
            return observation, -reward, terminated, truncated, info

    envs = make_skill_vect_envs("CartPole-v1", Upside, num_envs=3)
    envs.reset(seed=0)
    assert envs.step(np.zeros(3, np.int64))[1].tolist() == [-1.0] * 3
    envs.close()


def test_a_selection_lets_a_skill_act_for_its_duration_or_to_the_end() -> None:
    env = SkillSelection(Line(), [Always(0), Always(1)], durations=[2, 4])
    assert env.action_space == gym.spaces.Discrete(2)
    env.reset(seed=0)
    obs, reward, ended, cut, info = env.step(0)
    assert (obs.tolist(), reward, ended, cut) == ([-2.0], -3.0, False, False)
    assert info == {"place": -2, "option_steps": 2}
    obs, reward, ended, cut, info = env.step(1)
    assert (obs.tolist(), reward, ended, info["option_steps"]) == ([2.0], 2.0, False, 4)  # −1 + 0 + 1 + 2
    obs, reward, ended, cut, info = env.step(1)
    assert (reward, ended, info["option_steps"]) == (3.0, True, 1)


def test_a_duration_may_be_a_number_of_numpy_and_an_unknown_skill_is_named() -> None:
    env = SkillSelection(Line(), [Always(0), Always(1)], np.int64(3))
    assert env.durations == [3, 3]
    env.reset(seed=0)
    for action in (-1, 2):
        with pytest.raises(EnvError, match=rf"skills 0 to 1; got {action}\. fix"):
            env.step(action)


@pytest.mark.parametrize("durations", [0, [1], [1, 2, 3]])
def test_each_skill_has_a_duration(durations: Any) -> None:
    with pytest.raises(EnvError, match=r"SkillSelection got 2 agents.*fix"):
        SkillSelection(Line(), [Always(0), Always(1)], durations)


def test_a_selector_is_trained_over_trained_agents() -> None:
    """Going right pays, and the selector finds who does that."""
    small = {"eval_episodes": 1, "evo_steps": 128, "learning_delay": 16, "num_envs": 1, "confirm_episodes": 0}
    run = agilerl.train(
        lambda: gym.wrappers.TimeLimit(SkillSelection(Line(), [Always(0), Always(1)], 2), 8), "DQN", population=1,
        steps=256, out=None, verbose=False, preset=False, lr=1e-2, batch_size=16, eval_steps=8, eps_decay=0.95, **small,
    )  # fmt: skip
    assert run.best.act(np.zeros(1, np.float32)) == 1
