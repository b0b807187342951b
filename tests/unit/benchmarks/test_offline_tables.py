"""The table of continuous data, from result lines."""

import json
from pathlib import Path
from typing import Any

import pytest

SCORES = {"random": -1000.0, "expert": -200.0}


@pytest.fixture
def tables(benchmark_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in ("offline", "offline_beside"):
        monkeypatch.setattr(benchmark_module(name), "RESULTS", tmp_path)
    return benchmark_module("tables")


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def own(seed: int, normalised: float, last: float, commit: str = "b", updates: int = 3000) -> dict[str, Any]:
    data = {"mean_return": -600.0, "scores": SCORES}
    key = {"preset": "p", "commit": commit, "seed": seed}
    return {"key": key, "normalised": normalised, "last_normalised": last, "data": data, "updates_member": updates}


def theirs(seed: int, score: float, last: float) -> dict[str, Any]:
    return {"key": {"arm": "d3rlpy", "scores": SCORES, "seed": seed}, "score": score, "last": last}


def test_a_row_holds_mean_spread_and_count_of_both_sides(tables: Any, tmp_path: Path) -> None:
    ours = [own(9, 5.0, 5.0, commit="a"), *(own(seed, 50.0 + seed, 40.0) for seed in range(5))]
    write(tmp_path / "offline-Pendulum-v1-iql-medium.jsonl", ours)
    write(
        tmp_path / "offline-d3rlpy-Pendulum-v1-bc-medium.jsonl",
        [theirs(0, -200.0, -1000.0), theirs(1, -600.0, -1000.0)],
    )
    chosen, last = tables.continuous_rows()[-2:]
    assert (
        chosen == "| Pendulum-v1 medium, 50 | 3,000 | chosen | - | 52.0 ± 1.6 | - | - | - | - | - | 75.0 ± 35.4 (2) |"
    )
    assert last == "|  |  | last | - | 40.0 ± 0.0 | - | - | - | - | - | 0.0 ± 0.0 (2) |"


def test_fewer_updates_of_one_algorithm_are_said(tables: Any, tmp_path: Path) -> None:
    for algo, updates in {"cql": 1000, "iql": 3000, "bc": 3000}.items():
        write(tmp_path / f"offline-Pendulum-v1-{algo}-medium.jsonl", [own(0, 50.0, 40.0, updates=updates)])
    assert "| 3,000, CQL 1,000 | chosen | 50.0 (1) | 50.0 (1) | - | 50.0 (1) |" in tables.continuous_rows()[-2]


def test_without_results_there_is_no_table(tables: Any) -> None:
    assert tables.continuous_rows() == []
