"""The commands about data sets: `agilerl data make`, `agilerl data show`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.viewing import AsJson, Debug, Imports
from agilerl.errors import ConfigError


def register(app: typer.Typer, user_errors: Any) -> None:
    """Put the commands into `app`; `user_errors` is the context manager that ends each of them."""
    group = typer.Typer(help="Make and describe data sets.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="data")

    @group.callback()
    def group_help() -> None:
        """Make and describe data sets, of which CQN, CQL, IQL, TD3BC and BC learn."""

    @group.command()
    def make(
        env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id: CartPole-v1.")],
        policy: Annotated[
            str,
            typer.Option(metavar="NAME|RUN", help="random, medium, expert, mixed, medium-replay, or a run directory."),
        ],
        rows: Annotated[int, typer.Option(help="Steps to record.")],
        out: Annotated[Path, typer.Option(help="The file: .h5, .hdf5 or .npz.")],
        seed: Annotated[int, typer.Option(help="Of episodes, actions and training.")] = 0,
        noise: Annotated[
            float,
            typer.Option(help="Share of random actions; of Box actions the deviation of noise, in half ranges."),
        ] = 0.0,
        algo: Annotated[str | None, typer.Option(help="Of medium and expert; default: the preset's.")] = None,
        settings: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of their training.")
        ] = None,
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """Record a data set: HDF5 (or npz) in the layout of D4RL, with how it was made.

        medium and expert are trained first, by the preset. Expert is the best of that run, medium the first agent that
        was its best and plays a third to a half of the way from random play to the expert.
        """
        with user_errors(debug, imports):
            from agilerl.sources.collect import check_target

            check_target(out)
            options = {"--policy": policy, "--rows": rows, "--seed": seed}
            options |= {"--noise": noise} if noise else {}
            options |= {"--algo": algo} if algo else {}
            words = [str(word) for option in options.items() for word in option]
            words += [word for setting in settings or () for word in ("--set", setting)]
            command = shlex.join(["agilerl", "data", "make", env_id, *words])

            from agilerl.training.datasets import POLICIES, Maker

            maker = Maker(env_id, algo, seed, settings or (), typer.echo)
            if policy in POLICIES:
                maker.make(policy, rows, out, noise=noise, about={"command": command})
            else:
                if algo or settings:
                    raise ConfigError(
                        f"--algo and --set are of the training of medium and expert; {policy} is trained already. "
                        "fix: leave them out."
                    )
                agent, name, about = _agent_of(policy, maker.env_id)
                maker.make(agent, rows, out, noise=noise, name=name, about={**about, "command": command})
            _show(out, as_json=False)

    @group.command()
    def show(
        file: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A data set, or a run that keeps its replay.")],
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """Describe a data set: rows, episodes, returns, what actions and observations cover, what is missing."""
        with user_errors(debug):
            _show(file, as_json)


def _agent_of(policy: str, env_id: str) -> tuple[Any, str, dict[str, Any]]:
    """(best agent, name, attributes) of the run that `policy` names; ConfigError where it is no run."""
    from agilerl.api import load
    from agilerl.errors import unknown_name
    from agilerl.training.datasets import POLICIES

    path = Path(policy)
    if not path.is_dir():
        raise ConfigError(
            f"{unknown_name('policy', policy, POLICIES)}; and there is no run directory of that name. "
            "fix: one of them, or runs/<env>/<algo>-<nnnn>."
        )
    run = load(path, "cpu")
    trained = run.manifest.environment
    if trained.name != env_id or trained.kwargs:
        made = f" with the keywords {dict(trained.kwargs)}" if trained.kwargs else ""
        raise ConfigError(
            f"{path} was trained in {trained.name}{made}, and the data set is to be of {env_id}. "
            f"fix: agilerl data make {trained.name}, and a run without keywords."
        )
    about = {"algo": run.manifest.algorithm.name, "preset": run.manifest.hash(), "run_seed": run.manifest.training.seed}
    return run.best, f"best of {'/'.join(path.resolve().parts[-2:])}", about


def _show(file: Path, as_json: bool) -> None:
    from agilerl.sources.dataset import read_dataset
    from agilerl.sources.describe import describe, lines

    facts = describe(read_dataset(file))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for line in lines(facts, str(file)):
        typer.echo(line)
