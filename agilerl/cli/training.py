"""What `agilerl train` does with its options: settle the settings, then train one run, several, or one again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import typer

from agilerl.algorithms import canonical_name
from agilerl.algorithms.imported.load import load
from agilerl.api import (
    Run,
    base_manifest,
    continue_training,
    dotted,
    replay,
    resume_training,
    run_training,
    settings_of_schedule,
    starting_manifest,
    with_known_env,
)
from agilerl.cli.as_json import print_json, show
from agilerl.cli.messages import OPTION_KEYS, command_as_json
from agilerl.cli.output import closing_facts, closing_lines
from agilerl.cli.seeds import check_without_ray, seeds_to_train, train_side_by_side, workers_in
from agilerl.cli.tracking import chosen_tracker
from agilerl.cli.train import ResumeOptions, TrainOptions
from agilerl.config import (
    Manifest,
    Setting,
    algorithm_in,
    apply_overrides,
    apply_sets,
    check_agreement,
    dump_yaml,
    has_preset,
    is_key,
    read_sets,
    text_in,
)
from agilerl.config.presets import check_kind
from agilerl.config.yaml_text import parse_yaml
from agilerl.core.env_ids import import_environment, is_language_id
from agilerl.core.options import LoopOptions
from agilerl.core.texts import count
from agilerl.errors import AgileRLWarning, ConfigError, RunError
from agilerl.runs.directory import RunDirectory, folder_beside
from agilerl.runs.names import is_group
from agilerl.runs.request import SHARED, ResumeRequest, RunRequest, options_of
from agilerl.runs.seed_group import SeedGroup
from agilerl.training.manifest.adoption import Ancestors, check_algorithm, structure_of, with_changes
from agilerl.training.manifest.device import choose_device, resolve_device
from agilerl.training.manifest.launch import resolved, score_best
from agilerl.training.manifest.tasks import task_of
from agilerl.training.manifest.time_budget import check_minutes
from agilerl.views.watch.child import watched

INTERRUPTED = 130
TEST_EPISODES = 100
# Options of a resume that go to every run of a group.
OF_GROUPS = [
    *(name for name, option in options_of(ResumeRequest).items() if option.of_group and option.on_resume), "track",
]  # fmt: skip
Request = TypeVar("Request", bound=RunRequest)
DEFAULT_MINUTES = 10.0  # for environments without a tuned budget


def train(options: TrainOptions, request: RunRequest, start_time: float) -> None:
    """Train as the options say, and print the closing lines.

    Args:
        request: with the options that are fields of it. start_time: of the command, by `time.perf_counter`.
    Raises:
        ConfigError: options that contradict one another. typer.Exit: the run was interrupted.
    """
    with ExitStack() as stack:

        def serve(imports: Sequence[str]) -> None:
            if options.watch:
                stack.enter_context(watched(options.out, imports, partial(typer.echo, err=options.as_json)))

        if options.replay is not None:
            serve(options.imports or ())
            _train_again(options, options.replay)
            return
        manifest, seeds, request = plan_of(options, replace(request, start_time=start_time))
        if options.dry_run:
            _print_plan(options, manifest, seeds, request)
            return
        serve(request.imports)
        if len(seeds) > 1:
            _train_seeds(options, manifest, seeds, request)
        else:
            _train_one(options, manifest, request)


def plan_of(options: TrainOptions, request: RunRequest) -> tuple[Manifest, Sequence[int], RunRequest]:
    """Return (manifest of the run or of the first one, a seed for each run or none for the manifest's, request)."""
    options = replace(options, steps=_one_budget(options.steps, options.total_timesteps), total_timesteps=None)
    kwargs, sets = with_env_kwargs(options.env_kwargs), options.settings or ()
    check_sets(sets, {**_asked(options), "--steps": options.steps}, options.minutes, kwargs)
    options = _with_named(options)
    if options.algo is not None and options.env_id is not None:
        check_kind(canonical_name(options.algo), options.env_id)
    named = options.env_id if options.allow_code and options.env_id else ""
    if named:
        options = replace(options, env_id=import_environment(named))
    others = {"--seeds": options.seeds, "--dataset": options.dataset, "--model": options.model}
    check_from_alone(options.from_file, {**others, "--opponents": options.opponents, "--schedule": options.schedule})
    ancestors = None
    if options.from_file is not None:
        ancestors = ancestors_from(
            options.from_file, options.env_id, options.algo, options.config, options.settings or (),
            preset=not options.no_preset, env_kwargs=kwargs,
        )  # fmt: skip
        if options.config is None:
            options = replace(options, algo=str(ancestors.agents[0].algo))
    minutes = _minutes(options)
    manifest, note = _starting_point(options, minutes, request.trials)
    if options.allow_code and ":" in manifest.environment.name:  # of a file: its registration is known once imported
        named = manifest.environment.name
        manifest, note = _starting_point(replace(options, env_id=import_environment(named)), minutes, request.trials)
    if note and is_loud(options):
        typer.echo(f"{'# ' if options.dry_run else ''}{note}")
    try:
        manifest = apply_sets(manifest, sets)
    except ConfigError:  # options may hold what a rule over several keys asks for
        manifest = apply_sets(_with_options(manifest, options), sets)
    if options.allow_code and ":" in manifest.environment.name:  # from --set
        named = manifest.environment.name
        manifest = apply_sets(manifest, [f"environment.name={import_environment(named)}"])
    manifest = _with_options(manifest, options)
    if minutes is not None and options.steps and options.schedule is None:
        raise ConfigError("--steps and --minutes are both budgets. fix: one of the two.")
    if ancestors is not None:
        manifest, ancestors = with_founders(ancestors, manifest, sets)
    has_seed = options.seed is not None or not {"seed", "training.seed"}.isdisjoint(options.set_keys)
    several = seeds_to_train(options.seeds, has_seed, options.array_index)
    if len(several) == 1:
        manifest = _changed(manifest, {"--seed": several[0]})
    workers = workers_in(options.workers)
    if note and (len(several) > 1 or workers not in (None, 1)):  # these processes take the cores
        manifest = apply_sets(manifest, ["environment.num_workers=1"])
    module = [named.rpartition(":")[0]] if ":" in named else []
    return manifest, several, parsed(
        options, request, evolution=not options.no_evolution, minutes=minutes, ancestors=ancestors,
        test_episodes=final_episodes(options.test_episodes), imports=[*(options.imports or ()), *module],
        uses_spare_cores=workers is None and options.ray in (None, "none") and len(several) < 2,
    )  # fmt: skip


def _with_named(options: TrainOptions) -> TrainOptions:
    """The options with the environment and the algorithm that `--set` names: their preset is the starting point."""
    algo, env_id = algorithm_in(options.settings or ()), text_in(options.settings or (), "environment.name")
    if algo is not None and options.algo is not None and canonical_name(algo) != canonical_name(options.algo):
        what = f"--algo {options.algo} and --set algorithm.name={algo} name two algorithms"
        raise ConfigError(f"{what}. fix: one of the two.")
    if env_id is not None and options.env_id not in (None, env_id):
        what = f"ENV_ID {options.env_id} and --set environment.name={env_id} name two environments"
        raise ConfigError(f"{what}. fix: one of the two.")
    algo = algo if options.algo is None else options.algo
    return replace(options, algo=algo, env_id=env_id if options.env_id is None else options.env_id)


def ancestors_from(
    path: Path, env_id: str | None, algo: str | None, config: Path | None, settings: Sequence[str], *, preset: bool,
    env_kwargs: Mapping[str, Any],
) -> Ancestors:  # fmt: skip
    """The agent of a file, for the environment that the other options name.

    Raises:
        AlgorithmError: the options name another algorithm.
    """

    manifest = base_manifest(env_id, algo, config, preset=preset)
    of_environment = [text for text in settings if text.strip().startswith("environment.")]
    environment = apply_sets(manifest, of_environment).environment
    agent = load(path, environment.name, env_kwargs={**environment.kwargs, **env_kwargs}, seed=0)
    ancestors = Ancestors([agent], str(path))
    if algo is not None or config is not None:
        check_algorithm(ancestors, manifest.algorithm.name)
    return ancestors


def with_founders(ancestors: Ancestors, manifest: Manifest, settings: Sequence[str]) -> tuple[Manifest, Ancestors]:
    """(the manifest with the structure of the agents, the agents with the hyperparameters that were named)."""
    named = dotted(manifest, (text.partition("=")[0].strip() for text in settings))
    manifest = apply_overrides(manifest, structure_of(ancestors), "--from")
    return manifest, with_changes(ancestors, manifest, named)


def check_from_alone(path: Path | None, others: Mapping[str, Any]) -> None:
    """Raise ConfigError if `--from` stands beside an option that excludes it."""
    for option, value in others.items():
        if path is not None and value:
            raise ConfigError(f"--from and {option} do not go together. fix: leave {option} out.")


def _has_steps(options: TrainOptions) -> bool:

    return bool(options.steps) or any(is_key(key, OPTION_KEYS["--steps"]) for key in options.set_keys)


def _minutes(options: TrainOptions) -> float | None:
    """The budget in minutes: as asked, or ten for an environment that nothing else gives a budget."""
    env_id = options.env_id
    if options.minutes is not None or env_id is None or options.config is not None or options.schedule is not None:
        return options.minutes
    is_untuned = (options.no_preset or not has_preset(env_id)) and not is_language_id(env_id)
    if is_untuned and not (_has_steps(options) or options.dataset or options.model):
        return DEFAULT_MINUTES
    return None


def _starting_point(options: TrainOptions, minutes: float | None, trials: dict[Any, Any]) -> tuple[Manifest, str]:
    """The manifest before `--set` and the options, and a note if the speed of the environment chose it."""
    start: Any = options.config
    if options.schedule is not None:
        start = settings_of_schedule(
            options.schedule, options.steps, algo=options.algo, config=options.config, minutes=minutes,
            evolution=not options.no_evolution, preset=not options.no_preset,
        )  # fmt: skip
    return starting_manifest(
        options.env_id, options.algo, start, preset=not options.no_preset,
        minutes=None if _has_steps(options) else minutes,
        kwargs=with_env_kwargs(options.env_kwargs) if options.env_kwargs else {},
        is_plain=not (options.opponents or options.dataset or options.model or options.from_file), trials=trials,
    )  # fmt: skip


def _one_budget(steps: int | None, total_timesteps: int | None) -> int | None:
    """--steps, or --total-timesteps with a warning: other libraries count the steps of all members."""
    if total_timesteps is None:
        return steps
    if steps is not None:
        raise ConfigError("--steps and --total-timesteps are the same option. fix: keep --steps.")
    warnings.warn(
        f"--total-timesteps {total_timesteps} is taken as --steps {total_timesteps}: the steps of ONE member; a "
        "population makes that many times its members. fix: --steps, or divide by --population.",
        AgileRLWarning,
        stacklevel=2,
    )
    return total_timesteps


def _asked(options: TrainOptions) -> dict[str, Any]:
    """The values of the options that are single settings of the manifest; None if left out."""
    return {
        "--steps": options.steps if options.schedule is None else None,
        "--population": options.population,
        "--seed": options.seed,
        "--opponents": options.opponents,
        "--dataset": options.dataset,
        "--model": options.model,
        "--target": options.target,
        "--num-envs": options.num_envs,
    }


def _with_options(manifest: Manifest, options: TrainOptions) -> Manifest:
    """The manifest with the settings that have an option of their own."""
    asked = _asked(options)
    if options.env_kwargs:
        asked["--env-kwargs"] = {**manifest.environment.kwargs, **with_env_kwargs(options.env_kwargs)}
    if options.model is not None and "model_name" not in manifest.algorithm.hyperparameters:
        raise ConfigError(
            f"--model names what language algorithms adapt; {manifest.algorithm.name} builds its own networks. "
            "fix: --algo GRPO with an id such as reasoning/chain_sum, or leave --model out."
        )
    return _changed(manifest, asked)


def _changed(manifest: Manifest, asked: Mapping[str, Any]) -> Manifest:
    """The manifest with the values of options that are not None; errors name the option."""
    for option, value in asked.items():
        if value is not None:
            manifest = apply_overrides(manifest, {OPTION_KEYS[option]: value}, option)
    return manifest


def _print_plan(options: TrainOptions, manifest: Manifest, seeds: Sequence[int], request: RunRequest) -> None:

    resolve_device(options.device)  # an unknown one is named first
    manifest, minutes, evolution = task_of(with_known_env(manifest)).resolve(None), request.minutes, request.evolution
    chosen = choose_device(options.device, manifest)
    where = chosen.name
    if minutes is not None:
        check_minutes(manifest, minutes)
    training = manifest.training
    names = ("max_steps", "evo_steps", "evo_first")
    generations = LoopOptions(**{name: vars(training)[name] for name in names}).generations()
    if options.as_json:
        facts: dict[str, Any] = {"manifest": manifest.as_dict(), "manifest_hash": manifest.hash(), "device": where}
        print_json("train", dry_run=True, **facts, generations=generations, evolution=evolution, minutes=minutes)
        return
    typer.echo(dump_yaml(manifest), nl=False)
    typer.echo(
        f"# {manifest.algorithm.name} on {manifest.environment.name}: {training.pop_size} members x "
        f"{count(training.max_steps)} {manifest.steps}, {generations} generations, seed {training.seed}, {where}, "
        f"evolution {'on' if evolution else 'off'}, manifest {manifest.hash()}"
    )
    if options.device == "auto":
        typer.echo(f"# device: {chosen}")
    if minutes is not None:
        budget = "1 minute" if minutes == 1 else f"{minutes:g} minutes"
        typer.echo(f"# in place of training.max_steps: what fits into {budget}, measured when it begins")
    if len(seeds) > 1:
        typer.echo(f"# in place of training.seed: {len(seeds)} seeds, {options.seeds}, each a run of its own")


def check_sets(
    sets: Sequence[str] | None,
    options: Mapping[str, Any],
    minutes: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Raise ConfigError for an option and a `--set` that contradict each other.

    Args:
        options: values by options of `OPTION_KEYS`; None if left out.
    """

    arguments = [Setting(OPTION_KEYS[name], value, f"{name} {_text_of(value)}") for name, value in options.items()]
    arguments += [
        Setting(f"{OPTION_KEYS['--env-kwargs']}.{name}", value, f"--env-kwargs {name}={_text_of(value)}")
        for name, value in (env_kwargs or {}).items()
    ]
    if minutes is not None:  # a budget that no number of steps agrees with
        text = f"--minutes {_text_of(minutes)}"
        arguments.append(Setting(OPTION_KEYS["--steps"], text, text))
    if options.get("--steps") is not None:  # a new budget of steps, which does away with an earlier end
        text = f"--steps {options['--steps']}"
        arguments.append(Setting("training.stop_after", text, text))
    check_agreement(arguments, read_sets(sets or ()))


def _text_of(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_env_kwargs(entries: Sequence[str] | None) -> dict[str, Any]:
    """Keyword arguments of an environment from KEY=VALUE entries; values are YAML.

    Raises:
        ConfigError: an entry that is not KEY=VALUE.
    """

    env_kwargs = {}
    for text in entries or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--env-kwargs {text!r} is not KEY=VALUE. fix: --env-kwargs gravity=-3.")
        env_kwargs[key.strip()] = parse_yaml(value, f"--env-kwargs {key.strip()}")
    return env_kwargs


def is_loud(options: TrainOptions | ResumeOptions) -> bool:
    """Whether more than the closing lines is printed."""
    return not (options.quiet or options.as_json)


def parsed(options: TrainOptions | ResumeOptions, request: Request, **changes: Any) -> Request:
    """Return a request whose options are parsed, with changes."""
    values = {"workers": workers_in(options.workers), "imports": options.imports or (), "verbose": is_loud(options)}
    return replace(request, **{**values, **changes})


def _train_again(options: TrainOptions, run: Path) -> None:
    """Train a run again from its record."""
    episodes = final_episodes(options.test_episodes, run)
    again = replay(
        run, out=options.out, verbose=is_loud(options), workers=workers_in(options.workers) or 1, ray=options.ray,
        allow_insecure_ray=options.allow_insecure_ray, test_episodes=episodes,
    )  # fmt: skip
    close(again, episodes, options.as_json)


def _train_seeds(options: TrainOptions, manifest: Manifest, seeds: Sequence[int], request: RunRequest) -> None:
    """Train a run for each seed, in processes."""
    check_without_ray(options.ray, "--seeds")
    if options.arrivals is not None:
        raise ConfigError("--arrivals repeats one run, and --seeds are several. fix: --seed, of that run.")

    manifest, device = resolved(manifest, request)
    usual = {"device": device, "evolution": request.evolution, "tensorboard": False, "track": options.track or False}
    usual |= {"imports": request.imports, "test_episodes": request.test_episodes}
    shared = {**usual, **request.changed(SHARED), "device": device}
    group = SeedGroup.create(manifest, seeds, options.out, **shared)
    name = "train" if options.as_json else None
    train_side_by_side(group, request.workers or "auto", not request.verbose, request.imports, as_json=name)


def _train_one(options: TrainOptions, manifest: Manifest, request: RunRequest) -> None:
    """Train one run."""
    close(run_training(manifest, request), request.test_episodes or 0, options.as_json)


def resume(run: Path, options: ResumeOptions, request: ResumeRequest, start_time: float) -> None:
    """Resume a run, or a group of seeds, as the options say, and print the closing lines.

    Args:
        request: with the options that are fields of it. start_time: of the command, by `time.perf_counter`.
    """

    check_sets(options.settings, {"--steps": options.steps, "--target": options.target}, options.minutes)
    target = [] if options.target is None else [f"training.target_score={options.target}"]
    request = parsed(
        options, request, settings=(*(options.settings or ()), *target), start_time=start_time,
        uses_spare_cores=True, track=chosen_tracker(options.track, options.no_track),
    )  # fmt: skip
    if is_group(run):
        check_without_ray(options.ray, f"{run} holds seeds: agilerl resume")
        if options.minutes is not None:
            raise ConfigError(f"{run} holds seeds, which have a budget in steps. fix: --steps, or one of its runs.")
        usual = vars(ResumeRequest())
        changes = {name: vars(request)[name] for name in OF_GROUPS if vars(request)[name] != usual[name]}
        name = "resume" if options.as_json else None
        group, workers = SeedGroup.open(run), request.workers or "auto"
        train_side_by_side(group, workers, not request.verbose, request.imports, changes, name)
        return

    episodes = final_episodes(options.test_episodes, run)
    close(resume_training(run, request, test_episodes=episodes), episodes, options.as_json)


def final_episodes(typed: int | None, run: Path | None = None) -> int:
    """Episodes of a final evaluation: as typed, else as when the run began that is resumed, continued or repeated."""
    if typed is None and run is not None:
        with suppress(RunError):  # a resume restores a damaged run.json, and names what else is wrong
            typed = RunDirectory.open(run).facts().get("test_episodes")
    return typed if isinstance(typed, int) else TEST_EPISODES


def close(run: Run, test_episodes: int, as_json: bool = False) -> None:
    """Score the best agent on fresh episodes, print the closing lines, exit 130 or 143 after a signal."""
    evaluation = None if run.interrupted else score_best(run, test_episodes)
    name = command_as_json() or "train"
    show(name, as_json, closing_lines(run, evaluation), **closing_facts(run, evaluation))
    if not run.interrupted and not as_json:
        typer.echo(run.in_words())
    if run.interrupted:
        raise typer.Exit(INTERRUPTED if run.signal is None else 128 + run.signal)


def continue_run(
    run: Path, *, test_episodes: int | None, settings: Sequence[str] | None, out: Path | None, as_json: bool,
    is_loud: bool, **options: Any,
) -> None:  # fmt: skip
    """Train a new run from the agents of a run, and print the closing lines; options: of `api.continue_training`."""
    check_sets(settings, {"--steps": options["steps"], "--seed": options["seed"]})
    if out is None:
        out = folder_beside(run, str(RunDirectory.open(run).facts().get("env_id")))
    episodes = final_episodes(test_episodes, run)
    new_run = continue_training(run, sets=settings or (), out=out, verbose=is_loud, test_episodes=episodes, **options)
    close(new_run, episodes, as_json)
