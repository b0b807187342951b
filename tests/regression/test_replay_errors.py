"""Errors of replay that the original ships, at the level of a training run; numbered as where they were collected."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl.algorithms import DQN, RainbowDQN
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import RSNorm

NET: dict[str, Any] = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}

# --- 3: n-step returns across the ends of episodes

GAMMA, N_STEP = 0.5, 3
LENGTHS = {0: [1, 3, 2], 1: [4, 2], 2: [2, 5], 3: [6]}  # of the episodes of each lane, over and over


class Scripted(gym.Env[np.ndarray, int]):
    """Observation (lane, episode, time); the reward of step t is 10^t; episodes end by either kind in turn."""

    observation_space = gym.spaces.Box(-1, 1000, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, lane: int) -> None:
        self.lane, self.episode, self.time = lane, -1, 0

    def _obs(self) -> np.ndarray:
        return np.array([self.lane, self.episode, self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        end = self.time == length(self.lane, self.episode)
        by_terminal = self.episode % 2 == 0
        return self._obs(), 10.0 ** (self.time - 1), end and by_terminal, end and not by_terminal, {}


def length(lane: int, episode: int) -> int:
    return LENGTHS[lane][episode % len(LENGTHS[lane])]


class Watched(DQN):
    """Keeps what its updates are given."""

    seen: list[TransitionBatch]

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        Watched.seen.append(batch)
        return super().update(engine, batch)


@pytest.mark.parametrize("learner", ["fused", "sequential"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda m: m.name)
def test_3_n_step_returns_end_with_the_episode_of_their_own_lane(mode: AutoresetMode, learner: str) -> None:
    Watched.seen = []
    pop = Watched.population(1, Scripted.observation_space, Scripted.action_space, seed=1, net_config=NET,
                             batch_size=32, learn_step=4, gamma=GAMMA)  # fmt: skip
    env = SyncVectorEnv([lambda lane=lane: Scripted(lane) for lane in LENGTHS], autoreset_mode=mode)
    memory = MultiStepReplayBuffer(max_size=1000, n_step=N_STEP, gamma=GAMMA, dtype=torch.float64)
    train_off_policy(env, "scripted", pop=pop, memory=memory, n_step=True, max_steps=240, evo_steps=240, eval_steps=1,
                     verbose=False, seed=1, learner=learner)  # fmt: skip
    env.close()
    assert len(Watched.seen) > 40
    ends, crossings = set(), 0
    for batch in Watched.seen:
        assert batch.discount is not None
        fields = (batch.obs, batch.reward, batch.discount, batch.done, batch.next_obs)
        rows = (field.detach().reshape(-1, *((3,) if field is batch.obs or field is batch.next_obs else ())).tolist()
                for field in fields)  # fmt: skip
        for (lane, episode, time), reward, discount, done, after in zip(*rows, strict=True):
            left = length(int(lane), int(episode)) - int(time)
            steps = int(after[2] - time)
            # Windows of fewer steps are only those that the episode ends: nothing is sampled before its window is full.
            assert steps == min(N_STEP, left)
            assert after[:2] == [lane, episode], "s' belongs to the same episode"
            terminated = steps == left and episode % 2 == 0
            assert done == terminated
            assert reward == pytest.approx(sum(GAMMA**k * 10.0 ** (time + k) for k in range(steps)))
            assert discount == pytest.approx(0.0 if terminated else GAMMA**steps)
            ends.add((steps, terminated, steps == left))
            crossings += steps == left < N_STEP
    assert ends == {(1, True, True), (2, True, True), (3, True, True), (1, False, True), (2, False, True),
                    (3, False, True), (3, False, False)}  # fmt: skip
    assert crossings > 100


# --- 16: the exponent of the importance weights


class Recording(PrioritizedReplayBuffer):
    """Keeps the exponents that it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.betas: list[float] = []

    def weights(self, indices: np.ndarray, beta: float) -> np.ndarray:
        self.betas.append(beta)
        return super().weights(indices, beta)

    def sample(self, batch_size: int, beta: float = 0.4, *args: Any, **kwargs: Any) -> Any:
        before = list(self.betas)
        found = super().sample(batch_size, beta, *args, **kwargs)
        self.betas = [*before, beta]
        return found


class CustomLearn(RainbowDQN):
    """Trains by `learn`, one member at a time."""

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        return super().learn(experiences, *args, **kwargs)


@pytest.mark.parametrize("cls", [RainbowDQN, CustomLearn])
@pytest.mark.parametrize(("lanes", "members"), [(1, 1), (4, 1), (4, 2)])
def test_16_beta_rises_by_environment_steps_of_one_member_to_1_at_the_end(cls: Any, lanes: int, members: int) -> None:
    env, memory = make_vect_envs("CartPole-v1", num_envs=lanes), Recording(1000)
    pop = cls.population(members, env.single_observation_space, env.single_action_space, seed=1, net_config=NET,
                         batch_size=4, learn_step=lanes, beta=0.4, num_atoms=5, v_min=0, v_max=10)  # fmt: skip
    steps = 120
    train_off_policy(env, "CartPole-v1", pop=pop, memory=memory, per=True, max_steps=steps, evo_steps=40,
                     eval_steps=2, verbose=False, seed=1)  # fmt: skip
    env.close()
    assert memory.betas
    # One update per vector step and member, from the first batch on; after k of `steps` steps β = 0.4 + 0.6 k / steps.
    share = {round((beta - 0.4) / 0.6 * steps, 6) for beta in memory.betas}
    assert share <= {float(k) for k in range(lanes, steps + 1, lanes)}
    assert max(memory.betas) == 1.0
    assert memory.betas.count(1.0) == members, "the last update of each member and no other"
    assert len(share) >= steps // lanes - 4
    if members == 1:
        assert memory.betas == sorted(memory.betas)


# --- 24: batches smaller than batch_size; normalisation in place


def transitions(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": 5 + 3 * torch.randn(count, 4, generator=g),
        "action": torch.randint(0, 2, (count, 1), generator=g),
        "reward": torch.randn(count, 1, generator=g),
        "next_obs": 5 + 3 * torch.randn(count, 4, generator=g),
        "done": torch.zeros(count, 1),
    }


BOX = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)


@pytest.mark.parametrize("count", [1, 5, 63])
@pytest.mark.parametrize("combined", [False, True])
def test_24_rainbow_learns_from_fewer_rows_than_its_batch_size(count: int, combined: bool) -> None:
    options = {"net_config": NET, "seed": 1, "num_atoms": 5, "v_min": -5, "v_max": 5, "combined_reward": combined}
    agent = RainbowDQN(BOX, gym.spaces.Discrete(2), batch_size=64, noisy=False, **options)
    alone = RainbowDQN(BOX, gym.spaces.Discrete(2), batch_size=count, noisy=False, **options)
    batch = {**transitions(count), "weights": torch.linspace(0.5, 1, count)[:, None], "idxs": torch.arange(count)}
    later = transitions(count, seed=1)
    for _ in range(3):
        loss, idxs, priorities = agent.learn(batch, n_experiences=later, per=True)
        expected, _, others = alone.learn(batch, n_experiences=later, per=True)
        assert loss == pytest.approx(expected, rel=1e-6), "the loss is a mean over the rows that are there"
        assert idxs.tolist() == list(range(count))
        assert priorities.shape == (count,)
        np.testing.assert_allclose(priorities, others, rtol=1e-5)


@pytest.mark.parametrize("cls", [DQN, RainbowDQN])
def test_24_normalising_leaves_the_buffer_and_the_sample_as_they_are(cls: Any) -> None:
    memory = ReplayBuffer(32, seed=1)
    memory.add(transitions(32))
    agent = RSNorm(cls(BOX, gym.spaces.Discrete(2), net_config=NET, batch_size=16, seed=1))
    agent.get_action(transitions(200, seed=2)["obs"].numpy())
    assert abs(agent.obs_rms.mean - 5).max() < 1
    stored = {k: v.clone() for k, v in memory.storage.items()}
    sample = memory.sample(16)
    drawn = {k: v.clone() for k, v in sample.items()}
    for _ in range(3):
        agent.learn(sample)
    assert all(torch.equal(memory.storage[k], v) for k, v in stored.items())
    assert all(torch.equal(sample[k], v) for k, v in drawn.items())
    # and it was normalised on the way: the agent remembers what it learned from
    seen = agent.agent.probe_observations(16)
    torch.testing.assert_close(seen, agent.observe(drawn["obs"]))
    assert abs(float(seen.mean())) < 0.5


# --- 25: images in replay


class Camera(gym.Env[np.ndarray, int]):
    """A new image in every step; episodes of 10."""

    observation_space = gym.spaces.Box(0, 255, (3, 12, 12), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (3, 12, 12), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._obs(), 1.0, self.time == 10, False, {}


@pytest.mark.parametrize("nested", [False, True])
def test_25_images_of_a_run_stay_bytes_and_are_kept_once(nested: bool) -> None:
    class Parts(gym.ObservationWrapper[Any, int, np.ndarray]):
        observation_space = gym.spaces.Dict(camera=Camera.observation_space, time=gym.spaces.Box(0, 10, (1,)))

        def observation(self, observation: np.ndarray) -> Any:
            return {"camera": observation, "time": np.array([self.env.unwrapped.time], np.float32)}

    size, image = 200, 3 * 12 * 12
    env = make_vect_envs(make_env=(lambda: Parts(Camera())) if nested else Camera, num_envs=2)
    pop = DQN.population(2, env.single_observation_space, env.single_action_space, seed=1, batch_size=4,
                         learn_step=20, net_config={"latent_dim": 16})  # fmt: skip
    memory = ReplayBuffer(size)
    train_off_policy(env, "camera", pop=pop, memory=memory, max_steps=120, evo_steps=120, eval_steps=2, verbose=False,
                     seed=1)  # fmt: skip
    env.close()
    assert memory.is_full
    rows = memory.gather(np.arange(size))
    for name in ("obs", "next_obs"):
        images = rows[name]["camera"] if nested else rows[name]
        assert images.dtype == torch.uint8
        assert len(np.unique(images.numpy().reshape(size, -1), axis=0)) == size, "every image is another one"
    # Kept twice it would be 2 images a row. One each, one more for each episode under way or complete (20 rows in
    # 200), one for each of 4 lanes, and less than 64 bytes of other things.
    assert memory.memory_bytes < size * (1.25 * image + 64)
    seen = pop[0].probe_observations(1)
    assert (seen["camera"] if nested else seen).dtype == torch.uint8
