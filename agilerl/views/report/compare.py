"""Comparison of runs: final evaluations with intervals, groups over seeds, probability of improvement, curves."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.core.texts import count
from agilerl.errors import RunError
from agilerl.runs.names import run_command, way_on
from agilerl.runs.records import RunRecords
from agilerl.runs.seed_group import with_groups
from agilerl.telemetry.console import clock
from agilerl.telemetry.evaluation import RESAMPLES, Evaluation, interval
from agilerl.views.report.page import templates, well_formed, write_page
from agilerl.views.report.plot import Plot, Stroke, Tick, area, frame, line
from agilerl.views.report.text import finite

COLOURS = 6
GRID = 80  # points of a curve
WORDS = ("group", "run", "status")  # text columns
DOT = 0.01  # half the length of a stroke whose round ends are a dot
WHERE_IT_STOPS = ("training.max_steps", "training.target_score")
FEW_SEEDS = 3  # with fewer, a bootstrap interval is the range


@dataclass(frozen=True)
class Group:
    """Runs that differ only by their seed and where they stop (`WHERE_IT_STOPS`).

    Attributes:
        label: a letter, the algorithm, and the settings that differ from other groups of its environment.
    """

    label: str
    runs: tuple[RunRecords, ...]

    @property
    def env_id(self) -> str:
        return self.runs[0].env_id

    @cached_property
    def tested(self) -> tuple[RunRecords, ...]:
        """Runs with a final evaluation."""
        return tuple(run for run in self.runs if run.test is not None)

    @cached_property
    def returns(self) -> list[list[float]]:
        """Returns of the final evaluations: one list of episodes per run."""
        return [[float(r) for r in run.test["returns"]] for run in self.tested if run.test is not None]

    @cached_property
    def score(self) -> Evaluation | None:
        """Over the means of the runs, or the episodes of a single run; None without a final evaluation."""
        if not self.returns:
            return None
        return Evaluation.from_returns(self.units)

    @property
    def units(self) -> list[float]:
        """The values that intervals are computed over."""
        return self.returns[0] if len(self.returns) == 1 else [float(np.mean(r)) for r in self.returns]


@dataclass(frozen=True)
class Comparison:
    """Runs in their groups."""

    groups: tuple[Group, ...]

    def lines(self) -> list[str]:
        """A table of runs, a table of groups with several seeds, and the probabilities of improvement."""
        lines: list[str] = []
        for table in self.tables():
            lines += [*_table(table), ""]
        return lines + self.notes()

    def tables(self) -> list[list[tuple[str, ...]]]:
        """The runs, and the groups with several seeds, as rows of cells below a header."""
        header = ("group", "run", "seed", "status", "mean", "95% CI", "IQM", "episodes", "steps", "time")
        tables = [[header, *(_row(group, run) for group in self.groups for run in group.runs)]]
        several = [group for group in self.groups if len(group.tested) > 1]
        if several:
            head = ("group", "seeds", "mean", "95% CI over seeds", "IQM over seeds")
            tables.append([head, *map(_group_row, several)])
        return tables

    def notes(self) -> list[str]:
        """Lines below the tables: groups, differences between their runs, probabilities, missing tests."""
        lines = [f"{group.label}: {group.env_id}" for group in self.groups]
        lines += [text for group in self.groups for text in _unequal(group)]
        for chance in self.chances():
            low, high = chance["ci95"]
            sure = f"95% CI {low:.2f}..{high:.2f} over {chance['over']}"
            if min(chance["runs"]) < FEW_SEEDS and chance["over"] == "seeds":
                sure = f"too few seeds for an interval ({' and '.join(map(str, chance['runs']))})"
            lines.append(
                f"P({chance['better'].split()[0]} better than {chance['worse'].split()[0]}) = {chance['chance']:.2f}   "
                f"{sure}"
            )
        runs = [run for group in self.groups for run in group.runs]
        for run in runs:
            if run.status == "interrupted":
                lines.append(f"{run.path} was interrupted. fix: {way_on(run.path, run.facts)}")
        missing = [str(run.path) for run in runs if run.test is None and run.status != "interrupted"]
        if missing:
            reason = f"no final evaluation, so no score: {', '.join(missing)}."
            lines.append(f"{reason} fix: {run_command('resume', missing[0])}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"groups": [_group_facts(group) for group in self.groups], "improvement": self.chances()}

    def chances(self) -> list[dict[str, Any]]:
        """For every two groups of one environment: probability that a run of the first beats one of the second."""
        chances = []
        for first, second in itertools.combinations(self.groups, 2):
            if first.env_id == second.env_id and first.returns and second.returns:
                alone = len(first.returns) == 1 and len(second.returns) == 1
                ours = first.units if alone else [float(np.mean(r)) for r in first.returns]
                theirs = second.units if alone else [float(np.mean(r)) for r in second.returns]
                chance, low, high = probability_of_improvement(ours, theirs)
                over = "episodes" if alone else "seeds"
                facts = {"better": first.label, "worse": second.label, "chance": chance, "ci95": [low, high]}
                chances.append({**facts, "over": over, "runs": [len(first.returns), len(second.returns)]})
        return chances


def comparison(paths: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Read runs and group them: same environment, algorithm and settings, except the seed and where they stop.

    Raises:
        RunError: a path is not a run, is damaged, or appears twice.
    """
    seen: dict[Path, str] = {}
    by_key: dict[str, list[RunRecords]] = {}
    for path in with_groups(paths):
        real = Path(path).resolve()
        if real in seen:
            raise RunError(f"{path} stands twice. fix: name every run once.")
        seen[real] = str(path)
        run = RunRecords.read(path)
        by_key.setdefault(_key(run), []).append(run)
    keyed = list(by_key.values())
    labels = _labels([runs[0] for runs in keyed])
    return Comparison(tuple(Group(label, tuple(runs)) for label, runs in zip(labels, keyed, strict=True)))


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """P(X > Y) + P(X = Y) / 2 over all pairs, with its 95 % bootstrap interval (Agarwal et al. 2021)."""
    x, y = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    won = (x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :])
    rng = np.random.default_rng(0)
    resamples = min(RESAMPLES, max(200, int(2e7 // won.size)))
    means = [
        float(won[np.ix_(rng.integers(len(x), size=len(x)), rng.integers(len(y), size=len(y)))].mean())
        for _ in range(resamples)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(won.mean()), float(low), float(high)


def write_comparison(found: Comparison, out: str | os.PathLike[str]) -> Path:
    """The tables and a chart of curves for each environment as one HTML file without a network."""
    path = Path(out)
    charts = [(env_id, *_curves(env_id, groups)) for env_id, groups in _by_env(found.groups).items()]
    template = templates().get_template("compare.html.j2")
    page = well_formed(template.render(charts=charts, tables=found.tables(), notes=found.notes(), words=WORDS))
    write_page(path, page, "--html")
    return path


def curve(run: RunRecords) -> tuple[list[float], list[float]]:
    """(env steps of the furthest member, best fitness) by generation; of asynchronous shards, once all have arrived."""
    best: dict[float, float] = {}
    for generation in run.generations:
        values = finite(member.fitness for member in generation)
        if values:
            best[float(max(member.env_steps for member in generation))] = max(values)
    return list(best), list(best.values())


def bands(group: Group) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(steps [P], mean [P], low [P], high [P]) over the group's runs, up to the shortest.

    The band is the 95 % bootstrap interval of the mean over seeds; for one run it is the curve itself.
    """
    curves = [points for points in map(curve, group.runs) if points[0]]
    if not curves:
        return (np.zeros(0),) * 4
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    grid = np.linspace(start, end, GRID) if end > start else np.array([start])
    values = np.stack([np.interp(grid, steps, best) for steps, best in curves])
    draws = np.random.default_rng(0).integers(len(values), size=(1000, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975], axis=0)
    return grid, values.mean(axis=0), low, high


def _curves(env_id: str, groups: Sequence[Group]) -> tuple[Plot | None, list[tuple[int, str]]]:
    """(a chart of the groups' curves, colour and label of each)."""
    drawn = [(index % COLOURS, group, bands(group)) for index, group in enumerate(groups)]
    drawn = [entry for entry in drawn if len(entry[2][0])]
    if not drawn:
        return None, []
    xs = [float(x) for _, _, band in drawn for x in (band[0][0], band[0][-1])]
    ys = [float(y) for _, _, band in drawn for series in band[1:] for y in series]
    title = f"Best fitness by steps of one member, {env_id}"
    plot, x, y = frame(title, xs, ys, width=940, height=340, xlabel="steps of one member")
    plot.xticks = [Tick(tick.at, count(float(tick.label.replace("e", "E")))) for tick in plot.xticks]
    for colour, _, (grid, mean, low, high) in drawn:
        upper = [(x(a), y(b)) for a, b in zip(grid, high, strict=True)]
        lower = [(x(a), y(b)) for a, b in zip(grid, low, strict=True)]
        if len(grid) == 1:  # a curve of one generation is a dot
            at, value = x(grid[0]), y(mean[0])
            plot.strokes.append(Stroke(f"c{colour} dot", line([(at - DOT, value), (at + DOT, value)])))
            continue
        plot.strokes.append(Stroke(f"b{colour}", area(upper, lower)))
        plot.strokes.append(Stroke(f"c{colour}", line([(x(a), y(b)) for a, b in zip(grid, mean, strict=True)])))
    return plot, [(colour, f"{group.label}, {_seeds(len(group.runs))}") for colour, group, _ in drawn]


def _seeds(count: int) -> str:
    return f"{count} {'seed' if count == 1 else 'seeds'}"


def _by_env(groups: Sequence[Group]) -> dict[str, list[Group]]:
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        by_env.setdefault(group.env_id, []).append(group)
    return by_env


def _key(run: RunRecords) -> str:
    """Grouping key: the facts and settings shared by runs of one group."""
    shared = _shared(run)
    facts = [run.env_id, run.algo, run.facts.get("evolution", True), run.facts.get("parent")]
    return json.dumps([facts, shared], sort_keys=True, default=str)


def _shared(run: RunRecords) -> dict[str, Any]:
    """Settings by dotted name, without those that may differ within a group; data sets are compared by content."""
    settings = {k: v for k, v in _flat(run.settings).items() if k not in ("training.seed", *WHERE_IT_STOPS)}
    facts = run.facts.get("dataset")
    if settings.get("training.dataset") and isinstance(facts, Mapping) and facts.get("sha256"):
        name = Path(str(settings["training.dataset"])).name
        settings["training.dataset"] = f"{name} {str(facts['sha256'])[:8]}"
    return settings


def _unequal(group: Group) -> list[str]:
    """A note if runs of a group stop at different places."""
    differences = []
    for name in WHERE_IT_STOPS:
        values = list(dict.fromkeys(str(_flat(run.settings).get(name)) for run in group.runs))
        differences += [f"{name.rpartition('.')[2]} {', '.join(values)}"] if len(values) > 1 else []
    return [f"{group.label.split()[0]}: its runs differ in {' and '.join(differences)}."] if differences else []


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _labels(leads: Sequence[RunRecords]) -> list[str]:
    """A letter, the algorithm and the distinguishing settings of each group."""
    labels = []
    for index, run in enumerate(leads):
        settings, special = _shared(run), []
        others = [_shared(o) for o in leads if o is not run and (o.env_id, o.algo) == (run.env_id, run.algo)]
        for name, value in settings.items():
            if any(other.get(name) != value for other in others):
                special.append(f"{name.rpartition('.')[2]}={value}")
        if run.facts.get("evolution") is False:
            special.append("no evolution")
        letter = chr(ord("A") + index) if index < 26 else f"G{index + 1}"
        more = f" ({', '.join(special[:4])}{', ...' if len(special) > 4 else ''})" if special else ""
        labels.append(f"{letter} {run.algo}{more}")
    return labels


def _row(group: Group, run: RunRecords) -> tuple[str, ...]:
    facts = (group.label.split()[0], str(run.path), str(run.facts.get("seed", "?")), run.status)
    cost = (count(run.env_steps), clock(run.seconds))
    if run.test is None:
        return (*facts, "no final evaluation", "-", "-", "-", *cost)
    mean, low, high = interval(run.test["mean"], *run.test["ci95"])
    iqm, _, _ = interval(run.test["iqm"], *run.test["ci95"])
    return (*facts, mean, f"{low}..{high}", iqm, str(len(run.test["returns"])), *cost)


def _group_row(group: Group) -> tuple[str, ...]:
    score = group.score
    assert score is not None  # groups without a test have no row
    mean, low, high = interval(score.mean, *score.ci95)
    seeds = len(group.tested)
    sure = f"{low}..{high}" if seeds >= FEW_SEEDS else "too few seeds"
    return group.label, str(seeds), mean, sure, interval(score.iqm, *score.ci95)[0]


def _group_facts(group: Group) -> dict[str, Any]:
    runs = [
        {
            "path": str(run.path),
            "seed": run.facts.get("seed"),
            "status": run.status,
            "test": None if run.test is None else {k: run.test[k] for k in ("mean", "iqm", "ci95", "episodes")},
            "env_steps": run.env_steps,
            "evaluation_env_steps": run.evaluation_env_steps,
            "seconds": run.seconds,
        }
        for run in group.runs
    ]
    score = None
    if group.score is not None:
        over = "episodes" if len(group.returns) == 1 else "seeds"
        numbers = {"mean": group.score.mean, "iqm": group.score.iqm, "ci95": list(group.score.ci95)}
        score = {**numbers, "over": over, "seeds": len(group.tested)}
    return {"label": group.label, "env_id": group.env_id, "algo": group.runs[0].algo, "score": score, "runs": runs}


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [text.rstrip() for text in padded]
