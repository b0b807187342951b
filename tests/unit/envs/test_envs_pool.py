"""EnvPool's lanes against Gymnasium's environments: ends, resets, dynamics, and whose seed matters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from agilerl.envs.adapters import CONFORMING, EnvPoolLanes
from agilerl.envs.step import Lanes, SyncLanes, as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.rollouts.off_policy import EpisodeTracker

pytest.importorskip("envpool")


def random_play(lanes: Lanes, vector_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths of the episodes completed under random actions."""
    rng, tracker, finished = np.random.default_rng(0), EpisodeTracker(lanes.num_lanes), []
    lanes.reset(np.arange(lanes.num_lanes))
    count = int(lanes.single_action_space.n)  # type: ignore[attr-defined]
    for _ in range(vector_steps):
        finished.append(tracker.update(lanes.step(rng.integers(count, size=lanes.num_lanes))))
    return np.concatenate([f.returns for f in finished]), np.concatenate([f.lengths for f in finished])


@pytest.mark.parametrize("env_id", CONFORMING)
def test_returns_and_lengths_under_random_actions_are_those_of_gymnasium(env_id: str) -> None:
    steps = 1100 if env_id == "Acrobot-v1" else 500
    ours = random_play(EnvPoolLanes(env_id, 32), steps)
    theirs = random_play(SyncLanes([lambda: gymnasium.make(env_id)] * 32), steps)
    for pool, single in zip(ours, theirs, strict=True):
        # The difference of two means of about 60 to 700 episodes: 5 standard errors, missed with probability 1e-6.
        error = np.sqrt(pool.var() / len(pool) + single.var() / len(single))
        assert abs(pool.mean() - single.mean()) <= 5 * error + 1e-9


@pytest.mark.parametrize("env_id", CONFORMING)
def test_a_lanes_episodes_depend_on_its_own_seed_and_actions_alone(env_id: str) -> None:
    def run(seeds: list[int], other_action: int) -> np.ndarray:
        lanes = EnvPoolLanes(env_id, 3)
        seen = [lanes.reset(np.array(seeds))[0][1]]
        for step in range(400):
            seen.append(lanes.step(np.array([other_action, step // 7 % 2, other_action])).obs[1])
        return np.stack(seen)

    np.testing.assert_array_equal(run([1, 2, 3], 0), run([8, 2, 9], 1))
    assert not np.array_equal(run([1, 2, 3], 0), run([1, 4, 3], 0))


def cartpole_from(obs: np.ndarray, action: int) -> tuple[Any, ...]:
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    env.state = obs.astype(np.float64)  # type: ignore[attr-defined]
    return env.step(action)


def test_cartpole_transitions_are_gymnasiums_also_at_ends_and_time_limits() -> None:
    lanes = EnvPoolLanes("CartPole-v1", 4)
    obs, _ = lanes.reset(np.arange(4))
    ends = np.zeros(2, dtype=int)
    for step in range(1100):
        balancing = (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(int)
        actions = np.where(np.arange(4) < 2, balancing, step % 3 // 2)
        batch = lanes.step(actions)
        for lane in np.flatnonzero(batch.mask) if step % 20 == 0 or not batch.mask.all() else ():
            final, reward, terminated, *_ = cartpole_from(obs[lane], int(actions[lane]))
            np.testing.assert_allclose(batch.final_obs[lane], final, atol=1e-5)
            assert (batch.reward[lane], batch.terminated[lane]) == (reward, terminated)
        reset_rows = np.flatnonzero(~batch.mask)
        assert (np.abs(batch.obs[reset_rows]) <= 0.05).all()  # start states
        ends += batch.terminated.sum(), batch.truncated.sum()
        assert not (batch.terminated & batch.truncated).any()
        obs = batch.obs
    assert (ends > 0).all()


def test_the_backend_is_taken_only_when_asked_for_and_only_where_compared() -> None:
    assert as_lanes(make_vect_envs("LunarLander-v3", 2)).backend == "lanes"
    lanes = make_vect_envs("LunarLander-v3", 2, backend="envpool").replicate(3)
    assert isinstance(lanes, EnvPoolLanes)
    assert lanes.num_lanes == 6
    with pytest.raises(EnvError, match="Pendulum-v1"):
        make_vect_envs("Pendulum-v1", 2, backend="envpool").replicate(1)
    with pytest.raises(EnvError, match="without wrappers"):
        make_vect_envs("CartPole-v1", 2, backend="envpool", render_mode="rgb_array")
    with pytest.raises(EnvError, match="'threads'"):
        make_vect_envs("CartPole-v1", 2, backend="threads")
