"""Published training functions for language models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agilerl.algorithms import DEFAULT_BY_GYM
from agilerl.algorithms.base.adapted import kind_of_experience
from agilerl.core import foreign
from agilerl.core.arguments import checked
from agilerl.core.options import LanguageOptions
from agilerl.core.ranges import AnyNumber, Count, Positive
from agilerl.errors import AlgorithmError, ConfigError, warn_once
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.collect.collector import GYMS, ITEMS, LanguageCollector, check_gym
from agilerl.language.collect.games import Games
from agilerl.llm_envs.multiturn import SyncMultiTurnVecEnv
from agilerl.ranks import check_launch, joined
from agilerl.telemetry.record import Sink
from agilerl.training.published import check_members, check_types, compare, completed, train_population


@checked
def finetune_llm_reasoning(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: Count | None = None,
    checkpoint_steps: Count | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, wandb_api_key: str | None = None, wandb_project: str = "AgileRL",
    wandb_entity: str | None = None, wandb_run_name: str | None = None, evaluation_interval: Count = 10,
    max_reward: AnyNumber | None = None, verbose: bool = True, accelerator: foreign.Accelerator | None = None,
    max_steps: Count | None = None, num_epochs: Positive | None = None, log_csv: bool = False, *,
    seed: int | None = None, learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of GRPO, LLMPPO or LLMREINFORCE agents on prompts with verifiable rewards.

    A step is a prompt. An iteration gives every member one batch of the environment, `data_batch_size_per_gpu` prompts.
    With `env`, members take batches in turn; with `env_fn`, each member has a separate environment.

    Args:
        pop: agents with one shared base.
        env, env_fn: exactly one of them, a `ReasoningGym` or a factory of one.
        init_hp: stored with the records.
        save_elite, elite_path: save the best agent at the end, as a folder in PEFT format plus the rest of its state.
        wb: Weights & Biases; without the package or the network, warns once and continues.
        wandb_api_key, wandb_project, wandb_entity, wandb_run_name: for Weights & Biases.
        evo_steps: iterations between two evolutions; None: at every evaluation.
        checkpoint_steps: iterations between two saves of all agents.
        tournament, mutation: objects with `select` and `mutation`; without either, the population is not evolved.
            Only hyperparameters mutate.
        evaluation_interval: iterations between two evaluations, on all prompts of the test split with greedy decoding.
        max_reward: stop when the best agent's mean reward on the test split reaches it.
        verbose: progress bar and a line per generation.
        accelerator: for several processes: each answers different prompts, and gradients are averaged. The batch of the
            environment is per process, the algorithm's `batch_size` is over all of them.
        max_steps: prompts of the whole population; None: one epoch of the training split.
        num_epochs: passes over the training split; overrides `max_steps`.
        log_csv: write metrics.csv, next to the elite if `elite_path` is set.
        seed: run seed; None follows `torch.initial_seed()`.
        learner: "auto", "fused" (one pass of the base for all members) or "sequential".
        threads: of torch on a CPU; None for one.
        sinks, callbacks: user-defined.
        resume: folder that makes the run resumable. It is saved after every generation; a second call with the same
            arguments continues from there, bit for bit.

    Returns:
        The population.

    Raises:
        ConfigError, AlgorithmError: incompatible arguments. MutationError: mutations of architectures.
    """
    return _finetune("finetune_llm_reasoning", "completions", locals())


@checked
@completed(finetune_llm_reasoning)
def finetune_llm_preference(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: Count | None = None,
    checkpoint_steps: Count | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, wandb_api_key: str | None = None, wandb_project: str = "AgileRL",
    wandb_entity: str | None = None, wandb_run_name: str | None = None, evaluation_interval: Count = 10,
    verbose: bool = True, accelerator: foreign.Accelerator | None = None, max_steps: Count | None = None,
    num_epochs: Positive | None = None, log_csv: bool = False, *, seed: int | None = None, learner: str = "auto",
    threads: int | None = None, sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of DPO agents on preference pairs.

    A step is a pair. Fitness is the mean of β times the margin over the test split.

    Args:
        env, env_fn: exactly one of them, a `PreferenceGym` or a factory of one.
    """
    return _finetune("finetune_llm_preference", "preferences", locals())


@checked
@completed(finetune_llm_reasoning)
def finetune_llm_sft(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: Count | None = None,
    checkpoint_steps: Count | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, wandb_api_key: str | None = None, wandb_project: str = "AgileRL",
    wandb_entity: str | None = None, wandb_run_name: str | None = None, evaluation_interval: Count = 10,
    verbose: bool = True, accelerator: foreign.Accelerator | None = None, max_steps: Count | None = None,
    num_epochs: Positive | None = None, log_csv: bool = False, *, seed: int | None = None, learner: str = "auto",
    threads: int | None = None, sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of SFT agents on examples.

    A step is an example. Fitness is the mean log-probability per token of the test split's completions.

    Args:
        env, env_fn: exactly one of them, an `SFTGym` or a factory of one.
    """
    return _finetune("finetune_llm_sft", "examples", locals())


@checked
@completed(finetune_llm_reasoning)
def finetune_llm_multiturn(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: Count | None = None,
    checkpoint_steps: Count | None = None, tournament: TournamentSelection | None = None,
    mutation: Mutations | None = None, wandb_api_key: str | None = None, wandb_project: str = "AgileRL",
    wandb_entity: str | None = None, wandb_run_name: str | None = None, evaluation_interval: Count = 10,
    max_reward: AnyNumber | None = None, verbose: bool = True, accelerator: foreign.Accelerator | None = None,
    max_steps: Count | None = None, log_csv: bool = False, *, test_games: int = 64, report_games: int = 0,
    seed: int | None = None, learner: str = "auto", threads: int | None = None, sinks: Sequence[Sink] = (),
    callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of LLMPPO, LLMREINFORCE or GRPO agents on multi-turn games.

    A step is a starting state of a game, which is played `group_size` times by its member. LLMPPO (`granularity="turn"`
    or "token") and LLMREINFORCE learn from the rewards of single turns, GRPO from the returns of games with the same
    start.

    Args:
        env, env_fn: exactly one of them, a `SyncMultiTurnVecEnv` or a factory, which is called once per member.
        max_steps: starting states of the whole population; None: 1,000.
        test_games: held-out starting states for fitness, the mean greedy return.
        report_games: number of further held-out starting states for the report.
    """
    asked = {**locals(), "num_epochs": None, "max_steps": 1_000 if max_steps is None else max_steps}

    def games(user_env: Any, game_seed: int) -> Games:
        if not isinstance(user_env, SyncMultiTurnVecEnv):
            raise ConfigError(f"env must be a SyncMultiTurnVecEnv; got {type(user_env).__name__}. fix: {GAMES}.")
        return Games(user_env, game_seed, test_games, report_games)

    return _finetune("finetune_llm_multiturn", "completions", asked, games)


def _finetune(
    function: str, kind: str, asked: dict[str, Any], as_played: Callable[[Any, int], Any] | None = None
) -> list[Any]:
    """Run a published function; `as_played` converts an environment and the run's seed to the source's environment."""
    check_types(function, asked)
    population, env, env_fn = list(asked["pop"] or []), asked["env"], asked["env_fn"]
    _check(function, kind, population, asked)
    algo = str(population[0].algo)
    with joined(asked["accelerator"]) as ranks:

        def build(seed: int) -> tuple[LanguageCollector, LanguageOptions, str, TournamentEvolution]:
            envs = [env] if env_fn is None else [env_fn() for _ in population]
            if as_played is None:
                for user_env in envs:
                    check_gym(user_env, kind)
            else:
                envs = [as_played(user_env, seed) for user_env in envs]
            source = LanguageCollector(envs[0] if env_fn is None else envs, LanguageOptions())
            source.ranks = ranks
            source.options = options = _options(source, population, asked)
            compare(ranks, population, options, function=function)
            env_id = str(foreign.own_name(source.envs[0]) or function.rpartition("_")[2])
            evolution = TournamentEvolution(asked["tournament"], asked["mutation"], every=options.evolve_every)
            return source, options, env_id, evolution

        result = train_population(population, asked, ranks, algo, build)
        if asked["save_elite"] and ranks.is_main:
            result.best.save_checkpoint(asked["elite_path"] or f"{algo}-elite")
    return result.population


GAMES = "SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(game, tokenizer, max_turns), batch_size=8)"


def _check(function: str, kind: str, population: list[Any], asked: dict[str, Any]) -> None:
    is_played = "test_games" in asked
    gym = GAMES if is_played else GYMS[kind]
    if (asked["env"] is None) == (asked["env_fn"] is None):
        passed = "neither" if asked["env"] is None else "both"
        raise ConfigError(f"{function} takes exactly one of env= and env_fn=; got {passed}. fix: env={gym}.")
    if asked["env"] is None and not callable(asked["env_fn"]):
        raise ConfigError(f"{function}: env_fn must be a function; got {asked['env_fn']!r}. fix: env_fn=lambda: {gym}.")
    if not population:
        algo = DEFAULT_BY_GYM[ITEMS[kind][1]]
        raise AlgorithmError(f"{function}: the population is empty. fix: {algo}.population(4, model_name=...).")
    for agent in population:
        name, experience = kind_of_experience(agent)
        if name != kind:
            fix = f"{_FITTING[kind]}; or the training function of this algorithm"
            raise AlgorithmError(f"{function}: {type(agent).__name__} {experience}. fix: {fix}.")
        agent.check_registry()
    check_members(function, population)
    if not is_played and asked["env"] is not None:
        check_gym(asked["env"], kind)
    check_launch(asked["accelerator"])
    if asked["mutation"] is not None:
        asked["mutation"].check_for_language()
    if not asked["save_elite"] and asked["elite_path"] is not None and not asked["log_csv"]:
        warn_once(
            f"{function}-elite", "elite_path is given and save_elite is not: nothing is saved. fix: save_elite=True."
        )


_FITTING = {
    "completions": "GRPO, LLMPPO or LLMREINFORCE", "preferences": "DPO agents", "examples": "SFT agents",
}  # fmt: skip


def _options(source: LanguageCollector, population: list[Any], asked: dict[str, Any]) -> LanguageOptions:
    """Convert numbers of iterations to numbers of prompts per member."""
    batch, sharing = source.batch_size, len(population) if source.is_shared else 1
    interval, evo = int(asked["evaluation_interval"]), asked["evo_steps"]
    if evo is not None and evo < interval:
        interval = int(evo)  # selection follows an evaluation
    every = 1 if evo is None else max(1, round(evo / interval))
    if evo is not None and evo % interval:
        warn_once(
            "evo_steps of language",
            f"evo_steps={evo} is no multiple of evaluation_interval={interval}: selection follows an evaluation, so it "
            f"comes every {every * interval} iterations. fix: a multiple.",
        )
    if asked["num_epochs"] is not None:
        iterations = math.ceil(asked["num_epochs"] * source.envs[0].num_batches / sharing)
    else:
        prompts = asked["max_steps"] if asked["max_steps"] is not None else len(source.envs[0].split("train"))
        iterations = math.ceil(prompts / (batch * len(population)))
    steps = asked["checkpoint_steps"]
    return replace(
        LanguageOptions(),
        max_steps=max(1, iterations) * batch,
        evo_steps=min(interval, max(1, iterations)) * batch,
        evolve_every=every,
        evolve_last=True,
        target=None if asked.get("max_reward") is None else float(asked["max_reward"]),
        learner=asked["learner"],
        threads=asked["threads"],
        checkpoint=None if steps is None else int(steps) * batch,
        checkpoint_path=str(Path(asked["elite_path"] or ".") / "checkpoint") if steps is not None else None,
    )
