"""Spaces and observations that do not fit: every one an error that names the space, who cannot take it, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import (
    DDPG,
    DQN,
    LANGUAGE,
    MAPPO,
    PPO,
    QRDQN,
    SAC,
    TD3,
    TQC,
    RainbowDQN,
    available,
    find_algorithm,
    is_team,
)  # fmt: skip
from agilerl.cli import app
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AgileRLError, AlgorithmError, ShapeError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

VECTOR, CHOICE, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-2, 2, (2,), np.float32)
PARTS = spaces.Dict(a=VECTOR, b=spaces.Discrete(2))
PAIR = spaces.Tuple((VECTOR, VECTOR))


def made(algo: str, observations: Any = VECTOR, actions: Any = CHOICE) -> Any:
    return create_population(algo, observation_space=observations, action_space=actions, seed=1)[0]


# --- an algorithm that cannot take a space

WRONG_ACTIONS = [
    (
        "DQN",
        BOX,
        ["DQN needs Discrete or MultiDiscrete actions", "Box", "for Box actions one of: DDPG, PPO, SAC, TD3, TQC"],
    ),
    (
        "Rainbow DQN",
        BOX,
        ["RainbowDQN needs Discrete or MultiDiscrete actions", "for Box actions one of: DDPG, PPO, SAC, TD3, TQC"],
    ),
    ("TD3", CHOICE, ["TD3 needs Box actions; got Discrete(2)", "one of: DQN, PPO, PQN, QRDQN, RainbowDQN, SAC"]),
    ("DDPG", CHOICE, ["DDPG needs Box actions; got Discrete(2)", "one of: DQN, PPO, PQN, QRDQN, RainbowDQN, SAC"]),
    ("SAC", spaces.MultiDiscrete([2, 3]), ["got MultiDiscrete([2 3])", "one of: DQN, PPO, QRDQN, RainbowDQN"]),
    ("SAC", spaces.MultiBinary(3), ["SAC needs Box or Discrete actions; got MultiBinary(3)", "one of: PPO"]),
    ("TD3", PARTS, ["TD3 needs Box actions; got Dict(", "for Dict actions one of: PPO"]),
    ("SAC", spaces.Box(-np.inf, np.inf, (2,)), ["SAC needs bounded actions", "infinite bounds in 2 of 2 components"]),
    ("SAC", spaces.Discrete(3, start=1), ["SAC numbers actions from 0; got Discrete(3, start=1)"]),
]


@pytest.mark.parametrize(("algo", "actions", "words"), WRONG_ACTIONS)
def test_actions_that_an_algorithm_cannot_take(algo: str, actions: Any, words: list[str]) -> None:
    with pytest.raises(AlgorithmError) as caught:
        made(algo, actions=actions)
    assert all(word in str(caught.value) for word in [*words, "fix:"]), str(caught.value)


@pytest.mark.parametrize("cls", [DQN, QRDQN, RainbowDQN, SAC, TD3, TQC, DDPG])
@pytest.mark.parametrize(
    ("observations", "words"),
    [
        (spaces.Text(4), ["cannot read Text(", "observations of a Text space"]),
        (spaces.Sequence(VECTOR), ["cannot read Sequence(", "It reads Box, Discrete"]),
        (
            spaces.Dict(a=VECTOR, b=spaces.Tuple((spaces.Text(3),))),
            ["cannot read Dict(", "observations of a Text space"],
        ),
        (spaces.Dict({}), ["cannot read Dict()", "there is nothing in it"]),
    ],
)
def test_observations_that_no_network_reads(cls: Any, observations: Any, words: list[str]) -> None:
    with pytest.raises(AlgorithmError) as caught:
        cls(observations, CHOICE if cls in (DQN, QRDQN, RainbowDQN) else BOX)
    assert all(word in str(caught.value) for word in [cls.__name__, *words, "fix:"]), str(caught.value)


EMPTY = spaces.Box(-1, 1, (0,))
NOTHING: dict[str, Any] = {
    "Box(0,)": EMPTY,
    "Box(2, 0)": spaces.Box(-1, 1, (2, 0)),
    "image": spaces.Box(0, 255, (3, 0, 8), np.uint8),
    "MultiDiscrete([])": spaces.MultiDiscrete(np.zeros(0, np.int64)),
    "Dict()": spaces.Dict({}),
    "Tuple()": spaces.Tuple(()),
    "a part of a Dict": spaces.Dict(a=CHOICE, b=EMPTY),
    "a part of a Tuple": spaces.Tuple((CHOICE, EMPTY)),
    "a part of a part": spaces.Dict(a=CHOICE, b=spaces.Dict(c=spaces.Dict({}))),
}
OF_SPACES = [name for name in available() if name not in LANGUAGE]


def built(algo: str, observations: Any, actions: Any) -> Any:
    kind = find_algorithm(algo)
    if is_team(algo):
        return kind({"x": VECTOR, "y": observations}, {"x": CHOICE, "y": actions})
    return kind(observations, actions)


@pytest.mark.parametrize("space", NOTHING)
@pytest.mark.parametrize("algo", OF_SPACES)
def test_spaces_that_hold_nothing_are_named(algo: str, space: str) -> None:
    texts = algo in ("BC_LM", "ILQL")
    takes = CHOICE if is_team(algo) or "Discrete" in find_algorithm(algo).action_spaces else BOX
    takes = spaces.MultiDiscrete([2, 2]) if texts else takes
    with pytest.raises(AlgorithmError, match=rf"{algo}.* cannot read .*: there is nothing in .*\. fix: "):
        built(algo, NOTHING[space], takes)
    if is_team(algo) or type(NOTHING[space]).__name__ in find_algorithm(algo).action_spaces:
        observations = spaces.MultiDiscrete([3, 3]) if texts else VECTOR
        with pytest.raises(AlgorithmError, match=rf"{algo}.* cannot act in .*: there is nothing in .*\. fix: "):
            built(algo, observations, NOTHING[space])


def test_the_part_that_holds_nothing_is_named() -> None:
    with pytest.raises(AlgorithmError, match=r"nothing in its part 'b\.c'\. fix: a wrapper that leaves this part out"):
        PPO(VECTOR, NOTHING["a part of a part"])
    with pytest.raises(AlgorithmError, match="MAPPO, state_space cannot read"):
        MAPPO({"x": VECTOR}, {"x": CHOICE}, state_space=EMPTY)


class Listing(gym.Env[Any, int]):
    """Observations that hold a sequence of vectors."""

    observation_space, action_space = spaces.Dict(a=VECTOR, b=spaces.Sequence(VECTOR)), CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


def test_training_names_the_environment_too(tmp_path: Path) -> None:
    for env, algo, words in (
        (
            "Pendulum-v1",
            "DQN",
            ["Pendulum-v1: DQN needs Discrete or MultiDiscrete actions", "DDPG, PPO, SAC, TD3, TQC"],
        ),
        ("CartPole-v1", "TD3", ["CartPole-v1: TD3 needs Box actions", "DQN, PPO, PQN, QRDQN, RainbowDQN, SAC"]),
        (Listing, "DQN", ["Listing: DQN cannot read Dict("]),
    ):
        with pytest.raises(AlgorithmError) as caught:
            agilerl.train(env, algo, out=None, verbose=False)
        assert all(word in str(caught.value) for word in [*words, "fix:"]), str(caught.value)


def test_the_command_line_names_the_environment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "Pendulum-v1", "--algo", "DQN", "--steps", "100"])
    assert result.exit_code != 0
    said = " ".join((result.output + str(getattr(result, "stderr", ""))).split())
    assert "Pendulum-v1: DQN needs Discrete or MultiDiscrete actions" in said
    assert "DDPG, PPO, SAC, TD3, TQC" in said
    assert "Traceback" not in said


# --- a population on another environment

IMAGE = spaces.Box(0, 255, (3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("built", "given"),
    [
        (VECTOR, spaces.Box(-1, 1, (4,), np.float32)),
        (spaces.Discrete(3), spaces.Discrete(4)),
        (spaces.Discrete(3), spaces.Discrete(3, start=1)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
        (PARTS, spaces.Dict(a=VECTOR)),
        (PARTS, spaces.Dict(a=VECTOR, b=spaces.Discrete(3))),
        (PAIR, spaces.Tuple((VECTOR,))),
        (IMAGE, spaces.Box(0, 1, (3, 8, 8), np.float32)),
        (IMAGE, spaces.Box(0, 255, (8, 8, 3), np.uint8)),
    ],
)
def test_a_population_that_was_built_for_other_observations(built: Any, given: Any) -> None:
    class Other(gym.Env[Any, int]):
        observation_space, action_space = given, CHOICE

    env = make_vect_envs(make_env=Other, num_envs=2)
    with pytest.raises(ShapeError, match=r"agent 0 was built for the observation_space .*; there has .* fix:"):
        train_off_policy(env, "there", pop=[made("DQN", built)], memory=ReplayBuffer(10), verbose=False)


# --- observations

OBSERVATIONS: list[tuple[Any, Any, list[str]]] = [
    (VECTOR, np.zeros(4), ["shape (4,)", "(3,)"]),
    (VECTOR, np.zeros((2, 4)), ["shape (2, 4)", "(3,)"]),
    (VECTOR, np.zeros((2, 5, 3)), ["2 leading axes"]),
    (VECTOR, 5.0, ["shape ()", "(3,)"]),
    (VECTOR, None, ["type NoneType"]),
    (VECTOR, np.array(["a", "b", "c"]), ["type <U1"]),
    (VECTOR, np.array([None] * 3), ["type object"]),
    (VECTOR, np.zeros(3, np.complex64), ["complex"]),
    (IMAGE, np.zeros((3, 8, 9), np.uint8), ["shape (3, 8, 9)", "(3, 8, 8)"]),
    (spaces.Discrete(3), 3, ["values from 3 to 3", "integers from 0 to 2"]),
    (spaces.Discrete(3), np.array([0, -1]), ["values from -1 to 0"]),
    (spaces.Discrete(3), 1.5, ["values from 1.5", "integers"]),
    (spaces.Discrete(3, start=2), np.array([1]), ["integers from 2 to 4"]),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), ["values from 3 to 3", "integers from 0 to 2"]),
    (PARTS, {"a": np.zeros(3)}, ["without ['b']", "['a']"]),
    (PARTS, {"a": np.zeros(4), "b": 1}, ["part 'a'", "(4,)"]),
    (PARTS, np.zeros(5), ["type ndarray", "Dict("]),
    (PARTS, {"a": np.zeros((3, 3)), "b": np.zeros(2)}, ["different leading axes"]),
    (PAIR, (np.zeros(3),), ["without ['tuple_obs_1']"]),
]


@pytest.mark.parametrize(("space", "obs", "words"), OBSERVATIONS)
def test_get_action_says_what_is_wrong_with_an_observation(space: Any, obs: Any, words: list[str]) -> None:
    with pytest.raises(ShapeError) as caught:
        made("DQN", space).get_action(obs)
    assert all(word in str(caught.value) for word in [*words, "fix:"]), str(caught.value)


def batch(**changes: Any) -> dict[str, Any]:
    count = 4
    rows: dict[str, Any] = {"obs": np.zeros((count, 3), np.float32), "next_obs": np.zeros((count, 3), np.float32)}
    rest = {"action": np.zeros(count, int), "reward": np.zeros(count), "done": np.zeros(count)}
    return {**rows, **rest, **changes}


BATCHES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "obs of another width": (
        lambda: made("DQN").learn(batch(obs=np.zeros((4, 2)))),
        ["shape (4, 2)", "built for (3,)"],
    ),
    "one obs": (lambda: made("DQN").learn(batch(obs=np.zeros(3))), ["shape (3,)", "built for (3,)"]),
    "texts": (lambda: made("DQN").learn(batch(obs=np.array([["a"] * 3] * 4))), ["type <U1"]),
    "fewer next_obs": (lambda: made("DQN").learn(batch(next_obs=np.zeros((3, 3)))), ["next_obs", "[4, 3]"]),
    "more actions": (lambda: made("DQN").learn(batch(action=np.zeros(5, int))), ["actions of shape (5,)", "(4,)"]),
    "action too large": (lambda: made("DQN").learn(batch(action=np.full(4, 2))), ["actions from 2 to 2", "0 to 1"]),
    "half an action": (lambda: made("DQN").learn(batch(action=np.full(4, 0.5))), ["actions from 0.5", "integers"]),
    "fewer rewards": (lambda: made("DQN").learn(batch(reward=np.zeros(3))), ["reward of shape (3,)", "(4,)"]),
    "two done flags each": (lambda: made("DQN").learn(batch(done=np.zeros((4, 2)))), ["done of shape (4, 2)"]),
    "a part is missing": (
        lambda: made("DQN", PARTS).learn(batch(obs={"a": np.zeros((4, 3))})),
        ["DQN.learn got observations without ['b']"],
    ),
    "a part in another shape": (
        lambda: made("DQN", PARTS).learn(batch(obs={"a": np.zeros((4, 2)), "b": np.zeros(4)})),
        ["DQN.learn, part 'a',", "(4, 2)", "built for (3,)"],
    ),
    "an array for a dictionary": (lambda: made("DQN", PARTS).learn(batch()), ["type ndarray", "Dict("]),
    "integers for continuous actions": (
        lambda: made("TD3", actions=BOX).learn(batch()),
        ["TD3.learn got actions of shape (4,)", "2 components"],
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_learn_says_what_is_wrong_with_a_batch(name: str) -> None:
    do, words = BATCHES[name]
    with pytest.raises(ShapeError) as caught:
        do()
    assert isinstance(caught.value, AgileRLError)
    assert all(word in str(caught.value) for word in [*words, ".learn", "fix:"]), str(caught.value)


def test_numbers_of_another_kind_are_taken_where_they_say_the_same() -> None:
    agent = made("DQN", spaces.Discrete(3))
    for obs in (np.array([0, 2]), np.array([0.0, 2.0]), np.array([0, 2], np.uint8), [0, 2]):
        assert agent.get_action(obs).shape == (2,)
    column = {"obs": np.zeros((4, 1)), "next_obs": np.zeros((4, 1), int)}  # as buffers store numbers
    assert np.isfinite(agent.learn(batch(**column, action=np.zeros((4, 1)), reward=np.zeros((4, 1)))))
