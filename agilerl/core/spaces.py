"""Observation and action spaces: structure, JSON form, and channel-first images."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.core import foreign
from agilerl.errors import ConfigError, NotAvailableYetError, unknown_choice

KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
BUCKETS, MOST = 128, 15  # buckets of the counts of a text, and maximum count


MASK = "action_mask"  # key of the action mask in an observation


class MaskAsFeature(spaces.Dict):
    """A Dict whose part "action_mask" is an ordinary observation instead of a mask that agents apply.

    Used for agents that were saved before masks in observations were supported.
    """


class WordCounts(spaces.Box):
    """Texts as vectors [128] of word counts, see `counts_of`."""

    def __init__(self) -> None:
        super().__init__(0, MOST, (BUCKETS,), np.uint8)


@lru_cache(maxsize=4096)
def _counts(text: str) -> np.ndarray:
    words = re.findall(r"\w+", text.lower())
    counts = np.zeros(BUCKETS, dtype=np.uint8)
    for term in [*words, *(f"{one} {other}" for one, other in pairwise(words))]:
        number = zlib.crc32(term.encode())
        for bucket in (number % BUCKETS, (number >> 16) % BUCKETS):
            counts[bucket] = min(counts[bucket] + 1, MOST)
    counts.flags.writeable = False
    return counts


def counts_of(texts: object) -> np.ndarray:
    """Convert a text to counts [128], or nested texts [...] to counts [..., 128], uint8.

    Every word (letters, digits and underscores; in lower case) and every pair of neighbouring words increments two of
    128 buckets: bits 0 to 6 and 16 to 22 of the CRC-32 of their UTF-8 bytes, with one space between the words of a
    pair. Two buckets separate terms that share one of them, and pairs keep some of the order.
    """
    if isinstance(texts, str):
        return _counts(str(texts)).copy()
    array = np.asarray(texts, dtype=object)
    rows = [_counts(str(text)) for text in array.ravel()]
    return np.stack(rows).reshape(*array.shape, BUCKETS) if rows else np.zeros((*array.shape, BUCKETS), np.uint8)


def is_text(space: object) -> bool:
    """Whether this is a space of strings: Gymnasium's Text, or another space with a string dtype."""
    return isinstance(space, Space) and space.dtype is not None and np.dtype(space.dtype).kind == "U"


def holds_text(space: object) -> bool:
    """Whether observations of this space contain text."""
    return is_text(space) or (isinstance(space, Space) and any(map(holds_text, parts_of(space).values())))


def without_texts(space: Any) -> Any:
    """Replace every text in the space by `WordCounts`; unchanged if there is none."""
    if is_text(space):
        return WordCounts()
    if not holds_text(space):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: without_texts(sub) for key, sub in space.spaces.items()})
    return spaces.Tuple([without_texts(sub) for sub in space.spaces])


def count_words(space: Any, obs: Any) -> Any:
    """Replace texts in observations, one or a batch, by counts."""
    if is_text(space):
        return counts_of(obs)
    if isinstance(space, spaces.Dict) and holds_text(space):
        return {key: count_words(sub, obs[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and holds_text(space):
        return tuple(count_words(sub, part) for sub, part in zip(space.spaces, obs, strict=True))
    return obs


def space_to_json(space: Space[Any]) -> dict[str, Any]:
    """Return a JSON-able description of a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space."""
    if isinstance(space, spaces.Box):
        low, high = ([repr(float(v)) for v in bound.ravel()] for bound in (space.low, space.high))
        low, high = (bound[:1] if len(set(bound)) == 1 else bound for bound in (low, high))
        box = {"type": "Box", "shape": list(space.shape), "low": low, "high": high, "dtype": str(space.dtype)}
        return {**box, "text": True} if isinstance(space, WordCounts) else box
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(sub) for sub in space.spaces]}
    raise NotAvailableYetError(f"a {type(space).__name__} space cannot be described as JSON yet")


def space_from_json(data: Mapping[str, Any]) -> Space[Any]:
    """Invert `space_to_json`."""
    kind = data.get("type")
    if kind == "Box" and data.get("text"):
        return WordCounts()
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.array([float(v) for v in data[bound]]) for bound in ("low", "high"))
        low, high = (np.full(shape, b[0]) if len(b) == 1 else b.reshape(shape) for b in (low, high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        # Saved spaces are those that networks read: a mask among their parts is a feature.
        dict_class = MaskAsFeature if MASK in data["spaces"] else spaces.Dict
        return dict_class({key: space_from_json(sub) for key, sub in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(sub) for sub in data["spaces"]])
    raise ConfigError(unknown_choice("space type", str(kind), KINDS))


def short_form(space: object) -> str:
    """Format a space briefly, without bounds: Box(8,), Discrete(4), Dict(image: Box(84, 84), speed: Box(1,)),
    MultiDiscrete([106] * 31)."""
    if isinstance(space, WordCounts):
        return f"text as counts({BUCKETS})"
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim > 1:
        return f"MultiDiscrete{space.nvec.shape}"
    parts = parts_of(space) if isinstance(space, Space) else {}
    if parts:
        inside = ", ".join(f"{name}: {short_form(part)}" for name, part in parts.items())
        return f"{type(space).__name__}({inside})"
    sizes = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 else []
    if len(sizes) > 8 and len(set(sizes)) == 1:  # a text: one number per token
        return f"MultiDiscrete([{sizes[0]}] * {len(sizes)})"
    return " ".join(str(space).split())


def parts_of(space: Space[Any]) -> dict[str, Space[Any]]:
    """Return the spaces inside a Dict by key, inside a Tuple as `tuple_obs_0`, `tuple_obs_1`, ..., as in replay."""
    if isinstance(space, spaces.Dict):
        return {str(key): sub for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"tuple_obs_{i}": sub for i, sub in enumerate(space.spaces)}
    return {}


def empty_part(space: Space[Any]) -> str | None:
    """Return the dotted name of the first empty part of `space`, "" for the whole space; None if there is none."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return "" if 0 in space.shape else None
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return None
    parts = parts_of(space)
    for name, part in parts.items():
        if (inside := empty_part(part)) is not None:
            return f"{name}.{inside}".rstrip(".")
    return None if parts else ""


def nested(space: Space[Any]) -> Any:
    """Return the leaf spaces in a tree nested like the space."""
    if isinstance(space, spaces.Dict):
        return {key: nested(sub) for key, sub in space.spaces.items()}
    return tuple(map(nested, space.spaces)) if isinstance(space, spaces.Tuple) else space


def flat_size(space: Space[Any]) -> int:
    """Return the number of encoder inputs of a flattened observation of `space`."""
    check_supported(space)
    return int(spaces.flatdim(space))


def check_supported(space: Space[Any]) -> None:
    """Raise NotAvailableYetError, naming the space, if it contains unsupported kinds."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in parts_of(space).values():
            check_supported(sub)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        text = "; those of make_vect_envs are read, as counts of words" if is_text(space) else ""
        raise NotAvailableYetError(f"observations of a {type(space).__name__} space need an encoder of their own{text}")


def differ(built: Space[Any], given: Space[Any]) -> bool:
    """Whether a network built for one space would misread observations of the other.

    Bounds may differ, except for byte images, which are scaled by them.
    """
    mine, theirs = parts_of(built), parts_of(given)
    if mine or theirs:
        return mine.keys() != theirs.keys() or any(differ(part, theirs[key]) for key, part in mine.items())
    for name in ("shape", "n", "nvec", "start"):
        one, other = (dict(foreign.attributes(space, (name,))).get(name) for space in (built, given))
        if not np.array_equal(np.asarray(one), np.asarray(other)):
            return True
    return is_byte_image(built) != is_byte_image(given)


def actions_differ(built: Space[Any], given: Space[Any]) -> bool:
    """Whether actions for one space are wrong in the other: as `differ`, and Box bounds must agree."""
    if differ(built, given):
        return True
    if isinstance(built, spaces.Box) and isinstance(given, spaces.Box):
        return not (np.allclose(built.low, given.low) and np.allclose(built.high, given.high))
    return any(actions_differ(part, parts_of(given)[key]) for key, part in parts_of(built).items())


def mask_width(space: Space[Any] | None) -> int:
    """Return the length of the canonical action mask of one lane (`envs.masks`); 0 without discrete choices.

    One entry per choice, component by component; for a MultiBinary two per bit in C order, whether 0 is legal and
    whether 1 is; for Dict and Tuple (multi-agent or hybrid actions) those of all parts, in the order of `parts_of`.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary):
        return 2 * int(np.prod(space.shape))
    return 0 if space is None else sum(map(mask_width, parts_of(space).values()))


# -- images ----------------------------------------------------------------------------------------------------------


def is_image(space: Space[Any]) -> bool:
    """Whether the space is a Box with three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3


SMALL_IMAGE, SMALL = 16, 2_048  # pixels per side; number of flattened inputs


def is_small(space: Space[Any]) -> bool:
    """Whether dense layers read the flattened observation by default: a vector; or a Dict, Tuple or image whose images
    have at most 16 x 16 pixels and that has at most 2,048 inputs."""
    if parts_of(space):
        return all(map(is_small, parts_of(space).values())) and flat_size(space) <= SMALL
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return True
    sides = sorted(space.shape)[1:] if len(space.shape) == 3 else space.shape
    return max(sides) <= SMALL_IMAGE and flat_size(space) <= SMALL


def is_channels_last(space: Space[Any]) -> bool:
    """Whether the space is an image [H, W, C]: its last axis is shorter than both others and has at most 16 entries."""
    if not is_image(space):
        return False
    height, width, channels = space.shape or (0, 0, 0)
    return channels < min(height, width) and channels <= 16


def is_byte_image(space: Space[Any]) -> bool:
    """Whether the space is a Box with three or more axes and values from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def channels_first(space: Space[Any], is_turned: Callable[[Space[Any]], bool] = is_channels_last) -> Space[Any]:
    """Transpose every image [H, W, C] in the space to [C, H, W]; unchanged if there is none."""
    if isinstance(space, spaces.Box) and is_turned(space):
        low, high = np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0)
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: channels_first(sub, is_turned) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([channels_first(sub, is_turned) for sub in space.spaces])
    return space


def observation_space_channels_to_first(observation_space: Space[Any]) -> Space[Any]:
    """Apply `channels_first` to every Box with three axes, wherever its channels are."""
    return channels_first(observation_space, is_image)


def swap_channels(obs: Any, space: Space[Any] | None = None) -> Any:
    """Transpose observations [..., H, W, C] to [..., C, H, W] (views), in dicts and tuples too.

    Args:
        obs: one observation or a batch.
        space: space of one observation, channels last: only its rank-3 boxes are images. Without it everything with
            three or more axes is treated as an image.
    """
    if isinstance(obs, Mapping):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {key: swap_channels(part, parts.get(key)) for key, part in obs.items()}
    if isinstance(obs, tuple):
        subs = space.spaces if isinstance(space, spaces.Tuple) else [None] * len(obs)
        return tuple(swap_channels(part, sub) for part, sub in zip(obs, subs, strict=True))
    turned = np.ndim(obs) >= 3 if space is None else is_image(space)
    return np.moveaxis(obs, -1, -3) if turned else obs
