"""Networks by their path in an agent: `actor`, or `actors.speaker_0` for an entry of a mapping or a `ModuleDict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def resolve(owner: object, path: str) -> Any:
    """Resolve `path` to an attribute of `owner`, or part by part to an attribute or entry further down.

    Names of entries may contain dots ("actors.bot.0"): an attribute or entry named like the whole remaining path takes
    precedence, then the longest entry that is a prefix of it.

    Raises:
        AttributeError, KeyError: no such part.
    """
    if isinstance(owner, Mapping | nn.ModuleDict):
        keys = [key for key in owner if path == key or path.startswith(f"{key}.")]
        key = max(keys, key=len, default=path)
        return owner[key] if len(key) == len(path) else resolve(owner[key], path[len(key) + 1 :])
    if "." not in path or path in vars(owner):
        return getattr(owner, path)
    head, _, rest = path.partition(".")
    return resolve(getattr(owner, head), rest)
