"""`agilerl watch`: runs in the browser while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.errors import user_errors
from agilerl.cli.options import Debug, Imports, examples, whole_option
from agilerl.views.watch.child import check_installed

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "agilerl watch runs/CartPole-v1/dqn-0001",
        "agilerl watch runs",
        "agilerl watch runs --port 8800 --no-browser",
    )
)
def watch(
    path: Annotated[
        Path, typer.Argument(metavar="RUN|FOLDER", help="The directory of a run, or a folder of runs.")
    ] = Path("runs"),
    port: Annotated[int, whole_option("The port of the page; 0 takes a free one.", "--port", example="8800")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address without opening it.")] = False,
    parent: Annotated[
        int | None,
        typer.Option(hidden=True, help="A process that trains; the page opens its run, and ends with it."),
    ] = None,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show runs in the browser while they train.

    The page is served to this machine alone; its address holds a random token. Ctrl-C ends it; runs go on.
    """
    with user_errors(debug):
        check_installed()
        from agilerl.views.watch.server import serve

        serve(path, port=port, browser=not no_browser, imports=imports or (), pid=parent, say=typer.echo)
