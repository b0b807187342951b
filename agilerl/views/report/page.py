"""The report page: all records of a run, rendered by one template into one file."""

from __future__ import annotations

import base64
import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agilerl.core.files import write_atomic
from agilerl.core.hostile import malformed
from agilerl.core.redaction import redact
from agilerl.core.texts import count
from agilerl.errors import RunError
from agilerl.hpo.kinds import KINDS
from agilerl.hpo.schemes import scheme_of
from agilerl.runs.names import CONFIG
from agilerl.runs.records import RunRecords
from agilerl.telemetry.console import clock, how_it_ended
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.record import Birth
from agilerl.views.report import charts, lineage
from agilerl.views.report.importance import GENERATIONS_LATER, Importance, of_report
from agilerl.views.report.plot import Plot
from agilerl.views.report.score import Score, scoreboard
from agilerl.views.report.text import compact, tidy

REPORT = "report.html"
SIZE_LIMIT = 300_000  # bytes of the page, a film in it included
FILM_LIMIT = 150_000  # a larger film is linked
MARK = b"<style>\n:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;"  # of all pages, also of earlier versions
MARK_WITHIN = 4096  # bytes from the beginning of a page
TITLES = {
    **{name: kind.title or name for name, kind in KINDS.items() if name != "none"},
    "healed": "healed",
    "steered": "steered",
    "none": KINDS["none"].title,
}


@dataclass(frozen=True)
class Detail:
    """Level of detail, reduced if a page would be too large.

    Attributes:
        bands: the tree with labels. table: births as a table; else one line each. hover: hover texts for every member.
        lines: edges and lines of every member; else only of lineages that survive to the end.
        dots: every member's fitness. trees: the tree, and every member's hyperparameters and layers.
        axes: charts of hyperparameters and layers by every axis; else by the first.
        listed: maximum number of births, and of the winner's ancestors. rows: of members of the last generation.
    """

    bands: bool = True
    table: bool = True
    hover: bool = True
    lines: bool = True
    dots: bool = True
    trees: bool = True
    listed: int | None = None
    rows: int | None = None
    axes: bool = False


LESS = (
    Detail(axes=True),
    Detail(),
    Detail(table=False),
    Detail(bands=False, rows=300),
    Detail(bands=False, table=False, hover=False, rows=300),
    Detail(bands=False, table=False, hover=False, lines=False, rows=300),
    Detail(bands=False, table=False, hover=False, lines=False, dots=False, listed=1000, rows=300),
    Detail(bands=False, table=False, hover=False, lines=False, dots=False, listed=100, rows=100),
    Detail(bands=False, table=False, hover=False, lines=False, dots=False, listed=100, rows=100, trees=False),
)
MANY = 700, 700, 700, 4000, 8000  # members times generations above which a page starts with less detail


def write_report(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of the run at `path` to `out`, by default `report.html` in its directory.

    Raises:
        RunError: no run at the path, a damaged file, or the page cannot be written; see `write_page`.
    """
    target = Path(path) / REPORT if out is None else Path(out)
    run = RunRecords.read(path)
    with malformed(path):
        page = render(run, beside=target.parent)
    write_page(target, page, "--out")
    return target


def write_page(target: Path, page: str, option: str) -> None:
    """Write a page, over an earlier one at most; `option` names the target in a command.

    Raises:
        RunError: the file is there and no page of this package, or it cannot be written.
    """
    try:
        if target.is_file() and target.stat().st_size:
            with open(target, "rb") as file:
                if MARK not in file.read(MARK_WITHIN):
                    raise RunError(
                        f"{target} is there already, and it is not a page that agilerl has written. "
                        f"fix: {option} with another file, or remove it."
                    )
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, page)
    except OSError as error:
        raise RunError(f"the page cannot be written to {target} ({error.strerror}). fix: {option} FILE.") from error


def render(run: RunRecords, beside: Path | None = None) -> str:
    """The page, under 300 kB.

    Args:
        beside: the folder of the page, from which a large film is linked.
    """
    film, mattered = _film(run, beside), of_report(run)
    page = ""
    for detail in LESS[sum(sum(map(len, run.generations)) > many for many in MANY) :]:
        page = _render(run, film, detail, mattered)
        if len(page.encode()) < SIZE_LIMIT:
            return page
    return page


def _render(run: RunRecords, film: dict[str, str] | None, detail: Detail, mattered: Importance | None) -> str:
    facts = {**_facts(run, detail), "film": film, "mattered": mattered, "later": GENERATIONS_LATER}
    return well_formed(str(templates().get_template("report.html.j2").render(**facts)))


def well_formed(text: str) -> str:
    """The text with "?" in place of bytes of file names that are not UTF-8, which Python has as lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def templates() -> Any:
    """The Jinja environment of the report's templates, with autoescaping."""
    import jinja2  # 0.1 s, only for commands that render

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("agilerl.views.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"tidy": tidy, "count": count, "compact": compact}
    return environment


def fitness_svg(run: RunRecords, text: str) -> str:
    """`text` and the fitness chart as an HTML fragment, for notebooks."""
    chart = charts.fitness_chart(run, lines=False)
    return str(templates().get_template("notebook.html.j2").render(text=text, fitness=chart))


def _facts(run: RunRecords, detail: Detail) -> dict[str, Any]:
    """Variables of the template."""
    trees = lineage.bands(run) if detail.bands else []
    axes, plots, growths = charts.axes(run), {}, {}
    for axis in axes[: None if detail.axes else 1]:
        plots[axis.key], constant = charts.hyperparameter_charts(run, detail.lines, detail.trees, axis)
        growths[axis.key], network = charts.architecture_charts(run, detail.lines, detail.trees, axis)
    low, high = lineage.fitness_range(run)
    hover = detail.hover and not trees
    members = sorted(run.last, key=lambda m: -m.fitness if m.fitness == m.fitness else float("inf"))
    line = ancestry(run)
    names = sorted({name for m in run.last for name in m.hyperparameters})
    return {
        "run": run,
        "tiles": tiles(run),
        "axes": axes,
        "fitness": {axis.key: charts.fitness_chart(run, detail.lines, detail.dots, axis) for axis in axes},
        "overview": [] if len(trees) == 1 or not detail.trees else lineage.overview(run, hover, not detail.lines),
        "bands": trees,
        "hover": hover,
        "lines": detail.lines,
        "levels": range(lineage.LEVELS),
        "range": (low, high),
        "kinds": [(k, text) for k, text in TITLES.items() if any(b.kind == k for b in run.births)],
        "plots": plots,
        "constant": constant,
        "growths": growths,
        "network": network,
        "scores": scoreboard(run),
        "trees": detail.trees,
        "members": members[: detail.rows],
        "members_left": len(members) - len(members[: detail.rows]),
        "names": names,
        "mutations": {b.id: lineage.mutation_text(b) for b in run.births_by_id.values()},
        "births": births(run, detail),
        "birth_table": detail.table,
        "command": command(run),
        "config": redact(run.config),
        "versions": dict(run.facts.get("versions") or {}),
        "git": run.facts.get("git"),
        "ancestry": line if detail.listed is None else line[-detail.listed :],
        "ancestors_left": 0 if detail.listed is None else max(0, len(line) - detail.listed),
        "parent": run.facts.get("parent"),
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "notes": [redact(str(note)) for note in run.facts.get("notes") or ()],
        "error": run.facts.get("error"),
    }


@dataclass(frozen=True)
class Tile:
    """One fact of the headline."""

    name: str
    value: str
    more: str = ""
    style: str = ""


def tiles(run: RunRecords) -> list[Tile]:
    """The headline: score, target, time, steps, population."""
    result = run.result
    population = run.setting("training.pop_size", len(run.last))
    budget = run.setting("training.max_steps")
    member = max((m.env_steps for m in run.last), default=0)
    each = f"{count(member)} of {count(budget or 0)} per member"
    if scheme_of(str(run.setting("evolution.scheme"))).ends_members:  # survivors inherit the steps of stopped members
        each = f"{count(member)} by who trained longest"
    ended = how_it_ended(result["stopped"]) if "stopped" in result else run.status
    ended = "still running" if run.status == "running" else ended
    return [
        _score_tile(run),
        _target_tile(run),
        Tile("wall time", clock(run.seconds), f"{ended}{_where_time_went(run)}"),
        Tile("training steps", count(run.env_steps), each),
        Tile("evaluation steps", count(run.evaluation_env_steps), "of all members, beside training"),
        Tile("population", f"{population} members", f"{len(run.generations)} generations, {len(run.births)} births"),
    ]


def _where_time_went(run: RunRecords) -> str:
    time = run.time
    if time is None or time.collecting + time.learning <= 0:
        return ""
    return "; " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in time.shares().items())


def _score_tile(run: RunRecords) -> Tile:
    test, best = run.test, None if run.winner is None else run.winner.fitness
    if test is not None:
        low, high = test["ci95"]
        many = f"95 % interval {tidy(low)} to {tidy(high)}, {len(test['returns'])} {test.get('of', 'fresh episodes')}"
        error = Evaluation.from_returns(test["returns"]).error
        beside = _beside(run, test["mean"], error, test["returns"])
        return Tile("score of the best agent", tidy(test["mean"]), many + beside, "lead")
    where = f"in the run itself: no final evaluation yet{_beside(run, best)}"
    return Tile("best fitness", tidy(best), where, "lead")


def _beside(run: RunRecords, mean: float | None, error: float = 0.0, returns: Sequence[float] = ()) -> str:
    """The score of random play, or before training, and whether the best agent is better."""
    baseline, before = run.random_play, Evaluation.from_dict(run.facts.get("before"))
    if before is not None:
        return f"; before training {tidy(before.mean)}"
    if baseline is None or baseline.score is None:
        return ""
    verdict = None if mean is None or not math.isfinite(mean) else baseline.verdict(mean, error, returns)
    comparison = {
        "no better": ": no better", "worse": ": better than this", "unclear": ", too few episodes to compare"
    }.get(verdict or "", "")  # fmt: skip
    return f"; random play {tidy(baseline.score.mean)}{comparison}"


def _target_tile(run: RunRecords) -> Tile:
    target, test = run.setting("training.target_score"), run.test
    if not isinstance(target, int | float):
        return Tile("target", "none", "training.target_score is not set")
    if test is None:
        return Tile("target", tidy(float(target)), "not tested yet")
    met = test["mean"] >= target
    return Tile("target", tidy(float(target)), "met by the mean" if met else "not met", "good" if met else "bad")


def births(run: RunRecords, detail: Detail) -> dict[str, Any]:
    """Every birth with the fitness of its first generation, and the number omitted from a large page."""
    shown = run.births if detail.listed is None else run.births[: detail.listed]
    rows = [(b, lineage.mutation_text(b), tidy(run.rows[b.id][0].fitness if b.id in run.rows else None)) for b in shown]
    return {"rows": rows, "left": len(run.births) - len(shown)}


def ancestry(run: RunRecords) -> list[tuple[Birth, str]]:
    """The winner's ancestors, founder first, with the mutation of each birth."""
    line = [run.births_by_id[i] for i in run.winner_line if i in run.births_by_id]
    return [(birth, lineage.mutation_text(birth)) for birth in line]


def command(run: RunRecords) -> str:
    """The original command line, if it was ours; else a command that repeats the run from its settings."""
    argv = [str(part) for part in run.facts.get("argv") or ()]
    if argv and Path(argv[0]).name in ("agilerl", "__main__.py") and "train" in argv[:2]:
        return redact(shlex.join(["agilerl", *argv[1:]]))
    return f"agilerl train --config {shlex.quote(str(run.path / CONFIG))}"


def _film(run: RunRecords, beside: Path | None) -> dict[str, str] | None:
    """The best agent's film: embedded if it is small, else linked."""
    for name, kind in (("rollout.webp", "image/webp"), ("rollout.gif", "image/gif"), ("rollout.mp4", "video/mp4")):
        path = run.path / "best" / name
        if path.is_symlink() or not path.is_file():
            continue
        where = os.path.relpath(path, beside) if beside is not None else str(path)
        if path.stat().st_size <= FILM_LIMIT and kind.startswith("image/"):
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            return {"data": f"data:{kind};base64,{data}", "name": where}
        return {"name": where}
    return None


__all__ = ["Plot", "Score", "Tile", "render", "tiles", "write_report"]
