"""Published helpers for algorithms of one's own: sizes of spaces as networks see them, and channels first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from agilerl.errors import NotAvailableYetError
from agilerl.language.vllm import VLLMConfig

__all__ = ["VLLMConfig", "get_input_size_from_space", "get_output_size_from_space", "obs_channels_to_first"]


def get_input_size_from_space(observation_space: Any) -> Any:
    """Shape of one encoded observation: that of a Box; (n,) of what is one-hot encoded or bits.

    Returns:
        A tuple of integers; a dictionary of them for a Dict (or dictionary of spaces), a tuple of them for a Tuple or
        list.

    Raises:
        NotAvailableYetError: another kind of space.
    """
    space = observation_space
    if isinstance(space, spaces.Dict | Mapping):
        return {key: get_input_size_from_space(sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple | list | tuple):
        return tuple(get_input_size_from_space(sub) for sub in space)
    if isinstance(space, spaces.Box):
        return tuple(space.shape)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return (int(spaces.flatdim(space)),)
    raise NotAvailableYetError(f"a {type(space).__name__} has no input size. fix: Box, Discrete, Dict, ...")


def get_output_size_from_space(action_space: Any) -> Any:
    """Outputs of a network for the actions: the components of a Box, all choices of a Discrete or MultiDiscrete, bits.

    Returns:
        An integer; a dictionary or tuple of them as for `get_input_size_from_space`.

    Raises:
        NotAvailableYetError: another kind of space.
    """
    space = action_space
    if isinstance(space, spaces.Dict | Mapping):
        return {key: get_output_size_from_space(sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple | list | tuple):
        return tuple(get_output_size_from_space(sub) for sub in space)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return int(spaces.flatdim(space))
    raise NotAvailableYetError(f"a {type(space).__name__} has no output size. fix: Box, Discrete, ...")


def obs_channels_to_first(observation: Any, expand_dims: bool = False) -> Any:
    """Observations [..., H, W, C] as [..., C, H, W] (views); in dictionaries and tuples every array of 3 or 4 axes.

    expand_dims: put a batch axis in front of every array."""
    if isinstance(observation, Mapping):
        return {key: obs_channels_to_first(part, expand_dims) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(obs_channels_to_first(part, expand_dims) for part in observation)
    array = np.asarray(observation)
    turned = np.moveaxis(array, -1, -3) if array.ndim in (3, 4) else array
    return turned[None] if expand_dims else turned
