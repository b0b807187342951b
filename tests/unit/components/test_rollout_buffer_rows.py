"""Steps added by hand to a rollout buffer that do not fit its spaces, or are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import PPO
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.errors import ReplayError, ShapeError

E = 2
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 6, 3), np.uint8)
NESTED = spaces.Dict(a=VECTOR, b=spaces.Tuple([spaces.Discrete(3), VECTOR]))
ACTIONS: dict[str, Any] = {
    "Discrete": spaces.Discrete(3, start=2), "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3), "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Dict": spaces.Dict(gear=spaces.Discrete(3), turn=spaces.Box(-1, 1, (1,), np.float32)),
}  # fmt: skip
NAN = np.array([1.0, np.nan])


def step(**more: Any) -> dict[str, Any]:
    ones = np.ones(E, np.float32)
    row = {"obs": np.zeros((E, 4), np.float32), "action": np.zeros(E, int), "reward": ones, "done": np.zeros(E)}
    return {**row, "value": ones, "log_prob": ones, **more}


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "obs, width": ({"obs": np.zeros((E, 3))}, ShapeError, r"got obs of shape \(2, 3\); expected \(2, 4\)"),
    "obs, rows": ({"obs": np.zeros((3, 4))}, ShapeError, r"got obs of shape \(3, 4\); expected \(2, 4\)"),
    "obs, one": ({"obs": np.zeros(4)}, ShapeError, r"got obs of shape \(4,\); expected \(2, 4\)"),
    "obs, texts": ({"obs": np.array([[b"a"] * 4] * 2)}, ShapeError, "obs must be real numbers"),
    "obs, None": ({"obs": None}, ShapeError, "obs must be real numbers; got ndarray"),
    "obs, ragged": ({"obs": [[0, 1, 2, 3], [0, 1]]}, ShapeError, "rows of unequal length"),
    "obs, NaN": ({"obs": np.full((E, 4), np.nan)}, ReplayError, "obs must hold finite numbers; .* environment 0"),
    "next_obs, width": ({"next_obs": np.zeros((E, 3))}, ShapeError, r"next_obs of shape \(2, 3\); expected \(2, 4\)"),
    "next_obs, Inf": ({"next_obs": np.full((E, 4), np.inf)}, ReplayError, "next_obs must hold finite numbers"),
    "action, high": ({"action": [0, 3]}, ShapeError, r"action 3 in environment 1, which is outside of Discrete\(3"),
    "action, low": ({"action": [-1, 0]}, ShapeError, "action -1 in environment 0"),
    "action, half": ({"action": [0.5, 0]}, ShapeError, "action 0.5 in environment 0"),
    "action, NaN": ({"action": NAN}, ReplayError, "action must hold finite numbers"),
    "action, text": ({"action": ["a", "b"]}, ShapeError, "action must be real numbers"),
    "action, None": ({"action": None}, ShapeError, "action must be real numbers"),
    "reward, NaN": ({"reward": NAN}, ReplayError, r"reward must hold finite numbers; that of environment 1 .*\(1 in"),
    "reward, Inf": ({"reward": [np.inf, 0]}, ReplayError, "reward must hold finite numbers"),
    "reward, text": ({"reward": ["a", "b"]}, ShapeError, "reward must be real numbers"),
    "reward, rows": ({"reward": [1.0]}, ShapeError, "reward got 1 numbers for 2 environments"),
    "value, NaN": ({"value": torch.tensor(NAN)}, ReplayError, "value must hold finite numbers"),
    "log_prob, NaN": ({"log_prob": NAN}, ReplayError, "log_prob must hold finite numbers"),
    "done, 2": ({"done": [0, 2]}, ShapeError, r"flags for 2 environments: \[0, 2\]"),
    "done, NaN": ({"done": NAN}, ShapeError, r"flags for 2 environments: \[1.0, nan\]"),
    "truncated, text": ({"truncated": ["a", "b"]}, ShapeError, "must be real numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_steps_that_do_not_fit_are_named_and_not_stored(case: str) -> None:
    more, error, message = WRONG[case]
    for earlier in (0, 1):
        buffer = RolloutBuffer(4, VECTOR, ACTIONS["Discrete"], E)
        for _ in range(earlier):
            buffer.add(**step())
        with pytest.raises(error, match=f"{message}.*fix: "):
            buffer.add(**step(**more))
        assert buffer.position == earlier
        buffer.add(**step())


@pytest.mark.parametrize("case", ["obs, width", "obs, NaN", "action, high", "action, NaN", "reward, NaN"])
def test_steps_with_both_ends_are_checked_too(case: str) -> None:
    more, error, message = WRONG[case]
    buffer, row = RolloutBuffer(4, VECTOR, ACTIONS["Discrete"], E), step(**more)
    row["terminated"] = row.pop("done").astype(bool)
    with pytest.raises(error, match=message):
        buffer.add(**row, truncated=np.zeros(E, bool))
    assert buffer.position == 0


OUTSIDE = {
    "MultiDiscrete": [[0, 0], [0, 3]], "MultiBinary": [[0, 1, 0], [0, 2, 0]], "Dict": [[0, 0.5], [3, 0.5]],
}  # fmt: skip


@pytest.mark.parametrize("kind", OUTSIDE)
def test_choices_out_of_range_are_named(kind: str) -> None:
    buffer = RolloutBuffer(4, VECTOR, ACTIONS[kind], E)
    with pytest.raises(ShapeError, match=f"in environment 1, which is outside of {kind}"):
        buffer.add(**step(action=OUTSIDE[kind]))


@pytest.mark.parametrize("kind", ACTIONS)
def test_what_agents_return_is_stored(kind: str) -> None:
    """Box actions lie outside of their bounds at times: they are samples of a normal distribution."""
    agent = PPO(VECTOR, ACTIONS[kind], num_envs=E, seed=1)
    buffer, obs = RolloutBuffer(32, VECTOR, ACTIONS[kind], E), np.zeros((E, 4), np.float32)
    for _ in range(32):
        action, log_prob, _, value = agent.get_action(obs)
        buffer.add(obs, action, np.ones(E), np.zeros(E), value, log_prob, next_obs=obs)
    assert buffer.full


@pytest.mark.parametrize("last", ["channels", "width"])
def test_images_have_their_channels_at_either_end(last: str) -> None:
    buffer = RolloutBuffer(4, IMAGE, spaces.Discrete(2), E)
    shape = (8, 6, 3) if last == "channels" else (3, 8, 6)
    buffer.add(**step(obs=np.zeros((E, *shape), np.uint8)))
    assert buffer.stored("obs").shape == (1, E, *shape)


def test_parts_of_nested_observations_are_checked() -> None:
    good = {"a": np.zeros((E, 4)), "b": (np.zeros(E, int), np.zeros((E, 4)))}
    buffer = RolloutBuffer(4, NESTED, spaces.Discrete(2), E)
    buffer.add(**step(obs=good))
    with pytest.raises(ShapeError, match=r"got obs without the part 'b' of Dict"):
        buffer.add(**step(obs={"a": good["a"]}))
    with pytest.raises(ShapeError, match=r"obs\['b'\]\['tuple_obs_1'\] of shape \(2, 3\); expected \(2, 4\)"):
        buffer.add(**step(obs={**good, "b": (good["b"][0], np.zeros((E, 3)))}))
    with pytest.raises(ReplayError, match=r"obs\['a'\] must hold finite numbers"):
        buffer.add(**step(obs={**good, "a": np.full((E, 4), np.nan)}))


def test_a_last_value_that_is_not_finite_is_named() -> None:
    buffer = RolloutBuffer(4, VECTOR, ACTIONS["Discrete"], E)
    buffer.add(**step())
    with pytest.raises(ReplayError, match="last_value must hold finite numbers"):
        buffer.compute_returns_and_advantages(NAN)
