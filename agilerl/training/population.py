"""What the loop asks of a population: is it fit to train, which path can it take, how is it saved."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agilerl.algorithms.single_agent import RLAlgorithm
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.engine.choose import own_learn
from agilerl.errors import AgileRLWarning, AlgorithmError


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
    _check_memory(population, memory)


def _check_memory(population: Sequence[Any], memory: Any) -> None:
    """AlgorithmError for a memory of the user's own without what these agents' training calls."""
    if isinstance(memory, ReplayBuffer):
        return
    needed = ["__len__"]
    if all(has_update(agent) for agent in population):
        needed += ["write", "sample_indices", "gather", "counter"]
    else:
        needed += ["sample", "write" if hasattr(memory, "write") else "save_to_memory"]
    missing = [name for name in needed if not hasattr(memory, name)]
    if missing:
        raise AlgorithmError(
            f"the memory is a {type(memory).__name__} without {', '.join(missing)}; off-policy training stores and "
            f"samples by {', '.join(needed)}. fix: ReplayBuffer(max_size=100_000). (Agents with a learn() of their own "
            "take any memory with save_to_memory(obs, action, reward, next_obs, done, is_vectorised=True), sample(n) "
            "and len().)"
        )


def warn_of_discounts(population: Sequence[Any], memory: Any, is_mutated: bool) -> None:
    """Warn where an agent's gamma has no effect, because n-step rewards were summed by the memory's.

    Args:
        memory: the n-step memory. is_mutated: whether hyperparameters of the population mutate.
    """
    others = sorted({float(a.gamma) for a in population if hasattr(a, "gamma")} - {memory.gamma})
    if others:
        given = ", ".join(f"{gamma:g}" for gamma in others)
        other_way = f"MultiStepReplayBuffer(..., gamma={given}), or " if len(others) == 1 else ""
        warnings.warn(
            f"agents have gamma={given}, their n-step memory has gamma={memory.gamma:g}: n-step rewards are summed as "
            f"they are stored, so agents learn with the memory's. fix: {other_way}agents "
            f"with gamma={memory.gamma:g}.",
            AgileRLWarning,
            stacklevel=3,
        )
    if is_mutated and any("gamma" in a.hp_config.names() for a in population if hasattr(a, "hp_config")):
        warnings.warn(
            f"gamma is in hp_config, but n-step rewards are summed as they are stored, with the memory's "
            f"gamma={memory.gamma:g}: a mutated gamma has no effect. fix: leave gamma out of hp_config, or train "
            "without n-step memory.",
            AgileRLWarning,
            stacklevel=3,
        )


def has_update(agent: Any) -> bool:
    """Whether the engine can run this agent's update, on rows or on its modules."""
    return isinstance(agent, RLAlgorithm) and own_learn(agent) is None


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
