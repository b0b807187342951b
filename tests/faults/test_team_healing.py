"""Environments of several agents that fail are replaced; no other lane notices, nothing of it reaches replay."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import tokens
from gymnasium import spaces

from agilerl.algorithms.maddpg import MADDPG
from agilerl.collect.replay import SharedReplay
from agilerl.components.data import MultiAgentTransition
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs import healing
from agilerl.envs.healing import HealingLanes
from agilerl.envs.masks import ActionMasks
from agilerl.envs.protocol import AGENTS, StepBatch
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError
from agilerl.telemetry.record import BaseSink
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.utils.utils import make_multi_agent_vect_envs

FAULTS = {
    "raise": "failed: FaultyTeam, lane 0: step() raised ValueError: lost",
    "exit": "failed: FaultyTeam, lane 0: step() raised SystemExit",
    "kill": "died: its process ended with exit code -9",
    "hang": "hung: no answer after 1 s",
    "shape": "failed: FaultyTeam, agent b, lane 0: step() gave an observation of shape (3,)",
    "none": "failed: FaultyTeam, agent b, lane 0: step() gave an observation of ndarray array(None",
    "nan": "failed: FaultyTeam, agent b, lane 0: step() gave an observation that is not finite",
    "reward": "failed: FaultyTeam, agent b, lane 0: step() gave the reward nan",
    "vanish": "failed: FaultyTeam, agent b, lane 0: step() has taken the agent out of env.agents",
    "stranger": "failed: FaultyTeam, lane 0: step() gave observations of an unknown agent 'c'",
    "reset": "failed: FaultyTeam, lane 0: reset() raised ValueError: lost",
    "mask": "failed: FaultyTeam, agent b, lane 0: action_mask has 1 entries",
    "illegal": "failed: FaultyTeam, agent b, lane 0: action_mask allows no action",
}
WHEN = {"reset": 5}  # the step of the fault; the fourth, number 3, for all others


class FaultyTeam:
    """Episodes of 6 steps of two agents, reward 1 and 2; at step 4 the fault `mode`, as often as there are tokens."""

    possible_agents = ("a", "b")

    def __init__(self, mode: str = "", folder: Path | None = None) -> None:
        self.mode, self.folder, self.time, self.agents = mode, folder, 0, list(self.possible_agents)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-10, 10, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([self.place, self.time], np.float32) for agent in self.possible_agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.draw = np.random.default_rng(seed)
        self.resets = getattr(self, "resets", 0) + 1
        if self.mode == "reset" and self.resets == 2 and self._take():
            raise ValueError("lost")
        self.time, self.place, self.agents = 0, self.draw.uniform(-1, 1), list(self.possible_agents)
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.time += 1
        seen, reward = self._seen(), {"a": 1.0, "b": 2.0}
        is_over = self.time == 6
        infos: dict[str, Any] = {}
        if self.time == 4 and self.mode != "reset" and self._take():
            infos = {"mask": {"b": {"action_mask": [1]}}, "illegal": {"b": {"action_mask": [0, 0]}}}.get(self.mode, {})
            self._misbehave(seen, reward)
        if is_over:
            self.agents = []
        return seen, reward, dict.fromkeys(seen, False), dict.fromkeys(seen, is_over), infos

    def _take(self) -> bool:
        for token in self.folder.iterdir() if self.folder is not None else ():
            try:
                token.unlink()
                return True
            except FileNotFoundError:  # another worker was faster
                continue
        return False

    def _misbehave(self, seen: dict[str, Any], reward: dict[str, float]) -> None:
        if self.mode == "raise":
            raise ValueError("lost")
        if self.mode == "exit":
            raise SystemExit(3)
        if self.mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode == "hang":
            time.sleep(3600)
        if self.mode == "vanish":
            del seen["b"]
            self.agents = ["a"]
        wrong = {"shape": np.zeros(3), "none": np.array(None), "nan": np.array([np.nan, 0], np.float32)}
        seen |= {"b": wrong[self.mode]} if self.mode in wrong else {}
        seen |= {"c": seen["a"]} if self.mode == "stranger" else {}
        reward |= {"b": float("nan")} if self.mode == "reward" else {}

    def close(self) -> None:
        pass


def twelve_steps(lanes: Any) -> tuple[list[StepBatch], Any]:
    """Twelve steps of four lanes from fixed seeds, and what replay holds of them."""
    replay, batches = SharedReplay(ReplayBuffer(100)), []
    obs, _ = lanes.reset(np.arange(4) + 10)
    for _ in range(12):
        batch = lanes.step(np.ones((4, 2), np.float32))
        replay.write(obs, np.ones((4, 2), np.float32), batch.team.reward, batch, ActionMasks(lanes.single_action_space))
        batches.append(batch)
        obs = batch.obs
    return batches, replay.memory


@pytest.mark.parametrize("mode", FAULTS)
def test_a_worker_of_teams_that_fails_is_replaced_and_other_lanes_do_not_notice(mode: str, tmp_path: Path) -> None:
    make = partial(FaultyTeam, mode, tokens(tmp_path / "t", 1))
    # The first lane alone fails: the second worker's factories have no tokens.
    lanes = HealingLanes([make] + [FaultyTeam] * 3, build=TeamLanes, num_workers=2, deadline_s=1.0)
    got, memory = twelve_steps(lanes)
    assert len(lanes.faults) == lanes.restarts == 1
    assert FAULTS[mode] in str(lanes.faults[0])
    assert "(lanes 0 to 1, seeds 10, 11)" in str(lanes.faults[0])
    lanes.close()
    assert not multiprocessing.active_children()
    expected, _ = twelve_steps(TeamLanes([FaultyTeam] * 4))
    for number, (batch, whole) in enumerate(zip(got, expected, strict=True)):
        assert batch.team is not None
        assert whole.team is not None
        assert batch.mask.tolist() == ([False, False, True, True] if number == WHEN.get(mode, 3) else [True] * 4)
        if number == WHEN.get(mode, 3):
            assert batch.info["healed"].tolist() == [True, True, False, False]
            assert batch.truncated.tolist() == [True, True, mode == "reset", mode == "reset"]
            assert batch.team.acted.tolist() == [[False] * 2] * 2 + [[True] * 2] * 2
            assert batch.team.reward.tolist() == [[0, 0]] * 2 + [[1, 2]] * 2
            assert batch.obs[AGENTS]["a"][:2, 1].tolist() == [0, 0]  # new episodes
        for other in range(2, 4):
            np.testing.assert_array_equal(batch.obs[AGENTS]["b"][other], whole.obs[AGENTS]["b"][other])
            np.testing.assert_array_equal(batch.final_obs[AGENTS]["b"][other], whole.final_obs[AGENTS]["b"][other])
            assert batch.team.truncated[other].tolist() == whole.team.truncated[other].tolist()
    assert len(memory) == 4 * 12 - 2  # of the step in question the two lanes of that worker have no row
    rows = memory.gather(np.arange(len(memory)))
    assert set(rows["reward"][:, 1].tolist()) == {2.0}


@pytest.mark.parametrize("takes_part", [False, True])
def test_teams_in_workers_are_to_the_bit_those_of_this_process(takes_part: bool) -> None:
    lanes = HealingLanes([FaultyTeam] * 4, build=TeamLanes, num_workers=3, takes_part=takes_part)
    (got, memory), (expected, other) = twelve_steps(lanes), twelve_steps(TeamLanes([FaultyTeam] * 4))
    lanes.close()
    for batch, whole in zip(got, expected, strict=True):
        np.testing.assert_equal(batch.obs, whole.obs)
        np.testing.assert_equal(batch.final_obs, whole.final_obs)
        np.testing.assert_array_equal(batch.truncated, whole.truncated)
        np.testing.assert_array_equal(batch.reward, whole.reward)
    np.testing.assert_equal(
        memory.gather(np.arange(48))["reward"].numpy(), other.gather(np.arange(48))["reward"].numpy()
    )


def test_without_healing_a_worker_that_fails_is_an_error_and_too_many_failures_are(tmp_path: Path) -> None:
    for options in ({"should_async_vector": True}, {"healing": True, "max_restarts": 2}):
        folder = tokens(tmp_path / f"t{len(options)}{'healing' in options}", 50)
        env = make_multi_agent_vect_envs(FaultyTeam, 2, mode="raise", folder=folder, **options)  # type: ignore[arg-type]
        env.reset(seed=1)
        for _ in range(3):
            env.step({"a": [0, 0], "b": [1, 1]})
        with pytest.raises(EnvError, match=r"raised ValueError: lost.* fix: "):
            go_on(env)
        env.close()


def go_on(env: Any) -> None:
    for _ in range(40):
        env.step({"a": [0, 0], "b": [1, 1]})


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("names", [["obs", "action", "reward", "next_obs", "done"], None])
def test_a_loop_of_ones_own_over_a_vector_goes_on_and_stores_what_happened(
    mode: str, names: list[str] | None, tmp_path: Path
) -> None:
    """Whatever a copy does, the other one's rows are all there, and of the step in question the copy has none."""
    env = make_multi_agent_vect_envs(
        FaultyTeam, 2, mode=mode, folder=tokens(tmp_path / "t", 1), healing=True, num_workers=2, deadline_s=1.0
    )
    memory, healed = MultiAgentReplayBuffer(100, names, env.agents), []
    obs, _ = env.reset(seed=1)
    for _ in range(8):
        action = {"a": np.array([0, 0]), "b": np.array([1, 1])}
        after, reward, done, _, infos = env.step(action)
        if names is None:
            memory.add(MultiAgentTransition(obs, action, reward, after, done, batch_size=[2]))
        else:
            memory.save_to_memory(obs, action, reward, after, done, is_vectorised=True)
        healed.append(int(infos["a"]["healed"].sum()) if "healed" in infos["a"] else 0)
        obs = after
    env.close()
    assert healed == [int(number == WHEN.get(mode, 3)) for number in range(8)]
    there = memory.gather(np.arange(16))["obs"]["present"].reshape(8, 2, 2)
    assert int(there.sum()) == 2 * (16 - 1)
    lost = there[WHEN.get(mode, 3)]
    assert sorted(lost.tolist()) == [[0, 0], [1, 1]]
    assert not multiprocessing.active_children()


@pytest.mark.slow  # a spawned process imports everything anew
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_spawned_also_with_lambdas(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "start_method", lambda: method)
    lanes = HealingLanes([lambda: FaultyTeam()] * 4, build=TeamLanes, num_workers=1)
    (got, _), (expected, _) = twelve_steps(lanes), twelve_steps(TeamLanes([FaultyTeam] * 4))
    lanes.close()
    for batch, whole in zip(got, expected, strict=True):
        np.testing.assert_equal(batch.obs, whole.obs)


class Messages(BaseSink):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize("mode", ["kill", "vanish", "reward"])
def test_a_run_of_teams_outlives_its_environments_and_says_what_it_lost(mode: str, tmp_path: Path) -> None:
    env = make_multi_agent_vect_envs(
        FaultyTeam, 4, mode=mode, folder=tokens(tmp_path / "t", 1), healing=True, num_workers=2
    )
    of_agents = dict(env.team.observation_spaces), dict(env.team.action_spaces)
    teams = MADDPG.population(2, *of_agents, seed=1, net_config={"latent_dim": 8}, batch_size=16, learn_step=8)
    memory, sink = MultiAgentReplayBuffer(1000, agent_ids=env.agents), Messages()
    trained, _ = train_multi_agent_off_policy(
        env, "Faulty", pop=teams, memory=memory, max_steps=96, evo_steps=48, verbose=False, seed=3, sinks=[sink]
    )
    assert [team.steps[-1] for team in trained] == [96, 96]
    replaced = [line for line in sink.lines if line.startswith("environment replaced")]
    assert len(replaced) == 1
    assert len(memory) == 2 * 96 - 4  # the four lanes of one worker have no row of that step
    rows = memory.gather(np.arange(len(memory)))
    assert set(rows["reward"][:, 1].tolist()) == {2.0}
    assert all(np.isfinite(values.numpy()).all() for values in rows["next_obs"][AGENTS].values())
    env.close()
    assert not multiprocessing.active_children()
