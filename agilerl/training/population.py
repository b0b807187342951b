"""What the loop asks of a population: is it fit to train, which path can it take, how is it saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.errors import AlgorithmError
from agilerl.learners.fused import unfusable


def check_population(population: Sequence[Any], algo: str | None, memory: Any) -> None:
    """Mistakes in what is given to an off-policy loop, each with its fix."""
    if not population:
        raise AlgorithmError("the population is empty. fix: create_population(algo='DQN', ..., population_size=4)")
    if memory is None:
        raise AlgorithmError(
            "off-policy training needs a replay buffer; got memory=None. fix: ReplayBuffer(max_size=100_000)"
        )
    for agent in population:
        for name in ("get_action", "learn"):
            if not callable(getattr(agent, name, None)):
                raise AlgorithmError(f"agent {agent!r} has no {name}(); off-policy training calls it.")
        if not hasattr(agent, "batch_size"):
            raise AlgorithmError(
                f"{type(agent).__name__} has no batch_size, so it is no off-policy algorithm. fix: algo='DQN'"
            )


def has_update(agent: Any) -> bool:
    """Whether the engine can run this agent's update, on rows or on its modules."""
    return isinstance(agent, RLAlgorithm) and unfusable(agent) not in (
        "it defines learn() only",
        "it has a learn() of its own",
    )


def set_training_mode(agent: Any, training: bool) -> None:
    """Switch the mode of agents that have one."""
    if callable(getattr(agent, "set_training_mode", None)):
        agent.set_training_mode(training)


@contextlib.contextmanager
def evaluation_mode(population: Sequence[Any]) -> Iterator[None]:
    """Agents that have modes do not train inside the block; afterwards they do, also after an interrupt."""
    for agent in population:
        set_training_mode(agent, False)
    try:
        yield
    finally:
        for agent in population:
            set_training_mode(agent, True)


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
