"""Wrong arguments of agents, buffers and evolution: errors of this package with a fix, not Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from agilerl.algorithms import DQN, IPPO, PPO
from agilerl.algorithms.base.wrapped import RSNorm
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.errors import AgileRLError, ArgumentError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection

BOX, CHOICES = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
OBS = np.zeros(3, np.float32)
FIELDS = ("obs", "action", "reward", "next_obs", "done")
AGENTS: dict[str, Callable[[], Any]] = {
    "DQN": lambda: DQN(BOX, CHOICES, seed=0),
    "PPO": lambda: PPO(BOX, CHOICES, seed=0),
    "wrapped": lambda: RSNorm(DQN(BOX, CHOICES, seed=0)),
    "team": lambda: IPPO([BOX, BOX], [CHOICES, CHOICES], agent_ids=["a_0", "a_1"], seed=0),
}
BUFFERS = [ReplayBuffer, MultiStepReplayBuffer, PrioritizedReplayBuffer, PrioritizedMultiStepReplayBuffer]


@pytest.mark.parametrize("kind", AGENTS)
def test_no_observation_is_named(kind: str) -> None:
    with pytest.raises(ShapeError, match=r"got None for an observation\. fix: agent\.act\(obs\)"):
        AGENTS[kind]().act(None)


@pytest.mark.parametrize("kind", AGENTS)
def test_the_mask_of_act_has_its_name(kind: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"\.act takes obs and mask .*got action_mask\. fix: agent\.act\(obs, mask="
    ):
        AGENTS[kind]().act(OBS, action_mask=[0, 1])


def test_the_mask_of_act_is_obeyed() -> None:
    agent = AGENTS["DQN"]()
    assert [int(agent.act(OBS, mask=[k == 0, k == 1])) for k in (0, 1)] == [0, 1]


def rows(*names: str) -> TensorDict:
    whole = {"obs": torch.zeros(4, 3), "next_obs": torch.zeros(4, 3), "action": torch.zeros(4, dtype=torch.int64)}
    whole |= {"reward": torch.zeros(4), "done": torch.zeros(4)}
    return TensorDict({name: whole[name] for name in names}, [4])


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("data", [None, 3, (1, 2, 3), "rows", []], ids=repr)
def test_a_buffer_names_what_is_no_batch(buffer: type[ReplayBuffer], data: Any) -> None:
    memory = buffer(9)
    with pytest.raises(
        ShapeError,
        match=rf"^add\(\) takes a TensorDict, .*got {type(data).__name__ if data is not None else None}.* fix: ",
    ):
        memory.add(data)
    memory.add(rows(*FIELDS))
    assert len(memory) >= 1 or isinstance(memory, MultiStepReplayBuffer)


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("data", [{}, TensorDict({}, [4])], ids=["dict", "TensorDict"])
def test_a_buffer_names_a_batch_without_fields(buffer: type[ReplayBuffer], data: Any) -> None:
    with pytest.raises(ShapeError, match=r"^add\(\) needs a batch with fields; got one without any\. fix: add\("):
        buffer(9).add(data)


@pytest.mark.parametrize("missing", [("reward",), ("done",), ("action", "reward", "next_obs", "done")])
def test_incomplete_rows_are_named_with_a_fix(missing: tuple[str, ...]) -> None:
    memory = ReplayBuffer(9)
    memory.add(rows(*(name for name in FIELDS if name not in missing)))
    with pytest.raises(ShapeError, match=rf"without {', '.join(missing)}; it has .* fix: all five fields"):
        AGENTS["DQN"]().learn(memory.sample(4))
    with pytest.raises(ShapeError, match=r"unknown: .*'reward|unknown: .*'done.* fix: the same fields"):
        memory.add(rows(*FIELDS))
    memory.clear()
    memory.add(rows(*FIELDS))
    assert len(memory) == 4


def prioritized() -> PrioritizedReplayBuffer:
    memory = PrioritizedReplayBuffer(100, seed=0)
    memory.add(rows(*FIELDS))
    return memory


NUMBERS: dict[str, tuple[Callable[[], Any], type[AgileRLError], str]] = {
    **{
        f"gamma={value!r}": (lambda value=value: MultiStepReplayBuffer(100, gamma=value), ConfigError, message)
        for value in ("a", None, float("nan"), float("inf"), 1.5)
        for message in (rf"^MultiStepReplayBuffer: gamma must be in \[0, 1\]; got {value!r}\. fix: gamma=0\.99\.$",)
    },
    **{
        f"alpha={value!r}": (lambda value=value: PrioritizedReplayBuffer(100, alpha=value), ConfigError, message)
        for value, range_ in (
            ("a", "at least 0"), (None, "at least 0"), (float("nan"), "at least 0"), (float("inf"), "finite"),
            (-1, "at least 0"),
        )
        for message in (
            rf"^PrioritizedReplayBuffer: alpha must be {range_}; got {value!r}\. fix: alpha=0\.6\.$",
        )
    },
    **{
        f"beta={value!r}": (lambda value=value: prioritized().sample(4, beta=value), ConfigError, message)
        for value in ("a", None, float("nan"), 2)
        for message in (rf"^beta must be in \[0, 1\] .*; got {value!r}\. fix: beta=0\.4\.$",)
    },
    "priorities of another length": (
        lambda: prioritized().update_priorities([0, 1], [1.0]), ShapeError, "2 indices and 1 priorities. fix: ",
    ),
    "priorities of texts": (
        lambda: prioritized().update_priorities([0, 1], ["a", "b"]), ConfigError, "must be numbers; got list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_of_buffers_are_named(case: str) -> None:
    call, error, message = NUMBERS[case]
    with pytest.raises(error, match=message):
        call()


POPULATIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "an agent": (AGENTS["DQN"], "got DQN"),
    "a wrapped agent": (AGENTS["wrapped"], "got RSNorm"),
    "None": (lambda: None, "got None"),
    "a text": (lambda: "agents", "got str"),
    "a list of None": (lambda: [None], "got one with None"),
    "a list of numbers": (lambda: [3], "got one with int"),
}


@pytest.mark.parametrize("call", ["mutation", "select"])
@pytest.mark.parametrize("case", POPULATIONS)
def test_what_is_no_population_is_named(call: str, case: str) -> None:
    operators = {"mutation": Mutations(1, 0, 0, 0, 0, 0).mutation, "select": TournamentSelection(2, True, 4).select}
    make, message = POPULATIONS[case]
    expected = rf"^{call}\(population\) takes a list of agents; {message}\. fix: {call}\(\[agent, \.\.\.\]\)\.$"
    with pytest.raises(ConfigError, match=expected):
        operators[call](make())


def test_an_empty_population_has_a_fix() -> None:
    with pytest.raises(ConfigError, match=r"population is empty.* fix: at least one agent"):
        TournamentSelection(2, True, 4).select([])
