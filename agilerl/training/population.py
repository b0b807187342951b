"""What the loop does with a whole population: modes, files, lanes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def evaluation_mode(population: Sequence[Any]) -> Iterator[None]:
    """Agents that have modes do not train inside the block; afterwards they do, also after an interrupt."""
    with_modes = [agent for agent in population if callable(getattr(agent, "set_training_mode", None))]
    for agent in with_modes:
        agent.set_training_mode(False)
    try:
        yield
    finally:
        for agent in with_modes:
            agent.set_training_mode(True)


def save_population(population: Sequence[Any], base: str | Path, overwrite: bool) -> list[Path]:
    """Write every agent to `<base>_<slot>_<steps>.pt`, or `<base>_<slot>.pt` where `overwrite`; atomic, no pickle."""
    paths = []
    for slot, agent in enumerate(population):
        suffix = "" if overwrite else f"_{agent.steps[-1]}"
        paths.append(Path(f"{base}_{slot}{suffix}.pt"))
        agent.save_checkpoint(str(paths[-1]))
    return paths


def set_lanes(population: Sequence[Any], num_envs: int) -> None:
    """Tell agents with rollouts in how many lanes they will act: it decides the length of a rollout."""
    for agent in population:
        if hasattr(agent, "num_envs"):
            agent.num_envs = num_envs
