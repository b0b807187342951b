"""EnvPool's lanes against Gymnasium's environments: ends, resets, dynamics, and whose seed matters."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

import agilerl
from agilerl.envs.pool import CONFORMING, EnvPoolLanes
from agilerl.envs.step import Lanes, SyncLanes, as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.rollouts.off_policy import EpisodeTracker

pytest.importorskip("envpool")


def random_play(lanes: Lanes, vector_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths of the episodes completed under random actions."""
    tracker, finished = EpisodeTracker(lanes.num_lanes), []
    actions = batch_space(lanes.single_action_space, lanes.num_lanes)
    actions.seed(0)
    lanes.reset(np.arange(lanes.num_lanes))
    for _ in range(vector_steps):
        finished.append(tracker.update(lanes.step(actions.sample())))
    return np.concatenate([f.returns for f in finished]), np.concatenate([f.lengths for f in finished])


@pytest.mark.parametrize("env_id", CONFORMING)
def test_returns_and_lengths_under_random_actions_are_those_of_gymnasium(env_id: str) -> None:
    steps = {"Acrobot-v1": 1100, "BipedalWalker-v3": 1700}.get(env_id, 500)
    ours = random_play(EnvPoolLanes(env_id, 32), steps)
    theirs = random_play(SyncLanes([lambda: gymnasium.make(env_id)] * 32), steps)
    for pool, single in zip(ours, theirs, strict=True):
        # The difference of two means of about 60 to 700 episodes: 5 standard errors, missed with probability 1e-6.
        error = np.sqrt(pool.var() / len(pool) + single.var() / len(single))
        assert abs(pool.mean() - single.mean()) <= 5 * error + 1e-9


@pytest.mark.parametrize("env_id", CONFORMING)
def test_a_lanes_episodes_depend_on_its_own_seed_and_actions_alone(env_id: str) -> None:
    def run(seeds: list[int], other_action: int, others_rest: bool = False) -> np.ndarray:
        lanes = EnvPoolLanes(env_id, 3)
        shape = lanes.single_action_space.shape or ()
        seen = [lanes.reset(np.array(seeds))[0][1]]
        for step in range(400):
            actions = np.array([other_action, step // 7 % 2, other_action]).reshape(3, *(1 for _ in shape))
            active = np.array([step % 5 == 1, True, False]) if others_rest else None
            seen.append(lanes.step(np.broadcast_to(actions, (3, *shape)), active).obs[1])
        return np.stack(seen)

    first = run([1, 2, 3], 0)
    np.testing.assert_array_equal(first, run([8, 2, 9], 1))
    np.testing.assert_array_equal(first, run([8, 2, 9], 1, others_rest=True))
    assert not np.array_equal(first, run([1, 4, 3], 0))


def test_an_ended_lane_begins_anew_in_the_same_step_with_the_episode_that_envpool_would_begin() -> None:
    import envpool

    lanes, there = EnvPoolLanes("CartPole-v1", 3), np.zeros(3, bool)
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=3, num_threads=1, seed=[5, 6, 7])
    obs, _ = lanes.reset(np.array([5, 6, 7]))
    raw = pool.reset()[0].copy()
    np.testing.assert_array_equal(obs, raw)
    for step in range(200):
        actions = np.full(3, step % 2, np.int32)
        batch = lanes.step(actions, ~there)
        ours = np.where(there[:, None], batch.obs, batch.final_obs)  # EnvPool resets a step later: our lane waits
        raw, reward, terminated, truncated, _ = pool.step(actions)
        np.testing.assert_array_equal(ours, raw)
        np.testing.assert_array_equal(batch.reward, reward)
        np.testing.assert_array_equal(batch.terminated, terminated)
        there = terminated | truncated


def test_a_time_limit_truncates() -> None:
    lanes = EnvPoolLanes("LunarLander-v3", 2, max_episode_steps=7)
    lanes.reset(np.arange(2))
    for step in range(1, 15):
        batch = lanes.step(np.zeros(2, int))
        assert batch.truncated.all() == (step % 7 == 0)
        assert not batch.terminated.any()


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
        for lane in range(4) if step % 20 == 0 or (batch.terminated | batch.truncated).any() else ():
            final, reward, terminated, *_ = cartpole_from(obs[lane], int(actions[lane]))
            np.testing.assert_allclose(batch.final_obs[lane], final, atol=1e-5)
            assert (batch.reward[lane], batch.terminated[lane]) == (reward, terminated)
        assert batch.mask.all()
        assert (np.abs(batch.obs[batch.terminated | batch.truncated]) <= 0.05).all()  # start states
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
    with pytest.raises(EnvError, match="got render_mode"):
        make_vect_envs("CartPole-v1", 2, backend="envpool", render_mode="rgb_array")
    with pytest.raises(EnvError, match="without wrappers"):
        make_vect_envs("CartPole-v1", 2, backend="envpool", should_async_vector=True)
    with pytest.raises(EnvError, match="'threads'"):
        make_vect_envs("CartPole-v1", 2, backend="threads")


def test_two_runs_are_the_same_and_a_stopped_one_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    def train(name: str, **more: Any) -> agilerl.Run:
        settings = {"steps": 512, "evo_steps": 256, "population": 2, "eval_episodes": 3, "confirm_episodes": 2}
        return agilerl.train(
            "LunarLander-v3", "DQN", **settings, learning_delay=64, learn_step=8, target_score=None, seed=3,
            backend="auto", verbose=False, out=tmp_path / name, **more,
        )  # fmt: skip

    whole, again = train("whole"), train("again")
    half = train("half", callbacks=[lambda record: False])
    assert len(half.history) == 1
    assert again.history == whole.history
    assert agilerl.resume(half.path, verbose=False).history == whole.history
    facts = json.loads((half.path / "run.json").read_text())
    assert (facts["env_backend"], facts["versions"]["envpool"]) == ("envpool", metadata.version("envpool"))
