"""Which algorithms a manifest may name, and the keys that each one accepts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from agilerl.config.fields import Count, Fraction, Positive, PositiveFraction
from agilerl.errors import AlgorithmError, NotAvailableYetError, nearest

AlgorithmKeys = Mapping[str, tuple[Any, Any]]
"""key -> (annotated type with its range, default)."""

DQN_KEYS: AlgorithmKeys = {
    "lr": (Positive, 1e-3),
    "batch_size": (Count, 64),
    "learn_step": (Count, 4),  # environment steps of one member per update
    "gamma": (Fraction, 0.99),
    "tau": (PositiveFraction, 0.01),
    "double": (bool, True),
}

ALGORITHMS: dict[str, AlgorithmKeys] = {"DQN": DQN_KEYS}
"""Algorithms that run in this version. `register_algorithm` adds one."""

NOT_YET = (
    "BC_LM", "CISPO", "CQN", "DDPG", "DPO", "GRPO", "ILQL", "IPPO", "MADDPG", "MATD3", "NeuralTS", "NeuralUCB",
    "PPO", "RainbowDQN", "SAC", "TD3",
)  # fmt: skip
"""Published names that this version does not train yet."""


def register_algorithm(name: str, keys: AlgorithmKeys) -> None:
    """Let manifests name an algorithm of your own; `keys` as in `DQN_KEYS`."""
    ALGORITHMS[name] = keys
    algorithm_model.cache_clear()


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " -_")


def canonical_algorithm(name: str) -> str:
    """The algorithm's own spelling; case, spaces, dashes and underscores do not matter.

    Raises:
        NotAvailableYetError: published, but not in this version.
        AlgorithmError: unknown; names the nearest one.
    """
    for known in ALGORITHMS:
        if _plain(known) == _plain(name):
            return known
    available = ", ".join(sorted(ALGORITHMS))
    for later in NOT_YET:
        if _plain(later) == _plain(name):
            raise NotAvailableYetError(f"{later} is not available in this version. fix: use one of: {available}.")
    close = nearest(name, [*ALGORITHMS, *NOT_YET], limit=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise AlgorithmError(
        f"unknown algorithm {name!r}.{hint} (known: {available}; not in this version yet: {', '.join(NOT_YET)})"
    )


def algorithm_keys(name: str) -> AlgorithmKeys:
    """The keys that the algorithm accepts in the manifest, each with its type and default."""
    return ALGORITHMS[canonical_algorithm(name)]


@lru_cache(maxsize=32)
def algorithm_model(name: str) -> type[BaseModel]:
    """A pydantic model of the algorithm's keys (without `name`)."""
    fields: dict[str, Any] = dict(algorithm_keys(name))
    return create_model(f"{name}Keys", __config__=ConfigDict(extra="forbid"), **fields)
