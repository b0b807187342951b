"""The charts of a run: fitness, hyperparameters and architectures over training steps, seconds or generations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agilerl.core.texts import count
from agilerl.runs.records import Member, RunRecords
from agilerl.views.report.plot import (
    SECONDS,
    Mark,
    Plot,
    Scale,
    Stroke,
    Tick,
    area,
    dots,
    frame,
    line,
    segments,
    spans_decades,
)
from agilerl.views.report.text import finite, tidy

WIDE, LOW, NARROW = (940.0, 300.0), (940.0, 220.0), (460.0, 190.0)


@dataclass(frozen=True)
class Axis:
    """The x axis of charts.

    Attributes:
        key: identifier. name: label. at: generation -> position on the axis, in the order of generations.
    """

    key: str
    name: str
    at: Mapping[int, float]


def axes(run: RunRecords) -> list[Axis]:
    """Axes for the charts of a run, the default first; without recorded steps and seconds, only generations."""
    numbers = [generation[0].generation for generation in run.generations]
    by_generation = Axis("generation", "generation", {number: number + 1.0 for number in numbers})
    if not numbers or not run.ends.keys() >= set(numbers):
        return [by_generation]
    steps, seconds = ({number: run.ends[number][at] for number in numbers} for at in (0, 1))
    return [Axis("steps", "training steps of all members", steps), Axis(SECONDS, SECONDS, seconds), by_generation]


@dataclass(frozen=True)
class Growth:
    """The size of a network, parsed from its short form in the records.

    Attributes:
        layers, units: number of hidden layers, and total number of their units (or channels), latent ones included.
    """

    layers: int
    units: int


def fitness_chart(run: RunRecords, lines: bool = True, points: bool = True, axis: Axis | None = None) -> Plot | None:
    """Fitness of every member (faint), lines from parent to child, the range as a band, the best (bold), the target.

    Args:
        lines, points: whether to draw every member; off if there are too many. axis: the first of `axes` by default.
    """
    if not run.generations:
        return None
    target, axis = run.setting("training.target_score"), axis or axes(run)[0]
    values = finite(m.fitness for g in run.generations for m in g)
    width, height = WIDE
    floor = _floor(values)
    ys = [max(v, floor) for v in values]
    ys += [float(target)] if isinstance(target, int | float) else []
    plot, x, scale = _frame_of(axis, f"Fitness by {axis.name}", ys, width, height)
    below = sum(v < floor for v in values)
    many = "1 value lies" if below == 1 else f"{below} values lie"
    plot.note = f"{many} below the axis, the lowest at {tidy(min(values))}." if below else ""

    def y(value: float) -> float:
        return scale(max(value, floor)) if value == value else value

    inside = [(g[0].generation, finite(m.fitness for m in g)) for g in run.generations]
    upper = [(x(n), y(max(f))) for n, f in inside if f]
    lower = [(x(n), y(min(f))) for n, f in inside if f]
    bests = [(x(n), y(max(f))) for n, f in inside if f]
    plot.strokes += [
        Stroke("band", area(upper, lower)),
        Stroke("faint", _family(run, lambda m: m.fitness, x, y) if lines else ""),
        Stroke("dots", dots((x(m.generation), y(m.fitness)) for g in run.generations for m in g) if points else ""),
        Stroke("best", line(bests)),
    ]
    for generation in run.generations:
        evaluated = [m for m in generation if math.isfinite(m.fitness)]
        if evaluated:
            best = max(evaluated, key=lambda m: m.fitness)
            mean = tidy(sum(m.fitness for m in evaluated) / len(evaluated))
            title = f"generation {best.number}: best {tidy(best.fitness)} (member {best.id}), mean {mean}"
            plot.marks.append(Mark(x(best.generation), y(best.fitness), title))
    if isinstance(target, int | float):
        plot.rule = Tick(y(float(target)), f"target {tidy(float(target))}")
    return plot


def _floor(values: list[float]) -> float:
    """Lower end of the axis, without a few outliers that would compress the rest into a line."""
    if len(values) < 8:
        return min(values, default=0.0)
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 20], ordered[-1]
    return max(ordered[0], low - 0.35 * (high - low))


def hyperparameter_charts(
    run: RunRecords, lines: bool = True, points: bool = True, axis: Axis | None = None
) -> tuple[list[Plot], list[tuple[str, str]]]:
    """(a chart for each hyperparameter that varies, name and value of the constant ones).

    Args:
        lines, points: whether to draw every member; else only the winner's line. axis: by default the first of `axes`.
    """
    axis = axis or axes(run)[0]
    members = [m for g in run.generations for m in g]
    names = sorted({name for m in members for name in m.hyperparameters})
    plots, constant = [], []
    for name in names:
        values = finite(m.hyperparameters.get(name) for m in members)
        if not values:
            continue
        if tidy(min(values)) == tidy(max(values)):  # equal up to rounding
            constant.append((name, tidy(values[0])))
            continue

        def read(member: Member, name: str = name) -> float:
            return member.hyperparameters.get(name, math.nan)

        plots.append(_lineages(run, name, read, values, lines, points, axis))
    return plots, constant


def architecture_charts(
    run: RunRecords, lines: bool = True, points: bool = True, axis: Axis | None = None
) -> tuple[list[Plot], str]:
    """(charts of layers and units if they vary, else the common architecture); see `hyperparameter_charts`."""
    axis = axis or axes(run)[0]
    members = [m for g in run.generations for m in g]
    sizes = {m.network: growth(m.network) for m in members}
    if len(sizes) <= 1:
        return [], next(iter(sizes), "")
    plots = []
    for title, name in (("hidden layers", "layers"), ("units in all hidden layers", "units")):
        values = [float(vars(size)[name]) for size in sizes.values()]
        if min(values) != max(values):

            def of(member: Member, name: str = name) -> float:
                return float(vars(sizes[member.network])[name])

            plots.append(_lineages(run, title, of, values, lines, points, axis))
    return plots, ""


def growth(network: str) -> Growth:
    """Layers and units of "[64, 64] 64 [32]", "cnn 32k8 64k4 128 [64]", "lstm 64x2 64 [64]"."""
    text = re.sub(r"(\d+)k\d+", r"\1", network)  # without kernel sizes
    stacked = [(int(u), int(n)) for u, n in re.findall(r"(\d+)x(\d+)", text)]
    rest = [int(n) for n in re.findall(r"(?<![\w.])\d+", re.sub(r"\d+x\d+", "", text))]
    return Growth(len(rest) + sum(n for _, n in stacked), sum(rest) + sum(u * n for u, n in stacked))


def _frame_of(
    axis: Axis, title: str, ys: Sequence[float], width: float, height: float, **more: Any
) -> tuple[Plot, Callable[[int], float], Scale]:
    """A frame over an axis whose x scale maps generations to pixels."""
    label = count if axis.key == "steps" else tidy
    plot, x, y = frame(
        title, list(axis.at.values()), ys, width=width, height=height, xlabel=axis.name, label=label, **more
    )
    return plot, lambda generation: x(axis.at[generation]), y


def _lineages(
    run: RunRecords,
    title: str,
    read: Callable[[Member], float],
    values: list[float],
    lines: bool,
    points: bool,
    axis: Axis,
) -> Plot:
    """One line per lineage, the winner's bold."""
    width, height = NARROW
    log, whole = spans_decades(values), all(v == int(v) for v in values)
    plot, x, y = _frame_of(axis, title, values, width, height, log=log, whole_y=whole)
    where = [(x(m.generation), y(read(m))) for g in run.generations for m in g if math.isfinite(read(m))]
    winners = run.winner_rows
    path = [(x(m.generation), y(read(m))) for m in winners if math.isfinite(read(m))]
    plot.strokes += [
        Stroke("faint", _family(run, read, x, y) if lines else ""),
        Stroke("dots", dots(dict.fromkeys((round(x, 1), round(y, 1)) for x, y in where)) if points else ""),
        Stroke("best", line(path)),
    ]
    for member in winners:
        if math.isfinite(read(member)):
            text = f"generation {member.number}: {title} {tidy(read(member))} (member {member.id})"
            plot.marks.append(Mark(x(member.generation), y(read(member)), text))
    return plot


def _family(
    run: RunRecords, read: Callable[[Member], float], x: Callable[[int], float], y: Callable[[float], float]
) -> str:
    """Segments from each member to itself or its child in a later generation; duplicates are drawn once."""
    pairs = {}
    last: dict[int, Member] = {}  # by id; in asynchronous runs a parent may be removed before its child has a row
    for generation in run.generations:
        for member in generation:
            id = member.id if member.id in last else run.source(member.id)
            source = None if id is None else last.get(id)
            if source is not None and math.isfinite(read(source)) and math.isfinite(read(member)):
                start, end = (source.generation, read(source)), (member.generation, read(member))
                pairs[start, end] = ((x(start[0]), y(start[1])), (x(end[0]), y(end[1])))
        last |= {member.id: member for member in generation}
    return segments(pairs.values())
