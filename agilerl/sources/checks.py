"""Mistakes in what a population is to learn from, each with its fix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.sources.own_learn import brings_own_learn


def check_transitions(
    population: Sequence[Any], memory: Any, n_step_memory: Any, *, n_step: bool, per: bool, is_mutated: bool
) -> None:
    """What is asked for, what the memories do and what the agents learn from must be the same thing.

    Args:
        n_step, per: whether n-step transitions, and sampling by priority, are asked for.
        is_mutated: whether hyperparameters of the population mutate.
    """
    _check_kinds(n_step, per, n_step_memory, memory)
    if n_step_memory is None and any(getattr(agent, "combined_reward", False) for agent in population):
        raise ConfigError(
            "combined_reward=True learns from one-step and n-step transitions together, and there are not both. fix: "
            "n_step=True, n_step_memory=MultiStepReplayBuffer(...) beside the memory; or combined_reward=False."
        )
    _check_learners(population, memory)
    _check_memory(population, memory)
    rows = memory if n_step_memory is None else n_step_memory
    if isinstance(rows, MultiStepReplayBuffer):
        _warn_of_discounts(population, rows, is_mutated)


def check_rollouts(population: Sequence[Any]) -> None:
    """AlgorithmError for a population that cannot train from rollouts."""
    if not population:
        raise AlgorithmError("the population is empty. fix: pop=create_population(algo='PPO', ..., population_size=4)")
    for agent in population:
        _check_methods(agent, "on-policy")
        if not hasattr(agent, "gae_lambda") and callable(getattr(agent, "make_batch", None)):
            raise AlgorithmError(
                f"{type(agent).__name__} learns from replay, not from rollouts. fix: train_off_policy, or algo='PPO'."
            )


def _check_methods(agent: Any, training: str) -> None:
    for name in ("get_action", "learn"):
        if not callable(getattr(agent, name, None)):
            raise AlgorithmError(f"agent {agent!r} has no {name}(); {training} training calls it.")


def _check_kinds(n_step: bool, per: bool, n_step_memory: Any, memory: Any) -> None:
    prioritized = callable(getattr(memory, "update_priorities", None))
    multi_step = n_step_memory is not None or isinstance(memory, MultiStepReplayBuffer)
    if per != prioritized and memory is not None:
        kind = type(memory).__name__
        fix = "memory=PrioritizedReplayBuffer(...)" if per else "per=True, or memory=ReplayBuffer(...)"
        raise ConfigError(f"train_off_policy got per={per} and a {kind}. fix: {fix}.")
    if n_step != multi_step:
        given = "an n-step memory" if multi_step else "no n-step memory"
        fix = "n_step_memory=MultiStepReplayBuffer(...)" if n_step else "n_step=True, or leave n_step_memory out"
        raise ConfigError(f"train_off_policy got n_step={n_step} and {given}. fix: {fix}.")


def _check_learners(population: Sequence[Any], memory: Any) -> None:
    if not population:
        raise AlgorithmError("the population is empty. fix: create_population(algo='DQN', ..., population_size=4)")
    if memory is None:
        raise AlgorithmError(
            "off-policy training needs a replay buffer; got memory=None. fix: ReplayBuffer(max_size=100_000)"
        )
    for agent in population:
        _check_methods(agent, "off-policy")
        if not hasattr(agent, "batch_size"):
            raise AlgorithmError(
                f"{type(agent).__name__} has no batch_size, so it is no off-policy algorithm. fix: algo='DQN'"
            )


def _check_memory(population: Sequence[Any], memory: Any) -> None:
    """AlgorithmError for a memory of the user's own without what these agents' training calls."""
    if isinstance(memory, ReplayBuffer):
        return
    needed = ["__len__"]
    if any(brings_own_learn(agent) for agent in population):
        needed += ["sample", "write" if hasattr(memory, "write") else "save_to_memory"]
    else:
        needed += ["write", "sample_indices", "gather", "counter"]
    missing = [name for name in needed if not hasattr(memory, name)]
    if missing:
        raise AlgorithmError(
            f"the memory is a {type(memory).__name__} without {', '.join(missing)}; off-policy training stores and "
            f"samples by {', '.join(needed)}. fix: ReplayBuffer(max_size=100_000). (Agents with a learn() of their own "
            "take any memory with save_to_memory(obs, action, reward, next_obs, done, is_vectorised=True), sample(n) "
            "and len().)"
        )


def _warn_of_discounts(population: Sequence[Any], memory: Any, is_mutated: bool) -> None:
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
            stacklevel=4,
        )
    if is_mutated and any("gamma" in a.hp_config.names() for a in population if hasattr(a, "hp_config")):
        warnings.warn(
            f"gamma is in hp_config, but n-step rewards are summed as they are stored, with the memory's "
            f"gamma={memory.gamma:g}: a mutated gamma has no effect. fix: leave gamma out of hp_config, or train "
            "without n-step memory.",
            AgileRLWarning,
            stacklevel=4,
        )
