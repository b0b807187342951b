"""The command steer: ask a running run for a change."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agilerl.cli.as_json import show
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, RunPath, examples, whole_option
from agilerl.config.yaml_text import parse_yaml
from agilerl.errors import ConfigError
from agilerl.runs.records import RunRecords
from agilerl.runs.steering import ACTIONS, Request, ask, pending
from agilerl.views.report.lineage import changes_text
from agilerl.views.report.text import tidy


def actions(incomplete: str) -> list[str]:
    """Names of actions, for shell completion."""
    return [name for name in ACTIONS if name.startswith(incomplete)]


app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "agilerl steer runs/CartPole-v1/dqn-0001",
        "agilerl steer runs/CartPole-v1/dqn-0001 set lr=1e-3 --member 3 --reason 'its loss oscillates'",
        "agilerl steer runs/CartPole-v1/dqn-0001 pin batch_size=128",
        "agilerl steer runs/CartPole-v1/dqn-0001 protect --member 3",
        "agilerl steer runs/CartPole-v1/dqn-0001 stop",
    )
)
def steer(
    run: RunPath,
    action: Annotated[
        str | None,
        typer.Argument(
            metavar="ACTION",
            autocompletion=actions,
            help="set, pin, unpin, clone, remove, protect, unprotect, evaluate or stop; none shows the members.",
        ),
    ] = None,
    setting: Annotated[
        str | None,
        typer.Argument(metavar="NAME=VALUE", help="The hyperparameter: NAME=VALUE to set or pin, NAME to unpin."),
    ] = None,
    member: Annotated[
        int | None,
        whole_option("Id of the member; all members if left out.", "--member", example="3", least=0),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Recorded with the change.")] = "",
    author: Annotated[str, typer.Option(metavar="NAME", help="Recorded with the change; default: you.")] = "",
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Ask a running run for a change.

    The run takes it over when its current generation ends, and records it in evolution.jsonl. `agilerl train
    --replay RUN` repeats a steered run bit for bit.
    """
    with user_errors(debug, imports, run):
        if action is None:
            lines, facts = overview(run)
            show("steer", as_json, lines, **facts)
            return
        name, value = name_and_value(setting)
        path = ask(run, Request(action, member, name, value, reason, author))
        show("steer", as_json, [f"asked  {path}"], request=path)


def name_and_value(setting: str | None) -> tuple[str, Any]:
    """Split NAME=VALUE; the value is YAML. ("", None) without a setting.

    Raises:
        ConfigError: a value that is no YAML.
    """

    name, equals, text = (setting or "").partition("=")
    name, value = name.strip(), parse_yaml(text, f"steer {name}") if equals else None
    if isinstance(value, str):  # 1e-3 is a text in YAML 1.1
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"steer {name}: {value!r} is not a number. fix: {name}=1e-3, say.") from None
    return name, value


def overview(run: Any) -> tuple[list[str], dict[str, Any]]:
    """Return members, newborns and requests that wait, as lines and as plain data."""
    records = RunRecords.read(run)
    members = records.last
    newborns = [records.line_of_birth(id) for id in records.newborns.waiting]
    born = [{"id": line[-1].id, "parent": line[0].parent, "mutation": changes_text(line)} for line in newborns]
    waiting = pending(run)
    lines = [f"status  {records.status}"]
    for member in members:
        values = "  ".join(f"{name}={tidy(value)}" for name, value in member.hyperparameters.items())
        lines.append(f"member {member.id}  fitness {tidy(member.fitness)}  {values}  {member.network}")
    now = "trains now" if records.status == "running" else "not evaluated"
    for newborn in born:
        parent = "" if newborn["parent"] is None else f" of {newborn['parent']}"
        lines.append(f"born   {newborn['id']}{parent}  {newborn['mutation']}  ({now})")
    lines += [f"waits  {request}" for request in waiting.values()]
    if born and members:
        survivors = max(0, len(members) - len(born))
        lines.append(f"note: {survivors or 'none'} of the members above {'train' if survivors > 1 else 'trains'} on")
    plain = {
        "status": records.status,
        "members": [
            {"id": m.id, "fitness": m.fitness, "hyperparameters": dict(m.hyperparameters), "network": m.network}
            for m in members
        ],
        "born": born,
        "pending": {name: vars(request) for name, request in waiting.items()},
    }
    return lines, plain
