"""What pages of evolution compare (benchmarks/evolution_page.py, untuned_page.py), and when untuned.py ends a run."""

from __future__ import annotations

from typing import Any

import pytest


def line(seconds: float | None, checkpoints: int | None = None) -> dict[str, Any]:
    more = {} if checkpoints is None else {"checkpoints": checkpoints}
    reached = None if seconds is None else {"cpu_seconds": seconds, "env_steps": 300 * seconds, "second_score": 500.0}
    return {
        "key": {"cpu_budget": 60.0, **more}, "reached": reached, "final": {"score": 0.0}, "curve": [],
    }  # fmt: skip


def test_runs_are_compared_by_the_coarser_clock(benchmark_module: Any) -> None:
    page = benchmark_module("evolution_page")
    assert [page.clock_of(line(1.0)), page.clock_of(line(1.0, 120))] == [12, 120]
    assert page.as_tested(line(5.1, 120), 12)["reached"]["cpu_seconds"] == 10.0
    assert page.as_tested(line(5.0, 120), 12)["reached"]["cpu_seconds"] == 5.0
    assert page.as_tested(line(5.1), 12)["reached"]["cpu_seconds"] == 5.1  # as it was
    assert page.as_tested(line(None, 120), 12)["reached"] is None
    places = {
        ("CartPole-v1:PPO", "good", "ours"): [line(6.0, 120)] * 2,
        ("CartPole-v1:PPO", "good", "sb3"): [line(9.0)] * 2,
    }
    row = page.beaten_row(places, "sb3", [("CartPole-v1:PPO", "good")])
    assert "| 0.00 (0.00 to 0.00) |" in row, "10 by the coarse clock, which is later than 9"
    assert row.endswith("| 10, 9.0 | 2, 3 |")


def test_a_run_ends_before_the_generation_that_would_pass_its_limit(
    benchmark_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    untuned = benchmark_module("untuned")
    times = iter([100.0, 300.0, 320.0, 500.0, 501.0])
    monkeypatch.setattr(untuned.time, "process_time", lambda: next(times))
    limit = untuned.Limit()
    assert limit.on_generation(None) is None  # 200 used, and 200 more would do
    assert limit.on_generation(None) is None
    assert limit.on_generation(None) is None  # 400 and 200
    assert limit.on_generation(None) is False  # 401 and 200


def test_a_run_has_the_minutes_that_the_command_takes_by_itself(benchmark_module: Any) -> None:
    from agilerl.cli.training import DEFAULT_MINUTES

    untuned = benchmark_module("untuned")
    assert untuned.MINUTES == DEFAULT_MINUTES
    assert {job["key"]["minutes"] for job in untuned.jobs_for("CartPole-v1", [0, 1])} == {DEFAULT_MINUTES}


def test_environments_of_development_and_others_have_tables_of_their_own(
    benchmark_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = benchmark_module("untuned_page")
    tasks, others = list(page.untuned.TASKS), list(page.untuned.OTHERS)
    assert not set(tasks) & set(others)

    def lines(path: Any) -> list[dict[str, Any]]:
        value = {page.untuned.path_of(tasks[0]): 480.0, page.untuned.path_of(others[0]): 80.0}.get(path)
        each = {"score": value, "solved": value == 480.0, "cpu_seconds": 7.0, "stopped": "target"}
        return [] if value is None else [{**each, "key": {"commit": "a", "seed": seed}} for seed in (1, 0)]

    monkeypatch.setattr(page, "read_lines", lines)
    monkeypatch.setattr(page.untuned, "read_lines", lines)
    rows = page.untuned_rows()
    middle = rows.index(page.OF_OTHERS[0])
    assert f"| {tasks[0]}, 475 | 2 of 2 | 480 480 | 7 (7 to 7) | 2 target | - |" in rows[:middle]
    assert f"| {others[0]}, 90 | 0 of 2 | 80 80 | 7 (7 to 7) | 2 target | - |" in rows[middle:]


def test_a_budget_of_steps_is_told_from_one_of_minutes(benchmark_module: Any) -> None:
    page = benchmark_module("untuned_page")
    assert page.ended_by({"stopped": "budget", "key": {"seed": 0}}) == "500,000 steps"
    assert page.ended_by({"stopped": "budget", "key": {"seed": 0, "minutes": 10.0}}) == "budget"
    assert page.ended_by({"stopped": "callback Limit.on_generation", "key": {}}) == "CPU seconds"


def test_an_opponents_newest_line_of_each_seed_counts(benchmark_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given the CPU seconds of our newest run of that seed; 300 and 400 are of an older one."""
    page = benchmark_module("untuned_page")
    each = [(1, 300.0), (0, 400.0), (0, 480.0), (1, 200.0)]
    lines = [{"key": {"seed": seed}, "final": {"score": score}} for seed, score in each]
    monkeypatch.setattr(page.untuned, "read_lines", lambda path: lines)
    assert page.of_sb3("CartPole-v1", 475.0) == "1 of 2, 340"


def point(cpu_seconds: float, steps: int, members: list[dict[str, int]] | None = None) -> dict[str, Any]:
    more = {} if members is None else {"members": members}
    return {"cpu_seconds": cpu_seconds, "env_steps": steps, "training_env_steps": steps, **more}


def test_a_generation_costs_what_passes_between_two_tests(benchmark_module: Any) -> None:
    page = benchmark_module("evolution_page")
    four, one = [{"id": member} for member in range(4)], [{"id": 0}]
    curve = [
        point(2.0, 16_384, four),
        point(6.0, 16_384 + 4 * 8_192, four),
        point(6.0, 16_384 + 4 * 8_192),  # the checkpoint of the other budget
        point(7.5, 16_384 + 5 * 8_192, one),
        point(9.5, 16_384 + 7 * 8_192, one),  # two generations of one member: not two members
        point(9.9, 16_384 + 7 * 8_192 + 2_048, one),  # no whole one
    ]
    found = page.generations([{"curve": curve}])
    assert {members: [round(each, 3) for each in seconds] for members, seconds in found.items()} == {
        4: [4.0], 1: [1.5],
    }  # fmt: skip
