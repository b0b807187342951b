"""Statistics of benchmarks/evolution.py against hand-worked numbers."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "evolution_tables.py"


def loaded() -> Any:
    """The module, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("evolution_tables_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = loaded()


def line(arm: str, seed: int, scores: list[tuple[float, float]], reached: float | None = None) -> dict[str, Any]:
    """A run with (CPU seconds, score) at its checkpoints."""
    curve = [{"cpu_seconds": cpu, "env_steps": 10 * cpu, "score": score} for cpu, score in scores]
    found = None if reached is None else {"cpu_seconds": scores[-1][0], "env_steps": 0, "second_score": reached}
    key = {"arm": arm, "seed": seed, "start": "good", "cpu_budget": 10.0}
    return {"key": key, "curve": curve, "reached": found}


def test_a_score_is_that_of_the_last_checkpoint_within_the_budget() -> None:
    run = line("a", 0, [(2.0, 1.0), (5.0, 3.0), (10.5, 4.0), (20.0, 9.0)])
    assert tables.score_at(run, "cpu_seconds", 10.0) == 4.0, "a tenth over counts: generations are whole"
    assert tables.score_at(run, "cpu_seconds", 6.0) == 3.0
    assert math.isnan(tables.score_at(run, "cpu_seconds", 1.0)), "none yet"
    assert tables.score_at(line("a", 0, [(2.0, 1.0), (5.0, 9.0)], reached=8.0), "cpu_seconds", 10.0) == 8.0


def test_shares_end_at_the_target() -> None:
    assert [tables.share(x, -100.0, 100.0) for x in (-200.0, -100.0, 0.0, 100.0, 250.0)] == [-0.5, 0.0, 0.5, 1.0, 1.0]


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert tables.interquartile_mean([0.0, 1.0, 2.0, 90.0]) == pytest.approx(1.5)
    # of six runs 1.5 at each end: half of the second and of the fifth count
    assert tables.interquartile_mean([0, 2, 4, 6, 8, 100]) == pytest.approx((1 + 4 + 6 + 4) / 3)


def test_the_probability_of_improvement_counts_ties_as_half() -> None:
    assert tables.probability_of_improvement([1.0, 2.0], [1.0, 0.0]) == pytest.approx((0.5 + 1 + 1 + 1) / 4)


def test_a_run_is_better_that_is_sooner_at_the_target_or_higher_without_it() -> None:
    """At 4 and 6 CPU seconds against 5 and a miss: better, worse; better, better: three of four. Misses by score."""
    soon, late = line("a", 0, [(4.0, 9.0)], reached=9.0), line("a", 1, [(6.0, 9.0)], reached=9.0)
    other, miss = line("b", 0, [(5.0, 9.0)], reached=9.0), {**line("b", 1, [(9.0, 3.0)]), "final": {"score": 3.0}}
    ours, theirs = tables.of_runs([soon, late]), tables.of_runs([other, miss])
    assert tables.better(ours, theirs) == pytest.approx(3 / 4)
    higher = {**miss, "final": {"score": 4.0}}
    assert tables.better(tables.of_runs([higher]), tables.of_runs([miss])) == 1.0


def test_profiles_count_what_is_above() -> None:
    assert tables.profile([0.0, 0.5, 1.0, 1.0], [0.0, 0.5, 0.95]) == [0.75, 0.5, 0.5]


def test_intervals_hold_the_value_and_shrink_to_it_without_spread() -> None:
    low, high = tables.interval([[[1.0] * 5, [0.25] * 5]], tables.iqm_difference)
    assert (low, high) == (0.75, 0.75)
    spread = [[[0.0, 0.2, 0.8, 1.0], [0.1, 0.1, 0.1, 0.1]]]
    low, high = tables.interval(spread, tables.iqm_difference)
    assert low < 0.4 < high


def test_arms_are_compared_where_both_have_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [line("ours", s, [(10.0, 100.0)]) for s in range(4)] + [line("fixed", s, [(10.0, 0.0)]) for s in range(4)]
    tables.compare({"P": [*runs, line("other", 0, [(10.0, 1.0)]) | {"key": {**runs[0]["key"], "arm": "other",
                                                                           "start": "bad"}}]},
                   {"P": (-100.0, 100.0)}, "fixed")  # fmt: skip
    (said,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert (said["arm"], said["against"], said["over"]) == ("ours", "fixed", [["P", "good"]])
    assert said["iqm_difference"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert said["probability_of_improvement"]["value"] == 1.0
    assert (said["profile"]["0.95"], said["profile_of_other"]["0.95"]) == (1.0, 0.0)
