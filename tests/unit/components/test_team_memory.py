"""Memories of teams: rewards, ends and n-step returns agent by agent, dicts in and out, absence as absence."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scripted_team import Frame, Scripted

from agilerl.components.data import MultiAgentTransition
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.errors import ConfigError, ShapeError
from agilerl.vector import SyncPettingZooVecEnv

NAMES = ["state", "action", "reward", "next_state", "done"]
GAMMA = 0.5


def seen(time: float, present: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """One lane in which both agents see the time."""
    rows = {agent: np.array([[time * there]], np.float32) for agent, there in zip("ab", present, strict=True)}
    return {AGENTS: rows, PRESENT: np.array([present], np.int8)}


def write(memory: Any, time: int, reward: Any, done: Any = (0, 0), cut: Any = (0, 0), present: Any = (1, 1)) -> None:
    memory.write(
        seen(time, present), np.array([[time, -time]], np.float32), np.array([reward], np.float64),
        seen(time + 1), np.array([done], bool), truncated=np.array([cut], bool),
    )  # fmt: skip


def table(memory: Any) -> list[list[Any]]:
    """[first step, R of both, done of both, discount of both, step that is bootstrapped from], row by row."""
    rows = memory.gather(np.arange(len(memory)))
    return [
        [float(rows["obs"][AGENTS]["a"][k, 0]), rows["reward"][k].tolist(), rows["done"][k].tolist(),
         rows["discount"][k].tolist(), float(rows["next_obs"][AGENTS]["a"][k, 0])]
        for k in range(len(memory))
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [MultiStepReplayBuffer, partial(PrioritizedMultiStepReplayBuffer, alpha=0.5)])
def test_n_step_returns_are_summed_agent_by_agent_up_to_the_end_of_each(kind: Any) -> None:
    memory = kind(20, n_step=3, gamma=GAMMA)
    write(memory, 0, (1, 10))
    write(memory, 1, (2, 20), done=(1, 0))  # a dies, b goes on
    write(memory, 2, (64, 40))  # what a gets after its end is not counted
    assert table(memory) == [
        # R_a = 1 + 2/2 (its end), R_b = 10 + 20/2 + 40/4; b bootstraps after three steps, a does not
        [0, [2, 30], [1, 0], [0, 0.125], 3],
    ]
    write(memory, 3, (0, 80), cut=(0, 1))  # the time limit
    assert table(memory)[1:] == [
        [1, [2, 20 + 20 + 20], [1, 0], [0, 0.125], 4],  # 20 + 40/2 + 80/4
        [2, [64, 40 + 40], [0, 0], [0.25, 0.25], 4],
        [3, [0, 80], [0, 0], [0.5, 0.5], 4],
    ]


def test_a_window_ends_for_all_where_one_agent_is_truncated_or_all_have_terminated() -> None:
    memory = MultiStepReplayBuffer(20, n_step=3, gamma=GAMMA)
    write(memory, 0, (1, 10))
    write(memory, 1, (2, 20), cut=(1, 0))
    assert table(memory) == [[0, [2, 20], [0, 0], [0.25, 0.25], 2], [1, [2, 20], [0, 0], [0.5, 0.5], 2]]
    memory.clear()
    write(memory, 0, (1, 10))
    write(memory, 1, (2, 20), done=(1, 1))
    assert table(memory) == [[0, [2, 20], [1, 1], [0, 0], 2], [1, [2, 20], [1, 1], [0, 0], 2]]


def test_one_step_rows_follow_the_n_step_rows_and_keep_each_agents_own_numbers() -> None:
    memory, beside = MultiStepReplayBuffer(20, n_step=2, gamma=GAMMA), PrioritizedReplayBuffer(20, alpha=1.0)
    for time, done in ((0, (0, 0)), (1, (1, 0)), (2, (0, 1))):
        write(memory, time, (time + 1, 10 * time), done=done, cut=(time == 2, time == 2))
        rows = memory.last_one_step()
        if rows is not None:
            beside.write(**rows)
    assert len(memory) == len(beside) == 3
    one = beside.gather(np.arange(3))
    assert one["reward"].tolist() == [[1, 0], [2, 10], [3, 20]]
    assert one["done"].tolist() == [[0, 0], [1, 0], [0, 1]]
    beside.update_priorities(np.array([0, 1, 2]), np.array([1.0, 2.0, 5.0]))
    # P = 1/8, 2/8, 5/8; w = (smallest P / P)^beta
    assert beside.weights(np.arange(3), 1.0).tolist() == pytest.approx([1, 0.5, 0.2])
    drawn = beside.sample_indices(np.random.default_rng(0), 8000)
    assert np.bincount(drawn).tolist() == pytest.approx([1000, 2000, 5000], rel=0.1)  # four standard deviations


def test_open_windows_of_teams_survive_a_checkpoint() -> None:
    one, other = (MultiStepReplayBuffer(20, n_step=3, gamma=GAMMA) for _ in range(2))
    write(one, 0, (1, 10))
    write(one, 1, (2, 20), done=(1, 0))
    other.load_state(one.state())
    for memory in (one, other):
        write(memory, 2, (64, 40))
    assert table(one) == table(other) == [[0, [2, 30], [1, 0], [0, 0.125], 3]]


def test_a_team_of_one_keeps_its_axis_of_agents() -> None:
    memory = ReplayBuffer(4)
    solo = {AGENTS: {"a": np.ones((2, 3), np.float32)}, PRESENT: np.ones((2, 1), np.int8)}
    memory.write(solo, np.zeros((2, 1), np.float32), np.array([[1.0], [2.0]]), solo, np.zeros((2, 1), bool))
    assert memory.gather(np.array([0, 1]))["reward"].shape == (2, 1)


def test_a_team_of_one_and_a_single_agent_have_the_same_n_step_returns() -> None:
    team, single = (MultiStepReplayBuffer(40, n_step=3, gamma=0.9) for _ in range(2))
    draw = np.random.default_rng(2)
    for time in range(30):
        reward, done, cut = draw.normal(size=2), draw.random(2) < 0.15, draw.random(2) < 0.1
        obs, then = np.full((2, 1), time, np.float32), np.full((2, 1), time + 1, np.float32)
        there = np.ones((2, 1), np.int8)
        team.write(
            {AGENTS: {"a": obs}, PRESENT: there}, np.zeros((2, 1), np.float32), reward[:, None],
            {AGENTS: {"a": then}, PRESENT: there}, done[:, None], truncated=cut[:, None],
        )  # fmt: skip
        single.write(obs, np.zeros((2, 1), np.float32), reward, then, done, truncated=cut)
    assert len(team) == len(single) == 40
    ours, theirs = (memory.gather(np.arange(40)) for memory in (team, single))
    for name in ("reward", "done", "discount"):
        assert torch.equal(ours[name].squeeze(-1), theirs[name])
    assert torch.equal(ours["next_obs"][AGENTS]["a"], theirs["next_obs"])


# -- the published buffer ----------------------------------------------------------------------------------------------


def both(a: Any, b: Any) -> dict[str, Any]:
    return {"a": np.asarray(a), "b": np.asarray(b)}


def test_transitions_by_agent_come_out_by_agent_in_the_order_of_the_fields() -> None:
    memory = MultiAgentReplayBuffer(10, NAMES, ["a", "b"])
    states = both([[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]])
    then = both([[7.0, 8.0], [9.0, 0.0]], [[1.0], [2.0]])
    raw = both([[0.1, 0.9], [0.7, 0.3]], [[0.25], [0.5]])
    memory.save_to_memory(states, raw, both([1.0, 2.0], [3.0, 4.0]), then, both([0, 1], [1, 0]), is_vectorised=True)
    first = [{agent: rows[0] for agent, rows in each.items()} for each in (states, raw, then)]
    memory.save_to_memory(first[0], first[1], {"a": 5.0, "b": 6.0}, first[2], {"a": False, "b": True})
    assert (len(memory), memory.counter, memory.agent_ids, memory.field_names) == (3, 3, ["a", "b"], NAMES)
    rows = memory._batch(np.arange(3), None)
    assert rows[0]["a"].tolist() == [[1, 2], [3, 4], [1, 2]]
    torch.testing.assert_close(rows[1]["a"], torch.tensor([[0.1, 0.9], [0.7, 0.3], [0.1, 0.9]]))
    assert rows[1]["b"].tolist() == [[0.25], [0.5], [0.25]]
    assert rows[2]["b"].tolist() == [[3], [4], [6]]
    assert rows[3]["b"].tolist() == [[1], [2], [1]]
    assert rows[4]["a"].tolist() == [[0], [1], [0]]
    drawn = memory.sample(50)
    assert all(isinstance(field, dict) for field in drawn)
    assert drawn[0]["a"].shape == (50, 2)
    assert set(drawn[2]["a"].ravel().tolist()) == {1, 2, 5}
    kept = memory.memory
    assert kept.maxlen == 10
    assert kept[2].reward["b"].tolist() == [6]


def test_the_ring_keeps_the_last_rows_and_the_state_brings_them_back() -> None:
    memory = MultiAgentReplayBuffer(3, NAMES, ["a", "b"], seed=1)
    for k in range(5):
        numbers = both([[float(k)]], [[float(-k)]])
        memory.save_to_memory_vect_envs(numbers, numbers, both([k], [k]), numbers, both([0], [0]))
    assert [row.reward["a"].tolist() for row in memory.memory] == [[2], [3], [4]]
    other = MultiAgentReplayBuffer(3, NAMES, ["a", "b"], seed=2)
    other.load_state(memory.state())
    for one, two in zip(memory.sample(20), other.sample(20), strict=True):
        assert torch.equal(one["b"], two["b"])


def test_agents_that_are_left_out_or_nan_are_absent_and_no_number_of_them_is_learned_from() -> None:
    memory = MultiAgentReplayBuffer(10, NAMES, ["a", "b"])
    ones = both([[1.0], [1.0]], [[1.0], [1.0]])
    gap = both([[1.0], [np.nan]], [[1.0], [1.0]])
    memory.save_to_memory(gap, ones, both([2.0, 2.0], [2.0, np.nan]), ones, both([0, 0], [0, 0]), is_vectorised=True)
    memory.save_to_memory({"b": np.ones(1)}, {"b": np.ones(1)}, {"b": 3.0}, {"b": np.ones(1)}, {"b": False})
    rows = memory.gather(np.arange(3))
    assert rows["obs"][PRESENT].tolist() == [[1, 1], [0, 0], [0, 1]]
    assert rows["obs"][AGENTS]["a"].tolist() == [[1], [0], [0]]
    assert rows["reward"].tolist() == [[2, 2], [0, 0], [0, 3]]
    assert rows["action"].tolist() == [[1, 1], [0, 0], [0, 1]]
    reward, done = (memory._batch(np.arange(3), None)[k]["a"].ravel() for k in (2, 4))
    np.testing.assert_array_equal(reward.numpy(), [2, np.nan, np.nan])
    np.testing.assert_array_equal(done.numpy(), [0, np.nan, np.nan])
    early = MultiAgentReplayBuffer(10, NAMES, ["a", "b"])
    with pytest.raises(ShapeError, match=r"the first rows have no observation of a, .* fix: observation_spaces="):
        early.save_to_memory({"b": np.ones(1)}, {"b": np.ones(1)}, {"b": 3.0}, {"b": np.ones(1)}, {"b": False})


def test_a_loop_of_ones_own_over_a_vector_stores_final_observations() -> None:
    frames = [Frame({"a": 1, "b": 2}), Frame({"a": 3, "b": 4}, {"a": 1.0}), Frame({"a": 5, "b": 6}, cuts=["a", "b"])]
    env = SyncPettingZooVecEnv([partial(Scripted, frames)] * 2)
    memory = MultiAgentReplayBuffer(10, NAMES, env.agents)
    obs, _ = env.reset()
    for _ in range(3):
        action = {agent: np.zeros(2, np.int64) for agent in env.agents}
        next_obs, reward, termination, _, _ = env.step(action)
        memory.save_to_memory(obs, action, reward, next_obs, termination, is_vectorised=True)
        obs = next_obs
    states, _, rewards, then, done = memory._batch(np.arange(6), None)
    assert states["a"][::2].tolist() == [[1, 0], [3, 1], [1, 0]]
    assert then["a"][::2].tolist() == [[3, 1], [5, 2], [3, 1]]  # error 15: not [1, 0] of the next episode
    assert not done["a"].any()
    assert rewards["a"][::2].ravel().tolist() == [1, 0, 1]


def test_images_dicts_and_tuples_keep_their_form_and_images_their_bytes() -> None:
    memory = MultiAgentReplayBuffer(4, NAMES, ["a", "b"])
    image = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    pair = (np.array([1, 2]), np.zeros((2, 1), np.float32))
    seen = {"a": image, "b": {"at": np.ones((2, 2), np.float32), "pair": pair}}
    numbers = both([1, 2], [3, 4])
    memory.save_to_memory(seen, numbers, numbers, seen, both([0, 0], [0, 0]), is_vectorised=True)
    assert memory.gather(np.arange(2))["obs"][AGENTS]["a"].dtype == torch.uint8
    states = memory._batch(np.arange(2), None)[0]
    assert torch.equal(states["a"], torch.from_numpy(image).float())
    assert isinstance(states["b"]["pair"], tuple)
    assert states["b"]["pair"][0].ravel().tolist() == [1, 2]
    assert memory.memory_bytes < 4 * (2 * 192 + 100)


def test_the_newer_dialect_takes_a_transition_of_a_team_and_gives_tensordicts() -> None:
    memory = MultiAgentReplayBuffer(4, agent_ids=["a", "b"])
    seen = both(np.array([[1.0]], np.float32), np.array([[2.0]], np.float32))
    one = MultiAgentTransition(seen, both([2], [1]), both([0.5], [1.5]), seen, both([0], [1]), batch_size=[1])
    memory.add(one)
    memory.add(one.to_dict())
    batch = memory.sample(7)
    assert batch.batch_size == torch.Size([7])
    assert batch["reward", "b"].ravel().tolist() == [1.5] * 7
    assert batch["action", "a"].ravel().tolist() == [2] * 7
    assert batch["done", "b"].ravel().tolist() == [1] * 7


def test_nested_tensordicts_arrays_of_ids_and_empty_fields_are_taken() -> None:
    seen = both(np.array([[1.0]], np.float32), np.array([[2.0]], np.float32))
    one = MultiAgentTransition(seen, both([2], [1]), both([0.5], [1.5]), seen, both([0], [1]), batch_size=[1])
    memory = MultiAgentReplayBuffer(4, agent_ids=np.array(["a", "b"]))
    memory.add(one.to_tensordict())
    assert memory.sample(2)["reward", "a"].ravel().tolist() == [0.5] * 2
    more = MultiAgentReplayBuffer(4, [*NAMES, "info"], ("a", "b"))
    more.save_to_memory(seen, both([2], [1]), both([0.5], [1.5]), seen, both([0], [1]), {"a": {}}, is_vectorised=True)
    assert more.sample(1)[2]["b"].ravel().tolist() == [1.5]
    assert more.sample(1)[5] == {}


def test_what_a_training_function_has_written_is_sampled_by_agent() -> None:
    acted = {"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,))}
    known, unknown = (MultiAgentReplayBuffer(9, NAMES, ["a", "b"], action_spaces=each) for each in (acted, None))
    for memory in (known, unknown):
        for time in range(3):
            memory.write(seen(time), np.array([[time, 0.5, -0.5]], np.float32), np.array([[1.0, 2.0]]), seen(time + 1),
                         np.zeros((1, 2), bool))  # fmt: skip
    states, actions, *_ = known._batch(np.arange(3), None)
    assert states["b"].ravel().tolist() == [0, 1, 2]
    assert actions["a"].ravel().tolist() == [0, 1, 2]
    assert actions["b"].tolist() == [[0.5, -0.5]] * 3
    with pytest.raises(ConfigError, match=r"3 numbers for the actions of .* fix: .*action_spaces="):
        unknown.sample(2)


def test_choices_come_out_as_the_environment_counts_them_whoever_has_stored_them() -> None:
    acted = {"a": spaces.Discrete(3, start=5), "b": spaces.Box(-1, 1, (2,))}
    memory = MultiAgentReplayBuffer(9, NAMES, ["a", "b"])
    memory.set_action_spaces(acted)
    memory.write(
        seen(0), np.array([[2, 0.5, -0.5]], np.float32), np.array([[1.0, 2.0]]), seen(1), np.zeros((1, 2), bool)
    )
    numbers = both([[1.0]], [[1.0]])
    memory.save_to_memory_vect_envs(numbers, both([6], [[0.25, 0.5]]), both([1], [1]), numbers, both([0], [0]))
    absent = both([[np.nan]], [[1.0]])
    memory.save_to_memory_vect_envs(absent, both([6], [[0.25, 0.5]]), both([1], [1]), numbers, both([0], [0]))
    assert memory.gather(np.arange(3))["action"].tolist() == [[2, 0.5, -0.5], [1, 0.25, 0.5], [0, 0.25, 0.5]]
    actions = memory._batch(np.arange(2), None)[1]
    assert actions["a"].ravel().tolist() == [7, 6]
    assert actions["b"].tolist() == [[0.5, -0.5], [0.25, 0.5]]
    other = MultiAgentReplayBuffer(9, NAMES, ["a", "b"])
    other.load_state(memory.state())
    assert other._batch(np.arange(2), None)[1]["a"].ravel().tolist() == [7, 6]


def test_what_does_not_fit_a_memory_of_a_team_is_named() -> None:
    memory = MultiAgentReplayBuffer(4, NAMES, ["a", "b"])
    numbers = both([[1.0]], [[1.0]])
    with pytest.raises(ShapeError, match="obs: unknown agent 'c'"):
        memory.save_to_memory({**numbers, "c": [[1.0]]}, numbers, numbers, numbers, numbers, is_vectorised=True)
    with pytest.raises(ShapeError, match=r"takes \['state', .*: got 2 values"):
        memory.save_to_memory(numbers, numbers)
    with pytest.raises(ShapeError, match="reward must be a dict by agent; got ndarray"):
        memory.save_to_memory(numbers, numbers, np.zeros(2), numbers, numbers, is_vectorised=True)
    with pytest.raises(ConfigError, match="name the same one twice"):
        MultiAgentReplayBuffer(4, ["obs", "state"], ["a"])
    with pytest.raises(ConfigError, match="needs agent_ids"):
        MultiAgentReplayBuffer(4, NAMES)
