"""Running normalisation of teams and of data sets, and losses that an agent's own `learn` reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_envs import Episodes, ParallelGame

from agilerl.algorithms import CQN, IPPO, MADDPG, MATD3, TD3BC
from agilerl.collect.custom.calls import reported_loss
from agilerl.collect.offline import fill
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.envs.protocol import TeamObservations
from agilerl.errors import AlgorithmError, NotAvailableYetError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_multi_agent_vect_envs, make_vect_envs
from agilerl.wrappers.agent import AgentWrapper, AsyncAgentsWrapper, RSNorm

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
IDS = ["walker_0", "walker_1", "caller_0"]
SPACES = [gym.spaces.Box(-100, 100, (size,), np.float32) for size in (3, 3, 2)]
BOX, CHOICE = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)


class Far(ParallelGame):
    """A team whose observations lie around 50; `walker_1` is seen in every second step only."""

    observed, acted, length, is_cut = dict(zip(IDS, SPACES, strict=True)), dict.fromkeys(IDS, BOX), 8, True

    def observe(self) -> dict[str, Any]:
        seen = {a: self.rng.normal(50, 10, space.shape).astype(np.float32) for a, space in self.observed.items()}
        return {a: x for a, x in seen.items() if a != "walker_1" or self.age % 2 == 0}


def team(cls: Any = MADDPG, index: int = 0, **more: Any) -> Any:
    options = {"batch_size": 8, "learn_step": 4} | more
    return RSNorm(cls(SPACES, [BOX] * 3, IDS, index=index, seed=index, net_config=NET, **options), epsilon=0.0)


def test_agents_of_a_group_share_statistics_of_the_rows_in_which_they_are_present() -> None:
    wrapped = team()
    assert wrapped.obs_rms["walker_0"] is wrapped.obs_rms["walker_1"]
    rows = {"walker_0": np.array([[1, 2, 3], [3, 4, 5]]), "walker_1": np.array([[5, 6, 7], [np.nan] * 3])}
    rows["caller_0"] = np.array([[10, 0], [10, 4]])
    present = {"walker_0": np.array([True, True]), "walker_1": np.array([True, False]), "caller_0": np.ones(2, bool)}
    seen = TeamObservations({a: x.astype(np.float32) for a, x in rows.items()}, present)
    changed = wrapped.observe(seen, count=True)
    walkers, caller = wrapped.obs_rms["walker_0"], wrapped.obs_rms["caller_0"]
    assert (walkers.count, caller.count) == (3, 2)
    assert walkers.mean.tolist() == [3, 4, 5]
    np.testing.assert_allclose(walkers.var, [8 / 3] * 3)  # of 1, 3, 5
    assert caller.mean.tolist() == [10, 2]
    np.testing.assert_allclose(changed["caller_0"][:, 1], [-1, 1])
    assert changed.present is present
    assert seen["caller_0"][1, 1] == 4  # the argument is left as it is


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
def test_a_wrapped_team_trains_on_normalised_observations(cls: Any, tmp_path: Path) -> None:
    env = make_multi_agent_vect_envs(Far, 2)
    pop = [team(cls, index) for index in range(2)]
    memory = MultiAgentReplayBuffer(200, ["state", "action", "reward", "next_state", "done"], IDS)
    pop, _ = train_multi_agent_off_policy(
        env, "Far", None, pop, memory, max_steps=48, evo_steps=24, eval_steps=4, verbose=False, seed=1
    )
    env.close()
    for wrapped in pop:
        walkers, caller = wrapped.obs_rms["walker_1"], wrapped.obs_rms["caller_0"]
        assert caller.count > 0
        assert walkers.count < 2 * caller.count  # one of two is absent in every second step
        np.testing.assert_allclose(caller.mean, 50, atol=8)
        np.testing.assert_allclose(np.sqrt(walkers.var), 10, atol=5)
    pop[0].save_checkpoint(tmp_path / "team.pt")
    again = RSNorm.load(tmp_path / "team.pt")
    np.testing.assert_array_equal(again.obs_rms["walker_0"].mean, pop[0].obs_rms["walker_0"].mean)
    assert again.obs_rms["walker_0"] is again.obs_rms["walker_1"]
    with pytest.raises(NotAvailableYetError, match="save_checkpoint"):
        pop[0].policy_spec()


def weights(agent: Any) -> list[Any]:
    return [p.tolist() for policy in agent.actors.values() for p in policy.parameters()]


def experiences(rng: np.random.Generator, count: int = 8) -> tuple[Any, ...]:
    states = [{a: rng.normal(50, 10, (count, *s.shape)).astype(np.float32) for a, s in zip(IDS, SPACES, strict=True)}]
    states += [{a: x + 1 for a, x in states[0].items()}]
    actions = {a: rng.uniform(-1, 1, (count, 1)).astype(np.float32) for a in IDS}
    numbers = [{a: rng.integers(0, 2, (count, 1)).astype(np.float32) for a in IDS} for _ in range(2)]
    return states[0], actions, numbers[0], states[1], numbers[1]


@pytest.mark.parametrize("form", [tuple, dict])
def test_learning_from_replay_sees_normalised_observations(form: Any) -> None:
    wrapped = team()
    given = experiences(np.random.default_rng(0))
    wrapped.observe(given[0], count=True)
    twin = wrapped.agent.clone()
    names = ("states", "actions", "rewards", "next_states", "dones")
    wrapped.learn(given if form is tuple else dict(zip(names, given, strict=True)))
    scaled = [
        {
            a: ((x - wrapped.obs_rms[a].mean) / np.sqrt(wrapped.obs_rms[a].var)).astype(np.float32)
            for a, x in part.items()
        }
        for part in (given[0], given[3])
    ]
    twin.learn((scaled[0], *given[1:3], scaled[1], given[4]))
    assert weights(wrapped.agent) == weights(twin)


def test_learning_from_a_rollout_by_hand_sees_normalised_observations() -> None:
    wrapped, rng = team(IPPO, learn_step=4, batch_size=4), np.random.default_rng(0)
    steps = [
        {a: rng.normal(50, 10, (2, *s.shape)).astype(np.float32) for a, s in zip(IDS, SPACES, strict=True)}
        for _ in range(5)
    ]
    acted = [wrapped.get_action(step) for step in steps[:4]]
    assert wrapped._coming["caller_0"].count == 8
    columns = [{a: [found[k][a] for found in acted] for a in IDS} for k in (0, 1, 3)]
    flags = {a: [np.zeros(2)] * 4 for a in IDS}
    ones = {a: [np.ones(2)] * 4 for a in IDS}
    seen = {a: [step[a] for step in steps[:4]] for a in IDS}
    last = {a: np.zeros(2) for a in IDS}
    twin = wrapped.agent.clone()
    given = (seen, columns[0], columns[1], ones, flags, columns[2], steps[4], last)
    twin.learn(given)  # a first rollout is seen as it is
    wrapped.learn(given)
    assert weights(wrapped.agent) == weights(twin)
    assert wrapped.obs_rms["caller_0"].count == 8
    np.testing.assert_allclose(
        wrapped.obs_rms["caller_0"].mean, np.concatenate([s["caller_0"] for s in steps[:4]]).mean(0), rtol=1e-6
    )


def test_a_wrapped_team_trains_from_rollouts_and_its_statistics_move_with_learn() -> None:
    env = make_multi_agent_vect_envs(Far, 2)
    pop = [team(IPPO, index, learn_step=16) for index in range(2)]
    pop, _ = train_multi_agent_on_policy(
        env, "Far", None, pop, max_steps=32, evo_steps=16, eval_steps=4, verbose=False, seed=1
    )
    env.close()
    for wrapped in pop:
        walkers, caller = wrapped.obs_rms["walker_0"], wrapped.obs_rms["caller_0"]
        assert caller.count == 32
        assert 32 < walkers.count < 64
        np.testing.assert_allclose(caller.mean, 50, atol=8)


# --- data sets


def data(rows: int = 200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    ends = np.arange(1, rows + 1) % 20 == 0
    return {
        "observations": rng.normal(50, [1, 2, 3, 4], (rows, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, rows), "rewards": rng.normal(size=rows), "terminals": ends,
        "next_observations": rng.normal(50, [1, 2, 3, 4], (rows, 4)).astype(np.float32),
    }  # fmt: skip


def learner(cls: Any = CQN, space: Any = CHOICE, **more: Any) -> Any:
    obs = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return cls(obs, space, seed=1, net_config=NET, batch_size=16, **more)


def test_statistics_of_a_data_set_are_those_of_all_its_observations() -> None:
    env, rows = make_vect_envs("CartPole-v1", num_envs=1), data()
    pop, _ = train_offline(
        env, "CartPole-v1", rows, pop=[RSNorm(learner())], memory=ReplayBuffer(max_size=200), max_steps=8, evo_steps=4,
        eval_steps=3, verbose=False, seed=1,
    )  # fmt: skip
    env.close()
    (wrapped,) = pop
    assert wrapped.obs_rms.count == 200
    np.testing.assert_allclose(wrapped.obs_rms.mean, rows["observations"].mean(0), rtol=1e-6)
    np.testing.assert_allclose(wrapped.obs_rms.var, rows["observations"].var(0), rtol=1e-5)


def test_statistics_that_were_there_before_the_data_stay() -> None:
    wrapped, memory = RSNorm(learner()), ReplayBuffer(max_size=8)
    wrapped.observe(np.zeros((3, 4), np.float32), count=True)
    memory.write(np.ones((8, 4)), np.zeros(8), np.zeros(8), np.ones((8, 4)), np.zeros(8))
    wrapped.see_data(memory)
    assert wrapped.obs_rms.count == 3


def test_an_agent_with_statistics_of_its_own_takes_them_of_what_it_is_shown() -> None:
    wrapped, memory, rows = RSNorm(learner(TD3BC, BOX, normalize_observations=True)), ReplayBuffer(max_size=200), data()
    memory.write(rows["observations"], np.zeros((200, 1)), np.zeros(200), rows["next_observations"], np.zeros(200))
    wrapped.see_data(memory)
    np.testing.assert_allclose(wrapped.agent.actor.get_buffer("obs_mean"), 0, atol=1e-4)


# --- reported losses


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        (None, None), (2, 2.0), (torch.tensor(1.5), 1.5), (np.float32(0.5), 0.5), (torch.tensor([2.5]), 2.5),
        ((None, 3.0), 3.0), ((1.0, 4.0), 4.0), ([1.0, None], 1.0), ((None, None), None),
        ({"a": (None, 1.0), "b": (0.5, 2.0)}, 1.5), ({}, None), ("done", None), (np.zeros(3), None),
    ],
)  # fmt: skip
def test_a_loss_is_read_in_every_form_that_learn_returns(result: Any, loss: float | None) -> None:
    assert reported_loss(result) == loss


class Reports(AgentWrapper):
    """Calls the agent's `learn`, and reports another loss."""

    result: Any = (None, 7.0)

    def learn(self, *experiences: Any, **kwargs: Any) -> Any:
        self.agent.learn(*experiences, **kwargs)
        return type(self).result


def test_offline_training_takes_a_pair_of_losses_and_notices_one_that_is_not_finite(monkeypatch: Any) -> None:
    rows = {**data(), "actions": np.zeros((200, 1), np.float32)}
    spaces = {"observation_space": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), "action_space": BOX}
    env = make_vect_envs(make_env=lambda: Still(**spaces), num_envs=1)
    for result, expected in (((None, 7.0), 2), ((None, float("nan")), 0)):
        monkeypatch.setattr(Reports, "result", result)
        pop = [Reports(learner(TD3BC, BOX)), RSNorm(learner(TD3BC, BOX, index=1))]
        _, fitness = train_offline(
            env, "Still", rows, pop=pop, memory=ReplayBuffer(max_size=200), max_steps=8, evo_steps=4, eval_steps=3,
            verbose=False, seed=1,
        )  # fmt: skip
        assert len(fitness) == 2
        assert sum(agent.unwrapped.steps[-1] == 8 for agent in pop[:1]) * 2 == expected
    env.close()


class Still(Episodes):
    """Nothing happens, for three steps."""

    length, is_cut = 3, True

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reward(self, action: Any) -> float:
        return 0.0


def test_a_data_set_that_does_not_say_where_it_was_cut_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = data()
    said: dict[str, list[str]] = {}
    for name, arrays in {
        "whole": rows,
        "no successors": {k: v for k, v in rows.items() if k != "next_observations"},
        "timeouts": {**{k: v for k, v in rows.items() if k != "next_observations"}, "timeouts": rows["terminals"]},
    }.items():
        said[name] = fill(ReplayBuffer(max_size=200), read_dataset(arrays), learner(), OfflineOptions())
    assert [any("no timeouts" in line for line in lines) for lines in said.values()] == [False, True, False]


def test_actions_of_two_choices_may_be_bool() -> None:
    memories = [ReplayBuffer(max_size=200) for _ in range(2)]
    for memory, kind in zip(memories, (bool, np.int64), strict=True):
        rows = {**data(), "actions": data()["actions"].astype(kind)}
        fill(memory, read_dataset(rows), learner(), OfflineOptions())
    assert torch.equal(*(memory.sample_from_indices(np.arange(200))["action"] for memory in memories))


@pytest.mark.parametrize("kind", [IPPO, MADDPG])
def test_statistics_stand_inside_the_wrapper_that_training_takes_off(kind: Any) -> None:
    """The other way round the outer wrapper was taken off in its place, and counted nothing."""
    env = make_multi_agent_vect_envs(Far, 2)
    wrong = RSNorm(AsyncAgentsWrapper(kind(SPACES, [BOX] * 3, agent_ids=IDS, net_config=NET, seed=1)))
    small: dict[str, Any] = {"max_steps": 32, "evo_steps": 32, "verbose": False}
    memory = MultiAgentReplayBuffer(100, ["state", "action", "reward", "next_state", "done"], IDS)
    train: Any = train_multi_agent_on_policy if kind is IPPO else train_multi_agent_off_policy
    own = () if kind is IPPO else (memory,)
    with pytest.raises(AlgorithmError, match=r"AsyncAgentsWrapper must be the outermost.*AsyncAgentsWrapper\(RSNorm\("):
        train(env, "Far", None, [wrong], *own, **small)
    env.close()
