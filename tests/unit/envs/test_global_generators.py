"""Environments that draw from generators of the process: streams by lane, the same for any number of processes."""

from __future__ import annotations

import errno
import itertools
import random
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from process_kinds import Crashing, GlobalGenerators, LateDraws, Plain, SeedsGlobally
from small_envs import ParallelGame

import agilerl
from agilerl.collect.determinism import Probe, probe_determinism
from agilerl.envs import generators, healing
from agilerl.envs.generators import Construction, constructing, isolated
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.teams import TeamLanes
from agilerl.envs.vector import make_vect_envs


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit the classes of this module, whatever threads earlier tests have left."""
    for module in (healing,):
        monkeypatch.setattr(module, "start_method", lambda: "fork")


SEEDS = np.array([11, 12, 13, 14])


def state() -> str:
    return repr((np.random.get_state(), random.getstate(), torch.get_rng_state().tolist()))


def drawn_from_numpy(seed: int, count: int) -> np.ndarray:
    """The first uniform numbers of the state that a lane with this seed has; independent of the package."""
    bits = np.random.MT19937(np.random.SeedSequence(seed, spawn_key=(19,)))
    return np.random.RandomState(bits).random_sample(count)


class Uniform(Plain):
    def draw(self) -> float:
        return float(np.random.rand())


def play(lanes: Any, steps: int = 12, seeds: Any = SEEDS) -> np.ndarray:
    """Observations [steps + 1, L, 2]."""
    rows = [lanes.reset(seeds)[0], *(lanes.step(np.zeros(lanes.num_lanes, int)).obs for _ in range(steps))]
    lanes.close()
    return np.stack(rows)


def test_a_lane_draws_from_a_state_of_its_seed() -> None:
    seen = play(SyncLanes([Uniform] * 4))[:, :, 0]
    # In the step that ends an episode the number is drawn twice: by the step, and by the reset that follows.
    order = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14]
    for lane, seed in enumerate(SEEDS.tolist()):
        np.testing.assert_array_equal(seen[:, lane], drawn_from_numpy(seed, 15)[order].astype(np.float32))


@pytest.mark.parametrize("kind", [Uniform, GlobalGenerators, SeedsGlobally])
def test_draws_are_the_same_for_any_number_of_processes(kind: Any) -> None:
    before = state()
    with constructing(Construction(5, True)):
        alone = play(SyncLanes([kind] * 4))
        assert state() == before
        for workers in (1, 2, 4):
            np.testing.assert_array_equal(play(HealingLanes([kind] * 4, num_workers=workers)), alone)
    assert len(np.unique(alone[..., 0])) == alone[..., 0].size
    assert state() == before


def test_construction_draws_differ_by_lane_and_by_use() -> None:
    def shifts(is_training: bool, first: int, count: int, replacement: int = 0) -> list[float]:
        with constructing(Construction(5, is_training, first, replacement)):
            return [env.shift for env in SyncLanes([GlobalGenerators] * count).envs]

    whole = shifts(True, 0, 4)
    assert len(set(whole)) == 4
    assert shifts(True, 2, 2) == whole[2:]
    assert not set(shifts(True, 0, 4, replacement=1)) & set(whole)
    (evaluation,) = set(shifts(False, 0, 4))  # any process may play any episode
    assert evaluation not in whole


def test_draws_that_begin_late_are_repeatable_from_the_next_seeds_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 3 vector steps no generator is exchanged any more. The eleventh episode of the class draws from one."""
    monkeypatch.setattr(generators, "WATCHED_STEPS", 3)
    outcomes = []
    for workers in (0, 1, 2):
        monkeypatch.setattr(LateDraws, "episodes", 0)
        lanes: Any = HealingLanes([LateDraws] * 4, num_workers=workers) if workers else SyncLanes([LateDraws] * 4)
        lanes.reset(SEEDS)
        for _ in range(30):
            lanes.step(np.zeros(4, int))
        before = state()
        outcomes.append(play(lanes, seeds=SEEDS + 4))
        assert state() == before
    np.testing.assert_array_equal(outcomes[1], outcomes[0])
    assert len(np.unique(outcomes[0][..., 0])) == outcomes[0][..., 0].size


def test_environments_that_draw_from_none_of_them_are_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "WATCHED_STEPS", 3)
    lanes = SyncLanes([Plain] * 2)
    lanes.reset(SEEDS[:2])
    exchanged = []
    for _ in range(4):
        exchanged.append(lanes.generators.are_exchanged)
        lanes.step(np.zeros(2, int))
    assert exchanged == [True, True, True, False]
    lanes.reset(SEEDS[:2])
    assert not lanes.generators.are_exchanged
    own = SyncLanes([partial(gym.make, "Acrobot-v1")])
    own.reset(SEEDS[:1])
    assert not own.generators.are_exchanged, "Gymnasium's draw from np_random"


def test_a_normal_number_that_numpy_keeps_for_its_next_draw_is_kept() -> None:
    with isolated(1):
        np.random.standard_normal()
        kept = np.random.get_state(legacy=False)
        play(SyncLanes([Uniform] * 2), seeds=SEEDS[:2])
        assert kept["has_gauss"] == 1
        assert repr(np.random.get_state(legacy=False)) == repr(kept)


def test_lanes_without_seeds_use_the_generators_of_this_process() -> None:
    with isolated(4):
        lanes = SyncLanes([Uniform] * 2)
        first = lanes.reset()[0][:, 0]
    with isolated(4):
        np.testing.assert_array_equal(first, np.random.rand(2).astype(np.float32))
    workers = HealingLanes([Uniform] * 4, num_workers=4)
    assert len(np.unique(workers.reset()[0][:, 0])) == 4, "of no two processes"
    workers.close()


def test_a_replaced_worker_draws_other_numbers(tmp_path: Path) -> None:
    kind = type("Crashes", (Crashing,), {"folder": tmp_path})
    with constructing(Construction(5, True)):
        lanes, alone = HealingLanes([kind] * 4, num_workers=2), play(SyncLanes([kind] * 4), 8)
    seen = [lanes.reset(SEEDS)[0]]
    for step in range(8):
        if step == 3:
            (tmp_path / "token").touch()
        seen.append(lanes.step(np.zeros(4, int)).obs)
    assert lanes.restarts == 1
    numbers = np.stack(seen)[..., 0]
    (hurt,) = {fault.lanes for fault in lanes.faults}
    stay = [lane for lane in range(4) if not hurt[0] <= lane <= hurt[1]]
    np.testing.assert_array_equal(numbers[:, stay], alone[:, stay, 0])
    assert len(np.unique(numbers)) == numbers.size
    lanes.close()


def test_an_environment_finds_a_port_beside_some_hundred_others() -> None:
    """Each worker counts ports from where it was forked, past those of all training, evaluation and confirmation."""
    ports = itertools.count(1)

    def factory() -> int:
        if (port := next(ports)) <= 400:
            raise OSError(errno.EADDRINUSE, "in use")
        return port

    assert generators.construct([factory, factory]) == [401, 402]


def test_two_copies_with_the_same_seeds_are_the_same() -> None:
    """So that a run is repeated by its seed, and resumes to the bit."""
    env = make_vect_envs(make_env=GlobalGenerators, num_envs=2, seed=3)
    agent = agilerl.algorithms.DQN(Plain.observation_space, Plain.action_space)
    assert probe_determinism(env, agent, 3, 10**6) == Probe(True)


class Team(ParallelGame):
    """Two agents that observe a number of the process's generator."""

    observed = dict.fromkeys(("a", "b"), spaces.Box(0, 1, (1,), np.float32))
    acted, length, is_cut = dict.fromkeys(("a", "b"), spaces.Discrete(2)), 3, True

    def observe(self) -> dict[str, Any]:
        return {agent: np.array([np.random.rand()], np.float32) for agent in self.observed}


def test_teams_draw_by_lane_too() -> None:
    def seen(lanes: Any) -> np.ndarray:
        rows = [lanes.reset(SEEDS)[0]]
        rows += [lanes.step(np.zeros((4, 2), np.float32)).obs for _ in range(5)]
        lanes.close()
        return np.stack([[row["agents"][agent] for agent in "ab"] for row in rows])

    before = state()
    alone = seen(TeamLanes([Team] * 4))
    assert state() == before
    for workers in (1, 2):
        np.testing.assert_array_equal(seen(HealingLanes([Team] * 4, build=TeamLanes, num_workers=workers)), alone)
    assert len(np.unique(alone)) == alone.size


@pytest.mark.thorough
@pytest.mark.parametrize("should_async_vector", [False, True])
def test_starts_of_a_run_are_all_different_and_the_same_for_any_number_of_workers(
    should_async_vector: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, evaluation, confirmation and random play of one member, eight lanes, three generations."""
    starts = {}
    for workers in (1, 2, 4) if not should_async_vector else (1,):
        monkeypatch.setenv("AGILERL_TEST_STARTS", str(tmp_path / str(workers)))
        environment = {"name": "Uniform", "num_envs": 8, "num_workers": workers}
        training = {"evo_steps": 160, "eval_episodes": 8, "target_score": None, "learning_delay": 0}
        env: Any = Uniform
        if should_async_vector:
            env = make_vect_envs(make_env=Uniform, num_envs=8, should_async_vector=True)
        agilerl.train(
            env, config={"algorithm": "DQN", "environment": environment, "training": training}, population=1,
            steps=320, seed=1, out=None, verbose=False,
        )  # fmt: skip
        starts[workers] = sorted((tmp_path / str(workers)).read_text().split())
    assert len(set(starts[1])) == len(starts[1]) > 50
    assert all(each == starts[1] for each in starts.values())
