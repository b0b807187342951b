"""Spaces to JSON and back, channels first, and the checks."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.core.spaces import (
    mask_width,
    observation_space_channels_to_first,
    space_from_json,
    space_to_json,
    swap_channels,
)
from agilerl.errors import ConfigError, NotAvailableYetError

FLOATS = st.floats(-1e6, 1e6, width=32)


@st.composite
def boxes(draw: Any) -> spaces.Box:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=0, max_size=3)))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.uint8]))
    if dtype is np.uint8:
        return spaces.Box(0, draw(st.integers(1, 255)), shape, np.uint8)
    count = int(np.prod(shape))
    low = np.array(draw(st.lists(FLOATS | st.just(-np.inf), min_size=count, max_size=count)), dtype).reshape(shape)
    high = np.where(draw(st.booleans()), np.inf, np.where(np.isinf(low), 0.1, low + 1)).astype(dtype)
    return spaces.Box(low, np.maximum(low, high), dtype=dtype)


PLAIN = (
    boxes()
    | st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-3, 3))
    | st.lists(st.integers(1, 5), min_size=1, max_size=4).map(spaces.MultiDiscrete)
    | st.integers(1, 4).map(spaces.MultiBinary)
    | st.just(spaces.MultiBinary([2, 3]))
)
ANY = st.recursive(
    PLAIN,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))
    ),
    max_leaves=5,
)


@settings(deadline=None, derandomize=True)
@given(ANY)
def test_a_space_survives_json(space: Space[Any]) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    assert space_from_json(json.loads(text)) == space


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "Acrobot-v1", "Pendulum-v1"])
def test_spaces_of_real_environments_survive_json(env_id: str) -> None:
    env = gymnasium.make(env_id)
    for space in (env.observation_space, env.action_space):
        assert space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False))) == space


def test_unknown_spaces_are_named() -> None:
    with pytest.raises(NotAvailableYetError, match="a Text space"):
        space_to_json(spaces.Text(4))
    with pytest.raises(ConfigError, match=r"'Graph'.*Box, Dict, Discrete"):
        space_from_json({"type": "Graph"})


def test_channels_go_first_in_spaces_and_observations_alike() -> None:
    low = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    image = spaces.Box(low, low + 1)
    flat = spaces.Box(0, 1, (7,))
    space = spaces.Dict({"image": image, "pair": spaces.Tuple((flat, image)), "choice": spaces.Discrete(3)})
    swapped: Any = observation_space_channels_to_first(space)
    assert swapped["image"].shape == (3, 2, 4)
    assert swapped["image"].low[2, 1, 3] == low[1, 3, 2]
    assert swapped["pair"][0] is flat
    assert swapped["choice"] is space["choice"]
    assert observation_space_channels_to_first(flat) is flat
    obs = space.sample()
    assert swapped.contains(swap_channels(obs, space))
    assert swap_channels(np.zeros((5, 2, 4, 3))).shape == (5, 3, 2, 4)
    assert swap_channels(np.zeros((5, 7))).shape == (5, 7)
    assert swap_channels(np.zeros((5, 6, 7)), spaces.Box(0, 1, (6, 7))).shape == (5, 6, 7)


def test_masks_have_one_entry_per_choice() -> None:
    assert mask_width(spaces.Discrete(4, start=2)) == 4
    assert mask_width(spaces.MultiDiscrete([3, 2])) == 5
    assert mask_width(spaces.MultiBinary([2, 3])) == 12
    assert mask_width(spaces.Box(-1, 2, (3,))) == mask_width(None) == 0
    hybrid = spaces.Dict(which=spaces.Discrete(3), where=spaces.Box(0, 1, (2,)))
    assert mask_width(hybrid) == 3
    assert mask_width(spaces.Tuple([hybrid, spaces.MultiBinary(2)])) == 7
