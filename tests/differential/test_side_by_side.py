"""Dict and Tuple observations under dense layers, all parts side by side: fused == sequential, in float64."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from off_policy_case import BOX, CHOICE, SIZES, assert_equal, population
from off_policy_case import net_config as dense

from agilerl.algorithms import DQN, PPO, QRDQN, SAC, TQC, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.spaces import WordCounts
from agilerl.engine.choose import choose
from agilerl.envs.vector import make_vect_envs
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy

PICTURE = spaces.Box(0, 255, (5, 4, 3), np.uint8)
MIXED = spaces.Dict(
    {"picture": PICTURE, "card": spaces.Discrete(4, start=1), "inner": spaces.Tuple([spaces.MultiBinary(2)])}
)
TOLD = spaces.Tuple(
    [spaces.Text(20), spaces.Discrete(32), spaces.MultiDiscrete(np.full((3, 6), 3)), spaces.Discrete(2)]
)


class Walk(gym.Env[Any, Any]):
    """A deterministic walk, shown in the parts of a space; the reward is its first coordinate."""

    def __init__(self, space: Any, actions: Any) -> None:
        self.observation_space, self.action_space = space, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.time = self.np_random.standard_normal(3), 0
        return self._observe(), {}

    def _observe(self) -> Any:
        bits = np.array([self.time % 2, self.time // 2 % 2], np.int8)
        if self.observation_space is MIXED:
            picture = np.broadcast_to(128 + 100 * np.tanh(self.at), (5, 4, 3)).astype(np.uint8)
            return {"picture": picture, "card": 1 + self.time % 4, "inner": (bits,)}
        words = " ".join("left" if x < 0 else "right" for x in self.at)
        return words, self.time % 32, np.full((3, 6), self.time % 3), int(self.at[1] > 0)

    def step(self, action: Any) -> Any:
        self.time += 1
        self.at = np.tanh(self.at[[1, 2, 0]] + 0.3 * (np.sum(action) - 1))
        return self._observe(), float(self.at[0]), self.time >= 9 and self.at[0] > 0, self.time >= 17, {}


@pytest.mark.parametrize("space", [MIXED, TOLD], ids=["Dict", "Tuple"])
@pytest.mark.parametrize("algo", [DQN, QRDQN, RainbowDQN, SAC, TQC, PPO], ids=lambda cls: cls.__name__)
def test_a_population_trains_to_the_same_weights_either_way(space: Any, algo: Any) -> None:
    actions = BOX if algo in (SAC, TQC) else CHOICE
    more: dict[str, Any] = {"num_atoms": 7} if algo is RainbowDQN else {}
    if algo in (QRDQN, TQC):
        more = {"num_quantiles": 5}
    if algo is PPO:
        more = {"learn_step": 24, "normalize_observations": space is TOLD}
    ended = []
    for learner in ("fused", "sequential"):
        env = make_vect_envs(make_env=lambda: Walk(space, actions), num_envs=2)
        seen = env.single_observation_space
        agents = population(lambda i, seen=seen: algo(seen, actions, index=i, net_config=dense(i), seed=i,
                                                      batch_size=SIZES[i], **more))  # fmt: skip
        assert choose(agents).name == "fused"
        if algo is PPO:
            train_on_policy(env, "Walk", pop=agents, max_steps=144, evo_steps=72, eval_steps=20, seed=1,
                            learner=learner, verbose=False)  # fmt: skip
        else:
            train_off_policy(env, "Walk", pop=agents, memory=ReplayBuffer(500, dtype=torch.float64), max_steps=48,
                             evo_steps=24, eval_steps=20, seed=1, learner=learner, verbose=False)  # fmt: skip
        assert all(len(agent.scores) or agent.steps[-1] for agent in agents)
        ended.append(agents)
    assert_equal(*ended)


def test_parts_lie_side_by_side_in_their_order_and_pictures_between_0_and_1() -> None:
    agent = DQN(MIXED, CHOICE, net_config=dense(0), seed=0)
    picture = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    found = agent.actor.preprocess({"picture": picture, "card": 3, "inner": (np.array([0, 1]),)})
    expected = np.concatenate([[0, 0, 1, 0], [0, 1], np.moveaxis(picture, -1, 0).ravel() / 255])  # by the keys
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-6)
    board = spaces.MultiDiscrete(np.full((3, 6), 3), start=np.full((3, 6), -1))
    cells = np.random.default_rng(0).integers(-1, 2, (7, 3, 6))
    seen = DQN(board, CHOICE, net_config=dense(0), seed=0).actor.preprocess(cells)
    np.testing.assert_array_equal(seen.numpy().reshape(7, 18, 3), np.eye(3)[cells.reshape(7, 18) + 1])
    flags = DQN(spaces.Box(0.0, 1.0, (4, 4, 2), np.bool_), CHOICE, net_config=dense(0), seed=0)
    assert flags.actor.preprocess(np.ones((2, 4, 4, 2), bool)).tolist() == np.ones((2, 32)).tolist()
    texts = DQN(WordCounts(), CHOICE, net_config=dense(0), seed=0).actor
    assert torch.equal(texts.preprocess(["go left", "stop"])[1:], texts.preprocess("stop"))
