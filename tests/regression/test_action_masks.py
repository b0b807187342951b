"""Discrete SAC under action masks: illegal actions have no part in policy, entropy and temperature."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl import errors
from agilerl.algorithms import DQN, SAC
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.errors import AgileRLWarning
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import RSNorm

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
OBS, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(5)


class Turns(gym.Env[np.ndarray, Any]):
    """Of five actions the two after the number of the step are legal; the observation shows that number."""

    observation_space: ClassVar = gym.spaces.Box(0, 8, (1,), np.float32)
    action_space: ClassVar = CHOICE

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        legal = np.zeros(5, np.int8)
        legal[[self.time % 5, (self.time + 1) % 5]] = 1
        return np.full(1, self.time, np.float32), {"action_mask": legal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, info = self._seen()
        return obs, 1.0, self.time == 7, False, info


def experiences(count: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    legal = np.zeros((count, 5), bool)
    legal[:, :2] = True
    obs, next_obs = rng.uniform(-1, 1, (2, count, 2)).astype(np.float32)
    return {"obs": obs, "action": rng.integers(0, 2, count), "reward": rng.normal(size=count), "next_obs": next_obs,
            "done": np.zeros(count), "next_mask": legal, "obs_mask": legal}  # fmt: skip


def made(**options: Any) -> SAC:
    return SAC(OBS, CHOICE, net_config=NET, seed=1, lr_actor=0.01, lr_critic=0.01, lr_alpha=0.01, **options)


@pytest.mark.parametrize("plain", [False, True], ids=["rows", "modules"])
def test_illegal_actions_get_no_gradient_from_the_policy_loss(plain: bool) -> None:
    agent = made()
    last = list(agent.actor.head_net.parameters())[-1]
    before = last.detach().clone()
    for _ in range(5):
        agent.learn_batch(agent.make_batch(experiences()), plain=plain)
    moved = (last.detach() != before).tolist()
    assert moved == [True, True, False, False, False]


def test_the_temperature_follows_the_entropy_over_legal_actions() -> None:
    for favoured, expected in ((0.0, -1), (8.0, 1)):  # as random as it can be among two: cooler; sure of one: hotter
        agent = made()
        with torch.no_grad():
            for p in agent.actor.head_net.parameters():
                p.zero_()
            bias = list(agent.actor.head_net.parameters())[-1]
            bias[2:] = 4.0  # most of the mass lies on illegal actions
            bias[0] = favoured
        before = agent.alpha
        agent.learn(experiences())
        assert np.sign(agent.alpha - before) == expected


def test_the_target_is_the_same_share_of_what_the_legal_actions_allow() -> None:
    agent = made()
    batch = agent.make_batch(experiences(3))
    batch.obs_mask[0] = torch.tensor([True, False, False, False, False])
    batch.obs_mask[2] = True
    wanted = agent._target_entropy(torch.tensor([agent.target_entropy]), batch)
    torch.testing.assert_close(wanted, torch.tensor([0, 0.98 * math.log(2), 0.98 * math.log(5)]))


@pytest.mark.parametrize("kind", ["fused", "sequential", "wrapped", "n-step"])
def test_replay_keeps_the_mask_of_each_observation(kind: str) -> None:
    env = make_vect_envs(make_env=Turns, num_envs=3)
    pop = [SAC(Turns.observation_space, CHOICE, i, net_config=NET, batch_size=16, seed=i) for i in range(2)]
    agents: list[Any] = [RSNorm(a) for a in pop] if kind == "wrapped" else pop
    memory = MultiStepReplayBuffer(500, 3, 0.99) if kind == "n-step" else ReplayBuffer(500)
    learner = kind if kind in ("fused", "sequential") else "auto"
    train_off_policy(env, "Turns", pop=agents, memory=memory, max_steps=90, evo_steps=90, eval_steps=5, verbose=False,
                     seed=1, learner=learner, n_step=kind == "n-step")  # fmt: skip
    rows = memory.gather(np.arange(len(memory)))
    times = torch.stack([rows["obs"].reshape(-1), rows["next_obs"].reshape(-1)]).long()
    assert len(memory) > 100
    for name, time in zip(("obs_mask", "next_mask"), times, strict=True):
        expected = torch.zeros(len(time), 5).scatter_(1, torch.stack([time % 5, (time + 1) % 5], 1), 1.0)
        assert torch.equal(rows[name].float(), expected)
    taken = rows["obs_mask"].float().gather(1, rows["action"].long().reshape(-1, 1))
    assert kind == "wrapped" or bool(taken.all())


def test_algorithms_that_do_not_read_it_do_not_store_it() -> None:
    env = make_vect_envs(make_env=Turns, num_envs=3)
    memory = ReplayBuffer(500)
    pop = [DQN(Turns.observation_space, CHOICE, net_config=NET, batch_size=16, seed=1)]
    train_off_policy(env, "Turns", pop=pop, memory=memory, max_steps=60, evo_steps=60, eval_steps=5, verbose=False,
                     seed=1)  # fmt: skip
    assert set(memory.gather(np.arange(5))) == {"obs", "action", "reward", "next_obs", "done", "next_mask"}


def test_a_buffer_that_was_filled_without_it_goes_on_without_it() -> None:
    old, zero, legal = ReplayBuffer(20), np.zeros((2, 3), np.float32), np.ones((2, 5), bool)
    old.write(zero, np.zeros(2, int), np.zeros(2), zero, np.zeros(2, bool), next_mask=legal)
    memory = ReplayBuffer(20)
    memory.load_state(old.state())
    memory.write(zero, np.zeros(2, int), np.zeros(2), zero, np.zeros(2, bool), next_mask=legal, obs_mask=legal)
    assert len(memory) == 4
    assert "obs_mask" not in memory.gather(np.arange(4))


class LateTurns(Turns):
    """The first masks come with the sixth step of the first episode."""

    steps = 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return super().step(action)

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        seen, info = super()._seen()
        return seen, info if self.steps > 5 else {}


@pytest.mark.parametrize("kind", ["fused", "n-step"])
def test_masks_that_come_too_late_to_be_kept_are_warned_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    env = make_vect_envs(make_env=LateTurns, num_envs=2)
    memory = MultiStepReplayBuffer(500, 3, 0.99) if kind == "n-step" else ReplayBuffer(500)
    pop = [DQN(Turns.observation_space, CHOICE, net_config=NET, batch_size=16, seed=1)]
    with pytest.warns(AgileRLWarning, match=r"are not kept.*fix: info\['action_mask'\] from reset\(\) on"):
        train_off_policy(env, "LateTurns", pop=pop, memory=memory, max_steps=60, evo_steps=60, eval_steps=5,
                         verbose=False, seed=1, n_step=kind == "n-step")  # fmt: skip
    assert "next_mask" not in memory.gather(np.arange(5))
