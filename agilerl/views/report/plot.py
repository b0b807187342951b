"""Plots as plain data: scales, ticks and paths; the template puts them into SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agilerl.views.report.text import finite, tidy

Point = tuple[float, float]
SECONDS = "seconds"  # the x axis that has ticks between whole numbers


@dataclass(frozen=True)
class Tick:
    """Position and label of a tick."""

    at: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A dot with a hover text."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Stroke:
    """An SVG path; `style` is its class."""

    style: str
    d: str


@dataclass
class Plot:
    """One chart, in pixels.

    Attributes:
        left, right, top, bottom: edges of the plot area. xticks, yticks: with labels. strokes: drawn in order.
        marks: dots with hover texts. rule: a labelled horizontal line.
    """

    title: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    xlabel: str
    xticks: list[Tick] = field(default_factory=list)
    yticks: list[Tick] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rule: Tick | None = None
    note: str = ""


class Scale:
    """Maps values to pixels, linearly or logarithmically."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        if low == high:
            pad = abs(low) * 0.1 or 1.0
            low, high = (low / 1.5, high * 1.5) if log else (low - pad, high + pad)
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(self.low), math.log(self.high), math.log(value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5, whole: bool = False) -> list[Tick]:
        """Round values within the range; logarithmic: 1, 2 and 5 if there are few decades; `whole`: integers only."""
        values = _log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high, count)
        values = [v for v in values if v == int(v)] if whole else values
        return [Tick(self(value), tidy(value)) for value in values]


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` multiples of 1, 2, 2.5 or 5 times a power of ten in [low, high]."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.75)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(decades) <= 3 else (1,)
    return [f * 10.0**d for d in decades for f in factors if low * 0.999 <= f * 10.0**d <= high * 1.001]


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis is suitable: all positive, the largest at least ten times the smallest."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 10


def line(points: Iterable[Point]) -> str:
    """A polyline, broken at points that are not finite."""
    out, command = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            command = "M"
            continue
        out.append(f"{command}{px(x)},{px(y)}")
        command = "L"
    return "".join(out)


def segments(pairs: Iterable[tuple[Point, Point]]) -> str:
    """Separate straight segments as one path."""
    return "".join(f"M{px(a[0])},{px(a[1])}L{px(b[0])},{px(b[1])}" for a, b in pairs)


def dots(points: Iterable[Point]) -> str:
    """Dots as one path: segments of zero length, which round caps make visible."""
    return "".join(f"M{px(x)},{px(y)}h0" for x, y in points if math.isfinite(y))


def area(upper: Sequence[Point], lower: Sequence[Point]) -> str:
    """The area between two lines."""
    return line([*upper, *reversed(lower)]) + "Z" if upper else ""


def px(value: float) -> str:
    """Pixels with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def frame(
    title: str,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    width: float,
    height: float,
    xlabel: str = "generation",
    log: bool = False,
    log_x: bool = False,
    whole_y: bool = False,
    label: Callable[[float], str] = tidy,
) -> tuple[Plot, Scale, Scale]:
    """An empty chart for these values with its two scales.

    Args:
        xs, ys: the values to show; those that are not finite are ignored.
        log, log_x: logarithmic y axis, x axis.
        whole_y: y ticks at integers only, as on the x axis of generations and steps. label: text of an x tick.
    """
    values = finite(ys) or [0.0]
    low, high = min(values), max(values)
    if not log and low != high:
        low, high = low - 0.04 * (high - low), high + 0.06 * (high - low)
    elif log:
        low, high = low / 1.15, high * 1.15
    plot = Plot(title, width, height, 56, width - 14, 12, height - 34, xlabel)
    x = Scale(min(xs, default=0), max(xs, default=1), plot.left + 6, plot.right - 6, log_x)
    y = Scale(low, high, plot.bottom, plot.top, log)
    plot.yticks = y.ticks(max(3, round((plot.bottom - plot.top) / 36)), whole=whole_y)
    ticks = linear_ticks(min(xs, default=0), max(xs, default=1), max(2, round(width / 90)))
    plot.xticks = x.ticks() if log_x else [Tick(x(t), label(t)) for t in ticks if t == int(t) or xlabel == SECONDS]
    return plot, x, y
