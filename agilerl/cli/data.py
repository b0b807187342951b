"""The commands about data sets: `agilerl data make`, `agilerl data show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, Settings, examples, real_option, steps_option, whole_option

ROWS = 10_000  # default number of recorded rows
make_data, show_data = later("recording", "make_data"), later("recording", "show_data")


app = typer.Typer(rich_markup_mode=None)


group = typer.Typer(help="Make and describe data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group, name="data")


@group.callback()
def group_help() -> None:
    """Make and describe data sets, of which CQN, CQL, IQL, TD3BC and BC learn."""


@group.command(
    epilog=examples(
        "agilerl data make CartPole-v1 --policy mixed --out cartpole.h5",
        "agilerl data make Pendulum-v1 --policy runs/Pendulum-v1/sac-0001 --rows 50000 --out pendulum.h5",
        "agilerl data make Pendulum-v1 --policy expert --noise 0.1 --out noisy.h5",
    )
)
def make(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id, such as CartPole-v1.")],
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|RUN", help="random, medium, expert, mixed, medium-replay, or a run directory."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write: .h5, .hdf5 or .npz.")],
    rows: Annotated[int, steps_option("Steps to record.", "--rows")] = ROWS,
    seed: Annotated[int, whole_option("Seed of episodes, actions and training.", "--seed", example="1")] = 0,
    noise: Annotated[
        float,
        real_option(
            "Share of random actions; for Box actions the standard deviation of noise in half ranges.",
            "--noise",
            metavar="SHARE",
            example="0.1",
        ),
    ] = 0.0,
    algo: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The algorithm of medium and expert; default: the one of the preset."),
    ] = None,
    settings: Settings = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Record a data set from a policy.

    The file has the layout of D4RL and says how it was made. medium and expert are trained first, by the preset:
    expert is the best agent of that run, medium the first best agent whose return is a third to a half of the way
    from random play to the expert.
    """
    with user_errors(debug, imports):
        make_data(env_id, policy, out, rows, seed, noise, algo, settings or (), imports or (), as_json)


@group.command(epilog=examples("agilerl data show cartpole.h5", "agilerl data show minari:mine/pendulum-v0 --json"))
def show(
    file: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A file, minari:ID, or a run that keeps its replay."),
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Describe a data set.

    Prints rows, episodes, returns, what actions and observations cover, and what is missing.
    """
    with user_errors(debug):
        show_data(file, "data show" if as_json else None)
