"""Is what a file says about its networks small enough to be built? Asked before anything is allocated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from agilerl.errors import RunError

FREE = 2**22  # numbers in one layer that are allowed without a look at the weights
LONGEST = 64  # layers of one part


def check_sizes(networks: Mapping[str, Any], source: str) -> None:
    """Raise RunError where a specification asks for layers far larger than the weights that come with it.

    Args:
        networks: name -> {"spec": what `spec()` gave, "weights": name -> tensor}. source: for the message.
    """
    for name, saved in networks.items():
        stored = sum(w.numel() for w in saved["weights"].values() if isinstance(w, Tensor))
        limit = max(FREE, 4 * stored)
        spec = saved["spec"]
        widths = [width for part in _lists(spec) for width in part]
        latent = int(spec.get("latent_dim", 1))
        inputs = _features(spec.get("observation_space") or {}) if isinstance(spec, Mapping) else 1
        outputs = _features(spec.get("action_space") or {}) * int(spec.get("num_atoms", 1) or 1)
        pairs = [a * b for part in _lists(spec) for a, b in itertools.pairwise(part)]
        largest = max([1, *widths])
        asked = max([largest * latent, largest * outputs, latent * outputs, *pairs])
        # An encoder of images has far fewer weights than pixels; a dense one has at least one for each input.
        seen = inputs * (widths[0] if widths and "encoder_cls" not in spec and len(_shape(spec)) < 3 else 1)
        if any(len(part) > LONGEST for part in _lists(spec)) or min([1, latent, *widths]) < 1:
            raise RunError(f"{source}: {name} has widths that no network has. fix: do not use this file.")
        if asked > limit or seen > max(limit, 2**24):
            raise RunError(
                f"{source}: {name} asks for layers of {max(asked, seen)} weights, but {stored} are stored with it. "
                "fix: do not use this file."
            )


def _lists(spec: Any) -> list[list[int]]:
    """Every list of layer sizes in a specification."""
    return list(_find(spec))


def _find(node: Any) -> Iterator[list[int]]:
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key in ("hidden_size", "channel_size", "hidden_state_size"):
            yield [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
        elif key not in ("observation_space", "action_space"):
            yield from _find(value)


def _shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple((spec.get("observation_space") or {}).get("shape") or ())


def _features(space: Mapping[str, Any]) -> int:
    """Numbers in one observation or action of a described space, one-hot where it is discrete."""
    kind = space.get("type")
    if kind == "Box":
        return math.prod(int(n) for n in space["shape"])
    if kind == "Discrete":
        return int(space["n"])
    if kind in ("MultiDiscrete", "MultiBinary"):
        found = space["nvec" if kind == "MultiDiscrete" else "n"]
        return sum(_flat(found)) if kind == "MultiDiscrete" else math.prod(_flat(found))
    if kind in ("Dict", "Tuple"):
        parts = space["spaces"]
        return sum(_features(part) for part in (parts.values() if isinstance(parts, Mapping) else parts))
    return 1


def _flat(values: Any) -> list[int]:
    return [n for part in values for n in _flat(part)] if isinstance(values, list) else [int(values)]
