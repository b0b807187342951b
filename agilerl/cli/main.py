"""The commands: train, resume, evaluate, list, export, and those that come later; how each of them ends."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import agilerl
from agilerl.cli import configuring, continuing, data, viewing
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError
from agilerl.redaction import redact
from agilerl.runs.signals import exit_code

if TYPE_CHECKING:
    from agilerl.api import Run
    from agilerl.config import Manifest

USER_ERROR, INTERRUPTED = 2, 130
app = typer.Typer(
    name="agilerl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory: runs/<env>/<algo>-<nnnn>.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE|MODULE", help="Run this code of yours first: it registers algorithms, environments."
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only the closing lines.")]
TestEpisodes = Annotated[int, typer.Option(min=0, help="Fresh episodes that score the best agent.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files.")]
Track = Annotated[bool, typer.Option("--track", help="Log to Weights & Biases.")]


@contextmanager
def user_errors(debug: bool = False, imports: Iterable[str] | None = None) -> Iterator[None]:
    """Import the user's code; print an `AgileRLError` as one line on standard error and exit 2.

    Ctrl-C exits 130, SIGTERM 143.
    """
    show = warnings.showwarning
    warnings.showwarning = _short_warnings(show)
    try:
        import_code(imports)
        yield
    except AgileRLError as error:
        if debug:
            raise
        typer.echo(redact(f"{type(error).__name__}: {error}"), err=True)
        raise typer.Exit(USER_ERROR) from None
    except BrokenPipeError:  # who reads has seen enough: `agilerl ... | head`
        sys.stdout = None
        raise typer.Exit(0) from None
    except OSError as error:  # a full disk, a folder without rights: nothing that a traceback explains
        if debug or error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(redact(f"RunError: {where}{error.strerror}. fix: make room, or check the rights there."), err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        for line in ("interrupted; what was written is kept.", *getattr(error, "__notes__", ())):
            typer.echo(line, err=True)
        raise typer.Exit(exit_code(error)) from None
    finally:
        warnings.showwarning = show


def _short_warnings(show: Any) -> Any:
    """Our own warnings as one line; the source line that raised them tells a user of the command nothing."""

    def showwarning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, AgileRLWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *rest, **more)

    return showwarning


def import_code(names: Iterable[str] | None) -> None:
    """Import modules, by name or as files; only for a user who has asked for it, because importing runs code.

    Raises:
        ConfigError: there is none, or it fails.
    """
    for name in names or ():
        path = Path(name)
        try:
            if name.endswith(".py"):
                _import_file(path)
            else:
                importlib.import_module(name)
        except (ImportError, FileNotFoundError) as error:
            raise ConfigError(f"--import {name}: cannot be imported ({error}). fix: check the path.") from error


def _import_file(path: Path) -> None:
    """A file as the module of its name; one that is imported already stays."""
    name = path.stem
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _version(show: bool) -> None:
    if show:
        typer.echo(f"agilerl {agilerl.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Evolve the hyperparameters of reinforcement learning agents while they train."""


@app.command()
def train(
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV_ID",
            help="A Gymnasium id: LunarLander-v3. Of several agents: mpe2.simple_spread_v3. Of language models: "
            "reasoning/chain_sum, arithmetic/addition-2.",
        ),
    ] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; default: the preset's.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Environment steps of one member.")] = None,
    total_timesteps: Annotated[
        int | None, typer.Option("--total-timesteps", help="As --steps: of ONE member, not of all together.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Budget in minutes, by measured speed; default without a preset and --steps: 10."),
    ] = None,
    population: Annotated[int | None, typer.Option(help="Members.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the configuration's.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="A YAML manifest; the preset fills in the rest.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting: training.pop_size=6.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run directory is made.")] = Path("runs"),
    quiet: Quiet = False,
    no_evolution: Annotated[bool, typer.Option("--no-evolution", help="No selection, no mutation.")] = False,
    no_preset: Annotated[
        bool, typer.Option("--no-preset", help="Begin as for an environment that nobody has tuned.")
    ] = False,
    opponents: Annotated[
        str | None, typer.Option(help="self: a game of two against the population's past (IPPO, MAPPO).")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="What CQN, IQL, ... learn from: .h5, .hdf5, .npz, or a run that keeps its replay."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The language model that GRPO, DPO, SFT, ... adapt: a folder or a hub id.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings; run nothing.")] = False,
    test_episodes: TestEpisodes = 100,
    tensorboard: TensorBoard = False,
    track: Track = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Import the module of an id like module:Name-v0; that runs its code.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Train a population on an environment."""
    with user_errors(debug, imports):
        from agilerl.api import base_manifest
        from agilerl.config import apply_sets, has_preset
        from agilerl.env_ids import import_environment, is_language_id

        if allow_code and env_id is not None:
            env_id = import_environment(env_id)
        manifest = apply_sets(base_manifest(env_id, algo, config, preset=not no_preset), settings or [])
        if allow_code and ":" in manifest.environment.name:  # from --config or --set
            manifest = apply_sets(manifest, [f"environment.name={import_environment(manifest.environment.name)}"])
        asked = {"--population": population, "--seed": seed, "--opponents": opponents, "--dataset": dataset}
        asked |= {"--model": model}
        manifest = _with_options(manifest, {"--steps": _one_budget(steps, total_timesteps), **asked})
        if minutes is not None and (steps or total_timesteps):
            raise ConfigError("--steps and --minutes are both budgets. fix: one of the two.")
        is_untuned = config is None and env_id is not None and (no_preset or not has_preset(env_id))
        is_untuned = is_untuned and not is_language_id(manifest.environment.name)
        has_budget = any(text.partition("=")[0].strip().endswith("max_steps") for text in settings or [])
        if minutes is None and is_untuned and not (steps or total_timesteps or has_budget or dataset or model):
            minutes = USUAL_MINUTES
        if dry_run:
            _print_plan(manifest, device, not no_evolution, minutes)
            return
        from agilerl.api import run_training

        more: dict[str, Any] = {"verbose": not quiet, "tensorboard": tensorboard, "track": track, "minutes": minutes}
        _close(run_training(manifest, device=device, out=out, evolution=not no_evolution, **more), test_episodes)


def _one_budget(steps: int | None, total_timesteps: int | None) -> int | None:
    """--steps, or --total-timesteps with a warning: other libraries mean all that is trained by it."""
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


USUAL_MINUTES = 10.0  # where nobody has tuned a budget

OPTION_KEYS = {
    "--steps": "training.max_steps",
    "--population": "training.pop_size",
    "--seed": "training.seed",
    "--opponents": "training.opponents",
    "--dataset": "training.dataset",
    "--model": "algorithm.model_name",
}


def _with_options(manifest: Manifest, asked: Mapping[str, Any]) -> Manifest:
    from agilerl.config import apply_overrides

    for option, value in asked.items():
        if option == "--model" and value is not None and "model_name" not in manifest.algorithm.hyperparameters:
            raise ConfigError(
                f"--model names what language algorithms adapt; {manifest.algorithm.name} builds its own networks. "
                "fix: --algo GRPO with an id such as reasoning/chain_sum, or leave --model out."
            )
        if value is not None:
            manifest = apply_overrides(manifest, {OPTION_KEYS[option]: value}, option)
    return manifest


def _print_plan(manifest: Manifest, device: str, evolution: bool, minutes: float | None) -> None:
    from agilerl.api import resolve_device, with_known_env
    from agilerl.config import dump_yaml
    from agilerl.options import LoopOptions
    from agilerl.telemetry.console import count
    from agilerl.training.resolve import resolve

    where = resolve_device(device)
    manifest = resolve(with_known_env(manifest))
    training = manifest.training
    names = ("max_steps", "evo_steps", "evo_first")
    generations = LoopOptions(**{name: getattr(training, name) for name in names}).generations()
    typer.echo(dump_yaml(manifest), nl=False)
    typer.echo(
        f"# {manifest.algorithm.name} on {manifest.environment.name}: {training.pop_size} members x "
        f"{count(training.max_steps)} {manifest.steps}, {generations} generations, seed {training.seed}, {where}, "
        f"evolution {'on' if evolution else 'off'}, manifest {manifest.hash()}"
    )
    if minutes is not None:
        typer.echo(f"# in place of training.max_steps: what fits into {minutes:g} minutes, measured when it begins")


def _close(run: Run, test_episodes: int) -> None:
    """Score the best agent on fresh episodes, print the closing lines, exit 130 or 143 after a signal."""
    from agilerl.cli.output import closing_lines, score_best

    evaluation = None if run.interrupted else score_best(run, test_episodes)
    for line in closing_lines(run, evaluation):
        typer.echo(line)
    if not run.interrupted and not getattr(run.best, "learns_language", False):
        typer.echo(run.in_words())
    if run.interrupted:
        raise typer.Exit(INTERRUPTED if run.signal is None else 128 + run.signal)


@app.command()
def resume(
    run: RunPath,
    steps: Annotated[
        int | None, typer.Option(min=1, help="A new budget of env steps (learning from data: updates) per member.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="A new target score; the run goes on until then.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of training, mutation or tournament_selection."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again where no checkpoint is whole; what is left is set aside.")
    ] = False,
    quiet: Quiet = False,
    strict_replay: Annotated[
        bool, typer.Option("--strict-replay", help="Refuse where a part of the replay is damaged.")
    ] = False,
    carry_envs: Annotated[
        bool | None, typer.Option("--carry-envs/--cut-envs", help="From here on, keep episodes going; not exact.")
    ] = None,
    test_episodes: TestEpisodes = 100,
    tensorboard: TensorBoard = False,
    track: Track = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Continue a run exactly, from its newest checkpoint that is whole."""
    with user_errors(debug, imports):
        from agilerl.api import resume_training

        changes = [*(settings or ()), *(() if target is None else (f"training.target_score={target}",))]
        more: dict[str, Any] = {"verbose": not quiet, "tensorboard": tensorboard, "track": track}
        more |= {"settings": changes, "restart": restart}
        ended = resume_training(run, steps=steps, strict_replay=strict_replay, carry_envs=carry_envs, **more)
        _close(ended, test_episodes)


@app.command()
def evaluate(
    context: typer.Context,
    run: RunPath,
    episodes: Annotated[int, typer.Option(min=1, help="Full episodes, greedy.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Of the episodes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, help="Cut episodes there; default: as in training.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of a language policy: report (default), test or train; every prompt, greedy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every return.")] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Score the best agent of a run: mean, interquartile mean, 95 % bootstrap interval."""
    with user_errors(debug, imports):
        from agilerl.api import load
        from agilerl.cli.output import evaluation_lines

        loaded = load(run, device)
        seeded = {} if seed is None else {"seed": seed}
        if not (getattr(loaded.best, "environment", True) or {}):
            raise ConfigError(
                f"{run} was trained in an environment that a script handed over, and a command cannot make it. "
                f'fix: agilerl.load("{run}").best.evaluate(env=...) in Python, with that environment.'
            )
        limited = {} if max_steps is None else {"max_steps": max_steps}
        if getattr(loaded.best, "learns_language", False):
            _no_episodes(context)
            evaluation = loaded.best.evaluate(split)
        elif split is not None:
            raise ConfigError(
                f"--split is of language policies; {loaded.manifest.algorithm.name} plays episodes. fix: --episodes."
            )
        else:
            evaluation = loaded.best.evaluate(episodes=episodes, **seeded, **limited)
        if as_json:
            facts = {"run": str(run), "env_id": loaded.manifest.environment.name, **seeded}
            typer.echo(json.dumps({**facts, **evaluation.as_dict()}))
            return
        for line in evaluation_lines(loaded, evaluation):
            typer.echo(line)


def _no_episodes(context: typer.Context) -> None:
    """ConfigError where what is of episodes was asked of a language policy."""
    for name in ("episodes", "seed", "max_steps"):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is of episodes; a language policy answers every prompt of a split, greedily. "
                "fix: --split report."
            )


@app.command()
def export(
    run: RunPath,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX and compare it with the agent.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; default: RUN/best/policy.onnx. Of a language policy a folder: RUN/adapter."),
    ] = None,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Export the best policy of a run: ONNX, or of a language policy an adapter as PEFT reads it.

    RUN/best/policy.py loads a policy in plain PyTorch without an export.
    """
    with user_errors(debug, imports):
        from agilerl.cli.output import exported_adapter

        if (lines := exported_adapter(run, out, onnx)) is not None:
            for line in lines:
                typer.echo(line)
            return
        if not onnx:
            raise ConfigError(f"agilerl export needs a format. fix: --onnx, or use {run}/best/policy.py as it is.")
        from agilerl.api import load
        from agilerl.export import export_onnx, export_team

        best, target = load(run, "cpu").best, out or run / "best" / "policy.onnx"
        is_team = hasattr(best, "grouped_agents")  # one file for each group of agents
        for report in export_team(best, target).values() if is_team else [export_onnx(best, target)]:
            typer.echo(f"onnx  {report.path}")
            typer.echo(f"check  {report}")


viewing.register(app, user_errors)
configuring.register(app, user_errors)
data.register(app, user_errors)
continuing.register(app, user_errors, close=lambda run, episodes: _close(run, episodes))
