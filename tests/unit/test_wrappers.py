"""Running statistics and agents behind wrappers."""

from __future__ import annotations

import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import ConfigError, RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import RSNorm
from agilerl.wrappers.running import RunningMeanStd

OBS, ACTIONS = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)


def agent(seed: int = 0) -> DQN:
    return DQN(OBS, ACTIONS, net_config={"encoder_config": {"hidden_size": [8]}}, batch_size=16, seed=seed)


def test_statistics_of_batches_are_those_of_everything_together() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(3, 2, (57, 2))
    running = RunningMeanStd((2,))
    for part in (rows[:1], rows[1:20], rows[20:20], rows[20:]):
        running.update(part)
    np.testing.assert_allclose(running.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(running.var, rows.var(0), rtol=1e-12)
    assert running.count == 57


def test_two_rows_by_hand() -> None:
    running = RunningMeanStd((1,), epsilon=0.0)
    running.update(np.array([[1.0], [5.0]]))  # mean 3, variance 4
    assert running.normalise(np.array([[7.0]])).tolist() == [[2.0]]


def test_statistics_move_while_training_only_and_observations_are_left_alone() -> None:
    wrapped = RSNorm(agent())
    obs = np.random.default_rng(1).normal(5, 3, (32, 4)).astype(np.float32)
    before = obs.copy()
    wrapped.get_action(obs, 0.0)
    assert wrapped.obs_rms.count == 32
    wrapped.set_training_mode(False)
    wrapped.get_action(obs, 0.0)
    assert wrapped.obs_rms.count == 32
    np.testing.assert_array_equal(obs, before)
    seen = wrapped.observe(obs)
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std(0), 1, atol=1e-3)


def test_learning_sees_normalised_observations() -> None:
    one, other = RSNorm(agent()), agent()
    rng = np.random.default_rng(2)
    one.obs_rms.update(rng.normal(5, 3, (64, 4)))
    batch = {
        "obs": rng.normal(5, 3, (16, 4)).astype(np.float32),
        "action": rng.integers(2, size=16),
        "reward": rng.normal(size=16),
        "next_obs": rng.normal(5, 3, (16, 4)).astype(np.float32),
        "done": np.zeros(16),
    }
    by_hand = {**batch, **{k: one.obs_rms.normalise(batch[k]) for k in ("obs", "next_obs")}}
    assert one.learn(batch) == other.learn(by_hand)
    assert all(torch.equal(a, b) for a, b in zip(one.actor.parameters(), other.actor.parameters(), strict=True))
    with pytest.raises(ValueError, match="needs experiences"):
        one.learn()


def test_attributes_reach_the_agent_and_clones_are_independent(tmp_path: Path) -> None:
    wrapped = RSNorm(agent())
    wrapped.lr = 0.5
    assert wrapped.agent.lr == 0.5
    wrapped.get_action(np.ones((3, 4), np.float32), 0.0)
    twin = wrapped.clone(7)
    twin.get_action(np.zeros((3, 4), np.float32), 0.0)
    assert (wrapped.obs_rms.count, twin.obs_rms.count, twin.index) == (3, 6, 7)
    wrapped.save_checkpoint(tmp_path / "agent.pt")
    loaded = RSNorm.load(tmp_path / "agent.pt")
    for copy in (loaded, pickle.loads(pickle.dumps(wrapped))):
        assert copy.obs_rms.count == 3
        np.testing.assert_array_equal(copy.obs_rms.mean, wrapped.obs_rms.mean)
        obs = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
        np.testing.assert_array_equal(copy._greedy(obs), wrapped._greedy(obs))
    with pytest.raises(RunError, match=r"RSNorm\.load"):
        DQN.load(tmp_path / "agent.pt")


def test_only_the_named_keys_of_a_dict_are_normalised() -> None:
    class Stub:
        observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Box(-1, 1, (2,))})
        training = True

    wrapped = RSNorm(Stub(), norm_obs_keys=["a"])
    obs = {"a": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([[1.0, 2.0], [3.0, 4.0]])}
    seen = wrapped.observe(obs, count=True)
    np.testing.assert_allclose(seen["a"], [[-1, -1], [1, 1]], atol=1e-3)
    assert seen["b"] is obs["b"]
    with pytest.raises(ConfigError, match="norm_obs_keys"):
        RSNorm(Stub(), norm_obs_keys=["c"])


def test_a_wrapped_population_trains_and_evolves() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=4)
    pop = [
        RSNorm(
            DQN(env.single_observation_space, ACTIONS, index=i, net_config={"latent_dim": 16}, batch_size=16, seed=i)
        )
        for i in range(2)
    ]
    trained, fitness = train_off_policy(
        env,
        "CartPole-v1",
        pop=pop,
        memory=ReplayBuffer(max_size=1000),
        max_steps=400,
        evo_steps=200,
        tournament=TournamentSelection(2, True, 2, seed=0),
        mutation=Mutations(0, 0.5, 0.2, 0.5, 0, 0, rand_seed=1),
        verbose=False,
        seed=0,
    )
    assert len(fitness) == 2
    assert all(isinstance(member, RSNorm) and member.obs_rms.count > 200 for member in trained)
