"""Observation and action spaces: what is in them, as JSON, and as images with channels first."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl import foreign
from agilerl.errors import ConfigError, NotAvailableYetError, unknown_choice

KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
BUCKETS, MOST = 128, 15  # of the counts that a text becomes, and where a count stops


MASK = "action_mask"  # the part of an observation that says which actions are legal


class MaskAsFeature(spaces.Dict):
    """A Dict whose part "action_mask" is an observation like any other, and no mask that agents follow.

    Agents that were saved before masks in observations were followed have such a space.
    """


class WordCounts(spaces.Box):
    """Texts as vectors [128] of counts: what environments' texts become, see `counts_of`."""

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


def counts_of(texts: Any) -> np.ndarray:
    """A text as counts [128], or nested texts [...] as counts [..., 128], uint8.

    Every word (letters, digits and underscores; in lower case) and every two neighbouring words raise the counts in
    two of 128 buckets by one: bits 0 to 6 and 16 to 22 of the CRC-32 of their UTF-8 bytes, words of a pair with one
    space between them. Two buckets each keep terms apart that share one of them, and pairs keep some of the order.
    """
    if isinstance(texts, str):
        return _counts(str(texts)).copy()
    given = np.asarray(texts, dtype=object)
    rows = [_counts(str(text)) for text in given.ravel()]
    return np.stack(rows).reshape(*given.shape, BUCKETS) if rows else np.zeros((*given.shape, BUCKETS), np.uint8)


def is_text(space: Any) -> bool:
    """True for spaces of strings: Gymnasium's Text, and spaces of others whose dtype is a string's."""
    return isinstance(space, Space) and space.dtype is not None and np.dtype(space.dtype).kind == "U"


def holds_text(space: Any) -> bool:
    """Whether there is a text in what environments with this observation space give."""
    return is_text(space) or (isinstance(space, Space) and any(map(holds_text, parts_of(space).values())))


def without_texts(space: Any) -> Any:
    """The space with `WordCounts` in place of every text; itself where there is none."""
    if is_text(space):
        return WordCounts()
    if not holds_text(space):
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: without_texts(sub) for key, sub in space.spaces.items()})
    return spaces.Tuple([without_texts(sub) for sub in space.spaces])


def count_words(space: Any, obs: Any) -> Any:
    """Observations of a space with texts, one or a batch, with counts in place of them."""
    if is_text(space):
        return counts_of(obs)
    if isinstance(space, spaces.Dict) and holds_text(space):
        return {key: count_words(sub, obs[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and holds_text(space):
        return tuple(count_words(sub, part) for sub, part in zip(space.spaces, obs, strict=True))
    return obs


def space_to_json(space: Space[Any]) -> dict[str, Any]:
    """A JSON-able description of a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space."""
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
    """The inverse of `space_to_json`."""
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
        # What is saved are spaces that networks read: a mask among their parts is a feature.
        made = MaskAsFeature if MASK in data["spaces"] else spaces.Dict
        return made({key: space_from_json(sub) for key, sub in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(sub) for sub in data["spaces"]])
    raise ConfigError(unknown_choice("space type", str(kind), KINDS))


def short_form(space: Any) -> str:
    """A space in a few characters, without bounds: Box(8,), Discrete(4), Dict(image: Box(84, 84), speed: Box(1,)),
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
    if len(sizes) > 8 and len(set(sizes)) == 1:  # a text: as many numbers as tokens
        return f"MultiDiscrete([{sizes[0]}] * {len(sizes)})"
    return " ".join(str(space).split())


def parts_of(space: Space[Any]) -> dict[str, Space[Any]]:
    """The spaces inside a Dict by key, inside a Tuple as `tuple_obs_0`, `tuple_obs_1`, ..., as replay names them."""
    if isinstance(space, spaces.Dict):
        return {str(key): sub for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"tuple_obs_{i}": sub for i, sub in enumerate(space.spaces)}
    return {}


def empty_part(space: Space[Any]) -> str | None:
    """Dotted name of the first part of `space` that holds no number, "" for the whole space; None without one."""
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
    """The spaces of the leaves of an observation, in a tree nested as the space is."""
    if isinstance(space, spaces.Dict):
        return {key: nested(sub) for key, sub in space.spaces.items()}
    return tuple(map(nested, space.spaces)) if isinstance(space, spaces.Tuple) else space


def flat_size(space: Space[Any]) -> int:
    """Number of encoder inputs that an observation of `space` becomes when everything in it is laid side by side."""
    check_supported(space)
    return int(spaces.flatdim(space))


def check_supported(space: Space[Any]) -> None:
    """Raise NotAvailableYetError, naming the space, unless it is made of the kinds that can be encoded."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in parts_of(space).values():
            check_supported(sub)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        text = "; those of make_vect_envs are read, as counts of words" if is_text(space) else ""
        raise NotAvailableYetError(f"observations of a {type(space).__name__} space need an encoder of their own{text}")


def differ(built: Space[Any], given: Space[Any]) -> bool:
    """Whether a network that was built for one space would misread what the other holds.

    Bounds may differ, but for images of bytes, which are scaled by them.
    """
    mine, theirs = parts_of(built), parts_of(given)
    if mine or theirs:
        return mine.keys() != theirs.keys() or any(differ(part, theirs[key]) for key, part in mine.items())
    for name in ("shape", "n", "nvec", "start"):
        one, other = (dict(foreign.attributes(space, (name,))).get(name) for space in (built, given))
        if not np.array_equal(np.asarray(one), np.asarray(other)):
            return True
    return is_byte_image(built) != is_byte_image(given)


def mask_width(space: Space[Any] | None) -> int:
    """Entries of the canonical action mask of one lane (`envs.masks`); 0 where nothing is chosen.

    One per choice, component by component; of a MultiBinary two per bit in C order, whether 0 is legal and whether 1
    is; of Dict and Tuple (a team's actions, or hybrid ones) those of all parts, in the order of `parts_of`.
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
    """True for a Box of three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3


SMALL_IMAGE, SMALL = 16, 2_048  # pixels a side; inputs of an observation laid side by side


def is_small(space: Space[Any]) -> bool:
    """Whether dense layers read an observation with everything in it side by side by default: a vector; a Dict, a Tuple
    or an image whose images have at most 16 x 16 pixels and that becomes at most 2,048 inputs."""
    if parts_of(space):
        return all(map(is_small, parts_of(space).values())) and flat_size(space) <= SMALL
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return True
    sides = sorted(space.shape)[1:] if len(space.shape) == 3 else space.shape
    return max(sides) <= SMALL_IMAGE and flat_size(space) <= SMALL


def is_channels_last(space: Space[Any]) -> bool:
    """True for an image [H, W, C]: its last axis is shorter than both others and has at most 16 entries."""
    if not is_image(space):
        return False
    height, width, channels = space.shape or (0, 0, 0)
    return channels < min(height, width) and channels <= 16


def is_byte_image(space: Space[Any]) -> bool:
    """True for a Box of three axes or more whose values run from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def channels_first(space: Space[Any], is_turned: Callable[[Space[Any]], bool] = is_channels_last) -> Space[Any]:
    """The space with every image [H, W, C] in it as [C, H, W]; unchanged where there is none."""
    if isinstance(space, spaces.Box) and is_turned(space):
        low, high = np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0)
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: channels_first(sub, is_turned) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([channels_first(sub, is_turned) for sub in space.spaces])
    return space


def observation_space_channels_to_first(space: Space[Any]) -> Space[Any]:
    """As `channels_first`, of every Box of three axes, whichever of them is the channels."""
    return channels_first(space, is_image)


def swap_channels(obs: Any, space: Space[Any] | None = None) -> Any:
    """Observations [..., H, W, C] as [..., C, H, W] (views), in dicts and tuples too.

    Args:
        obs: one observation or a batch.
        space: of one observation, channels last: only its rank-3 boxes are images. Without it everything of three
            axes and more is taken for an image.
    """
    if isinstance(obs, Mapping):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {key: swap_channels(part, parts.get(key)) for key, part in obs.items()}
    if isinstance(obs, tuple):
        subs = space.spaces if isinstance(space, spaces.Tuple) else [None] * len(obs)
        return tuple(swap_channels(part, sub) for part, sub in zip(obs, subs, strict=True))
    turned = np.ndim(obs) >= 3 if space is None else is_image(space)
    return np.moveaxis(obs, -1, -3) if turned else obs
