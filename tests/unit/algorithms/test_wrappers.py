"""Running statistics and agents behind wrappers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.checkpoint import save_tree
from agilerl.errors import AlgorithmError, ConfigError, RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import AgentWrapper, RSNorm
from agilerl.wrappers.running import RunningMeanStd

OBS, ACTIONS = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


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


LEARNERS = [(DQN, ACTIONS), (RainbowDQN, ACTIONS), (PPO, ACTIONS), (DDPG, BOX), (TD3, BOX), (SAC, BOX)]


class Shifted(AgentWrapper):
    """A wrapper of the user's own."""

    def observe(self, obs: Any, count: bool = False) -> Any:
        return obs + 1


@pytest.mark.parametrize("wrapper", [RSNorm, Shifted])
@pytest.mark.parametrize(("cls", "space"), LEARNERS, ids=[cls.__name__ for cls, _ in LEARNERS])
def test_the_algorithm_loads_a_wrapped_agent_in_its_wrapper(
    cls: Any, space: gym.Space, wrapper: Any, tmp_path: Path
) -> None:
    wrapped = wrapper(cls(OBS, space, net_config={"encoder_config": {"hidden_size": [8]}}, seed=1))
    if wrapper is RSNorm:
        wrapped.obs_rms.update(np.random.default_rng(0).normal(5, 3, (64, 4)))
    wrapped.save_checkpoint(tmp_path / "agent.pt")
    loaded = cls.load(tmp_path / "agent.pt")
    assert type(loaded) is wrapper
    assert type(loaded.agent) is cls
    obs = np.random.default_rng(3).normal(5, 3, (6, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded._greedy(obs), wrapped._greedy(obs))
    np.testing.assert_array_equal(loaded.observe(obs), wrapped.observe(obs))
    other = DQN if cls is not DQN else PPO
    with pytest.raises(RunError, match=rf"holds a {wrapper.__name__}\({cls.__name__}\), this is {other.__name__}"):
        other.load(tmp_path / "agent.pt")


NESTED = [(RSNorm, RSNorm), (RSNorm, Shifted), (Shifted, RSNorm), (Shifted, Shifted, RSNorm)]


@pytest.mark.parametrize("wrappers", NESTED, ids=lambda each: "-".join(wrapper.__name__ for wrapper in each))
@pytest.mark.parametrize("cls", [DQN, PPO])
def test_wrappers_in_wrappers_are_loaded(cls: Any, wrappers: tuple[Any, ...], tmp_path: Path) -> None:
    def made(seed: int) -> Any:
        found: Any = cls(OBS, ACTIONS, net_config={"encoder_config": {"hidden_size": [8]}}, seed=seed)
        for number, wrapper in enumerate(reversed(wrappers)):
            found = wrapper(found)
            if wrapper is RSNorm:
                found.obs_rms.update(np.random.default_rng(number).normal(5, 3, (64, 4)))
        return found

    wrapped, path = made(1), tmp_path / "agent.pt"
    wrapped.save_checkpoint(path)
    obs = np.random.default_rng(3).normal(5, 3, (6, 4)).astype(np.float32)
    filled = made(2)
    filled.load_checkpoint(path)
    for loaded in (cls.load(path), wrappers[0].load(path), filled):
        kinds, inner = [], loaded
        while isinstance(inner, AgentWrapper):
            kinds.append(type(inner))
            np.testing.assert_array_equal(inner.observe(obs), at(wrapped, len(kinds) - 1).observe(obs))
            inner = inner.agent
        assert kinds == list(wrappers)
        np.testing.assert_array_equal(loaded.act(obs), wrapped.act(obs))
    for other in (cls(OBS, ACTIONS), made(1).agent):
        with pytest.raises(RunError, match=r"fix: "):
            other.load_checkpoint(path)


def at(wrapper: Any, depth: int) -> Any:
    """The wrapper so far inside."""
    return wrapper if not depth else at(wrapper.agent, depth - 1)


class Scaled(AgentWrapper):
    """A wrapper that needs a number."""

    def __init__(self, agent: Any, factor: float) -> None:
        super().__init__(agent)
        object.__setattr__(self, "factor", factor)

    def observe(self, obs: Any, count: bool = False) -> Any:
        return obs * self.factor


def test_a_wrapper_that_needs_more_than_the_agent_is_named(tmp_path: Path) -> None:
    Scaled(agent(), 2.0).save_checkpoint(tmp_path / "agent.pt")
    with pytest.raises(AlgorithmError, match=r"Scaled cannot be created from an agent alone.*'factor'\. fix: "):
        DQN.load(tmp_path / "agent.pt")
    again = Scaled(agent(5), 2.0)
    again.load_checkpoint(tmp_path / "agent.pt")
    np.testing.assert_array_equal(again.act(np.ones((3, 4))), Scaled(agent(), 2.0).act(np.ones((3, 4))))


def test_a_wrapper_that_is_not_defined_is_named(tmp_path: Path) -> None:
    save_tree(tmp_path / "agent.pt", {**Shifted(agent()).state(), "class": "Unheard"})
    with pytest.raises(RunError, match=r"holds a Unheard, which is not defined here\. fix: import the module"):
        DQN.load(tmp_path / "agent.pt")


def ppo(**more: Any) -> PPO:
    return PPO(OBS, ACTIONS, net_config={"encoder_config": {"hidden_size": [8]}}, num_envs=2, seed=0, **more)


def test_statistics_of_rollouts_stand_still_until_they_were_learned_from() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    wrapped = RSNorm(ppo(learn_step=32))
    with pytest.raises(ValueError, match="empty rollout buffer"):
        wrapped.learn()
    kept: Any = ()
    for count in (32, 64):
        before = wrapped.obs_rms.state()
        _, *kept = collect_rollouts(wrapped, env, None, *kept)
        assert wrapped.obs_rms.count == before["count"] == count - 32
        seen = wrapped.rollout_buffer.stored("obs").copy()
        raw = seen * np.sqrt(before["var"] + 1e-4) + before["mean"]
        wrapped.learn()
        assert wrapped.obs_rms.count == count
        expected = before["mean"] + (raw.reshape(-1, 4).mean(0) - before["mean"]) * 32 / count
        np.testing.assert_allclose(wrapped.obs_rms.mean, expected, atol=1e-6)
        assert not len(wrapped.rollout_buffer)
    env.close()


def test_a_hand_written_loop_over_rollouts_moves_the_statistics_with_learn() -> None:
    wrapped, rng = RSNorm(ppo(learn_step=8)), np.random.default_rng(0)
    obs = [rng.normal(5, 3, (2, 4)).astype(np.float32) for _ in range(5)]
    rows = [wrapped.get_action(o) for o in obs[:4]]
    assert wrapped.obs_rms.count == 0
    zeros = [np.zeros(2)] * 4
    actions, log_probs, _, values = (list(column) for column in zip(*rows, strict=True))
    wrapped.learn((obs[:4], actions, log_probs, zeros, zeros, values, obs[4], np.zeros(2)))
    assert wrapped.obs_rms.count == 8
    np.testing.assert_allclose(wrapped.obs_rms.mean, np.concatenate(obs[:4]).mean(0), rtol=1e-6)
    wrapped.get_action(obs[4])
    twin = wrapped.clone()  # what an agent has seen and not learned from is its own
    twin.learned()
    assert twin.obs_rms.count == 8
    wrapped.learned()
    assert wrapped.obs_rms.count == 10


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
