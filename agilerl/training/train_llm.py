"""Published training functions for language models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.algorithms import DEFAULT_BY_GYM
from agilerl.algorithms.base.adapted import kind_of_experience
from agilerl.core import foreign
from agilerl.core.options import LanguageOptions, is_number
from agilerl.core.rng import resolve_seed
from agilerl.errors import AlgorithmError, ConfigError, warn_once
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.language.collect.collector import GYMS, ITEMS, LanguageCollector, check_gym
from agilerl.language.collect.games import Games
from agilerl.llm_envs.multiturn import SyncMultiTurnVecEnv
from agilerl.ranks import check_launch, joined
from agilerl.runs.request import RunRequest
from agilerl.telemetry.console import bar_sink
from agilerl.telemetry.files import CsvSink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.distributed import check_same_request, check_shares, folder_of, sync_resume
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.published import check_kinds, check_members
from agilerl.training.result import EvolveResult
from agilerl.training.store import store_in


def finetune_llm_reasoning(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: int | None = None,
    checkpoint_steps: int | None = None, tournament: Any = None, mutation: Any = None,
    wandb_api_key: str | None = None, wandb_project: str = "AgileRL", wandb_entity: str | None = None,
    wandb_run_name: str | None = None, evaluation_interval: int = 10, max_reward: int | None = None,
    verbose: bool = True, accelerator: Any = None, max_steps: int | None = None, num_epochs: int | None = None,
    log_csv: bool = False, *, seed: int | None = None, learner: str = "auto", threads: int = 1,
    sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of GRPO, LLMPPO or LLMREINFORCE agents on prompts with verifiable rewards.

    A step is a prompt. An iteration gives every member one batch of the environment, `data_batch_size_per_gpu` prompts.
    With `env`, members take batches in turn; with `env_fn`, each member has a separate environment.

    Args:
        pop: agents with one shared base. env, env_fn: exactly one of them, a `ReasoningGym` or a factory of one.
        init_hp: stored with the records.
        save_elite, elite_path: save the best agent at the end, as a folder in PEFT format plus the rest of its state.
        wb, wandb_*: Weights & Biases; without the package or the network, warns once and continues.
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
        threads: of torch on a CPU. sinks, callbacks: user-defined.
        resume: folder that makes the run resumable. It is saved after every generation; a second call with the same
            arguments continues from there, bit for bit.

    Returns:
        The population.

    Raises:
        ConfigError, AlgorithmError: incompatible arguments. MutationError: mutations of architectures.
    """
    return _finetune("finetune_llm_reasoning", "completions", dict(locals())).population


def finetune_llm_preference(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: int | None = None,
    checkpoint_steps: int | None = None, tournament: Any = None, mutation: Any = None,
    wandb_api_key: str | None = None, wandb_project: str = "AgileRL", wandb_entity: str | None = None,
    wandb_run_name: str | None = None, evaluation_interval: int = 10, verbose: bool = True, accelerator: Any = None,
    max_steps: int | None = None, num_epochs: int | None = None, log_csv: bool = False, *, seed: int | None = None,
    learner: str = "auto", threads: int = 1, sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of DPO agents on preference pairs.

    `env` is a `PreferenceGym`; a step is a pair. Fitness is the mean of β times the margin over the test split. For the
    other arguments see `finetune_llm_reasoning`.
    """
    return _finetune("finetune_llm_preference", "preferences", dict(locals())).population


def finetune_llm_sft(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: int | None = None,
    checkpoint_steps: int | None = None, tournament: Any = None, mutation: Any = None,
    wandb_api_key: str | None = None, wandb_project: str = "AgileRL", wandb_entity: str | None = None,
    wandb_run_name: str | None = None, evaluation_interval: int = 10, verbose: bool = True, accelerator: Any = None,
    max_steps: int | None = None, num_epochs: int | None = None, log_csv: bool = False, *, seed: int | None = None,
    learner: str = "auto", threads: int = 1, sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (),
    resume: str | os.PathLike[str] | None = None,
) -> list[Any]:  # fmt: skip
    """Train a population of SFT agents on examples.

    `env` is an `SFTGym`; a step is an example. Fitness is the mean log-probability per token of the test split's
    completions. For the other arguments see `finetune_llm_reasoning`.
    """
    return _finetune("finetune_llm_sft", "examples", dict(locals())).population


def finetune_llm_multiturn(
    pop: list[Any], env: Any = None, env_fn: Callable[[], Any] | None = None, init_hp: dict[str, Any] | None = None,
    save_elite: bool | None = None, elite_path: str | None = None, wb: bool = False, evo_steps: int | None = None,
    checkpoint_steps: int | None = None, tournament: Any = None, mutation: Any = None,
    wandb_api_key: str | None = None, wandb_project: str = "AgileRL", wandb_entity: str | None = None,
    wandb_run_name: str | None = None, evaluation_interval: int = 10, max_reward: float | None = None,
    verbose: bool = True, accelerator: Any = None, max_steps: int | None = None, log_csv: bool = False, *,
    test_games: int = 64, report_games: int = 0, seed: int | None = None, learner: str = "auto", threads: int = 1,
    sinks: Sequence[Sink] = (), callbacks: Sequence[Any] = (), resume: str | os.PathLike[str] | None = None,
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

    For the other arguments see `finetune_llm_reasoning`.
    """
    asked = dict(locals())
    asked["num_epochs"], asked["max_steps"] = None, 1_000 if max_steps is None else max_steps

    def games(user_env: Any, game_seed: int) -> Games:
        if not isinstance(user_env, SyncMultiTurnVecEnv):
            raise ConfigError(
                f"finetune_llm_multiturn plays a SyncMultiTurnVecEnv; got {type(user_env).__name__}. fix: {GAMES}."
            )
        return Games(user_env, game_seed, test_games, report_games)

    return _finetune("finetune_llm_multiturn", "completions", asked, games).population


def _finetune(
    function: str, kind: str, asked: dict[str, Any], as_played: Callable[[Any, int], Any] | None = None
) -> EvolveResult:
    """Run a published function; `as_played` converts an environment and the run's seed to the source's environment."""
    check_kinds(function, asked)
    population, env, env_fn = list(asked["pop"] or []), asked["env"], asked["env_fn"]
    _check(function, kind, population, asked)
    lead, run_seed = population[0], resolve_seed(asked["seed"])
    with joined(asked["accelerator"]) as ranks:
        with store_in(folder_of(asked["resume"], ranks), algo=str(lead.algo)) as store:
            sync_resume(store, ranks)
            chosen_seed = run_seed if store is None or asked["seed"] is not None else store.seed(run_seed)
            seed = ranks.gather_plain(chosen_seed)[0]
            user_envs = [env] if env_fn is None else [env_fn() for _ in population]
            for one in user_envs if as_played is None else ():
                check_gym(one, kind)
            envs = user_envs if as_played is None else [as_played(one, seed) for one in user_envs]
            source = LanguageCollector(envs[0] if env_fn is None else envs, LanguageOptions())
            source.ranks = ranks
            source.options = options = _options(source, population, asked)
            if ranks.size > 1:
                same = {name: value for name, value in options.as_dict().items() if name != "checkpoint_path"}
                check_same_request({**same, "function": function}, ranks)
                check_shares(population, ranks)
            request = RunRequest(sinks=_sinks(asked), callbacks=asked["callbacks"]) if ranks.is_main else RunRequest()
            settings = LoopSettings(
                seed=seed,
                env_id=str(foreign.own_name(source.envs[0]) or function.rpartition("_")[2]),
                request=request,
                evolution=TournamentEvolution(asked["tournament"], asked["mutation"], every=options.evolve_every),
                store=store,
                ranks=ranks,
            )
            result = TrainingLoop(population, source, options, settings).run()
        if asked["save_elite"] and ranks.is_main:
            result.best.save_checkpoint(asked["elite_path"] or f"{lead.algo}-elite")
    return result


GAMES = "SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(game, tokenizer, max_turns), batch_size=8)"


def _check(function: str, kind: str, population: list[Any], asked: dict[str, Any]) -> None:
    is_played = "test_games" in asked
    gym = GAMES if is_played else GYMS[kind]
    if (asked["env"] is None) == (asked["env_fn"] is None):
        passed = "neither" if asked["env"] is None else "both"
        raise ConfigError(f"{function} takes exactly one of env= and env_fn=; got {passed}. fix: env={gym}.")
    if not population:
        algo = DEFAULT_BY_GYM[ITEMS[kind][1]]
        raise AlgorithmError(f"{function}: the population is empty. fix: {algo}.population(4, model_name=...).")
    for agent in population:
        name, experience = kind_of_experience(agent)
        if name != kind:
            raise AlgorithmError(f"{function}: {type(agent).__name__} {experience}. fix: {_FITTING[kind]}.")
        agent.check_registry()
    check_members(function, population)
    if not is_played and asked["env"] is not None:
        check_gym(asked["env"], kind)
    _check_numbers(function, asked, gym)
    check_launch(asked["accelerator"])
    if asked["mutation"] is not None:
        asked["mutation"].check_for_language()
    if not asked["save_elite"] and asked["elite_path"] is not None and not asked["log_csv"]:
        warn_once(
            f"{function}-elite", "elite_path is given and save_elite is not: nothing is saved. fix: save_elite=True."
        )


def _check_numbers(function: str, asked: dict[str, Any], gym: str) -> None:
    """Raise ConfigError for budgets, intervals and targets that are no numbers, or not positive."""
    if asked["env_fn"] is not None and not callable(asked["env_fn"]):
        got = type(asked["env_fn"]).__name__
        raise ConfigError(f"{function}: env_fn must be a function; got a {got}. fix: env_fn=lambda: {gym}.")
    for name in ("max_steps", "evo_steps", "evaluation_interval", "checkpoint_steps"):
        value = asked[name]
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
        if not is_count and (value is not None or name == "evaluation_interval"):
            raise ConfigError(f"{function}: {name} must be an integer of at least 1; got {value!r}. fix: {name}=10.")
    epochs, target = asked["num_epochs"], asked.get("max_reward")
    if epochs is not None and not (is_number(epochs) and 0 < epochs < math.inf):
        raise ConfigError(f"{function}: num_epochs must be a number above 0; got {epochs!r}. fix: num_epochs=1.")
    if target is not None and not is_number(target):
        raise ConfigError(f"{function}: max_reward must be a number or None; got {target!r}. fix: max_reward=None.")


_FITTING = {
    "completions": "GRPO, LLMPPO or LLMREINFORCE; or the training function of this algorithm",
    "preferences": "DPO; or the training function of this algorithm",
    "examples": "SFT; or the training function of this algorithm",
}


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


def _sinks(asked: dict[str, Any]) -> list[Sink]:
    chosen: list[Sink] = list(asked["sinks"])
    if asked["verbose"]:
        chosen.append(bar_sink())
    if asked["log_csv"]:
        chosen.append(CsvSink(Path(asked["elite_path"] or ".") / "metrics.csv"))
    if asked["wb"]:
        named = {"entity": asked["wandb_entity"], "name": asked["wandb_run_name"]}
        options = {key: value for key, value in named.items() if value is not None}
        config = dict(asked["init_hp"] or {})
        chosen.append(WandbSink(asked["wandb_project"], config, asked["wandb_api_key"], **options))
    return chosen
