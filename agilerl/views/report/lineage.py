"""The lineage tree: members by generation, edges from parent to child, without crossings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agilerl.hpo.kinds import KINDS
from agilerl.runs.records import Member, RunRecords
from agilerl.telemetry.record import Birth
from agilerl.views.report.plot import Stroke, Tick, dots, px
from agilerl.views.report.score import UNMUTATED
from agilerl.views.report.text import compact, finite, tidy

LEVELS = 8
WIDTH = 940.0
PER_BAND = 12  # generations per row of the tree, so that its labels fit
MARGIN = 34.0
PER_ROW, SMALL = 40, 24  # generations per row without labels, and the largest population that is split into rows


@dataclass(frozen=True)
class Node:
    """One member in one generation."""

    x: float
    y: float
    r: float
    style: str  # "f0" (worst) to "f7" (best), "unknown" without a fitness
    label: str
    title: str
    on_path: bool


@dataclass(frozen=True)
class Word:
    """Label of a mutation, next to its edge."""

    x: float
    y: float
    text: str


@dataclass
class Tree:
    """One drawing.

    Attributes:
        strokes: edges by kind of mutation (class `k-<kind>`), the winner's path last. radius: of the nodes.
        dots: members as one path per colour, if there are too many for nodes.
        columns: the generations' headings.
    """

    width: float
    height: float
    radius: float = 0.0
    dots: list[Stroke] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    columns: list[Tick] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A member in a generation: its row, and its source as (generation, id), usually in the previous generation."""

    generation: int
    id: int
    row: int
    source: tuple[int, int] | None
    member: Member | None


def places(run: RunRecords) -> list[list[Place]]:
    """Members by generation, each generation in the order of its parents, so that edges do not cross.

    Members that have not finished a generation yet are in the last column. Those that never trained have no place.
    """
    columns: list[tuple[int, list[tuple[int, Member | None]]]] = [
        (g[0].generation, [(m.id, m) for m in g]) for g in run.generations
    ]
    unborn = sorted(run.newborns.waiting)
    if unborn:
        columns.append((max((n for n, _ in columns), default=-1) + 1, [(i, None) for i in unborn]))
    placed: list[list[Place]] = []
    last: dict[int, Place] = {}  # by id; of asynchronous runs, a parent may have left before its child has a row
    for number, members in columns:

        def origin(member: int, last: dict[int, Place] = last) -> Place | None:
            source = member if member in last else run.source(member)
            return None if source is None else last.get(source)

        def order(entry: tuple[int, Member | None], origin: Callable[[int], Place | None] = origin) -> Any:
            source = origin(entry[0])
            return (math.inf if source is None else source.row), source is None or source.id != entry[0], entry[0]

        column = []
        for row, (member, record) in enumerate(sorted(members, key=order)):
            source = origin(member)
            start = None if source is None else (source.generation, source.id)
            column.append(Place(number, member, row, start, record))
        placed.append(column)
        last.update({place.id: place for place in column})
    return placed


def overview(run: RunRecords, hover: bool = True, survivors: bool = False) -> list[Tree]:
    """The whole tree: colours and the winner's path, no labels; long runs are split into rows.

    Args:
        hover: hover texts for every member; else only on the winner's path.
        survivors: draw only edges of lineages that survive to the end.
    """
    columns = places(run)
    if not columns:
        return []
    max_members = max(len(column) for column in columns)
    steps = max(len(columns) - 1, 1)
    per_row = -(-steps // -(-steps // PER_ROW)) if max_members <= SMALL else steps  # rows of equal length
    gap = max(5.0, min(22.0, 420.0 / max_members))
    step = (WIDTH - 2 * MARGIN) / per_row
    radius = max(1.5, min(gap * 0.36, step * 0.36, 6.0))
    only = _living(columns) if survivors else None
    trees = []
    for start in range(0, steps, per_row):
        tree = _draw(run, columns[start : start + per_row + 1], gap, step, radius, words=False, only=only)
        trees.append(tree if hover else _batched(tree))
    return trees


def _living(columns: Sequence[list[Place]]) -> set[tuple[int, int]]:
    """(generation, id) of the members of the last column and their ancestors."""
    living = {(place.generation, place.id) for place in columns[-1]}
    for column in reversed(columns):
        living |= {place.source for place in column if place.source and (place.generation, place.id) in living}
    return living


def _batched(tree: Tree) -> Tree:
    """The same tree with the dots of one colour as one path: a tenth of the bytes."""
    by_style: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for node in tree.nodes:
        if not node.on_path:
            by_style[node.style].append((node.x, node.y))
    tree.dots = [Stroke(f"d {style.replace('f', 's', 1)}", dots(points)) for style, points in sorted(by_style.items())]
    tree.nodes = [node for node in tree.nodes if node.on_path]
    return tree


def bands(run: RunRecords, per_band: int = PER_BAND) -> list[Tree]:
    """The tree in rows of `per_band` generations, with ids and mutation labels; rows share their border generation."""
    columns = places(run)
    if not columns:
        return []
    step = (WIDTH - 2 * MARGIN) / max(min(per_band, max(len(columns) - 1, 1)), 4)
    trees = []
    for start in range(0, max(len(columns) - 1, 1), per_band):
        part = columns[start : start + per_band + 1]
        trees.append(_draw(run, part, 31.0, step, 10.5, words=True))
    return trees


def _draw(
    run: RunRecords,
    columns: Sequence[list[Place]],
    gap: float,
    step: float,
    radius: float,
    *,
    words: bool,
    only: set[tuple[int, int]] | None = None,
) -> Tree:
    """Draw the places; `only`: the members whose edges are drawn, None: all."""
    top = 36.0
    max_members = max(len(column) for column in columns)
    tree = Tree(WIDTH, top + (max_members - 1) * gap + radius + 14, radius)
    winner, winner_path = run.winner, {(member.generation, member.id) for member in run.winner_rows}
    level = _levels(run)
    at: dict[tuple[int, int], tuple[float, float]] = {}
    edges: dict[str, list[str]] = defaultdict(list)
    path: list[str] = []
    every = max(1, round(44 / step))
    for index, column in enumerate(columns):
        x = MARGIN + index * step
        offset = (max_members - len(column)) * gap / 2
        if index % every == 0:
            tree.columns.append(Tick(x, str(column[0].generation + 1)))
        for place in column:
            y = top + offset + place.row * gap
            at[place.generation, place.id] = (x, y)
            birth = run.births_by_id.get(place.id)
            born_here = birth is not None and (place.source is None or place.source[1] != place.id)
            on_path = (place.generation, place.id) in winner_path
            if place.source is not None and place.source in at and index:
                edge = _edge(at[place.source], (x, y), radius)
                kind = birth.kind if birth is not None and born_here and birth.kind not in UNMUTATED else "none"
                if only is None or (place.generation, place.id) in only:
                    edges[kind].append(edge)
                if on_path:
                    path.append(edge)
                if words and born_here and birth is not None:
                    tree.words.append(Word(x - radius - 5, y - 4, short_mutation(birth)))
            is_evaluated = place.member is not None and math.isfinite(place.member.fitness)
            style = f"f{level(place.member.fitness)}" if is_evaluated and place.member is not None else "unknown"
            is_winner = winner is not None and (place.id, place.generation) == (winner.id, winner.generation)
            style += " winner" if is_winner else ""
            label = str(place.id) if words else ""
            tree.nodes.append(Node(x, y, radius, style, label, _title(place, run.line_of_birth(place.id)), on_path))
    tree.words = [word for word in tree.words if word.text]
    tree.strokes = [Stroke(f"k-{kind}", "".join(parts)) for kind, parts in sorted(edges.items())]
    tree.strokes.append(Stroke("path", "".join(path)))
    return tree


def _edge(start: tuple[float, float], end: tuple[float, float], radius: float) -> str:
    """A curve from the right of one node to the left of another."""
    (x1, y1), (x2, y2) = (start[0] + radius, start[1]), (end[0] - radius, end[1])
    if abs(y1 - y2) < 0.05:
        return f"M{px(x1)},{px(y1)}H{px(x2)}"
    bend = x1 + (x2 - x1) * 0.35  # early, so that the label over the edge's end is clear
    return f"M{px(x1)},{px(y1)}C{px(bend)},{px(y1)} {px(x1)},{px(y2)} {px(bend)},{px(y2)}H{px(x2)}"


def _levels(run: RunRecords) -> Callable[[float], int]:
    """Map fitness to one of `LEVELS` colours; the lowest 5 % share the lowest colour, as they may be outliers."""
    low, high = fitness_range(run)

    def level(value: float) -> int:
        share = (value - low) / (high - low) if high > low else 1.0
        return min(LEVELS - 1, max(0, int(share * LEVELS)))

    return level


def fitness_range(run: RunRecords) -> tuple[float, float]:
    """From the 5 % quantile to the best."""
    values = sorted(finite(m.fitness for g in run.generations for m in g))
    return (values[len(values) // 20], values[-1]) if values else (0.0, 0.0)


def _title(place: Place, line: Sequence[Birth]) -> str:
    """Hover text: id, source and mutations, fitness."""
    parts = [f"#{place.id}"]
    if line and line[0].parent is not None:
        parts.append(f"from #{line[0].parent} (generation {line[0].number}): {changes_text(line)}")
    score = "not evaluated yet" if place.member is None else f"fitness {tidy(place.member.fitness)}"
    return ", ".join([" ".join(parts), f"{score} in generation {place.generation + 1}"])


def changes_text(line: Sequence[Birth]) -> str:
    """The mutations of births between the same two generations, see `RunRecords.line_of_birth`."""
    return ", ".join(mutation_text(birth) for birth in line if birth.kind not in UNMUTATED) or mutation_text(line[-1])


def mutation_text(birth: Birth) -> str:
    """The mutation of a birth: "lr 6.3e-4 → 5e-4", "encoder.add_node [64] → [96]"; for a founder its source."""
    if birth.kind in UNMUTATED or (birth.kind == "founder" and not birth.path):
        return "unchanged copy" if birth.kind in UNMUTATED else "founder"
    has_label = birth.kind in ("healed", "founder") or (birth.kind in KINDS and KINDS[birth.kind].label)
    name = birth.path or birth.kind
    if has_label and name != birth.kind:
        name = f"{birth.kind} {name}"
    if birth.before is None and birth.after is None:
        return name
    if isinstance(birth.after, Mapping):  # several hyperparameters, or the scale of noise
        old = birth.before if isinstance(birth.before, Mapping) else {}
        moved = (f"{key} {compact(old[key])} → {compact(value)}" if key in old else f"{key} {compact(value)}"
                 for key, value in birth.after.items())  # fmt: skip
        return ", ".join(moved) if birth.kind == "rl_hp" else f"{birth.kind} ({', '.join(moved)})"
    return f"{name} {compact(birth.before)} → {compact(birth.after)}"


def short_mutation(birth: Birth) -> str:
    """The mutation of a birth in at most nine characters."""
    if birth.kind in (*UNMUTATED, "founder"):
        return ""
    leaf = birth.path.rpartition(".")[2]
    if birth.kind == "rl_hp":
        down = isinstance(birth.before, int | float) and isinstance(birth.after, int | float)
        arrow = "" if not down else "↓" if birth.after < birth.before else "↑" if birth.after > birth.before else "="
        return f"{leaf.removesuffix('_size')[:7]} {arrow}".strip()
    for word, sign in (("add_", "+"), ("remove_", "−")):
        if leaf.startswith(word):
            return (sign + leaf.removeprefix(word).replace("latent_node", "latent"))[:9]
    short = KINDS[birth.kind].short if birth.kind in KINDS else ""
    return (short or leaf or birth.kind)[:9]
