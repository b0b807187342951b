"""Runs beside each other: groups over seeds, intervals, chances, curves; a run without a score is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import family, member, write_run
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.errors import RunError
from agilerl.runs.records import RunRecords
from agilerl.views.report.compare import bands, comparison, curve, probability_of_improvement, write_comparison


def rows(*best: float) -> list[dict[str, object]]:
    return [member(generation, generation, 0, value, is_best=1) for generation, value in enumerate(best)]


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    """Two seeds of one setting, one run of another, and one without a final evaluation."""
    return [
        write_run(tmp_path / "a", rows(10, 20), [], seed=0, returns=[100.0, 100.0]),
        write_run(tmp_path / "b", rows(20, 40), [], seed=1, returns=[110.0, 130.0]),
        write_run(tmp_path / "c", rows(5, 6), [], seed=0, lr=0.5, returns=[105.0, 105.0]),
        write_run(tmp_path / "d", rows(7, 8), [], seed=2, status="running"),
    ]


def test_runs_that_differ_by_their_seed_alone_are_one_group(four: list[Path]) -> None:
    found = comparison(four)
    assert [(g.label, [run.path.name for run in g.runs]) for g in found.groups] == [
        ("A DQN (lr=0.002)", ["a", "b", "d"]), ("B DQN (lr=0.5)", ["c"]),
    ]  # fmt: skip
    score = found.groups[0].score
    assert score is not None
    assert (score.mean, score.ci95) == (110.0, (100.0, 120.0))  # over the means of two seeds: 100 and 120


def test_the_table_has_every_run_and_names_those_without_a_score(four: list[Path]) -> None:
    lines = comparison(four).lines()
    assert re.split(r"\s{3,}", lines[2])[2:8] == ["1", "done", "120.0", "110.0..130.0", "120.0", "2"]
    assert "running" in lines[3]
    assert "no final evaluation" in lines[3]
    assert lines[-1].startswith(f"no final evaluation, so no score: {four[3]}.")
    assert "P(A better than B) = 0.50   too few seeds for an interval (2 and 1)" in lines


def test_the_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    # 1 > 0, 1 < 2, 2 > 0, 2 = 2, 3 > 0, 3 > 2: four and a half of six.
    chance, low, high = probability_of_improvement([1.0, 2.0, 3.0], [0.0, 2.0])
    assert chance == 0.75
    assert low < 0.75 < high
    assert probability_of_improvement([5.0], [1.0]) == (1.0, 1.0, 1.0)


def test_one_run_each_is_compared_over_episodes(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", rows(1), [], returns=[3.0, 1.0])
    second = write_run(tmp_path / "b", rows(1), [], lr=0.5, returns=[2.0, 2.0])
    (chance,) = comparison([first, second]).chances()
    assert (chance["chance"], chance["over"]) == (0.5, "episodes")


def test_curves_are_means_over_seeds_as_far_as_all_of_them_go(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", rows(10, 20, 30), [], seed=0)
    second = write_run(tmp_path / "b", rows(20, 40), [], seed=1)
    assert curve(RunRecords.read(first)) == ([1000.0, 2000.0, 3000.0], [10.0, 20.0, 30.0])
    (group,) = comparison([first, second]).groups
    steps, mean, low, high = bands(group)
    assert (steps[0], steps[-1]) == (1000.0, 2000.0)
    np.testing.assert_allclose((mean[0], mean[-1]), (15.0, 30.0))
    np.testing.assert_allclose((low[0], high[0], low[-1], high[-1]), (10.0, 20.0, 20.0, 40.0))


def test_the_page_of_curves_needs_no_network(tmp_path: Path) -> None:
    runs = [family(tmp_path / f"r{seed}", 4, 8, seed, lr=lr) for seed, lr in enumerate((0.1, 0.1, 0.2))]
    page = write_comparison(comparison(runs), tmp_path / "out" / "curves.html").read_text()
    assert not re.search(r"https?://|<script|<link|url\(", page)
    assert page.count('<path class="c') == 2
    assert page.count('<path class="b') == 2
    assert "A DQN (lr=0.1), 2 seeds" in page


def test_the_page_has_tables_with_a_row_for_every_run(four: list[Path], tmp_path: Path) -> None:
    page = write_comparison(comparison(four), tmp_path / "curves.html").read_text()
    assert "<pre" not in page
    assert (page.count("<table>"), page.count("<thead>"), page.count("</tr>")) == (2, 2, 1 + 4 + 1 + 1)
    assert f'<td>{four[1]}</td><td class="r">1</td><td>done</td><td class="r">120.0</td>' in page
    assert '<th>run</th><th class="r">seed</th><th>status</th><th class="r">mean</th>' in page
    assert "<p>P(A better than B) = 0.50   too few seeds for an interval (2 and 1)</p>" in page


def resettled(path: Path, **values: object) -> Path:
    text = (path / "config.yaml").read_text()
    for name, value in values.items():
        text = re.sub(rf"({name}: )[^,}}]+", rf"\g<1>{value}", text)
    (path / "config.yaml").write_text(text)
    return path


def test_where_a_run_stops_makes_no_group_of_its_own_and_is_said(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), rows(1), [], seed=seed, returns=[1.0]) for seed in range(3)]
    resettled(runs[1], max_steps=100)
    resettled(runs[2], max_steps=100, target_score=9)
    found = comparison(runs)
    assert [group.label for group in found.groups] == ["A DQN"]
    assert "A: its runs differ in max_steps 50000, 100 and target_score 195, 9." in found.notes()
    assert "differ in" not in "\n".join(comparison(runs[1:2]).lines())


def test_a_data_set_counts_by_its_content(tmp_path: Path) -> None:
    runs = []
    for seed, digest in enumerate(("aa" * 32, "aa" * 32, "bb" * 32)):
        path = write_run(tmp_path / str(seed), rows(1), [], seed=seed, dataset={"sha256": digest, "rows": 5})
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(text.replace("training: {", f"training: {{dataset: {path}/dataset.h5, "))
        runs.append(path)
    labels = [(group.label, len(group.runs)) for group in comparison(runs).groups]
    assert labels == [("A DQN (dataset=dataset.h5 aaaaaaaa)", 2), ("B DQN (dataset=dataset.h5 bbbbbbbb)", 1)]


def test_a_run_that_stands_twice_or_is_none_is_refused(four: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="stands twice"):
        comparison([four[0], four[0]])
    with pytest.raises(RunError, match="there is no run at"):
        comparison([four[0], tmp_path / "nothing"])


def test_the_command_prints_json(four: list[Path]) -> None:
    result = CliRunner().invoke(app, ["compare", *map(str, four), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [group["score"]["seeds"] for group in found["groups"]] == [2, 1]
    assert [run["test"] is None for run in found["groups"][0]["runs"]] == [False, False, True]
    assert found["improvement"][0]["chance"] == 0.5


def test_one_seed_is_one_and_a_curve_of_one_generation_is_a_dot(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rows(10), [], seed=0, returns=[1.0, 2.0])
    page = write_comparison(comparison([run]), tmp_path / "curves.html").read_text()
    assert ", 1 seed</span>" in page
    assert '"c0 dot"' in page
    assert "too few seeds" in "\n".join(
        comparison([run, write_run(tmp_path / "b", rows(9), [], seed=1, returns=[2.0])]).lines()
    )
