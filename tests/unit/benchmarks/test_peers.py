"""The clock, the stopping rule, the CPU accounting and the seeds of the opponents (`benchmarks/peers_clock.py`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "peers_clock.py"
JOB = {"key": {"a": 1}, "seed": 0, "cpu_budget": 10.0, "step_budget": 100, "checkpoints": 5, "test_episodes": 3,
       "target": 7.0}  # fmt: skip


@pytest.fixture(scope="module")
def clock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_clock_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkpoint_is_due_once_where_a_part_of_either_budget_ends(clock: ModuleType) -> None:
    hands = clock.CheckpointClock(10.0, 100, 5)
    assert hands.due(1.9, 19) == []
    assert hands.due(2.0, 19) == ["cpu"]
    assert hands.due(2.1, 20) == ["steps"]
    assert hands.due(2.2, 21) == []
    assert hands.due(8.5, 99) == ["cpu", "steps"]  # several parts at once are one checkpoint
    assert hands.due(50.0, 1000) == ["cpu", "steps"]
    assert hands.due(90.0, 9000) == []


@pytest.mark.parametrize(
    ("cpu_budget", "step_budget", "cpu", "steps", "over"),
    [(10.0, 100, 10.0, 99, False), (10.0, 100, 9.9, 100, False), (10.0, 100, 10.0, 100, True),
     (10.0, None, 10.0, 0, True), (None, 100, 0.0, 100, True), (None, 100, 99.0, 99, False)],
)  # fmt: skip
def test_a_run_is_over_when_all_its_budgets_are_used_up(
    clock: ModuleType, cpu_budget: float | None, step_budget: int | None, cpu: float, steps: int, over: bool
) -> None:
    assert clock.CheckpointClock(cpu_budget, step_budget, 5).is_over(cpu, steps) is over


def test_a_run_without_any_budget_is_refused(clock: ModuleType) -> None:
    with pytest.raises(ValueError, match="cpu_budget or step_budget"):
        clock.CheckpointClock(None, None, 5)


def watched(clock: ModuleType, scores: list[float], **changes: Any) -> tuple[Any, list[list[int]]]:
    """A watch whose meter shows just over its env_steps / 10, and the seeds that were played."""
    played: list[list[int]] = []
    state: dict[str, Any] = {}
    watch = clock.Watch({**JOB, **changes}, lambda: state["watch"].env_steps / 9.9 if state else 0.0)
    state["watch"] = watch

    def play(seeds: list[int]) -> float:
        played.append(seeds)
        return scores[len(played) - 1]

    watch.play = lambda: play
    return watch, played


def test_a_run_ends_early_where_a_test_and_a_second_of_other_seeds_reach_the_target(clock: ModuleType) -> None:
    watch, played = watched(clock, [7.0, 6.9, 7.5, 8.0], step_budget=None)
    watch.training_env_steps = 20
    assert watch.look(watch.play) is False  # the second test falls short
    watch.training_env_steps, watch.evaluation_env_steps = 30, 10
    assert watch.look(watch.play) is True
    assert watch.reached["score"] == 7.5
    assert watch.reached["second_score"] == 8.0
    assert watch.reached["env_steps"] == 40
    assert [row["score"] for row in watch.curve] == [7.0, 7.5]
    flat = [seed for seeds in played for seed in seeds]
    assert len(flat) == len(set(flat)) == 4 * JOB["test_episodes"]
    line = watch.line(watch.play, {"gamma": 0.99})
    assert line["final"]["score"] == 8.0
    assert line["key"] == {"a": 1}


def test_a_run_without_a_target_goes_on_to_the_end_of_its_budgets(clock: ModuleType) -> None:
    watch, played = watched(clock, [9.0] * 9, target=None)
    for steps, over in ((50, False), (99, False), (100, True)):
        watch.training_env_steps = steps
        assert watch.look(watch.play) is over
    assert watch.reached is None
    assert len(played) == 3


def test_the_share_is_that_of_the_budget_which_is_used_up_first(clock: ModuleType) -> None:
    watch, _ = watched(clock, [], step_budget=400)
    watch.training_env_steps = 50
    assert watch.share == pytest.approx(50 / 99)  # 5.05 of 10 CPU seconds, 50 of 400 steps


def test_tests_of_different_checkpoints_and_runs_and_evaluations_share_no_seed(clock: ModuleType) -> None:
    assert clock.test_seeds(2, 3, 2) == [30_003_000, 30_003_001]
    evaluations = clock.EvaluationSeeds(2)
    assert evaluations.draw(2) == [35_000_000, 35_000_001]
    assert evaluations.draw(1) == [35_000_002]
    numbers = [*range(25), clock.FINAL, *range(clock.SECOND, clock.SECOND + 25)]
    seeds = [seed for run in (0, 1) for number in numbers for seed in clock.test_seeds(run, number, 100)]
    assert len(set(seeds)) == len(seeds)
    assert max(clock.test_seeds(0, clock.SECOND + 24, 1000)) < clock.EvaluationSeeds(0).following


def test_an_ended_process_keeps_what_it_had_when_it_was_last_seen(clock: ModuleType) -> None:
    seen = [
        {(1, 0.0): (2.0, 0.0), (2, 0.0): (5.0, 0.0)},
        {(1, 0.0): (3.0, 0.0)},  # 2 has ended, nobody waited for it
        {(1, 0.0): (3.0, 0.0), (2, 9.0): (1.0, 0.0)},  # its number is given away again
        {(1, 0.0): (4.0, 8.0)},  # its parent has waited for both, which used more than was seen
    ]
    shown = iter(seen)
    meter = clock.TreeCpu(lambda: next(shown))
    assert [meter() for _ in seen] == [7.0, 8.0, 9.0, 12.0]
