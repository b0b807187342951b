"""Replay as a data set: which row follows on which, what a run's directory gives back, and what is no data set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.algorithms import IQL
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import Dataset, read_dataset
from agilerl.data.memories import in_episodes
from agilerl.errors import ConfigError, RunError, ShapeError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

SMALL = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
SHORT: dict[str, Any] = {
    "population": 2, "steps": 60, "evo_steps": 60, "learning_delay": 40, "eval_episodes": 1, "eval_steps": 5,
    "target_score": None, "confirm_episodes": 0, "num_envs": 2, "verbose": False,
}  # fmt: skip
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "ended")


def same(one: Dataset, other: Dataset) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


# --- the order of episodes ------------------------------------------------------------------------------------------


def test_steps_of_two_lanes_are_put_behind_those_that_they_follow_on() -> None:
    # lane 1: 0 -> 1 -> 2 (terminated), then 5 -> 6; lane 2: 10 -> 11 -> 12 -> 13 (cut), in turn
    obs = np.array([0, 10, 1, 11, 5, 12], np.float32)[:, None]
    later = np.array([1, 11, 2, 12, 6, 13], np.float32)[:, None]
    order, ended = in_episodes(obs, later, np.array([0, 0, 1, 0, 0, 0], bool))
    assert order.tolist() == [0, 2, 1, 3, 5, 4]
    assert ended.tolist() == [False, True, False, False, True, True]


def test_nothing_follows_on_a_terminal_step_that_looks_as_if_it_did() -> None:
    obs, later = np.array([[0.0], [1.0]]), np.array([[1.0], [2.0]])
    assert in_episodes(obs, later, np.array([False, False]))[1].tolist() == [False, True]
    assert in_episodes(obs, later, np.array([True, False]))[1].tolist() == [True, True]


def test_where_two_wait_for_the_same_observation_the_one_that_waits_longer_goes_on() -> None:
    obs, later = np.array([[0], [1], [7], [7]]), np.array([[7], [7], [8], [9]])
    order, ended = in_episodes(obs, later, np.zeros(4, bool))
    assert order.tolist() == [0, 2, 1, 3]
    assert ended.tolist() == [False, True, False, True]


@pytest.mark.parametrize("width", [3, 200], ids=["bytes", "digests"])
def test_a_ring_that_has_gone_round_begins_with_its_oldest_row(width: int) -> None:
    memory = ReplayBuffer(max_size=4)
    for step in range(6):
        obs = np.full((1, width), step, np.float32)
        memory.write(obs, np.array([step % 2]), np.array([float(step)]), obs + 1, np.array([False]))
    data = read_dataset(memory)
    assert data.reward.tolist() == [2, 3, 4, 5]
    assert data.ended.tolist() == [False, False, False, True]
    assert data.action.tolist() == [0, 1, 0, 1]
    assert (data.is_stored, data.missing, data.left_out) == (True, ("timeouts",), 0)


def test_masks_of_legal_actions_come_along() -> None:
    memory = ReplayBuffer(max_size=4)
    legal, after = np.array([[True, False]]), np.array([[False, True]])
    obs = np.zeros((1, 2), np.float32)
    memory.write(obs, np.array([0]), np.array([1.0]), obs, np.array([True]), next_mask=after, obs_mask=legal)
    data = read_dataset(memory)
    assert data.obs_mask is not None
    assert data.next_mask is not None
    assert data.obs_mask.tolist() == [[True, False]]
    assert data.next_mask.tolist() == [[False, True]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_memory_of_the_older_dialect_is_read_by_its_roles() -> None:
    names = ["state", "action", "reward", "next_state", "done"]
    memory = ReplayBuffer(memory_size=8, field_names=names)
    for step in range(3):
        obs = np.full(2, step, np.float32)
        memory.save_to_memory(obs, step % 2, float(step), obs + 1, step == 1)
    data = read_dataset(memory)
    assert data.obs[:, 0].tolist() == [0, 1, 2]
    assert data.action.tolist() == [0, 1, 0]
    assert data.terminated.tolist() == [False, True, False]
    assert data.ended.tolist() == [False, True, True]
    memory = ReplayBuffer(memory_size=8, field_names=names[:3])
    memory.save_to_memory(np.zeros(2, np.float32), 0, 1.0)
    with pytest.raises(ConfigError, match="holds obs, action, reward, and lacks next_obs, done"):
        read_dataset(memory)


# --- of a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = agilerl.train("CartPole-v1", "DQN", out=tmp_path_factory.mktemp("runs"), seed=2, **SHORT)
    assert found.path is not None
    return found.path


def test_the_replay_of_a_run_is_what_its_members_saw(run: Path) -> None:
    data = read_dataset(run)
    assert len(data) == 2 * 60
    fell = (np.abs(data.next_obs[:, 0]) > 2.4) | (np.abs(data.next_obs[:, 2]) > 12 * 2 * np.pi / 360)
    assert np.array_equal(data.terminated, fell)
    inside = ~data.ended[:-1]
    assert np.array_equal(data.obs[1:][inside], data.next_obs[:-1][inside])
    assert np.abs(data.obs[np.flatnonzero(data.ended)[:-1] + 1]).max() < 0.05  # how CartPole begins
    assert data.env_id == "CartPole-v1"
    assert data.about["algo"] == "DQN"
    assert data.source["path"] == str(run.resolve())


def test_a_run_on_disk_is_the_memory_that_it_had(tmp_path: Path) -> None:
    env, memory = make_vect_envs("CartPole-v1", num_envs=2), PrioritizedReplayBuffer(40)  # goes round
    population = create_population(
        "DQN", observation_space=env.single_observation_space, action_space=env.single_action_space, net_config=SMALL,
        INIT_HP={"BATCH_SIZE": 8}, population_size=2, seed=1,
    )  # fmt: skip
    train_off_policy(
        env, "CartPole-v1", "DQN", population, memory, max_steps=60, evo_steps=30, eval_steps=5, per=True,
        verbose=False, seed=4, resume=tmp_path / "run",
    )  # fmt: skip
    there, here = read_dataset(tmp_path / "run"), read_dataset(memory)
    assert len(here) == 40
    assert same(there, here)
    assert there.source["sha256"] == here.source["sha256"]


def test_a_run_and_its_memory_teach_the_same_by_either_way(run: Path, tmp_path: Path) -> None:
    short = {**SHORT, "steps": 10, "evo_steps": 10, "out": None}
    del short["learning_delay"]
    by_path = agilerl.train("CartPole-v1", "CQN", dataset=str(run), **short)
    data = read_dataset(run)
    path = tmp_path / "same.npz"
    np.savez(
        path, observations=data.obs, actions=data.action, rewards=data.reward, terminals=data.terminated,
        next_observations=data.next_obs,
    )  # fmt: skip
    by_file = agilerl.train("CartPole-v1", "CQN", dataset=str(path), **short)
    for one, other in zip(by_path.population, by_file.population, strict=True):
        pairs = zip(one.actor.parameters(), other.actor.parameters(), strict=True)
        assert all(np.array_equal(a.detach().numpy(), b.detach().numpy()) for a, b in pairs)


def test_stored_actions_of_a_box_are_taken_as_they_are() -> None:
    space = gym.spaces.Box(np.array([0, -4], np.float32), np.array([10, 4], np.float32))
    agent = IQL(gym.spaces.Box(-1, 1, (3,), np.float32), space, net_config=SMALL)
    earlier, memory, rng = ReplayBuffer(8), ReplayBuffer(8), np.random.default_rng(0)
    raw = rng.uniform(-1, 1, (5, 2)).astype(np.float32)
    obs = rng.normal(size=(5, 3)).astype(np.float32)
    earlier.write(obs, raw, np.zeros(5), obs + 1, np.zeros(5, bool))
    fill(memory, read_dataset(earlier), agent, OfflineOptions(max_steps=1, evo_steps=1))
    assert np.array_equal(memory.gather(np.arange(5))["action"].numpy(), raw)


def test_stored_actions_of_a_run_are_those_that_the_environment_rewarded(tmp_path: Path) -> None:
    found = agilerl.train("Pendulum-v1", "TD3", out=tmp_path, reward_scale=0.1, **{**SHORT, "random_steps": 200})
    data = read_dataset(found.path)
    assert np.abs(data.action).max() <= 1
    torque = found.population[0].environment_action(data.action)[:, 0]
    angle = np.arctan2(data.obs[:, 1], data.obs[:, 0]).astype(np.float64)
    cost = angle**2 + 0.1 * data.obs[:, 2].astype(np.float64) ** 2 + 0.001 * torque.astype(np.float64) ** 2
    assert data.reward == pytest.approx(-cost, abs=1e-4)
    assert np.abs(torque).max() > 1.1  # so that raw ones would not do


def test_rewards_of_a_run_are_those_of_its_environment(tmp_path: Path) -> None:
    scaled = agilerl.train("CartPole-v1", "DQN", out=tmp_path, reward_scale=0.1, **SHORT)
    data = read_dataset(scaled.path)
    assert data.reward == pytest.approx(np.ones(len(data)), abs=1e-6)
    assert "rewards" not in data.about
    clipped = agilerl.train("CartPole-v1", "DQN", out=tmp_path, clip_rewards=True, reward_scale=2.0, **SHORT)
    data = read_dataset(clipped.path)
    assert data.reward.tolist() == [1.0] * len(data)
    assert data.about["rewards"] == "their sign alone"


# --- what is no data set ---------------------------------------------------------------------------------------------


def test_memories_of_something_else_are_named() -> None:
    with pytest.raises(ConfigError, match="the memory is empty"):
        read_dataset(ReplayBuffer(4))
    with pytest.raises(ConfigError, match="sums over 3 steps"):
        read_dataset(MultiStepReplayBuffer(4, n_step=3))


def test_folders_without_replay_are_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RunError, match="is not a run directory"):
        read_dataset(tmp_path / "nothing")
    short = {**SHORT, "steps": 10, "evo_steps": 10, "out": tmp_path}
    del short["learning_delay"]
    of_data = agilerl.train("CartPole-v1", "CQN", dataset=str(run), **short)
    with pytest.raises(ConfigError, match=f"learned from {run} and keeps no replay. fix: dataset="):
        read_dataset(of_data.path)
    of_rollouts = agilerl.train("CartPole-v1", "PPO", **short)
    with pytest.raises(ConfigError, match="keeps no replay: PPO does not learn from one"):
        read_dataset(of_rollouts.path)


def test_damaged_replay_is_refused_and_nothing_is_renamed(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (segment,) = (broken / "replay" / "memory").iterdir()
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(bytes(content))
    before = sorted(str(path) for path in broken.rglob("*"))
    with pytest.raises(RunError, match=r"the replay of the run is damaged: .* fix: another run"):
        read_dataset(broken)
    assert sorted(str(path) for path in broken.rglob("*")) == before


def test_a_set_of_another_environment_is_refused(run: Path, tmp_path: Path) -> None:
    short = {**SHORT, "steps": 10, "evo_steps": 10, "out": tmp_path / "runs"}
    del short["learning_delay"]
    with pytest.raises(ConfigError, match=r"recorded in CartPole-v1, and the environment is Acrobot-v1. fix: data of"):
        agilerl.train("Acrobot-v1", "CQN", dataset=str(run), **short)
    assert not list((tmp_path / "runs").glob("*/*"))


def test_a_set_of_another_kind_of_actions_is_refused(tmp_path: Path) -> None:
    rows = {"observations": np.zeros((4, 3), np.float32), "actions": np.zeros((4, 1), np.float32)}
    rows |= {"rewards": np.zeros(4), "terminals": np.zeros(4, bool), "next_observations": np.zeros((4, 3), np.float32)}
    path = tmp_path / "data.npz"
    np.savez(path, **rows, about=np.array(json.dumps({"action_space": "Discrete(3)"})))
    short = {**SHORT, "steps": 10, "evo_steps": 10, "out": None}
    del short["learning_delay"]
    with pytest.raises(ConfigError, match=r"actions of Discrete\(3\); IQL was built for Box"):
        agilerl.train("Pendulum-v1", "IQL", dataset=str(path), **short)
    np.savez(path, **{**rows, "actions": np.full((4, 1), 2.5)})
    with pytest.raises(ShapeError, match=r"actions of 4 of 4 rows lie outside of Box\(-2.0, 2.0"):
        agilerl.train("Pendulum-v1", "IQL", dataset=str(path), **short)
