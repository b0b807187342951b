"""The commands train, resume and continue: their options."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agilerl.algorithms import available
from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Imports,
    Quiet,
    RunPath,
    Seed,
    Settings,
    TestEpisodes,
    examples,
    is_typed,
    real_option,
    steps_option,
    takes,
    whole_option,
)
from agilerl.cli.tracking import NoTrack, TrackedCommand, Tracker
from agilerl.errors import ConfigError
from agilerl.runs.request import ResumeRequest, RunRequest

train_as_asked, resume_as_asked = later("training", "train"), later("training", "resume")
continue_run, presets_like = later("training", "continue_run"), later("lookup", "presets_like")
app = typer.Typer(rich_markup_mode=None)
WITH_REPLAY = (
    "replay", "out", "workers", "ray", "allow_insecure_ray", "quiet", "imports", "test_episodes", "watch", "as_json",
    "debug",
)  # fmt: skip


def preset_ids(incomplete: str) -> list[str]:
    """Ids of environments with a preset, for shell completion."""
    names: list[str] = presets_like(incomplete)
    return names


def algorithm_names(incomplete: str) -> list[str]:
    """Names of algorithms, for shell completion."""
    return [name for name in available() if name.lower().startswith(incomplete.lower())]


# fmt: off
@dataclass(frozen=True)
class TrainOptions:
    """The options of `agilerl train`, in the order of its help; see `cli.options.takes`."""

    env_id: Annotated[str | None, typer.Argument(
        metavar="ENV_ID", autocompletion=preset_ids,
        help="A Gymnasium id (LunarLander-v3), a PettingZoo module (mpe2.simple_spread_v3), or a task of language "
        "models (reasoning/chain_sum, arithmetic/addition-2).",
    )] = None
    algo: Annotated[str | None, typer.Option(
        metavar="NAME", autocompletion=algorithm_names, help="The algorithm; default: the one of the preset.",
    )] = None
    steps: Annotated[int | None, steps_option("Environment steps of one member.", "--steps")] = None
    total_timesteps: Annotated[int | None, steps_option(
        "The same as --steps: of one member, not of all together.", "--total-timesteps",
    )] = None
    minutes: float | None = None
    target: Annotated[float | None, real_option(
        "Stop when held-out episodes reach this mean return.", "--target", metavar="SCORE", example="475",
    )] = None
    population: Annotated[int | None, whole_option("Members of the population.", "--population", example="4")] = None
    num_envs: Annotated[int | None, whole_option(
        "Environments that one member steps at once.", "--num-envs", example="8",
    )] = None
    env_kwargs: Annotated[list[str] | None, typer.Option(
        metavar="KEY=VALUE", help="A keyword of the environment; may be repeated.",
    )] = None
    seed: Seed = None
    seeds: Annotated[str | None, typer.Option(
        metavar="LIST", help="Train each of these seeds, such as 0-9 or 0,3,7, and compare them at the end.",
    )] = None
    workers: str | None = None
    ray: str | None = None
    allow_insecure_ray: bool = False
    arrivals: Path | None = None
    replay: Annotated[Path | None, typer.Option(
        metavar="RUN", help="Train this run again from its record, steering included: the same bits. Options that "
        "change what is trained do not go with it.",
    )] = None
    array_index: Annotated[int | None, whole_option(
        "Train only the seed of this index in --seeds, counted from 0; for arrays of jobs.", "--array-index",
        example="0",
    )] = None
    device: str = "auto"
    config: Annotated[Path | None, typer.Option(
        metavar="FILE", help="A YAML manifest; what it leaves out comes from the preset.",
    )] = None
    schedule: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Train one agent by a schedule, which `agilerl schedule RUN --out` writes.",
    )] = None
    settings: Settings = None
    out: Path = Path("runs")
    quiet: Quiet = False
    no_evolution: Annotated[bool, typer.Option("--no-evolution", help="Train without selection and mutation.")] = False
    no_preset: Annotated[bool, typer.Option(
        "--no-preset", help="Ignore presets, as for an unknown environment.",
    )] = False
    opponents: Annotated[str | None, typer.Option(
        metavar="self", help="Self-play in a game of two, with IPPO or MAPPO.",
    )] = None
    dataset: Annotated[str | None, typer.Option(
        metavar="DATA", help="Learn from data (CQN, CQL, IQL, TD3BC, BC): a file .h5, .hdf5 or .npz, minari:ID, or a "
        "run that keeps its replay.",
    )] = None
    model: Annotated[str | None, typer.Option(
        metavar="MODEL", help="The base model of GRPO, DPO, SFT, ...: a folder or a hub id.",
    )] = None
    from_file: Annotated[Path | None, typer.Option(
        "--from", metavar="FILE", help="Begin with the policy of another library: a zip of Stable-Baselines3 or a "
        ".cleanrl_model, of dense layers.",
    )] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings without training.")] = False
    test_episodes: int | None = None
    tensorboard: bool = False
    track: Tracker = None
    watch: Annotated[bool, typer.Option(
        "--watch", help="Serve a page that follows the run; prints its address.",
    )] = False
    allow_code: Annotated[bool, typer.Option(
        "--allow-code", help="Import the module of an id such as module:Name-v0.",
    )] = False
    imports: Imports = None
    as_json: AsJson = False
    debug: Debug = False
    # fmt: on

    @property
    def set_keys(self) -> list[str]:
        """The keys that `--set` names."""
        return [text.partition("=")[0].strip() for text in self.settings or ()]


@dataclass(frozen=True)
class ResumeOptions:
    """The options of `agilerl resume`, in the order of its help; see `cli.options.takes`."""

    steps: int | None = None
    minutes: float | None = None
    target: Annotated[
        float | None,
        real_option("A new target score, until which the run goes on.", "--target", metavar="SCORE", example="475"),
    ] = None
    settings: list[str] | None = None
    restart: bool = False
    allow_other_kernels: bool = False
    workers: str | None = None
    ray: str | None = None
    allow_insecure_ray: bool = False
    quiet: Quiet = False
    strict_replay: bool = False
    carry_envs: bool | None = None
    test_episodes: int | None = None
    tensorboard: bool | None = None
    track: Tracker = None
    no_track: NoTrack = False
    imports: Imports = None
    as_json: AsJson = False
    debug: Debug = False


def check_alone(context: typer.Context, option: str) -> None:
    """Raise ConfigError for options beside --replay that would make another run."""
    flags = {
        parameter.name: parameter.opts[0] for parameter in context.command.params if parameter.opts[0].startswith("-")
    }
    for name in context.params:
        if name not in WITH_REPLAY and is_typed(context, name):
            other = flags.get(name, "ENV_ID")
            raise ConfigError(f"--{option} repeats a run as recorded, without {other}. fix: leave {other} out.")


@app.command(
    cls=TrackedCommand,
    epilog=examples(
        "agilerl train LunarLander-v3",
        "agilerl train Hopper-v5 --algo SAC --steps 1e6 --population 4 --set lr_actor=3e-4",
        "agilerl train Trading-v0 --import myenvs.py --minutes 10",
        "agilerl train Pendulum-v1 --algo CQL --dataset data.h5",
        "agilerl train CartPole-v1 --from ppo_cartpole.zip",
    ),
)
@takes(TrainOptions, RunRequest)
def train(context: typer.Context, options: TrainOptions, request: RunRequest) -> None:
    """Train a population on an environment."""
    start_time = time.perf_counter()
    with user_errors(options.debug, options.imports):
        if options.replay is not None:
            check_alone(context, "replay")
        train_as_asked(options, request, start_time)


@app.command(
    cls=TrackedCommand,
    epilog=examples(
        "agilerl resume runs/CartPole-v1/dqn-0001",
        "agilerl resume runs/CartPole-v1/dqn-0001 --steps 200000",
        "agilerl resume runs/CartPole-v1/dqn-0001 --target 490",
    ),
)
@takes(ResumeOptions, ResumeRequest)
def resume(run: RunPath, options: ResumeOptions, request: ResumeRequest) -> None:
    """Continue a run from where it was saved.

    The newest checkpoint that can be read is taken. Without changes, the result is that of a run that never stopped.
    """
    start_time = time.perf_counter()
    with user_errors(options.debug, options.imports, run):
        resume_as_asked(run, options, request, start_time)


@app.command(
    name="continue",
    epilog=examples(
        "agilerl continue runs/CartPole-v1/dqn-0001 --set target_score=490",
        "agilerl continue runs/CartPole-v1/dqn-0001 --steps 1e5 --seed 1",
        "agilerl continue runs/CartPole-v1/dqn-0001 --set lr=1e-4 --out finetuned",
    ),
)
def continue_command(
    run: RunPath,
    steps: Annotated[int | None, steps_option("Environment steps of one member in the new run.", "--steps")] = None,
    seed: Seed = None,
    device: Device = "auto",
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder that gets the new run; default: the one of the old run."),
    ] = None,
    quiet: Quiet = False,
    test_episodes: TestEpisodes = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Begin a new run from the agents of an old one.

    Settings may change; the old run stays as it is.
    """
    with user_errors(debug, imports, run):
        continue_run(
            run, steps=steps, seed=seed, device=device, settings=settings, out=out, is_loud=not (quiet or as_json),
            test_episodes=test_episodes, imports=imports or (), as_json=as_json,
        )  # fmt: skip
