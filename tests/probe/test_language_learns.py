"""What language policies learn from data alone, against numbers known beforehand, through `train_offline`.

The texts: two tokens are said, the environment answers with one, two more are said. Behaviour says "2 2" three times
out of four, which is answered with 4, and nothing is paid then; "3 3" is answered with 5, and then "2 2" is paid 1. The
first two tokens cost 0.1. What is said second is as often the one as the other. So what behaviour does most often is
not the best.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC_LM, ILQL
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_offline import train_offline

GAMMA, EXPECTILE, EPISODES = 0.9, 0.8, 400
NET = {"n_layer": 1, "n_embd": 16, "n_head": 2, "dim_feedfwd": 32}
FORK, POOR, RICH = [1, 0, 0, 0, 0, 0], [1, 2, 2, 4, 0, 0], [1, 3, 3, 5, 0, 0]


class Answers(gym.Env[np.ndarray, np.ndarray]):
    """The environment of the texts; anything but "2 2" and "3 3" is answered as "2 2" is, and paid nothing."""

    observation_space = gym.spaces.MultiDiscrete([6] * 6)
    action_space = gym.spaces.MultiDiscrete([4] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.text = list(FORK)
        return np.array(self.text), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        said, is_last = list(map(int, action)), self.text[3] > 0
        if is_last:
            reward = 1.0 if self.text[3] == 5 and said == [2, 2] else 0.0
            self.text[4:] = said
        else:
            reward = -0.1
            self.text[1:4] = [*said, 5 if said == [3, 3] else 4]
        return np.array(self.text), reward, is_last, False, {}


def episodes() -> list[dict[str, np.ndarray]]:
    found = []
    for k in range(EPISODES):
        env = Answers()
        rows: dict[str, list[Any]] = {"observations": [env.reset()[0]], "actions": [], "rewards": [], "terminals": []}
        for token in (3 if k % 4 == 0 else 2, 2 if (k // 4) % 2 else 3):
            obs, reward, ended, _, _ = env.step(np.array([token, token]))
            for name, value in zip(rows, (obs, [token, token], reward, ended), strict=True):
                rows[name].append(value)
        found.append({name: np.array(values) for name, values in rows.items()})
    return found


def train(cls: Any, updates: int, **options: Any) -> tuple[Any, float]:
    env = Answers()
    agent = cls(env.observation_space, env.action_space, net_config=NET, lr=5e-3, batch_size=32, seed=1, **options)
    pop, fitnesses = train_offline(
        env, "answers", episodes(), pop=[agent], memory=ReplayBuffer(max_size=EPISODES), max_steps=updates,
        evo_steps=updates, verbose=False, seed=2,
    )  # fmt: skip
    return pop[0], fitnesses[-1][0]


def outputs(agent: Any, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        known = torch.tensor([[token for token in text if token]])
        return agent.actor(known)[0, -1]  # type: ignore[no-any-return]


def test_bc_lm_learns_how_often_things_are_said_and_earns_what_the_behaviour_earns() -> None:
    agent, fitness = train(BC_LM, 250)
    assert outputs(agent, FORK).softmax(-1).tolist() == pytest.approx([0, 0, 0.75, 0.25], abs=0.06)
    assert outputs(agent, RICH).softmax(-1).tolist() == pytest.approx([0, 0, 0.5, 0.5], abs=0.1)
    assert outputs(agent, [1, 3]).softmax(-1)[3] > 0.97, "a word that was begun is said to its end"
    assert fitness == pytest.approx(-0.1), "it says what is said most often"


def test_ilql_learns_the_values_of_tokens_and_says_what_pays() -> None:
    agent, fitness = train(ILQL, 700, gamma=GAMMA, expectile=EXPECTILE, alpha=0.0, tau=0.2, inverse_temperature=20.0)
    # V of the second turn is the expectile of γ · 1 and 0, half each; of the first that of ¼ and ¾.
    rich = EXPECTILE * GAMMA
    good, poor = GAMMA * (-0.1 + GAMMA * rich), GAMMA * -0.1
    fork = (EXPECTILE * 0.25 * good + (1 - EXPECTILE) * 0.75 * poor) / (EXPECTILE * 0.25 + (1 - EXPECTILE) * 0.75)
    for text, values, state in ((FORK, (poor, good), fork), (RICH, (GAMMA, 0.0), rich), (POOR, (0.0, 0.0), 0.0)):
        _, both, known = agent.parts(outputs(agent, text))
        for head in both:
            assert head[2:].tolist() == pytest.approx(values, abs=0.08)
        assert float(known) == pytest.approx(state, abs=0.08)
    assert fitness == pytest.approx(0.9)
    agent.inverse_temperature = 0.0
    agent.set_training_mode(False)
    assert agent.get_action(np.array([FORK])).tolist() == [[2, 2]], "the cloned policy says what the behaviour says"


@pytest.mark.slow
def test_the_conservative_term_keeps_what_is_never_said_below_what_is() -> None:
    agent, _ = train(ILQL, 300, gamma=GAMMA, alpha=1.0, tau=0.2)
    for text in (FORK, RICH, POOR):
        _, both, _ = agent.parts(outputs(agent, text))
        assert (both[:, :2].amax(-1) < both[:, 2:].amin(-1) - 1).all()
