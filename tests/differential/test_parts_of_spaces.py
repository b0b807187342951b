"""Dict and Tuple observations whose parts are vectors: fused == sequential == alone, in float64, by every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from off_policy_case import BOX, CHOICE, SIZES, assert_equal, batches, of_member, population, state

from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.tree import map_leaves
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner, learner_of
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.vector import make_vect_envs
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy

SPACE = spaces.Dict(
    {
        "position": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "card": spaces.Discrete(4, start=1),
        "inner": spaces.Tuple((spaces.Box(-2, 2, (2,), np.float64), spaces.MultiBinary(2))),
    }
)


def net_config(member: int, **encoder: Any) -> dict[str, Any]:
    """Members 0 and 3 are alike; 1 has other widths, 2 another width of its parts' features."""
    mlp = {"hidden_size": [(12, 16, 12, 12)[member]], "activation": "Tanh"}
    return {
        "encoder_config": {"latent_dim": (8, 8, 10, 8)[member], "mlp_config": mlp, **encoder},
        "head_config": {"hidden_size": [(16, 24, 16, 16)[member]], "activation": "Tanh"},
        "latent_dim": 12,
    }


def made_of(agent: Any, i: int, space: Any, **more: Any) -> Any:
    return agent(SPACE, space, index=i, net_config=net_config(i), batch_size=SIZES[i], seed=i, **more)


def observations(seed: int) -> dict[str, Any]:
    """[N, B, ...] of `SPACE`, as replay gives them."""
    draw, lead = np.random.default_rng(seed), (len(SIZES), max(SIZES))
    inner = {"tuple_obs_0": draw.uniform(-2, 2, (*lead, 2)), "tuple_obs_1": draw.integers(0, 2, (*lead, 2))}
    nested = {"position": draw.standard_normal((*lead, 3)), "card": draw.integers(1, 5, lead), "inner": inner}
    return map_leaves(torch.from_numpy, nested)


def nested(made: list[TransitionBatch]) -> list[TransitionBatch]:
    return [replace(b, obs=observations(2 * k), next_obs=observations(2 * k + 1)) for k, b in enumerate(made)]


def train(agents: list[Any], made: list[TransitionBatch], kind: str) -> int:
    """Train on prepared batches; the number of groups."""
    learner = Learner(agents, choose(agents, kind))
    for batch in made:
        for g, group in enumerate(learner.groups):
            own = batch.map(lambda x, rows=group.members: x[rows])
            learner.learn(g, replace(own, obs=group.prepare(own.obs), next_obs=group.prepare(own.next_obs)))
    learner.release()
    return len(learner.groups)


CASES: dict[str, tuple[Any, Callable[[int], Any], tuple[str, ...]]] = {
    "dqn": (CHOICE, lambda i: made_of(DQN, i, CHOICE, double=True), ()),
    "rainbow": (CHOICE, lambda i: made_of(RainbowDQN, i, CHOICE, num_atoms=7, noisy=False), ()),
    "ddpg": (BOX, lambda i: made_of(DDPG, i, BOX), ()),
    "td3": (BOX, lambda i: made_of(TD3, i, BOX), ("smoothing",)),
    "td3, shared encoders": (BOX, lambda i: made_of(TD3, i, BOX, share_encoders=True), ("smoothing",)),
    "sac": (BOX, lambda i: made_of(SAC, i, BOX), ("next_action", "action")),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_over_rows_are_those_of_modules(name: str) -> None:
    space, make, noise = CASES[name]
    agents = population(make)
    made = nested(batches(space, noise)[:10])
    sequential, alone = ([agent.clone() for agent in agents] for _ in range(2))
    before = state(agents)
    assert choose(agents).name == "fused"
    assert train(agents, made, "fused") == 2, "members of other widths share rows, not those of other features"
    assert train(sequential, made, "sequential") == 4
    for member, agent in enumerate(alone):
        assert learner_of(agent).name == "fused"
        for batch in made:
            agent.learn_batch(of_member(batch, member))
    after = state(agents)
    assert all((before[key] - after[key]).abs().max() > 1e-6 for key in before)
    assert_equal(agents, sequential)
    assert_equal(agents, alone)


@pytest.mark.parametrize("config", [{}, {"vector_space_mlp": True}], ids=["by part", "joined"])
def test_actions_over_rows_are_those_of_modules(config: dict[str, Any]) -> None:
    agents = [DQN(SPACE, CHOICE, index=i, net_config=net_config(i, **config), seed=i) for i in range(4)]
    obs = map_leaves(lambda x: x.numpy(), observations(5))
    fused, plain = (Learner(agents, choose(agents, kind)) for kind in ("fused", "sequential"))
    greedy = fused.act_greedy(obs)
    assert greedy.shape == (4, max(SIZES))
    assert len(np.unique(greedy)) > 1
    np.testing.assert_array_equal(greedy, plain.act_greedy(obs))
    fused.release()


def test_an_image_among_the_parts_stays_with_its_modules() -> None:
    space = spaces.Dict({"position": SPACE["position"], "camera": spaces.Box(0, 255, (3, 16, 16), np.uint8)})
    agent = DQN(space, CHOICE, seed=0)
    assert choose([agent]).name == "sequential"


class Walk(gym.Env[Any, Any]):
    """A deterministic walk whose observation is of `SPACE`; the reward is its first coordinate."""

    observation_space, action_space = SPACE, CHOICE

    def __init__(self, actions: Any = CHOICE) -> None:
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.time = self.np_random.standard_normal(3), 0
        return self._observe(), {}

    def _observe(self) -> Any:
        card, bits = 1 + self.time % 4, np.array([self.time % 2, self.time // 2 % 2], np.int8)
        return {"position": self.at, "card": card, "inner": (np.clip(self.at[:2], -2, 2), bits)}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.at = np.tanh(self.at[[1, 2, 0]] + 0.3 * (np.sum(action) - 1))
        return self._observe(), float(self.at[0]), self.time >= 9 and self.at[0] > 0, self.time >= 17, {}


@pytest.mark.parametrize("share", [False, True], ids=["two networks", "one network"])
def test_ppo_trains_to_the_same_weights_either_way(share: bool) -> None:
    ended = []
    for learner in ("fused", "sequential"):
        env = make_vect_envs(make_env=Walk, num_envs=3)
        agents = []
        for i in range(3):
            agent = PPO(SPACE, CHOICE, i, net_config=net_config(i), batch_size=16, learn_step=24,
                        share_encoders=share, seed=i)  # fmt: skip
            for name in agent.networks:
                getattr(agent, name).double()
            agents.append(agent)
        trained, history = train_on_policy(env, "Walk", pop=agents, max_steps=288, evo_steps=144, eval_steps=20, seed=1,
                                           learner=learner, verbose=False)  # fmt: skip
        ended.append((trained, history))
    assert_equal(ended[0][0], ended[1][0])
    np.testing.assert_allclose(ended[0][1], ended[1][1], rtol=1e-10)


def test_a_population_trains_from_replay_to_the_same_weights_either_way() -> None:
    ended = []
    for learner in ("fused", "sequential"):
        env = make_vect_envs(make_env=Walk, num_envs=2)
        agents = population(lambda i: made_of(DQN, i, CHOICE, learn_step=4))
        trained, _ = train_off_policy(env, "Walk", pop=agents, memory=ReplayBuffer(500, dtype=torch.float64),
                                      max_steps=120, evo_steps=60, eval_steps=20, seed=1, learner=learner,
                                      verbose=False)  # fmt: skip
        ended.append(trained)
    assert_equal(*ended)
