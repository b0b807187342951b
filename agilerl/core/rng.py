"""Named random streams: every draw is keyed by (run seed, purpose, generation, member)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from agilerl.errors import ConfigError


class Purpose(IntEnum):
    """Purpose of a stream. The integers are part of the run identity: never renumber, only append."""

    INITIAL_WEIGHTS = 0
    ENVIRONMENT = 1
    EXPLORATION = 2
    REPLAY = 3
    EVALUATION = 4
    SELECTION = 5
    MUTATION = 6
    CONFIRMATION = 7
    FINAL_TEST = 8
    PROBE = 9
    DETERMINISM = 10
    OPPONENTS = 11
    FITTED_EVALUATION = 12
    WRITING = 13
    RANK = 14
    FOUNDERS = 15
    RANDOM_PLAY = 16
    PREDICTION = 17
    GLOBAL_GENERATORS = 19


def stream(run_seed: int, purpose: Purpose, generation: int = 0, member: int = 0) -> np.random.Generator:
    """Return an independent generator for (run seed, purpose, generation, member); equal keys give equal draws."""
    return np.random.default_rng(sequence(run_seed, purpose, generation, member))


def sequence(run_seed: int, purpose: Purpose, generation: int = 0, member: int = 0) -> np.random.SeedSequence:
    """Return the seed sequence behind `stream`.

    Raises:
        ConfigError: a negative seed.
    """
    check_seed(run_seed)
    return np.random.SeedSequence(run_seed, spawn_key=(int(purpose), generation, member))


def seeds(run_seed: int, purpose: Purpose, count: int, generation: int = 0, member: int = 0) -> np.ndarray:
    """Return `count` seeds [count] int64 in [0, 2**31), one per environment lane.

    They are hashed, so that blocks of lanes do not overlap as consecutive seeds would.
    """
    words = sequence(run_seed, purpose, generation, member).generate_state(count, np.uint32)
    return (words >> 1).astype(np.int64)


def restored_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """Restore a generator from its `bit_generator.state`; ValueError if it is not one of numpy's."""
    names, name = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"), str(state["bit_generator"])
    if name not in names:
        raise ValueError(f"unknown bit generator {name!r}; expected one of {list(names)}.")
    bits = getattr(np.random, name)(0)
    bits.state = dict(state)
    return np.random.Generator(bits)


def check_seed(seed: int) -> None:
    """Raise ConfigError unless the seed is a non-negative integer, as required by NumPy."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be an integer of at least 0; got {seed!r}. fix: seed=0.")


def resolve_seed(seed: int | None) -> int:
    """Return the given seed, or derive one from `torch.manual_seed` without changing torch's global state.

    Raises:
        ConfigError: a negative seed.
    """
    if seed is None:
        return int(torch.initial_seed() % 2**31)
    check_seed(seed)
    return int(seed)
