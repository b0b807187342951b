"""The first steps of a run act at random: uniformly over what is legal, whoever learns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes

from agilerl.algorithms.dqn import DQN
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OffPolicyOptions
from agilerl.errors import ConfigError
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.utils.utils import make_vect_envs

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
BOX, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(4)


class Masked(Episodes):
    """Actions 1 and 3 are illegal; taking one is an error."""

    action_space, length = CHOICE, 10

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, 0, 1, 0], np.int8)}

    def reward(self, action: int) -> float:
        assert action in (0, 2)
        return 0.0


class CustomLearn(DQN):
    """An algorithm that brings its own `learn`, and always acts alike unless it is made to act at random."""

    def learn(self, experiences: Any) -> float:
        return 0.0

    def get_action(self, obs: Any, epsilon: float = 0.0, action_mask: Any = None, **kwargs: Any) -> np.ndarray:
        return np.zeros(len(obs), np.int64)


class Duck:
    """No more than what the loop needs."""

    index, batch_size, learn_step, algo = 0, 4, 1, "Duck"

    def __init__(self) -> None:
        self.steps, self.scores, self.fitness = [0], [], [0.0]

    def get_action(self, obs: Any) -> np.ndarray:
        return np.zeros(len(obs), np.int64)

    def learn(self, experiences: Any) -> float:
        return 0.0

    def test(self, env: Any, **options: Any) -> float:
        return 0.0


def stored_actions(agent: Any, random_steps: int) -> np.ndarray:
    """Actions of 200 environment steps with a policy that would always do the same."""
    env, memory = make_vect_envs(make_env=Masked, num_envs=2), ReplayBuffer(400)
    options = OffPolicyOptions(
        max_steps=200, evo_steps=200, eval_episodes=2, random_steps=random_steps, learning_delay=400, eps_start=0,
        eps_end=0,
    )  # fmt: skip
    TrainingLoop([agent], OffPolicyCollector(env, memory, options), options, LoopSettings(seed=1)).run()
    env.close()
    return memory.gather(np.arange(len(memory)))["action"].numpy().ravel()


@pytest.mark.parametrize("cls", [DQN, CustomLearn])
def test_the_first_actions_are_random_and_legal_and_the_rest_follow_the_policy(cls: type[DQN]) -> None:
    actions = stored_actions(cls(BOX, CHOICE, net_config=NET, seed=3), random_steps=120)
    assert 40 < np.count_nonzero(actions[:120] == 2) < 80
    assert len(set(actions[120:].tolist())) == 1


def test_agents_that_cannot_act_at_random_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"random_steps=10 needs agents with random_action.*Duck has none"):
        stored_actions(Duck(), random_steps=10)
