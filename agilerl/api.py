"""The Python interface: train a population, resume a run, load a run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agilerl.algorithms import (
    DEFAULT_ALGORITHM,
    DEFAULT_BY_GYM,
    DEFAULT_FOR_TEAMS,
    canonical_name,
    find_algorithm,
    is_team,
    name_of,
)
from agilerl.algorithms.base.evaluation import EvaluatedIn
from agilerl.algorithms.imported.load import load as load_imported
from agilerl.config import (
    Manifest,
    Setting,
    algorithm_in,
    apply_overrides,
    apply_sets,
    check_agreement,
    has_few_steps,
    has_preset,
    names_algorithm,
    on_preset,
    preset_for,
    read_data,
)
from agilerl.config.keys import leaf_paths, resolve_key
from agilerl.core import foreign
from agilerl.core.env_ids import has_several_agents, is_language_id, resolve_env_id, reward_threshold
from agilerl.core.hostile import malformed
from agilerl.data.handed import HandedData
from agilerl.envs.argument import Factory, environment_argument, is_vector
from agilerl.envs.team import name_of as team_name
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, NotAvailableYetError, RunError, others_warn_once
from agilerl.language.base import quiet
from agilerl.runs.directory import RunDirectory, changes_in
from agilerl.runs.names import command, imports_of
from agilerl.runs.records import RunRecords
from agilerl.runs.request import KEYWORDS, ResumeRequest, RunRequest
from agilerl.runs.signals import Stopped
from agilerl.runs.steering import Request, ask, script_of
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.telemetry.record import Sink
from agilerl.telemetry.time_spent import TimeSpent
from agilerl.training.manifest import step_cost
from agilerl.training.manifest.adoption import (
    Ancestors,
    algorithm_of,
    ancestors_of,
    check_algorithm,
    check_same_algorithm,
    saved_best,
    saved_population,
    structure_of,
    with_changes,
)
from agilerl.training.manifest.device import choose_device, resolve_device
from agilerl.training.manifest.launch import resume_training, run_training, with_known_env
from agilerl.training.policy_files import load_language_policy, load_policy
from agilerl.training.run import Run
from agilerl.utils.utils import agent_from_policy
from agilerl.views.hub import local_run
from agilerl.views.report.schedule import schedule_manifest

__all__ = [
    "Evaluation", "Run", "build_manifest", "load", "replay", "resolve_device", "resume", "resume_training",
    "run_training", "steer", "train", "with_known_env",
]  # fmt: skip


DATASET = ("dataset", "training.dataset")  # keys of the data set


def train(
    env: foreign.EnvLike = None,
    algo: str | type | None = None,
    *,
    population: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    config: str | os.PathLike[str] | Mapping[str, Any] | Manifest | None = None,
    out: str | os.PathLike[str] | None = "runs",
    verbose: bool = True,
    evolution: bool = True,
    preset: bool = True,
    minutes: float | None = None,
    sinks: Iterable[Sink] = (),
    callbacks: Sequence[Any] = (),
    agents: object = None,
    workers: int | str = 1,
    ray: str | None = None,
    allow_insecure_ray: bool = False,
    arrivals: str | os.PathLike[str] | None = None,
    schedule: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Run:
    """Train a population and evolve its hyperparameters.

    Args:
        env: a Gymnasium id, an environment, a vector environment, or a function that makes one. Multi-agent: an id such
            as "mpe2.simple_spread_v3", or an object with PettingZoo's parallel interface. Language models: an id such
            as "reasoning/chain_sum" or "arithmetic/addition-2", or a gym of `agilerl.llm_envs`, with `model="PATH"`.
            None takes that of `config`.
        algo: a name, or a custom class. Default: that of the environment's preset; without one PPO, MADDPG for several
            agents, or GRPO for language environments. DQN or SAC, with settings for few steps, if `minutes` hold few
            steps because each takes milliseconds.
        population: number of members. steps: environment steps of ONE member; prompts for language models. Defaults:
            the preset's.
        seed: None takes the configuration's (0 in every preset).
        device: "auto" is the CPU for dense networks of at most 128 units, else CUDA if available.
        config: a YAML file, a mapping or a manifest; missing keys come from the preset.
        out: the folder for `<env>/<algo>-<nnnn>/`; None writes nothing.
        verbose: False prints nothing.
        evolution: False trains the population without selection and mutation.
        preset: False ignores presets.
        minutes: budget in minutes instead of steps, converted at the measured speed of this machine. The run records it
            as steps (`max_steps`, and `stop_after` if its time was up earlier), so that the budget differs between
            machines.
        sinks: further destinations of the records.
        callbacks: custom hooks (`agilerl.Callback`: on_generation, on_birth, on_best, on_end), or functions of a
            `GenerationRecord`; returning False stops the run.
        agents: initial agents: a run, the path of one, or a list such as `run.population`; or a file with a policy of
            another library, see `agilerl.integrations`. They are not modified; the
            new run trains copies, with its own seed and budget, and records their run and members. Hyperparameters
            passed here override theirs; the others keep their evolved values. Replay starts empty and exploration at
            `eps_start`.
        workers: processes that take part, this one included, or "auto" for one per core. They play the episodes of
            evaluations, and train the shards of the population (`shards=2`, say), one each. Their number makes no
            difference to the result.
        ray: workers on Ray instead of processes of this machine: "local" starts a Ray for the run, "auto" takes the
            running one, "HOST:PORT" that of another machine. `workers="auto"` is then one per CPU of the cluster.
        allow_insecure_ray: accept a cluster of other machines that asks for no token.
        arrivals: in asynchronous mode (`mode="async"`), the directory of a run whose shards arrived in an order that
            this one follows: with the same settings it gives the same bits.
        schedule: a file of `agilerl schedule RUN --out FILE`, by which one agent is trained. Its settings come from the
            file, changed by `seed`, `steps` (ends earlier or later; the changes keep their steps) and `overrides`;
            `env=None` takes its environment.
        overrides: manifest keys by their last name (`lr=1e-3`, `target=200`) or dotted (`**{"training.eval_episodes":
            4}`). `dataset` may be arrays, or anything that `agilerl.data.dataset.read_dataset` accepts: the run
            directory keeps them as a file. Options of `agilerl.runs.request.RunRequest` are taken too.

    Raises:
        ConfigError, AlgorithmError, EnvError: before training starts, with a fix.
    """
    minutes, options = minutes_of(minutes), {name: overrides.pop(name) for name in KEYWORDS & overrides.keys()}
    if minutes is not None and steps is not None:
        raise ConfigError("steps and minutes are both budgets. fix: one of the two.")
    budget = None if minutes is None else f"minutes={minutes:g}"  # no number of steps agrees with it
    check_agreement(
        [
            Setting("training.max_steps", steps, f"steps={steps}"),
            Setting("training.max_steps", budget, str(budget)),
            Setting("training.stop_after", None if steps is None else f"steps={steps}", f"steps={steps}"),  # or lost
            Setting("training.pop_size", population, f"population={population}"),
            Setting("training.seed", seed, f"seed={seed}"),
            Setting("environment.name", env if isinstance(env, str) else None, f"env={env!r}"),
        ],
        [Setting(key, value, f"{key}={value!r}") for key, value in overrides.items()],
    )
    _check_kinds(algo=algo, config=config, out=out, evolution=evolution, sinks=sinks, callbacks=callbacks)
    if schedule is not None:
        config = settings_of_schedule(
            schedule, steps, algo=name_of(algo), config=config, agents=agents, minutes=minutes, evolution=evolution,
            preset=preset,
        )  # fmt: skip
        steps = None
    with HandedData() as data:
        config = data.in_config(config)
        overrides = {key: data.file_of(value) if key in DATASET else value for key, value in overrides.items()}
        asked_env, env = env, environment_argument(env)
        env_id = None if env is None else env_name(env)
        ancestors = None if agents is None else ancestors_in(agents, device, asked_env)
        if ancestors is not None:
            if algo is not None:
                check_algorithm(ancestors, str(name_of(algo)))
            other = overrides.get("algorithm.name")
            name = repr(env) if isinstance(env, str) else "env"
            check_same_algorithm(ancestors, other, f"agilerl.train({name}, {other!r})")
            algo = algo if algo is not None or config is not None else algorithm_of(ancestors)
            if ancestors.manifest is None and population is None:
                population = len(ancestors.agents)
            config = ancestors.manifest if config is None else config
        trials: dict[Any, Any] = {}
        start, note = starting_manifest(
            env_id, name_of(algo), config, None if isinstance(env, str) else env, preset, minutes=minutes,
            is_plain=ancestors is None and not SETTLED & set(overrides), trials=trials,
        )  # fmt: skip
        if verbose and note:
            print(note, flush=True)
        start = start if ancestors is None else apply_overrides(start, structure_of(ancestors), "train()")
        manifest = build_manifest(
            env_id, name_of(algo), start=start, population=population, steps=steps, seed=seed, env=env, preset=preset,
            overrides=overrides,
        )  # fmt: skip
        if ancestors is not None:
            ancestors = with_changes(ancestors, manifest, dotted(manifest, overrides))
        if isinstance(env, Factory) and env.has_several_agents and not is_team(manifest.algorithm.name):
            raise AlgorithmError(
                f"{env.makes} has several agents, and {manifest.algorithm.name} trains one. "
                f"fix: algo={DEFAULT_FOR_TEAMS!r}, or an environment of one agent."
            )
        request = RunRequest(
            env=None if isinstance(env, str) else env, device=device, out=out, verbose=verbose, evolution=evolution,
            sinks=sinks, callbacks=callbacks, ancestors=ancestors, minutes=minutes, workers=workers, ray=ray,
            allow_insecure_ray=allow_insecure_ray, arrivals=arrivals, trials=trials,
            has_own_data=data.holds(manifest.training.dataset), **options,
        )  # fmt: skip
        run = _obeying_sigterm(lambda: run_training(manifest, request))
    if out is None and data.holds(run.manifest.training.dataset):  # its file is gone
        return replace(run, manifest=apply_overrides(run.manifest, {"training.dataset": None}))
    return run


def settings_of_schedule(
    path: str | os.PathLike[str], steps: int | None = None, *, algo: str | None = None, config: object = None,
    agents: object = None, minutes: float | None = None, evolution: bool = True, preset: bool = True,
) -> Manifest:  # fmt: skip
    """The settings of one agent that trains by a schedule; the other arguments are those of `train`.

    Raises:
        ConfigError: no schedule at the path, or an argument that contradicts one.
    """
    contradicting = {
        "config": config is not None,
        "agents": agents is not None,
        "minutes": minutes is not None,
        "evolution=False": not evolution,
        "preset=False": not preset,
    }
    names = [name for name, is_named in contradicting.items() if is_named]
    if names:
        raise ConfigError(
            f"a schedule has settings and a budget in steps of its own; got {', '.join(names)} too. "
            f"fix: leave {names[0].partition('=')[0]} out."
        )
    trained = schedule_manifest(path, steps)
    if algo is not None and canonical_name(algo) != trained.algorithm.name:
        raise ConfigError(f"the schedule is one of {trained.algorithm.name}; got algo={algo!r}. fix: leave algo out.")
    return trained


# Argument of `train` -> (its types beside None, in words, the fix).
KINDS: dict[str, tuple[Any, str, str]] = {
    "algo": (str | type, "a name or a class", "algo='PPO', say; agents=[agent] trains agents that are there."),
    "config": (str | os.PathLike | Mapping | Manifest, "a YAML file, a mapping or a manifest", "leave it out."),
    "out": (str | os.PathLike, "a folder or None", "out='runs'."),
    "evolution": (
        bool, "True or False", "evolution=True, with its settings as keywords: **{'evolution.scheme': 'halving'}."
    ),
    "sinks": (Iterable, "a list", "sinks=[...]."),
    "callbacks": (Iterable, "a list", "callbacks=[...]."),
}  # fmt: skip


def _check_kinds(**arguments: Any) -> None:
    """Raise ConfigError for an argument of `train` of the wrong type."""
    for name, value in arguments.items():
        kinds, what, fix = KINDS[name]
        is_none = value is None and name in ("algo", "config", "out")
        if not (is_none or isinstance(value, kinds)) or (kinds is Iterable and isinstance(value, str)):
            raise ConfigError(f"{name} must be {what}; got an object of {type(value).__name__}. fix: {fix}")


def minutes_of(minutes: Any) -> float | None:
    """A budget in minutes as a number; a text of one is taken, as for steps. ConfigError: anything else."""
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(minutes, bool):
            return None if minutes is None else float(minutes)
    raise ConfigError(f"minutes must be a number above 0; got {minutes!r}. fix: minutes=10.")


def ancestors_in(agents: object, device: str, env: foreign.EnvLike = None) -> Ancestors:
    """The agents of a run, of the run at a path, in a list, or of a file of another library, which act in `env`."""
    if not isinstance(agents, str | os.PathLike):
        return ancestors_of(agents)
    if env is not None and os.path.isfile(agents):
        return Ancestors([load_imported(agents, env, seed=0)], str(agents))
    run = load(agents, device)
    if run.population == [run.best]:
        text = f"{agents} keeps its best policy alone: critics and optimisers start anew."
        warnings.warn(text, AgileRLWarning, stacklevel=3)
    return ancestors_of(run)


def dotted(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Resolve names of settings to dotted keys."""
    paths = leaf_paths(manifest.algorithm.name)
    return [resolve_key(name, paths, "train()", manifest.algorithm.name) for name in names]


def continue_training(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    sets: Iterable[str] = (),
    **options: Any,
) -> Run:
    """`train(environment of the run, agents=path)`, with settings as in `--set`; options: fields of `RunRequest`.

    Raises:
        RunError: no run at the path, or its environment was passed as an object and has no id.
    """
    directory = RunDirectory.open(path)
    if directory.facts().get("env_given"):
        raise RunError(
            f"{path} was trained in an environment that was handed over. fix: agilerl.train(env, agents={str(path)!r})."
        )
    ancestors, sets = ancestors_in(path, device), list(sets)
    assert ancestors.manifest is not None  # a run has one
    named = {"training.max_steps": steps, "training.seed": seed}
    other = algorithm_in(sets)
    new_run = f"`agilerl train {ancestors.manifest.environment.name} --algo {other}`"
    check_same_algorithm(ancestors, other, new_run)
    manifest = apply_sets(ancestors.manifest, sets)
    manifest = apply_overrides(manifest, {k: v for k, v in named.items() if v is not None}, "continue")
    ancestors = with_changes(ancestors, manifest, dotted(manifest, (text.partition("=")[0].strip() for text in sets)))
    evolution = bool(directory.facts().get("evolution", True))
    return run_training(manifest, device=device, evolution=evolution, ancestors=ancestors, **options)


def steer(path: str | os.PathLike[str], action: str, **request: Any) -> Path:
    """Ask a running run for a change, which it takes over when its current generation ends.

    Args:
        path: the run directory. action: "set", "pin", "unpin", "clone", "remove", "protect", "unprotect", "evaluate" or
            "stop". request: `member` (an id; all members if left out), `name` and `value` of a hyperparameter, `reason`
            and `author`, as `agilerl.runs.steering.Request` describes them.

    Returns:
        The request's file, which disappears when the run takes it over.

    Raises:
        RunError: the run does not train now. ConfigError, AlgorithmError: a request that it cannot carry out.
    """
    return ask(path, Request.from_dict({"action": action, **request}))


def replay(
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = "runs",
    verbose: bool = True,
    env: foreign.EnvLike = None,
    workers: int | str = 1,
    **options: Any,
) -> Run:
    """Train a run again from its record, with the requests that people made while it ran: it gives the same bits.

    That holds on the same kind of machine with the same versions. The configuration, the seed, the device, requests
    (`steer`) and, in asynchronous mode, the order of arrivals are those of the recorded run. A `stop` after which that
    one was resumed does not end the new one.

    Args:
        path: the run directory. out: the folder of the new run; None writes nothing. env: the environment, for a run
            that was started with an object instead of an id. workers: see `train`. options: fields of `RunRequest`.

    Raises:
        RunError: no run at the path, one that began with agents of another run, or one that was resumed with other
            settings, a budget or a target included.
    """
    directory = RunDirectory.open(path)
    facts, manifest = directory.facts(), directory.manifest()
    if changes := changes_in(facts):
        what = "; ".join(
            f"{', '.join(change['settings'])} after generation {change['generation']}" for change in changes
        )
        raise RunError(
            f"{path} was resumed with other settings ({what}), so that a run from its start has other bits. "
            f"fix: `{command('train', '--config', str(directory.path / 'config.yaml'))}`, which has the last ones from "
            "the start."
        )
    if facts.get("parent") is not None:
        raise RunError(
            f"{path} began with the agents of {facts['parent'].get('run')}, which its record does not hold. "
            "fix: agilerl.train(..., agents=...) with the same settings."
        )
    if bool(facts.get("env_given")) != (env is not None):
        raise RunError(
            f"{path} was trained in an environment that was handed over. fix: agilerl.replay(path, env=...)."
            if facts.get("env_given")
            else f"{path} was trained in {manifest.environment.name}, made by its id. fix: leave env out."
        )
    manifest = directory.with_own_data(manifest, facts)
    request = RunRequest(
        env=None if env is None else environment_argument(env), device=str(facts.get("device", "auto")), out=out,
        verbose=verbose, evolution=bool(facts.get("evolution", True)), imports=imports_of(facts), workers=workers,
        script=script_of(directory), arrivals=path if manifest.evolution.mode == "async" else None,
    )  # fmt: skip
    return _obeying_sigterm(lambda: run_training(manifest, request, **options))


def resume(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    env: foreign.EnvLike = None,
    verbose: bool = True,
    sinks: Iterable[Sink] = (),
    strict_replay: bool = False,
    carry_envs: bool | None = None,
    callbacks: Sequence[Any] = (),
    restart: bool = False,
    allow_other_kernels: bool = False,
    workers: int | str | None = None,
    ray: str | None = None,
    allow_insecure_ray: bool = False,
    minutes: float | None = None,
    **options: Any,
) -> Run:
    """Resume a run from its newest intact checkpoint, bit-identical to an uninterrupted run.

    That holds on the same kind of machine with the same versions; differences are reported. Damaged checkpoints are
    renamed `bad-*` and older ones used. All settings come from the run's record: configuration, seed, device, learner,
    back end, threads. A run that was killed before its first checkpoint starts again, with the same result.

    Args:
        path: the run directory. steps: a new budget per member; the run then no longer equals an uninterrupted one.
        minutes: how much longer to train, instead of steps; see `train`.
        env: the environment, for a run that was started with an object instead of an id.
        verbose: False prints nothing. sinks: further destinations of the records. callbacks: see `train`.
        strict_replay: reject a damaged replay instead of continuing without the lost rows.
        carry_envs: changes that option from here on, which the run records; None follows the record.
        restart: start again if every checkpoint is damaged; files of the run are renamed `bad-*`.
        allow_other_kernels: continue on a machine without the kernels of the run (`native`: built by a C compiler at
            installation); the last bits then differ.
        workers: see `train`; None follows the record. ray: see `train`; None follows the record, except that an address
            has to be given again, and "none" goes on in processes of this machine. allow_insecure_ray: see `train`.
        options: further fields of `agilerl.runs.request.ResumeRequest`.

    Raises:
        RunError: no run at the path, another process trains it, or a file that it needs is missing.
    """
    request = ResumeRequest(
        steps=steps, env=environment_argument(env), verbose=verbose, sinks=sinks, strict_replay=strict_replay,
        carry_envs=carry_envs, callbacks=callbacks, restart=restart, allow_other_kernels=allow_other_kernels,
        workers=workers, ray=ray, allow_insecure_ray=allow_insecure_ray, minutes=minutes_of(minutes), **options,
    )  # fmt: skip
    return _obeying_sigterm(lambda: resume_training(path, request))


def _obeying_sigterm(run: Callable[[], Run]) -> Run:
    """Return the result of `run`; after SIGTERM the process exits with 143 once everything is written."""
    try:
        with others_warn_once():
            finished = run()
    except Stopped as error:
        if error.signum == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    if finished.interrupted and finished.path is not None:
        env = ", env=env" if finished.env_given else ""
        print(f"stopped; agilerl.resume({str(finished.path)!r}{env}) goes on", file=sys.stderr)
    if finished.signal == signal.SIGTERM:
        raise SystemExit(128 + signal.SIGTERM)
    return finished


def load(path: str | os.PathLike[str], device: str = "auto") -> Run:
    """Load a run from its directory: `.best` acts and evaluates as at the end of training.

    `.population` are the members of the newest checkpoint, with their optimisers; without a checkpoint `[best]`.

    Args:
        path: the run directory, or `hf://user/name[@revision]` for a run on the Hugging Face Hub, whose policy and
            records are downloaded to the cache; its code, if any, is not.

    Raises:
        RunError: no run at the path, no policy in it, or a damaged file.
    """
    directory = RunDirectory.open(local_run(path))
    facts = directory.facts()
    manifest = directory.with_own_data(directory.manifest(), facts)
    cls, device = find_algorithm(manifest.algorithm.name), choose_device(device, manifest, is_training=False).name
    if cls.learns_language:
        with quiet():
            best = load_language_policy(directory, cls, device)
        identity = {"id": manifest.environment.name, "kwargs": dict(manifest.environment.kwargs)}
        best.environment = None if facts.get("env_given") else identity
        best.set_training_mode(False)
    else:
        best = _best_agent(directory, manifest, device)
        seed = facts.get("best_seed") or facts.get("seed")  # of evaluations; those of an unfinished run have the run's
        if isinstance(seed, int):
            best.seed = seed
    best.evaluated_in = EvaluatedIn.of(manifest)
    records = RunRecords.read(directory.path)
    with malformed(directory.path):
        return Run(
            best=best,
            population=saved_population(directory.path, device) or [best],
            history=records.history,
            lineage=records.births,
            path=directory.path,
            result=dict(facts.get("result") or {}),
            manifest=manifest,
            interrupted=facts.get("status") == "interrupted",
            random_play=Baseline.from_dict(facts.get("random_play")),
            before=Evaluation.from_dict(facts.get("before")),
            imports=imports_of(facts),
            env_given=bool(facts.get("env_given")),
            failed_saves=int(facts.get("failed_saves") or 0),
            time=TimeSpent.from_dict(facts.get("time")),
        )


def _best_agent(directory: RunDirectory, manifest: Manifest, device: str) -> Any:
    """Rebuild the best agent from its policy file, or from the newest checkpoint for lack of a `policy_class`."""
    spec, state = load_policy(directory)
    try:
        return agent_from_policy(spec, state, device, manifest.algorithm.hyperparameters)
    except NotAvailableYetError:
        best = saved_best(directory.path, spec, state, device)
        if best is None:
            raise
        return best


def env_name(env: foreign.EnvLike) -> str:
    """The id of an environment passed as an id, an object or a function."""
    if isinstance(env, str):
        return env
    if foreign.possible_agents(env) is not None and not isinstance(env, type) and not is_vector(env):
        return team_name(env)  # PettingZoo's conversions have the name of the wrapped game
    name = foreign.env_id(env) or foreign.name_of_function(env, type(env).__name__)
    return name.strip("<>")


# Overrides of `train` that settle the algorithm.
SETTLED = {"dataset", "training.dataset", "opponents", "training.opponents"}


def build_manifest(
    env_id: str | None,
    algo: str | None = None,
    *,
    population: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | Manifest | None = None,
    overrides: Mapping[str, Any] | None = None,
    env: foreign.EnvLike = None,
    preset: bool = True,
    start: Manifest | None = None,
) -> Manifest:
    """The resolved configuration: preset, then `config`, then `overrides`, then the named arguments.

    `env`: the environment, unless it is only an id. `start`: in place of what `base_manifest` returns.
    """
    manifest = base_manifest(env_id, algo, config, env, preset) if start is None else start
    manifest = apply_overrides(manifest, overrides or {}, "train()")
    named = {"training.pop_size": population, "training.max_steps": steps, "training.seed": seed}
    return apply_overrides(manifest, {k: v for k, v in named.items() if v is not None}, "train()")


def starting_manifest(
    env_id: str | None, algo: str | None, config: object, env: foreign.EnvLike = None, preset: bool = True, *,
    minutes: float | None = None, kwargs: Mapping[str, Any] | None = None, is_plain: bool = True,
    trials: dict[Any, Any] | None = None,
) -> tuple[Manifest, str]:  # fmt: skip
    """`base_manifest`, or that of a learner for few steps where few fit; and the line that says so, or "".

    A budget of steps is the same on every machine, and leaves the algorithm as it is.

    Args:
        minutes: budget, if it is one in minutes. kwargs: of an environment that is made by its id.
        trials: of environments so far, see `RunRequest`.
        is_plain: False for self-play, data sets and agents that exist already, whose algorithm is settled.
    """
    is_unknown = config is None and env_id is not None and not (preset and has_preset(env_id))
    is_made = env is None or isinstance(env, Factory)
    usual = base_manifest(env_id, algo, config, env, preset)
    if not (is_plain and is_unknown and is_made) or minutes is None or not 0 < minutes < math.inf:
        return usual, ""
    others = usual.algorithm.name if algo is not None else DEFAULT_ALGORITHM
    if is_language_id(usual.environment.name) or is_team(usual.algorithm.name) or not has_few_steps(others):
        return usual, ""
    name = usual.environment.name if env is not None else resolve_env_id(usual.environment.name)
    choice = step_cost.for_few_steps(name, algo and usual.algorithm.name, env, kwargs or {}, minutes, trials)
    if choice is None:
        return usual, ""
    target = usual.training.target_score
    changes = {} if target is None else {"training.target_score": target}
    return apply_overrides(choice.manifest, changes), choice.note


def _has_several_agents(env: foreign.EnvLike) -> bool:
    return env.has_several_agents if isinstance(env, Factory) else has_several_agents(env)


def _usual_of_object(env: foreign.EnvLike, is_general: bool) -> str | None:
    """Default algorithm for an environment that is handed over, whose name may not tell; None: by its name.

    is_general: whether there is no preset for its name.
    """
    return usual_for_gym(env) or (DEFAULT_FOR_TEAMS if is_general and _has_several_agents(env) else None)


def usual_for_gym(env: foreign.EnvLike) -> str | None:
    """Default algorithm for the prompts, pairs or examples of a gym; None for any other environment."""
    return next((DEFAULT_BY_GYM[base.__name__] for base in type(env).__mro__ if base.__name__ in DEFAULT_BY_GYM), None)


def base_manifest(
    env_id: str | None, algo: str | None, config: Any, env: foreign.EnvLike = None, preset: bool = True
) -> Manifest:
    """The configuration before any override, from a preset, a mapping, a file or a manifest.

    Without a preset, or with `preset=False`, the target is the environment's registered reward threshold, if any.
    """
    if not preset and config is not None:
        raise ConfigError("preset=False leaves out the preset; config has settings of its own. fix: one of the two.")
    if isinstance(config, Manifest):
        changes = {"environment.name": env_id, "algorithm.name": algo}
        return apply_overrides(config, {k: v for k, v in changes.items() if v is not None}, "train()")
    if config is not None:
        source = "config" if isinstance(config, Mapping) else Path(config).name
        data = config if isinstance(config, Mapping) else read_data(config)
        if algo is None and env is not None and not names_algorithm(data, source):
            algo = _usual_of_object(env, not has_preset(env_id or ""))
        return on_preset(data, source, env_id, algo, env)
    if env_id is None:
        raise ConfigError("no environment is named. fix: agilerl train ENV_ID, or --config FILE that names one.")
    is_general = not preset or not has_preset(env_id)
    if algo is None and env is not None:
        algo = _usual_of_object(env, is_general)
    manifest = preset_for(env_id, algo, general=not preset)
    target = reward_threshold(env_id if env is None else env) if is_general else None
    return manifest if target is None else apply_overrides(manifest, {"training.target_score": target})
