"""What reaches learning from rollouts: final observations, real transitions, memories that begin with an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts, collect_rollouts_recurrent
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

LENGTH, LANES, STEPS, GAMMA = 3, 2, 10, 0.5
OBS, CHOICE = gym.spaces.Box(0, 5, (LENGTH + 1,), np.float32), gym.spaces.Discrete(2)


def seen_at(time: int) -> np.ndarray:
    """The observation at `time` steps into an episode; that at `LENGTH` is the final one."""
    return (5 * np.eye(LENGTH + 1)[time]).astype(np.float32)


class Clock(gym.Env[np.ndarray, int]):
    """Shows the time; the step from time t earns 10 t + 1; a time limit cuts every episode off after three steps."""

    observation_space, action_space = OBS, CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = 0
        return seen_at(0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return seen_at(self.time), 10.0 * (self.time - 1) + 1, False, self.time == LENGTH, {}


def vector_env(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Clock] * LANES, autoreset_mode=mode)


ENVS: dict[str, Callable[[], Any]] = {
    "lanes": lambda: make_vect_envs(make_env=Clock, num_envs=LANES),
    "next_step": lambda: vector_env(AutoresetMode.NEXT_STEP),
    "same_step": lambda: vector_env(AutoresetMode.SAME_STEP),
}
TIMES = {kind: [t % LENGTH for t in range(STEPS)] for kind in ENVS}
TIMES["next_step"] = [0, 1, 2, 0, 1, 2, 0, 1]  # two of the ten calls only reset, and teach nothing


def population(recurrent: bool, size: int = 2, **options: Any) -> list[PPO]:
    """Members whose whole rollout is one minibatch; λ = 0, so that a return is r + γ v(s')."""
    encoder = {"hidden_state_size": 8, "max_seq_len": 2} if recurrent else {"hidden_size": [8]}
    net = {"encoder_config": encoder, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
    options = {"learn_step": STEPS * LANES, "batch_size": 999, "update_epochs": 1, "gamma": GAMMA, "gae_lambda": 0.0,
               "recurrent": recurrent, "num_envs": LANES, "net_config": net, **options}  # fmt: skip
    agents = PPO.population(size, OBS, CHOICE, seed=1, **options)
    for agent in agents:  # untrained values are nearly constant; these tell one observation from another
        with torch.no_grad():
            agent.critic.head_net.model.get_submodule("linear_output").weight.mul_(50)
    return agents


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """(index of the first member, minibatch of all members [N, B, ...]) of every PPO update from here on."""
    found: list[tuple[int, Any]] = []
    update = PPO.update

    def spy(self: PPO, engine: Any, batch: Any) -> Any:
        grouped = batch if batch.weight.dim() == 2 else batch.map(lambda x: x[None])
        found.append((self.index, grouped.map(lambda x: x.detach().clone())))
        return update(self, engine, batch)

    monkeypatch.setattr(PPO, "update", spy)
    return found


def rows_of(taught: list[tuple[int, Any]], member: int) -> Any:
    """What one member learned from: its row of the one minibatch that it was in."""
    ((row, batch),) = [(member - lead, b) for lead, b in taught if 0 <= member - lead < len(b.weight)]
    return batch.of_member(row)


def episode(agent: PPO) -> tuple[list[float], list[dict[str, Tensor] | None]]:
    """Values at times 0 .. LENGTH of one episode, and the hidden states before each (None without a memory)."""
    values, hidden = [], [agent.get_initial_hidden_state(1) if agent.recurrent else None]
    for time in range(LENGTH + 1):
        found = agent.get_action(seen_at(time)[None], hidden_state=hidden[-1], training=False)
        values.append(float(found[3][0]))
        hidden.append(found[4] if agent.recurrent else None)
    return values, hidden


def assert_taught(rows: Any, before: PPO, times: list[int]) -> None:
    """Each transition of two lanes once, with the return r + γ v(s') for the TRUE next observation."""
    values, _ = episode(before)
    assert abs(values[LENGTH] - values[0]) > 0.1, "the value must tell the final observation from the reset one"
    counts = rows.weight > 0
    seen = rows.obs[counts].argmax(-1)
    assert sorted(seen.tolist()) == sorted(times * LANES), "rows learned from, by time"
    expected = torch.tensor([10.0 * t + 1 + GAMMA * values[t + 1] for t in seen.tolist()])
    torch.testing.assert_close(rows.returns[counts], expected, rtol=1e-5, atol=1e-5)


def assert_memories(rows: Any, before: PPO) -> None:
    """Sequences of two steps start at times 0 and 2: with zeros, and with what times 0 and 1 left behind."""
    _, hidden = episode(before)
    first = rows.obs.view(-1, rows.length, LENGTH + 1)[:, 0].argmax(-1).tolist()
    real = (rows.weight.view(-1, rows.length)[:, 0] > 0).tolist()
    assert {time for time, counts in zip(first, real, strict=True) if counts} == {0, 2}
    for key, start in rows.hidden.items():
        for sequence, (time, counts) in enumerate(zip(first, real, strict=True)):
            if counts:
                expected = hidden[time][key][:, 0]
                assert (time == 0) == (float(expected.abs().max()) == 0), "a memory that moves"
                torch.testing.assert_close(start[:, sequence], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ENVS)
def test_training_learns_each_real_transition_once_and_bootstraps_a_cut_from_the_final_observation(
    kind: str, recurrent: bool, taught: list[tuple[int, Any]]
) -> None:
    members = population(recurrent)
    before = [agent.clone() for agent in members]
    train_on_policy(ENVS[kind](), "Clock", pop=members, max_steps=20, evo_steps=20, eval_steps=1, verbose=False, seed=3)
    for agent in before:
        assert_taught(rows_of(taught, agent.index), agent, TIMES[kind])


@pytest.mark.parametrize("kind", ENVS)
def test_training_begins_every_episode_without_a_memory_of_the_last_one(
    kind: str, taught: list[tuple[int, Any]]
) -> None:
    members = population(recurrent=True)
    before = [agent.clone() for agent in members]
    train_on_policy(ENVS[kind](), "Clock", pop=members, max_steps=20, evo_steps=20, eval_steps=1, verbose=False, seed=3)
    for agent in before:
        assert_memories(rows_of(taught, agent.index), agent)


@pytest.mark.parametrize("kind", ENVS)
def test_collect_rollouts_recurrent_begins_every_episode_without_a_memory_of_the_last_one(
    kind: str, taught: list[tuple[int, Any]]
) -> None:
    (agent,) = population(recurrent=True, size=1)
    before = agent.clone()
    collect_rollouts_recurrent(agent, ENVS[kind](), STEPS)
    agent.learn()
    rows = rows_of(taught, 0)
    assert_memories(rows, before)
    # What make_vect_envs gives to a loop of one's own resets with the next step, too.
    assert_taught(rows, before, TIMES["next_step" if kind == "lanes" else kind])


def test_the_observation_statistics_of_an_agent_alone_move_after_learning_and_once_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the first update of a rollout the policy is the one that acted: log probabilities are equal, ratios are 1.

    The first rollout is learned from by its own statistics; it keeps the probabilities of what acted without any.
    """
    (agent,) = population(recurrent=False, size=1, normalize_observations=True, lr=1e-2)
    update, counts = PPO.update, []

    def spy(self: PPO, engine: Any, batch: Any) -> Any:
        counts.append(self.observation_statistics.get("count", 0))
        buffer = self.rollout_buffer
        valid = buffer.stored("valid")
        obs, action = (torch.from_numpy(buffer.stored(name)[valid]) for name in ("obs", "action"))
        with torch.no_grad():
            now = self.distribution.log_prob(self.policy_output(obs), action)
        stored = torch.from_numpy(buffer.stored("log_prob")[valid])
        if len(counts) > 1:
            torch.testing.assert_close(now, stored, rtol=1e-5, atol=1e-5)
        else:
            assert (now - stored).abs().max() > 1e-3
        return update(self, engine, batch)

    monkeypatch.setattr(PPO, "update", spy)
    env = vector_env(AutoresetMode.SAME_STEP)
    for _ in range(3):
        collect_rollouts(agent, env, STEPS)
        agent.learn()
    assert counts == [20, 20, 40]  # rows that each rollout's only update is by
    assert agent.observation_statistics["count"] == 60
    np.testing.assert_allclose(agent.observation_statistics["mean"], 5 * np.array([0.4, 0.3, 0.3, 0.0]))


def test_the_observation_statistics_of_a_population_move_after_learning_and_once_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update, counts = PPO.update, []

    def spy(self: PPO, engine: Any, batch: Any) -> Any:
        counts.append(self.observation_statistics.get("count", 0))
        return update(self, engine, batch)

    monkeypatch.setattr(PPO, "update", spy)
    members = population(recurrent=False, normalize_observations=True)
    train_on_policy(
        ENVS["lanes"](), "Clock", pop=members, max_steps=60, evo_steps=60, eval_steps=1, verbose=False, seed=3
    )
    assert counts == [40, 40, 80]  # rows of both members that each rollout's only update is by; the first gives its own
