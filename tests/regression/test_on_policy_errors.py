"""Errors of on-policy learning that a well-known implementation ships, each by its number in the list."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl.algorithms.base.rollouts import buffer_from_experiences
from agilerl.algorithms.ppo import PPO
from agilerl.components.rollout_store import RolloutStore as RolloutBuffer
from agilerl.engine.learner import learner_of
from agilerl.engine.rollouts import cut_points, make_rollout
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
OBS, CHOICE = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)


def agent(space: gym.Space = CHOICE, **more: Any) -> PPO:
    return PPO(OBS, space, **{"net_config": NET, "seed": 1, **more})


def silent(ppo: PPO, value: float = 0.0) -> PPO:
    """The critic says `value` everywhere."""
    with torch.no_grad():
        for parameter in ppo.critic.parameters():
            parameter.zero_()
        ppo.critic.head_net.model.get_submodule("linear_output").bias.fill_(value)
    return ppo


def returns_of(ppo: PPO, buffer: RolloutBuffer) -> np.ndarray:
    """Returns [T, E] as learning sees them."""
    rollout = make_rollout(learner_of(ppo), 0, [ppo], buffer, next(ppo.actor.parameters()))
    return rollout.numbers[0, :, 3].view(len(buffer), -1).numpy()


def tuple_of(rewards: list[float], dones: list[int], next_done: int, lanes: int = 1) -> tuple[Any, ...]:
    steps = len(rewards)
    zeros = [np.zeros(lanes, np.float32) for _ in range(steps)]
    return (
        [np.zeros((lanes, 2), np.float32)] * steps, [np.zeros(lanes, np.int64)] * steps, zeros,
        [np.full(lanes, r) for r in rewards], [np.full(lanes, d) for d in dones], zeros,
        np.zeros((lanes, 2), np.float32), np.full(lanes, next_done),
    )  # fmt: skip


def test_1_a_terminal_reward_reaches_the_steps_of_its_own_episode() -> None:
    # Rewards [0, 10, 0, 5], ends after steps 2 and 4; the flags are those before each step.
    ppo = silent(agent(gamma=1.0, gae_lambda=1.0))
    by_tuple = buffer_from_experiences(ppo, tuple_of([0, 10, 0, 5], [0, 0, 1, 0], 1))
    stored = ppo.make_buffer(4, 1)
    for reward, ended in zip([0, 10, 0, 5], [False, True, False, True], strict=True):
        stored.add(
            np.zeros((1, 2), np.float32), np.zeros(1, np.int64), np.array([reward]), np.array([ended]),
            np.array([False]), np.zeros(1, np.float32), np.zeros(1, np.float32),
        )  # fmt: skip
    stored.last_obs = np.zeros((1, 2), np.float32)
    for buffer in (by_tuple, stored):
        assert returns_of(ppo, buffer).ravel().tolist() == [10, 10, 5, 5]


def test_12_action_std_init_is_a_standard_deviation() -> None:
    box = gym.spaces.Box(-5, 5, (3,))
    ppo = agent(box, action_std_init=0.25)
    raw = ppo.actor.output(np.random.default_rng(0).uniform(-1, 1, (64, 2)))
    stds = raw[:, 3:].detach().exp()
    # The untrained head adds a little to its bias of log 0.25.
    assert stds.mean().item() == pytest.approx(0.25, rel=0.15)
    with pytest.raises(ValueError, match="action_std_init must be"):
        agent(box, action_std_init=-0.5)


def test_13_no_step_of_an_episode_is_dropped_from_its_sequences() -> None:
    assert cut_points(10, 4, "chunked") == [(0, 4), (4, 4), (8, 2)]
    assert sum(length for _, length in cut_points(10, 4, "chunked")) == 10
    assert cut_points(2, 1, "fifty_percent_overlap") == [(0, 1), (1, 1)]


class Clock(gym.Env):
    """Reward 1 each step; the episode is cut off after three. The observation is the time."""

    observation_space, action_space = OBS, CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.full(2, self.time / 3, np.float32), 1.0, False, self.time == 3, {}


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_14_truncation_in_mid_rollout_bootstraps(mode: AutoresetMode) -> None:
    # gamma = 0.5 and V = 8 everywhere: with lambda = 1 the returns before a cut are 1 + .5*8 = 5, 1 + .5*5 = 3.5, 2.75.
    ppo = silent(agent(gamma=0.5, gae_lambda=1.0, learn_step=14), 8.0)
    env = SyncVectorEnv([Clock] * 2, autoreset_mode=mode)
    collect_rollouts(ppo, env, 7)
    buffer = ppo.rollout_buffer
    found = returns_of(ppo, buffer)[:, 0]
    valid = buffer.fields["valid"][:7, 0]
    # NEXT_STEP autoreset has one row per episode that is no transition; it is not learned from.
    assert valid.tolist() == ([1, 1, 1, 0, 1, 1, 1] if mode is AutoresetMode.NEXT_STEP else [1] * 7)
    assert found[valid][:6].tolist() == [2.75, 3.5, 5, 2.75, 3.5, 5]


def test_14_the_tuple_learns_the_same_where_it_tells_truncation_apart() -> None:
    ppo = silent(agent(gamma=0.5, gae_lambda=1.0), 8.0)
    lists = tuple_of([1, 1, 1, 1], [0, 0, 1, 0], 0)
    values = [np.full(1, 8, np.float32)] * 4
    lists = (*lists[:5], values, *lists[6:])
    assert returns_of(ppo, buffer_from_experiences(ppo, lists)).ravel().tolist() == [1.5, 1, 3.5, 5]
    cut = [np.array([t == 1]) for t in range(4)]
    told = buffer_from_experiences(ppo, (*lists, cut, lists[0]))
    assert returns_of(ppo, told).ravel().tolist() == [3.5, 5, 3.5, 5]


def test_a_hand_written_loop_teaches_what_the_buffer_does() -> None:
    """The same steps as the published tuple and by `collect_rollouts` give the same networks, bit for bit."""
    by_buffer = PPO(
        gym.spaces.Box(-10, 10, (4,)), CHOICE, net_config=NET, seed=3, learn_step=400, num_envs=4, batch_size=32
    )
    by_tuple = by_buffer.clone()
    env = make_vect_envs("CartPole-v1", num_envs=4, seed=0)
    single = SyncVectorEnv([env.factory] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    obs, _ = single.reset(seed=1)
    lists: list[list[Any]] = [[] for _ in range(6)]
    done = np.zeros(4)
    for _ in range(100):
        action, log_prob, _, value = by_tuple.get_action(obs)
        after, reward, terminated, truncated, _ = single.step(action)
        for column, entry in zip(lists, (obs, action, log_prob, reward, done, value), strict=True):
            column.append(entry)
        assert not truncated.any()
        obs, done = after, terminated | truncated
    by_tuple.learn((*lists, obs, done))
    again = SyncVectorEnv([env.factory] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    start, info = again.reset(seed=1)
    collect_rollouts(by_buffer, again, last_obs=start, last_done=np.zeros(4, bool), last_info=info)
    by_buffer.learn()
    for one, other in zip(by_buffer.actor.parameters(), by_tuple.actor.parameters(), strict=True):
        assert torch.equal(one, other)
    env.close()


@pytest.mark.parametrize("training", [True, False])
def test_20_evaluation_is_greedy_and_restores_the_training_mode(training: bool) -> None:
    env = make_vect_envs("CartPole-v1", num_envs=4)
    ppo = PPO(env.single_observation_space, env.single_action_space, net_config=NET, seed=2)
    ppo.set_training_mode(training)
    before = ppo._exploration.bit_generator.state
    ppo.test(env, max_steps=20)
    assert ppo.training is training
    assert ppo._exploration.bit_generator.state == before, "nothing was sampled"
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    logits = ppo.actor.output(obs)
    assert (ppo._greedy(obs) == logits.argmax(-1).numpy()).all()
    env.close()


def test_21_the_reported_loss_does_not_depend_on_the_number_of_minibatches() -> None:
    # With a learning rate of (almost) nothing every minibatch of a rollout has the same mean loss.
    found = []
    for batch_size, epochs in ((64, 1), (8, 1), (8, 4)):
        ppo = agent(lr=1e-12, batch_size=batch_size, update_epochs=epochs, ent_coef=0.0)
        rng = np.random.default_rng(5)
        buffer = ppo.make_buffer(16, 4)
        for _ in range(16):
            obs = rng.uniform(-1, 1, (4, 2)).astype(np.float32)
            action, log_prob, _, value = ppo.get_action(obs)
            no = np.zeros(4, bool)
            buffer.add(obs, action, rng.normal(size=4), no, no, log_prob, value)
        buffer.last_obs = obs
        found.append(ppo.learn_buffer(buffer))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)
    assert math.isfinite(found[0])


def test_25_a_rollout_keeps_bytes_as_bytes_and_no_next_observations() -> None:
    image = gym.spaces.Box(0, 255, (3, 16, 16), np.uint8)
    buffer = RolloutBuffer(5, 2, image, CHOICE)
    for t in range(5):
        cut = np.array([False, t == 2])
        buffer.add(
            np.full((2, 3, 16, 16), t, np.uint8), np.zeros(2, np.int64), np.zeros(2), np.zeros(2, bool), cut,
            np.zeros(2, np.float32), final_obs=np.full((2, 3, 16, 16), 9, np.uint8),
        )  # fmt: skip
    assert buffer.fields["obs"].dtype == np.uint8
    of_images = 5 * 2 * 3 * 16 * 16
    assert of_images <= buffer.block.nbytes < 1.3 * of_images, "one copy of every observation and little else"
    (only,) = buffer.truncations
    assert (only.step, only.lanes.tolist(), only.obs.shape) == (2, [1], (1, 3, 16, 16))
