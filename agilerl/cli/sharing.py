"""Commands that hand runs to other programs and people: optuna, push."""

from __future__ import annotations

from typing import Annotated

import typer

from agilerl.cli.as_json import show
from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, RunPath, RunPaths, examples
from agilerl.integrations.optuna_export import count_states, export_runs, shown, states_of

push_run = later("acting", "push")


app = typer.Typer(rich_markup_mode=None)


@app.command(
    name="optuna",
    epilog=examples(
        "agilerl optuna runs/CartPole-v1/dqn-0001 --out study.db",
        "agilerl optuna runs/CartPole-v1/dqn-0001 runs/CartPole-v1/ppo-0001 --out study.db --replace",
    ),
)
def optuna_command(
    runs: RunPaths,
    out: Annotated[
        str, typer.Option(metavar="FILE|URL", help="The SQLite file, or the URL of a database of Optuna.")
    ] = "study.db",
    replace: Annotated[bool, typer.Option("--replace", help="Replace studies of the same names.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write runs as studies of Optuna.

    Members are trials, generations intermediate values; optuna-dashboard and Optuna's plots read them.
    """
    with user_errors(debug):
        studies = export_runs(runs, out, replace)
        url = shown(out) if "://" in out else f"sqlite:///{out}"
        facts = [{"name": study.name, "trials": len(study.trials), "states": count_states(study)} for study in studies]
        lines = [f"study  {study.name}: {len(study.trials)} trials ({states_of(study)})" for study in studies]
        show("optuna", as_json, [*lines, f"open  optuna-dashboard {url}"], studies=facts, url=url)


@app.command(
    epilog=examples(
        "agilerl push runs/CartPole-v1/dqn-0001 --to me/dqn-CartPole-v1",
        "agilerl push runs/CartPole-v1/dqn-0001 --to me/dqn-CartPole-v1 --private --license mit",
        "agilerl push runs/CartPole-v1/dqn-0001 --to me/dqn-CartPole-v1 --dry-run",
    )
)
def push(
    run: RunPath,
    to: Annotated[str, typer.Option("--to", metavar="USER/NAME", help="The repository; a missing one is created.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="The message of the commit.")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="A license for the card, such as mit.")
    ] = None,
    film: Annotated[bool, typer.Option("--film", help="Film an episode first, as `agilerl record` does.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and the card; push nothing.")] = False,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Push a run to the Hugging Face Hub.

    The best policy, the settings, the lineage, the report and a model card; no checkpoints, no machine paths and no
    code of yours. `hf auth login` or HF_TOKEN gives the token.
    """
    with user_errors(debug, imports, run):
        push_run(run, to, private, message, licence, film, dry_run, as_json)
