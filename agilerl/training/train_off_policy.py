"""The published off-policy training function: its signature, and the choice of parts for the one loop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import gymnasium as gym

from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.components.replay_buffer import MultiStepReplayBuffer
from agilerl.envs.spaces import observation_space_channels_to_first
from agilerl.errors import AgileRLWarning, ConfigError, NotAvailableYetError, ShapeError, warn_once
from agilerl.networks.spaces import differ
from agilerl.rng import resolve_seed
from agilerl.telemetry.progress import TqdmSink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.loop import TrainingLoop
from agilerl.training.off_policy import OffPolicySource
from agilerl.training.options import OffPolicyOptions
from agilerl.training.population import check_population
from agilerl.training.run_store import store_in


def train_off_policy(
    env: Any,
    env_name: str,
    algo: str | None = None,
    pop: list[Any] | None = None,
    memory: Any = None,
    INIT_HP: dict[str, Any] | None = None,
    MUT_P: dict[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = 1_000_000,
    evo_steps: int = 10_000,
    eval_steps: int | None = None,
    eval_loop: int = 1,
    learning_delay: int = 0,
    eps_start: float = 1.0,
    eps_end: float = 0.1,
    eps_decay: float = 0.995,
    target: float | None = None,
    n_step: bool = False,
    per: bool = False,
    n_step_memory: Any = None,
    tournament: Any = None,
    mutation: Any = None,
    checkpoint: int | None = None,
    checkpoint_path: str | None = None,
    overwrite_checkpoints: bool = False,
    save_elite: bool = False,
    elite_path: str | None = None,
    wb: bool = False,
    verbose: bool = True,
    accelerator: Any = None,
    wandb_api_key: str | None = None,
    wandb_kwargs: dict[str, Any] | None = None,
    *,
    seed: int | None = None,
    lockstep: bool = True,
    learner: str = "auto",
    sinks: Sequence[Sink] = (),
    resume: str | os.PathLike[str] | None = None,
) -> tuple[list[Any], list[list[float]]]:
    """Train a population off-policy and evolve it; returns the trained population and its fitnesses.

    Steps are environment steps of one member; a population of N makes N times as many.

    Args:
        env: environment or vector environment; it is never closed.
        env_name: name for records and files.
        algo: algorithm name for records and files; the population's own by default.
        pop: the agents. memory: replay buffer that they share.
        INIT_HP, MUT_P: recorded with the run (they were used to make `pop` and `mutation`).
        swap_channels: images are [H, W, C].
        max_steps: environment steps per member. evo_steps: steps per member between evaluations.
        eval_steps: cut evaluation episodes there; None runs to their end.
        eval_loop: evaluation rounds; each gives one episode per environment of `env`.
        learning_delay: steps of the whole population stored before learning starts.
        eps_start, eps_end, eps_decay: exploration rate, multiplied by `eps_decay` every vector step.
        target: stop after the first generation whose best fitness (mean of its last `eval_loop`) reaches it.
        n_step: learn from n-step transitions: those of `n_step_memory`, or of `memory` if it is a
            MultiStepReplayBuffer itself. per: sample by priority; `memory` is then a PrioritizedReplayBuffer.
        n_step_memory: n-step transitions beside `memory`, row by row; fill both through this function only.
        tournament, mutation: objects with `select` and `mutation`; without either, the population is not evolved.
        checkpoint: save all agents each time a member has made so many more steps.
        checkpoint_path: where; `<path>_<slot>_<steps>.pt`. overwrite_checkpoints: leave the steps out.
        save_elite: save the best agent at the end, at `elite_path`.
        wb: Weights & Biases tracking; without the package or the network it warns once and trains on.
        verbose: progress bar and a line per generation; False prints nothing.
        accelerator: one process only.
        wandb_api_key, wandb_kwargs: for Weights & Biases.
        seed: run seed; None follows `torch.initial_seed()`, is recorded and (verbose) printed.
        lockstep: members act at the same time on replicas of `env` (needs an environment of `make_vect_envs`).
        learner: "auto", "fused" or "sequential".
        sinks: further receivers of the records.
        resume: a folder that makes the run resumable. After every generation the whole run is saved there; where it
            has been saved before, it goes on from there, with `pop`, `memory`, `tournament` and `mutation` made as by
            the first call, and ends as if it had never stopped. Two runs in one folder are refused.

    Returns:
        (population, fitnesses), `fitnesses[generation][member]`.

    Raises:
        NotAvailableYetError: an argument that this version does not carry out.
        AlgorithmError, ConfigError: what is given does not fit together.
    """
    _refuse_later(accelerator)
    _check_replay(n_step, per, n_step_memory, memory)
    if any(getattr(agent, "combined_reward", False) for agent in pop or []):
        raise NotAvailableYetError(
            "train_off_policy learns from n-step transitions alone; combined_reward=True is carried out by "
            "RainbowDQN.learn(experiences, n_experiences) in a loop of your own. fix: combined_reward=False."
        )
    pop = list(pop or [])
    check_population(pop, algo, memory)
    _check_spaces(pop, env, env_name, swap_channels)
    _warn_unused_paths(save_elite, elite_path, checkpoint, checkpoint_path)
    _check_evolution(pop, tournament, mutation)
    name = algo or str(pop[0].algo)
    run_seed = resolve_seed(seed)
    if checkpoint is not None and checkpoint_path is None:
        checkpoint_path = f"{env_name}-EvoHPO-{name}-{datetime.now():%m%d%Y%H%M%S}"
    num_envs = max(1, int(getattr(env, "num_envs", 1)))
    options = OffPolicyOptions(
        max_steps=max_steps,
        evo_steps=evo_steps,
        eval_steps=eval_steps,
        eval_episodes=num_envs * eval_loop,
        learning_delay=learning_delay,
        eps_start=eps_start,
        eps_end=eps_end,
        eps_decay=eps_decay,
        target=target,
        fitness_window=eval_loop,
        evolve_last=True,
        lockstep=lockstep,
        learner=learner,
        swap_channels=swap_channels,
        checkpoint=checkpoint,
        checkpoint_path=checkpoint_path,
        overwrite_checkpoints=overwrite_checkpoints,
    )
    chosen: list[Sink] = list(sinks)
    if verbose:
        chosen.append(TqdmSink())
    if wb:
        chosen.append(
            WandbSink(api_key=wandb_api_key, config={**(INIT_HP or {}), **(MUT_P or {})}, **(wandb_kwargs or {}))
        )
    with store_in(resume, algo=name) as store:
        loop = TrainingLoop(
            pop,
            env,
            OffPolicySource(memory, options, n_step_memory),
            options,
            seed=run_seed if store is None or seed is not None else store.seed(run_seed),
            tournament=tournament,
            mutation=mutation,
            sinks=chosen,
            env_id=env_name,
            store=store,
        )
        result = loop.run()
    if save_elite:
        result.best.save_checkpoint(elite_path or f"{env_name}-elite_{name}.pt")
    return result.population, result.history


def _check_replay(n_step: bool, per: bool, n_step_memory: Any, memory: Any) -> None:
    """What is asked for and what the memories do must be the same thing."""
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


def _refuse_later(accelerator: Any) -> None:
    if accelerator is not None and int(getattr(accelerator, "num_processes", 1)) > 1:
        raise NotAvailableYetError(
            f"train_off_policy runs in one process; the accelerator has {accelerator.num_processes}. "
            "fix: start one process."
        )


def _warn_unused_paths(
    save_elite: bool, elite_path: str | None, checkpoint: int | None, checkpoint_path: str | None
) -> None:
    if not save_elite and elite_path is not None:
        warnings.warn(
            "'save_elite' set to False but 'elite_path' has been defined, elite will not "
            "be saved unless 'save_elite' is set to True.",
            AgileRLWarning,
            stacklevel=3,
        )
    if checkpoint is None and checkpoint_path is not None:
        warnings.warn(
            "'checkpoint' set to None but 'checkpoint_path' has been defined, checkpoint will not "
            "be saved unless 'checkpoint' is defined.",
            AgileRLWarning,
            stacklevel=3,
        )


def _check_spaces(pop: list[Any], env: Any, env_name: str, swap_channels: bool) -> None:
    """Agents that register anything are complete, and were built for what `env` gives and takes."""
    for agent in pop:
        if isinstance(agent, EvolvableAlgorithm):
            agent.check_registry()
        for name in ("observation_space", "action_space"):
            built = getattr(agent, name, None)
            given = getattr(env, f"single_{name}" if hasattr(env, "num_envs") else name, None)
            if not (isinstance(built, gym.Space) and isinstance(given, gym.Space)):
                continue
            turned = [observation_space_channels_to_first(given)] if swap_channels else []
            if all(differ(built, space) for space in (given, *turned)):
                raise ShapeError(
                    f"agent {agent.index} was built for the {name} {built}; {env_name} has {given}. "
                    f"fix: create_population(..., {name}=env.single_{name})."
                )


def _check_evolution(pop: list[Any], tournament: Any, mutation: Any) -> None:
    if tournament is not None and mutation is None:
        warn_once("no-mutation", "a tournament without a mutation does nothing. fix: pass mutation=Mutations(...).")
    if mutation is not None and tournament is None:
        warn_once(
            "no-tournament",
            "a mutation without a tournament does nothing. fix: pass tournament=TournamentSelection(...).",
        )
    size = getattr(tournament, "population_size", len(pop))
    if size != len(pop):
        raise ConfigError(
            f"tournament.population_size is {size}, but the population has {len(pop)} agents. "
            f"fix: TournamentSelection(..., population_size={len(pop)})."
        )
