"""Odd batches of teams, odd arguments of `sample`, and states that no buffer has returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.errors import ConfigError, ReplayError, RunError, ShapeError

IDS = ["a", "b"]
NAMES = ["state", "action", "reward", "next_state", "done"]


def rows(count: int = 4) -> dict[str, dict[str, Any]]:
    wide, one, flat = np.ones((count, 3), np.float32), np.ones((count, 1), np.float32), np.zeros(count)
    return {
        name: {agent: part.copy() for agent in IDS}
        for name, part in zip(NAMES, (wide, one, flat, wide, flat), strict=True)
    }


def team(*, filled: bool = True, names: list[str] = NAMES) -> MultiAgentReplayBuffer:
    memory = MultiAgentReplayBuffer(100, names, IDS)
    if filled:
        memory.save_to_memory(*rows().values(), is_vectorised=True)
    return memory


LENGTH = r"{name} of b has {n} rows, and state of a has 4"
ODD: dict[str, tuple[str, Any, str]] = {
    **{f"{name}, {n} rows": (name, np.zeros((n, 3)), LENGTH.format(name=name, n=n)) for name in NAMES for n in (2, 8)},
    **{
        f"{name}, text": (name, np.array(["x"] * 4), f"{name} of b must be real numbers; got ndarray") for name in NAMES
    },
    **{f"{name}, one": (name, 0.5, f"{name} of b has one number, and state of a has 4") for name in NAMES},
    "state, ragged": ("state", [[1, 2], [1], [1], [1]], "rows of unequal length"),
    "reward, wide": (
        "reward",
        np.zeros((4, 2)),
        r"reward of b must be one number for each row; got the shape \(4, 2\)",
    ),
    "action, parts": ("action", {"x": np.zeros(4)}, "action of b must be real numbers; got dict"),
}


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("case", ODD)
def test_batches_of_teams_that_do_not_fit_are_named(case: str, filled: bool) -> None:
    name, value, message = ODD[case]
    given, memory = rows(), team(filled=filled)
    given[name]["b"] = value
    with pytest.raises(ShapeError, match=f"{message}.*fix: "):
        memory.save_to_memory(*given.values(), is_vectorised=True)
    assert len(memory) == 4 * filled
    memory.save_to_memory(*rows().values(), is_vectorised=True)


def test_the_rows_of_several_environments_need_is_vectorised() -> None:
    with pytest.raises(ShapeError, match=r"reward of a must be one number.* fix: is_vectorised=True"):
        team().save_to_memory(*rows().values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["missing", "None", "NaN"])
def test_an_agent_that_lacks_one_part_is_absent(kind: str, name: str) -> None:
    """Also one without an action, which was stored as action 0 of an agent that is present."""
    given, memory = rows(), team()
    memory.clear()
    memory.save_to_memory(*rows().values(), is_vectorised=True)
    if kind == "missing":
        del given[name]["b"]
    else:
        given[name]["b"] = None if kind == "None" else np.full_like(given[name]["b"], np.nan)
    memory.save_to_memory(*given.values(), is_vectorised=True)
    states, _, rewards, next_states, _ = memory.sample_from_indices([4, 5, 6, 7])
    seen = next_states if name == "next_state" else states
    assert seen.present["a"].all()
    assert not seen.present["b"].any()
    assert torch.isnan(rewards["b"]).all() == (name != "next_state")


@pytest.mark.parametrize("filled", [True, False])
def test_a_batch_without_rows_adds_nothing(filled: bool) -> None:
    memory = team(filled=filled)
    memory.save_to_memory(*rows(0).values(), is_vectorised=True)
    memory.save_to_memory({}, {}, {}, {}, {})
    assert len(memory) == 4 * filled


@pytest.mark.parametrize("case", ["rows", "text", "empty"])
def test_custom_fields_of_teams_are_checked_too(case: str) -> None:
    memory = MultiAgentReplayBuffer(100, ["x", "y"], IDS)
    x, y = rows()["state"], rows()["reward"]
    memory.save_to_memory(x, y, is_vectorised=True)
    if case == "empty":
        memory.save_to_memory({}, {}, is_vectorised=True)
        assert len(memory) == 4
        return
    y["b"] = np.zeros(3) if case == "rows" else np.array(["x"] * 4)
    with pytest.raises(ShapeError, match="y of b has 3 rows" if case == "rows" else "y of b must be real numbers"):
        memory.save_to_memory(x, y, is_vectorised=True)


def test_rewards_of_teams_that_are_infinite_are_named() -> None:
    given = rows()
    given["reward"]["b"][1] = np.inf
    with pytest.raises(ReplayError, match="'reward' must hold finite numbers"):
        team().save_to_memory(*given.values(), is_vectorised=True)


# -- sample and load_state ---------------------------------------------------------------------------------------------

KINDS = {
    "uniform": ReplayBuffer, "prioritized": PrioritizedReplayBuffer, "n-step": MultiStepReplayBuffer,
    "prioritized n-step": PrioritizedMultiStepReplayBuffer,
}  # fmt: skip


def buffer(kind: str) -> Any:
    if kind == "team":
        return team()
    memory, zero = KINDS[kind](100), np.zeros((8, 3), np.float32)
    for _ in range(4):
        memory.add(
            {"obs": zero, "action": np.zeros(8, int), "reward": zero[:, 0], "next_obs": zero, "done": zero[:, 0]}
        )
    return memory


@pytest.mark.parametrize("kind", [*KINDS, "team"])
@pytest.mark.parametrize("size", [None, 2.5, "a", 0, -1, True, [3], float("nan"), float("inf")], ids=str)
def test_a_batch_size_that_is_no_number_of_rows_is_named(size: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"batch_size must be a positive integer \(rows\); got .*fix: 64"):
        buffer(kind).sample(size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 3.0, np.int64(3), torch.tensor(3)], ids=repr)
def test_whole_numbers_of_any_type_are_batch_sizes(size: Any, kind: str) -> None:
    assert len(buffer(kind).sample(size)["reward"]) == 3


@pytest.mark.parametrize("kind", [*KINDS, "team"])
@pytest.mark.parametrize("case", ["empty", "None", "text", "list", "rng", "rows", "size", "no rng"])
def test_a_malformed_state_is_a_named_error(case: str, kind: str) -> None:
    memory = buffer(kind)
    good = memory.state()
    state: Any = {
        "empty": {}, "None": None, "text": "a", "list": [], "rng": {**good, "rng": {}}, "rows": {**good, "rows": 3},
        "size": {**good, "size": "a"}, "no rng": {name: part for name, part in good.items() if name != "rng"},
    }[case]  # fmt: skip
    with pytest.raises(RunError, match=r"(the state of a \w+Buffer does not hold|the saved buffer has no) .*fix: "):
        buffer(kind).load_state(state)


def test_the_state_of_one_agent_is_not_that_of_a_team() -> None:
    with pytest.raises(RunError, match=r"the saved buffer is that of one agent\. fix: "):
        team().load_state(buffer("uniform").state())
