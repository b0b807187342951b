"""Fitness by cost in a report: the Pareto front, and no section where nothing is known or all cost the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import birth, family, member, write_run

from agilerl.report.charts import cost_chart, pareto_front
from agilerl.report.page import render
from agilerl.report.plot import dots
from agilerl.report.records import RunRecords

MEMBERS = [(1e6, 10.0), (4e6, 8.0), (2e6, 20.0), (2e6, 15.0), (1e8, 30.0)]


def run_of(path: Path, costs: list[tuple[float | str, float]]) -> RunRecords:
    """Two generations of the same members; fitness was lower in the first."""
    rows = [
        member(generation, slot, slot, fitness - 5 * (1 - generation), operations_per_step=cost)
        for generation in range(2)
        for slot, (cost, fitness) in enumerate(costs)
    ]
    return RunRecords.read(write_run(path, rows, [birth(slot, None, 0, "founder") for slot in range(len(costs))]))


@pytest.mark.parametrize(
    ("points", "front"),
    [
        (MEMBERS, [0, 2, 4]),
        ([(1.0, 5.0), (1.0, 5.0)], [0]),
        ([(1.0, 5.0), (1.0, 6.0), (2.0, 6.0)], [1]),
        ([(3.0, 1.0), (2.0, 1.0), (1.0, 1.0)], [2]),
        ([], []),
    ],
)
def test_the_front_has_those_whom_nobody_of_their_cost_or_less_exceeds(
    points: list[tuple[float, float]], front: list[int]
) -> None:
    assert pareto_front(points) == front


def test_the_chart_has_the_last_fitness_of_every_member_and_marks_the_front(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [*MEMBERS, ("", 99.0)])
    plot = cost_chart(run)
    assert plot is not None
    assert [mark.title for mark in plot.marks] == [
        "member 0: fitness 10, 1e6 operations a step, [64] 64 [64]",
        "member 2: fitness 20, 2e6 operations a step, [64] 64 [64]",
        "member 4: fitness 30, 1e8 operations a step, [64] 64 [64]",
    ]
    everyone, front = plot.strokes
    assert everyone.d.count("M") == len(MEMBERS), "once each, without the one whose cost is not known"
    assert dots([(plot.marks[1].x, plot.marks[1].y)]) in everyone.d
    assert front.d.count("L") == 4, "two steps, across and up"
    left, middle, right = (mark.x for mark in plot.marks)
    assert (middle - left) / (right - left) == pytest.approx(0.1505, abs=1e-3), "log 2 / log 100"
    sparse = cost_chart(run, everyone=False)
    assert sparse is not None
    assert sparse.strokes[0].d == ""
    page = render(run)
    assert "<h2>Cost</h2>" in page
    assert "operations of training per step" in page


def test_runs_whose_members_cost_the_same_or_an_unknown_amount_have_no_section(tmp_path: Path) -> None:
    equal = run_of(tmp_path / "equal", [(1e6, fitness) for _, fitness in MEMBERS])
    earlier = RunRecords.read(family(tmp_path / "earlier", 4, 3))
    for run in (equal, earlier):
        assert cost_chart(run) is None
        assert "<h2>Cost</h2>" not in render(run)
    assert {m.operations_per_step for g in earlier.generations for m in g} == {None}
