"""Training in lanes that do not wait for each other: what is stored and counted, in any order of completion."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sinks import Kept
from small_envs import Episodes, PlainCartPole
from test_overlap import SMALL, facts

import agilerl
from agilerl.algorithms import DQN
from agilerl.collect.asynchronous_acting import StepDraws
from agilerl.collect.collector import ASYNCHRONOUS_NOTE, Tally
from agilerl.collect.rollouts import OnPolicyGeneration
from agilerl.collect.updates import Updates
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.config import apply_overrides
from agilerl.config.load import manifest_from, preset_for
from agilerl.config.schema import Manifest
from agilerl.envs import ready
from agilerl.envs.vector import HealingVectEnv, make_vect_envs
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.telemetry.record import BaseSink
from agilerl.training.manifest.environment_task import make_environments
from agilerl.training.train_off_policy import train_off_policy

APART: dict[str, Any] = {"environment.healing": True, "environment.asynchronous": True}
ROLLOUTS: dict[str, Any] = {
    name: value for name, value in SMALL.items() if name != "learning_delay"
} | {"steps": 128, "evo_steps": 64, "learn_step": 32, "batch_size": 16}  # fmt: skip


class Log(gym.Env[Any, Any]):
    """The observation holds the episode (two numbers), its step, its length and the last action.

    Episodes last 1 to 12 steps, and half of them end by truncation. The reward of step t is t + action / 10.

    Args:
        folder: the first environment to take `folder/token` dies in its third step.
    """

    observation_space = spaces.Box(0, 2**20, (5,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.total = folder, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.name, self.steps = self.np_random.integers(2**20, size=2), 0
        self.length = int(self.np_random.integers(1, 13))
        return self._seen(0), {}

    def _seen(self, action: Any) -> np.ndarray:
        return np.array([*self.name, self.steps, self.length, action], np.float32)

    def step(self, action: Any) -> Any:
        self.steps, self.total = self.steps + 1, self.total + 1
        if self.total == 3 and self.folder is not None:
            try:
                (self.folder / "token").unlink()
            except FileNotFoundError:  # another one was first
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        is_over, is_truncated = self.steps == self.length, bool(self.length % 2)
        reward = self.steps + action / 10
        return self._seen(action), reward, is_over and not is_truncated, is_over and is_truncated, {}


@pytest.fixture
def any_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let workers answer in a random order, drawn from a seed: some of those that have answered are not heard yet."""
    rng, sizes = np.random.default_rng(7), list[int]()

    def some(connections: list[Any], timeout: float) -> list[Any]:
        answered = [c for c in connections if wait([c], 30.0)]  # all of them: the order must not depend on timing
        chosen = rng.permutation(len(answered))[: rng.integers(1, len(answered) + 1)]
        sizes.append(len(chosen))
        return [answered[number] for number in sorted(chosen)]

    monkeypatch.setattr(ready, "wait_for", some)
    yield sizes
    assert len(set(sizes)) > 1, "lanes completed apart"


def trained(memory: Any, max_steps: int, folder: Path | None = None, n_step: bool = False, lanes: int = 3) -> list[Any]:
    """Train two members for one generation, with a worker for each lane; return them."""
    env = make_vect_envs(
        make_env=partial(Log, folder), num_envs=lanes, healing=True, num_workers=2 * lanes, asynchronous=True
    )
    agents = DQN.population(
        2, Log.observation_space, Log.action_space, seed=1, net_config={"latent_dim": 8}, batch_size=8, learn_step=48,
        gamma=0.5,
    )  # fmt: skip
    try:
        population, _ = train_off_policy(
            env, "Log", pop=agents, memory=memory, max_steps=max_steps, evo_steps=max_steps, eval_loop=1, eval_steps=5,
            verbose=False, seed=3, n_step=n_step,
        )  # fmt: skip
        return population
    finally:
        env.close()


def rows_of(memory: Any) -> dict[str, np.ndarray]:
    return {name: part.double().numpy() for name, part in memory.gather(np.arange(len(memory))).items()}


def steps_by_episode(rows: dict[str, np.ndarray]) -> dict[tuple[float, ...], list[int]]:
    episodes: dict[tuple[float, ...], list[int]] = {}
    for obs in rows["obs"]:
        episodes.setdefault(tuple(obs[:2]), []).append(int(obs[2]))
    return episodes


@pytest.mark.thorough
def test_a_thousand_transitions_belong_together_and_scores_are_those_of_whole_episodes(any_order: list[int]) -> None:
    memory = ReplayBuffer(10_000)
    agents = trained(memory, 600)
    rows = rows_of(memory)
    obs, after, action = rows["obs"], rows["next_obs"], rows["action"].reshape(-1)
    assert len(obs) == 1200 == sum(agent.steps[-1] for agent in agents)
    np.testing.assert_array_equal(obs[:, [0, 1, 3]], after[:, [0, 1, 3]])
    np.testing.assert_array_equal(after[:, 2], obs[:, 2] + 1)
    np.testing.assert_array_equal(after[:, 4], action)
    np.testing.assert_allclose(rows["reward"].reshape(-1), after[:, 2] + action / 10, rtol=1e-6)
    ended, is_truncated = after[:, 2] == after[:, 3], after[:, 3] % 2 == 1
    np.testing.assert_array_equal(rows["done"].reshape(-1), ended & ~is_truncated)
    episodes = steps_by_episode(rows)
    assert all(steps == list(range(len(steps))) for steps in episodes.values())
    assert sum(1 for row in ended if row) >= len(episodes) - 6, "episodes are left open at the end alone"
    assert sum(any_order) == 1200
    totals: dict[tuple[float, ...], float] = {}
    for row, reward in zip(obs, rows["reward"].reshape(-1), strict=True):
        totals[tuple(row[:2])] = totals.get(tuple(row[:2]), 0.0) + reward
    whole = {tuple(row[:2]) for row, is_last in zip(after, ended, strict=True) if is_last}
    scores = sorted(score for agent in agents for score in agent.scores)
    assert scores == pytest.approx(sorted(totals[name] for name in whole), rel=1e-5)


@pytest.mark.thorough
def test_windows_of_several_steps_follow_their_lanes(any_order: list[int]) -> None:
    memory = MultiStepReplayBuffer(10_000, n_step=3, gamma=0.5)
    trained(memory, 300, n_step=True)
    rows = rows_of(memory)
    obs, after, discount = rows["obs"], rows["next_obs"], rows["discount"].reshape(-1)
    count = after[:, 2] - obs[:, 2]
    np.testing.assert_array_equal(obs[:, [0, 1, 3]], after[:, [0, 1, 3]])
    is_cut = after[:, 2] < np.minimum(obs[:, 2] + 3, obs[:, 3])
    assert is_cut.sum() <= 2 * 6, "windows of the lanes' last steps, which the end of the generation cuts"
    assert len(obs) == 600
    done = (after[:, 2] == after[:, 3]) & (after[:, 3] % 2 == 0)
    np.testing.assert_allclose(discount, np.where(done, 0.0, 0.5**count), rtol=1e-6)
    actions = {(*row[:2], row[2]): a for row, a in zip(obs.tolist(), rows["action"].reshape(-1).tolist(), strict=True)}
    for row, steps, reward in zip(obs.tolist(), count.astype(int).tolist(), rows["reward"].reshape(-1), strict=True):
        each = [row[2] + j + 1 + actions[(*row[:2], row[2] + j)] / 10 for j in range(steps)]
        assert reward == pytest.approx(sum(0.5**j * value for j, value in enumerate(each)), rel=1e-5)


@pytest.mark.thorough
def test_pairs_of_memories_stay_row_by_row(any_order: list[int]) -> None:
    memory, n_step = PrioritizedReplayBuffer(4096), MultiStepReplayBuffer(4096, n_step=3, gamma=0.5)
    env = make_vect_envs(make_env=Log, num_envs=2, healing=True, num_workers=4, asynchronous=True)
    agents = DQN.population(2, Log.observation_space, Log.action_space, seed=1, batch_size=8, learn_step=48, gamma=0.5)
    train_off_policy(
        env, "Log", pop=agents, memory=memory, n_step_memory=n_step, n_step=True, per=True, max_steps=300,
        evo_steps=300, eval_steps=5, verbose=False, seed=3,
    )  # fmt: skip
    env.close()
    first, later = rows_of(memory), rows_of(n_step)
    assert len(first["obs"]) == 600
    for name in ("obs", "action"):
        np.testing.assert_array_equal(first[name], later[name])
    np.testing.assert_array_equal(first["next_obs"][:, 2], first["obs"][:, 2] + 1)


@pytest.mark.thorough
def test_a_worker_killed_in_flight_loses_its_step_alone(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    memory = ReplayBuffer(4096)
    agents = trained(memory, 300, tmp_path)
    assert not (tmp_path / "token").exists()
    rows = rows_of(memory)
    assert len(rows["obs"]) == 600 == sum(agent.steps[-1] for agent in agents), "the lost step was made again"
    np.testing.assert_array_equal(rows["next_obs"][:, 2], rows["obs"][:, 2] + 1)
    np.testing.assert_array_equal(rows["next_obs"][:, 4], rows["action"].reshape(-1))
    assert all(steps == list(range(len(steps))) for steps in steps_by_episode(rows).values())


class Token(BaseSink):
    """Puts the token there when training begins, after random play."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, plan: Any, founders: Any) -> None:
        (self.folder / "steps").unlink(missing_ok=True)
        (self.folder / "token").touch()


class Waiting(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole; the one that takes the token waits in its second step until all together have made `goal` steps."""

    def __init__(self, folder: Path, goal: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.folder, self.goal, self.made = folder, goal, 0

    def step(self, action: Any) -> Any:
        self.made += 1
        with (self.folder / "steps").open("ab") as file:
            file.write(b".")
        if self.made == 2:
            try:
                (self.folder / "token").unlink()
            except FileNotFoundError:
                pass
            else:
                while (self.folder / "steps").stat().st_size < self.goal:
                    time.sleep(0.001)
        return super().step(action)


@pytest.mark.thorough
def test_a_run_goes_on_while_one_lane_is_slow(tmp_path: Path) -> None:
    """96 steps of both members, and one lane waits until 90 have been made: lanes that wait would all wait for ever."""
    env = partial(Waiting, tmp_path, 90)
    options = {**SMALL, "steps": 48, "environment.num_workers": 4, "environment.max_restarts": 0}
    run = agilerl.train(env, "DQN", sinks=[Token(tmp_path)], **APART, **options)
    assert not (tmp_path / "token").exists()
    assert (run.result["env_steps_population"], run.result["restarts"]) == (96, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["DQN", "RainbowDQN"])
@pytest.mark.parametrize("overlap", [False, True])
def test_lanes_that_complete_together_give_the_run_of_lanes_that_wait(algo: str, overlap: bool) -> None:
    """One worker has all lanes: noise, exploration rate, updates and counts are those of vector steps."""
    one, other = (
        agilerl.train(
            PlainCartPole, algo, overlap=overlap, **SMALL,
            **{**APART, "environment.asynchronous": asynchronous, "environment.num_workers": 1},
        )
        for asynchronous in (False, True)
    )  # fmt: skip
    assert one.result["updates"] > 0
    assert facts(one) == facts(other)


@pytest.mark.thorough
def test_updates_follow_the_transitions_of_the_population(
    any_order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    original = Updates.learn

    def learn(self: Any, index: int) -> None:
        calls.append((index, self.replay.memory.counter))
        original(self, index)

    monkeypatch.setattr(Updates, "learn", learn)
    run = agilerl.train(PlainCartPole, "DQN", learn_step=1, **APART, **{**SMALL, "environment.num_workers": 4})
    assert [index for index, _ in calls] == [*range(24), *range(24)]
    for number, (_, counter) in enumerate(calls, 1):
        assert 4 * number <= counter <= 4 * number + 3
    counted = sum(1 for number, (_, counter) in enumerate(calls) if counter > 8)
    assert run.result["updates"] == 2 * 2 * counted, "two updates of each member for two steps of each"
    assert run.result["env_steps_population"] == 192


@pytest.mark.thorough
def test_exploration_decays_with_vector_steps(any_order: list[int]) -> None:
    sink, options = Kept(), {**SMALL, "eps_decay": 0.98, "eps_end": 0.4, "eps_start": 1.0}
    agilerl.train(PlainCartPole, "DQN", sinks=[sink], **{**APART, **options, "environment.num_workers": 4})
    assert [record.epsilon for record in sink.records] == pytest.approx([0.98**24, 0.4])


@pytest.mark.thorough
def test_a_diverged_member_ends_and_the_others_make_their_steps(
    any_order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, tallies = Updates.learn, list[Tally]()

    def learn(self: Any, index: int) -> None:
        original(self, index)
        tallies[:] = self.tallies
        if index == 5:
            with torch.no_grad():
                next(self.agents[1].policy_module().parameters()).view(-1)[3] = float("nan")

    monkeypatch.setattr(Updates, "learn", learn)
    options = {**SMALL, "steps": 48, "environment.num_workers": 4, "learner": "sequential"}
    run = agilerl.train(PlainCartPole, "DQN", **APART, **options)
    assert run.result["quarantined"] == 1
    assert tallies[0].fault is None
    assert tallies[1].fault == "its weights are not finite"
    assert 18 * 2 <= tallies[0].env_steps <= 48 + 24
    assert tallies[1].env_steps < 48


# -- rollouts --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_rewards": True, "normalize_observations": True},
        {"mutation.rl_hp_selection": {"learn_step": {"min": 16, "max": 64}}, "evolution.founders": "spread"},
    ],
    ids=["plain", "normalized", "several groups"],
)
def test_rollouts_filled_lane_by_lane_have_the_bits_of_vector_steps(any_order: list[int], options: Any) -> None:
    one, other = (
        agilerl.train(
            PlainCartPole, "PPO",
            **{**ROLLOUTS, **APART, **options, "environment.num_workers": 4, "environment.asynchronous": asynchronous},
        )
        for asynchronous in (False, True)
    )  # fmt: skip
    assert one.result["updates"] > 0
    assert facts(one) == facts(other)


class Masked(Episodes):
    """Random legal actions in the info; episodes of 7 steps that a limit of 5 cuts in training."""

    observation_space, action_space, length = spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(3), 7

    def observe(self) -> Any:
        return self.np_random.random(3, np.float32)

    def info(self) -> dict[str, Any]:
        mask = np.ones(3, np.int8)
        mask[self.np_random.integers(3)] = 0
        return {"action_mask": mask}

    def reward(self, action: Any) -> float:
        return float(action)


@pytest.mark.thorough
def test_rollouts_keep_masks_and_truncations(any_order: list[int]) -> None:
    one, other = (
        agilerl.train(
            Masked, "PPO",
            **{
                **ROLLOUTS, **APART, "training.train_max_episode_steps": 5, "environment.num_workers": 4,
                "environment.asynchronous": asynchronous,
            },
        )
        for asynchronous in (False, True)
    )  # fmt: skip
    assert facts(one) == facts(other)


@pytest.mark.thorough
def test_a_rollout_goes_on_while_one_lane_is_slow(tmp_path: Path) -> None:
    """A rollout has 16 steps in each of 4 lanes; the slow one waits in its second until 3 · 16 + 2 have been made."""
    options = {**ROLLOUTS, "steps": 32, "evo_steps": 32, "environment.num_workers": 4, "environment.max_restarts": 0}
    run = agilerl.train(partial(Waiting, tmp_path, 50), "PPO", sinks=[Token(tmp_path)], **APART, **options)
    assert not (tmp_path / "token").exists()
    assert (run.result["env_steps_population"], run.result["restarts"]) == (64, 0)


@pytest.mark.thorough
def test_a_rollout_survives_a_killed_worker(tmp_path: Path) -> None:
    options = {**ROLLOUTS, "environment.num_workers": 4}
    run = agilerl.train(partial(Log, tmp_path), "PPO", sinks=[Token(tmp_path)], **APART, **options)
    assert not (tmp_path / "token").exists()
    assert run.result["restarts"] == 1
    assert run.result["env_steps_population"] == 256
    assert np.isfinite(run.history).all()


@pytest.mark.thorough
def test_a_rollout_of_diverged_members_ends(monkeypatch: pytest.MonkeyPatch, any_order: list[int]) -> None:
    original = OnPolicyGeneration._learn

    def learn(self: Any, group: Any) -> None:
        original(self, group)
        with torch.no_grad():
            next(self.agents[1].policy_module().parameters()).view(-1)[3] = float("nan")
        self.watch.weights()

    monkeypatch.setattr(OnPolicyGeneration, "_learn", learn)
    options = {**ROLLOUTS, "steps": 64, "environment.num_workers": 4, "learner": "sequential"}
    run = agilerl.train(PlainCartPole, "PPO", **APART, **options)
    assert run.result["quarantined"] == 1


# -- noise of steps --------------------------------------------------------------------------------------------------


def test_noise_belongs_to_a_lane_and_its_step() -> None:
    rng = np.random.default_rng(3)
    counts, made = list[int](), np.random.default_rng(1)
    noise = rng.random((60, 2, 2))

    def draw(count: int) -> tuple[np.ndarray, ...]:
        begin = sum(counts)
        counts.append(count)
        return noise[begin : begin + count], 10 * noise[begin : begin + count]

    draws, steps = StepDraws(draw, 4, 10, (2, 2)), np.zeros(4, np.int64)
    while steps.max() < 40:
        chosen = made.random(4) < 0.5
        if not chosen.any():
            continue
        one, ten = draws.of(steps, chosen)
        at = noise[steps, [0, 0, 1, 1], [0, 1, 0, 1]]
        np.testing.assert_array_equal(one.reshape(-1)[chosen], at[chosen])
        np.testing.assert_array_equal(ten.reshape(-1)[chosen], 10 * at[chosen])
        steps += chosen
    assert counts[:4] == [4, 4, 2, 4], "as many as planned, and more where a lane is faster"


# -- settings --------------------------------------------------------------------------------------------------------


def test_a_manifest_without_the_option_keeps_its_hash() -> None:
    assert Manifest().hash() == manifest_from({"environment": {"asynchronous": False}}, "test").hash()
    healing = {"environment": {"healing": True}}
    asked = {"environment": {"healing": True, "asynchronous": True}}
    assert manifest_from(healing, "test").hash() != manifest_from(asked, "test").hash()
    assert Manifest().hash() == "2c0144c092c2f812", "as stored before the option"


@pytest.mark.thorough
def test_the_plan_says_that_a_run_of_replay_is_not_repeated(tmp_path: Path) -> None:
    run = agilerl.train(
        PlainCartPole, "DQN", **APART, **{**SMALL, "steps": 48, "out": tmp_path, "environment.num_workers": 2}
    )
    record = json.loads((run.path / "run.json").read_text())
    assert record["exact_resume"] is False
    assert record["env_backend"] == "asynchronous"
    assert ASYNCHRONOUS_NOTE in record["notes"]

    again = agilerl.resume(run.path, steps=72, env=PlainCartPole, verbose=False)
    assert again.result["stopped"] == "budget"
    assert again.result["env_steps_member"] >= 72
    assert ASYNCHRONOUS_NOTE in json.loads((run.path / "run.json").read_text())["notes"]


@pytest.mark.parametrize(
    ("algo", "options", "error", "reason"),
    [
        ("DQN", {"training.carry_envs": True}, ConfigError, r"training\.carry_envs=true"),  # by `config check` too
        ("DQN", {"training.shards": 2}, ConfigError, r"training\.shards=2"),
        ("DQN", {"training.lockstep": False}, ConfigError, "one member trains at a time"),
        ("PPO", {"training.carry_envs": True}, ConfigError, r"training\.carry_envs=true"),
        ("PPO", {"recurrent": True}, ConfigError, "recurrent"),
        ("DQN", {"workers": 2}, NotAvailableYetError, "workers=2"),
        ("IPPO", {}, NotAvailableYetError, "IPPO: environments of several agents step together"),
        ("CQL", {"dataset": "any.h5"}, NotAvailableYetError, "CQL: it learns from a data set"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(algo: str, options: Any, error: Any, reason: str) -> None:
    small = {name: SMALL[name] for name in ("steps", "preset", "verbose", "out")} | ({} if algo != "PPO" else ROLLOUTS)
    with pytest.raises(error, match=rf"environment\.asynchronous=true .*{reason}.*fix: "):
        agilerl.train(PlainCartPole, algo, **APART, **small, **options)


def test_it_brings_worker_processes() -> None:
    manifest = apply_overrides(preset_for("CartPole-v1"), {"environment.asynchronous": True})
    env, _ = make_environments(manifest, None)
    assert isinstance(env, HealingVectEnv)
    assert env.asynchronous
    env.close()
