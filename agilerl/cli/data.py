"""The commands about data sets: `agilerl data make`, `agilerl data show`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.options import AsJson, Debug, Imports, Settings, examples, real_option, steps_option, whole_option
from agilerl.errors import ConfigError

ROWS = 10_000  # default number of recorded rows
UNTRAINED = "random"  # the policy that needs no training


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""
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
            from agilerl.data.recording import check_target

            check_target(out)
            options = {"--policy": policy, "--rows": rows, "--seed": seed}
            options |= {"--noise": noise} if noise else {}
            options |= {"--algo": algo} if algo else {}
            words = [str(word) for option in options.items() for word in option]
            words += [word for setting in settings or () for word in ("--set", setting)]
            words += [word for name in imports or () for word in ("--import", str(name))]
            command = shlex.join(["agilerl", "data", "make", env_id, *words])

            from agilerl.training.datasets import POLICIES, Maker

            is_trained_here = policy in POLICIES and policy != UNTRAINED
            if (algo or settings) and not is_trained_here:
                raise ConfigError(
                    f"--algo and --set are of the training of medium and expert; {policy} needs none. "
                    "fix: leave them out."
                )
            maker = Maker(env_id, algo, seed, settings or (), partial(typer.echo, err=as_json))
            if policy in POLICIES:
                maker.make(policy, rows, out, noise=noise, about={"command": command})
            else:
                agent, name, about = _agent_of(policy, maker.env_id)
                maker.make(agent, rows, out, noise=noise, name=name, about={**about, "command": command})
            _show(str(out), "data make" if as_json else None)

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
            _show(file, "data show" if as_json else None)


def _agent_of(policy: str, env_id: str) -> tuple[Any, str, dict[str, Any]]:
    """(best agent, name, attributes) of the run that `policy` names; ConfigError if it is not a run."""
    from agilerl.api import load
    from agilerl.errors import unknown_choice
    from agilerl.training.datasets import POLICIES

    path = Path(policy)
    if not path.is_dir():
        raise ConfigError(
            f"there is no run directory {policy}, and "
            + unknown_choice("policy", policy, POLICIES, "runs/<env>/<algo>-<nnnn>")
        )
    run = load(path, "cpu")
    trained = run.manifest.environment
    if trained.name != env_id or trained.kwargs:
        keywords = f" with the keywords {dict(trained.kwargs)}" if trained.kwargs else ""
        raise ConfigError(
            f"{path} was trained in {trained.name}{keywords}, and the data set is to be of {env_id}. "
            f"fix: `agilerl data make {trained.name}`, with a run without keywords."
        )
    about = {"algo": run.manifest.algorithm.name, "preset": run.manifest.hash(), "run_seed": run.manifest.training.seed}
    return run.best, f"best of {'/'.join(path.resolve().parts[-2:])}", about


def _show(file: str, as_json: str | None) -> None:
    """Describe a data set; `as_json`: the command that prints JSON, None for text."""
    from agilerl.data.dataset import read_dataset
    from agilerl.data.describe import describe, lines

    facts = describe(read_dataset(file))
    if as_json is not None:
        print_json(as_json, **facts)
        return
    for line in lines(facts, file):
        typer.echo(line)
