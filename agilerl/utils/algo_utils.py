"""Published helpers for custom algorithms: sizes of spaces as network inputs and outputs, and channels first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agilerl.core.moved import forward
from agilerl.core.spaces import is_image
from agilerl.core.tree import Tree
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.language.vllm import VLLMConfig

__all__ = [
    "VLLMConfig", "concatenate_spaces", "get_input_size_from_space", "get_output_size_from_space",
    "obs_channels_to_first",
]  # fmt: skip

__getattr__ = forward(__name__)  # names of earlier versions


def get_input_size_from_space(observation_space: object) -> Any:
    """Shape of one encoded observation: that of a Box; (n,) for one-hot codes or bits.

    Returns:
        A tuple of integers; a dictionary of them for a Dict (or dictionary of spaces), a tuple of them for a Tuple or
        list.

    Raises:
        NotAvailableYetError: another kind of space.
    """
    if isinstance(observation_space, spaces.Box):
        return observation_space.shape
    return _sizes(observation_space, "input", get_input_size_from_space, lambda number: (number,))


def get_output_size_from_space(action_space: object) -> Any:
    """Number of network outputs: the components of a Box, all choices of a Discrete or MultiDiscrete, bits.

    Returns:
        An integer; a dictionary or tuple of them as for `get_input_size_from_space`.

    Raises:
        NotAvailableYetError: another kind of space.
    """
    return _sizes(action_space, "output", get_output_size_from_space, int)


def _sizes(space: object, what: str, of_part: Callable[[Any], Any], of_number: Callable[[int], Any]) -> Any:
    if isinstance(space, spaces.Dict | Mapping):
        return {key: of_part(sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple | list | tuple):
        return tuple(of_part(sub) for sub in space)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return of_number(int(spaces.flatdim(space)))
    raise NotAvailableYetError(f"a {type(space).__name__} has no {what} size. fix: Box, Discrete, Dict, ...")


def obs_channels_to_first(observation: Tree, expand_dims: bool = False) -> Any:
    """Transpose observations [..., H, W, C] to [..., C, H, W] (views): every array of 3 or 4 axes, in dictionaries and
    tuples too.

    expand_dims: add a leading batch axis to every array."""
    if isinstance(observation, Mapping):
        return {key: obs_channels_to_first(part, expand_dims) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(obs_channels_to_first(part, expand_dims) for part in observation)
    array = np.asarray(observation)
    turned = np.moveaxis(array, -1, -3) if array.ndim in (3, 4) else array
    return turned[None] if expand_dims else turned


def concatenate_spaces(space_list: Sequence[Any]) -> Any:
    """The space of several agents' concatenated observations or actions, as read by a centralised critic.

    Boxes are concatenated along their first axis. Images are not concatenated: the first space is returned. Numbers of
    choices of Discrete spaces are added (concatenated one-hot codes). Dict and Tuple spaces are concatenated part by
    part.

    Raises:
        ConfigError: no space, or spaces of several kinds. NotAvailableYetError: another kind of space.
    """
    members = list(space_list)
    if not members or any(type(space) is not type(members[0]) for space in members):
        kinds = sorted({type(space).__name__ for space in members})
        raise ConfigError(f"concatenate_spaces takes spaces of one kind; got {kinds}. fix: one kind at a time.")
    first = members[0]
    if isinstance(first, spaces.Dict):
        return spaces.Dict({key: concatenate_spaces([space[key] for space in members]) for key in first})
    if isinstance(first, spaces.Tuple):
        return spaces.Tuple([concatenate_spaces(parts) for parts in zip(*members, strict=True)])
    if all(is_image(space) for space in members):
        return first
    if isinstance(first, spaces.Box):
        low, high = (np.concatenate([getattr(space, end) for space in members]) for end in ("low", "high"))
        return spaces.Box(low, high, dtype=first.dtype)  # type: ignore[arg-type]  # that of a Box
    if isinstance(first, spaces.Discrete):
        return spaces.Discrete(sum(int(space.n) for space in members))
    if isinstance(first, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.concatenate([space.nvec for space in members]))
    if isinstance(first, spaces.MultiBinary):
        return spaces.MultiBinary(sum(int(space.n) for space in members))
    raise NotAvailableYetError(f"a {type(first).__name__} cannot be concatenated. fix: Box, Discrete, Dict, ...")
