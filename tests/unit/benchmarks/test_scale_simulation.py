"""benchmarks/scale_simulation.py: closed forms, conservation of work under failures, repeatability, checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

MODES = ("sync", "sync, copies", "async")
ONE_SLOW = (1.0, 1.0, 1.0, 3.0)


@pytest.fixture
def sim(benchmark_module: Any) -> Any:
    return benchmark_module("scale_simulation")


def simulated(sim: Any, mode: str, fleet: Any, work: Any = None, link: Any = None, **plan: Any) -> dict[str, Any]:
    """Four workers and eight members of a second each, without other costs unless given."""
    plan = {"workers": 4, "members": 8, **plan}
    return sim.simulate(
        sim.Plan(mode=mode, **plan), work or sim.Workload(0, 1, 0), link or sim.Link(), sim.Driver(), fleet
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_without_costs_failures_and_differences_nothing_is_lost(sim: Any, mode: str, workers: int) -> None:
    result = simulated(sim, mode, sim.Fleet(), sim.Workload(0, 1, 0.5), workers=workers)
    assert result["efficiency"] == pytest.approx(1)
    assert result["speedup"] == pytest.approx(workers)
    assert result["idle_share"] == pytest.approx(0)
    assert result["generations_per_hour"] == pytest.approx(3600 * workers / 12)


def test_one_slow_worker_of_four_has_the_closed_form(sim: Any) -> None:
    """A shard takes 2 seconds, 6 on the slow worker. Sync: 4 x 2 / (4 x 6). Two shards a worker, of 1 and 3 seconds:
    three workers run seven of them in 3 seconds, 8 / (4 x 3). Copies come no earlier than the slow worker ends."""
    fleet = sim.Fleet(slowdowns=ONE_SLOW)
    assert simulated(sim, "sync", fleet)["efficiency"] == pytest.approx(1 / 3)
    assert simulated(sim, "sync", fleet)["idle_share"] == pytest.approx(0.5)  # 3 workers for 4 of 6 seconds
    assert simulated(sim, "sync, copies", fleet)["efficiency"] == pytest.approx(2 / 3)


def test_asynchronous_shards_are_faster_there_and_below_the_capacity(sim: Any) -> None:
    fleet = sim.Fleet(slowdowns=ONE_SLOW)
    asynchronous = simulated(sim, "async", fleet, generations=60)["efficiency"]
    assert 2 / 3 < asynchronous <= (3 + 1 / 3) / 4 + 1e-9


def test_a_copy_of_a_straggler_counts_first(sim: Any) -> None:
    """Five workers, one ten times slower, five shards of a second. From the second generation on the straggler's copy
    starts after 1.5 seconds, so that a generation ends after 2.5 seconds and not after 10."""
    fleet = sim.Fleet(slowdowns=(1.0, 1.0, 1.0, 1.0, 10.0))
    few = simulated(sim, "sync, copies", fleet, workers=5, shards=5, members=5, generations=2)
    assert 2 * 3600 / few["generations_per_hour"] == pytest.approx(10 + 2.5)
    assert few["wasted_share"] == 0  # the straggler has not ended yet
    many = simulated(sim, "sync, copies", fleet, workers=5, shards=5, members=5, generations=20)
    assert many["shard_generations"] == 5 * 20
    assert many["wasted_share"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_work_done_is_the_number_of_generations_whatever_fails(sim: Any, mode: str) -> None:
    """On workers of equal speed all computing is useful, wasted or nothing."""
    fleet = sim.Fleet(failures_per_hour=200, notice_seconds=1, replace_seconds=5)
    work = sim.Workload(0, 3, 1, state_bytes=1e5, rows=100, row_bytes=50, memory_rows=400)
    result = simulated(sim, mode, fleet, work, sim.LINKS["ray"], generations=30)
    shards = 4 * sim.MODES[mode].shards_per_worker
    assert result["shard_generations"] == 30 * shards
    assert result["wasted_share"] > 0.01
    assert result["efficiency"] == pytest.approx(1 - result["idle_share"] - result["wasted_share"])


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_gives_one_result(sim: Any, mode: str) -> None:
    plan = sim.Plan(10, 40, mode)
    setting = (plan, sim.WORKLOADS["LunarLander-v3 DQN"], sim.LINKS["ray"], sim.DRIVER, sim.FLEETS["mixed"])
    assert sim.simulate(*setting, 3) == sim.simulate(*setting, 3)
    assert sim.simulate(*setting, 3) != sim.simulate(*setting, 4)


def test_bytes_of_exchanged_rows_grow_with_the_workers(sim: Any) -> None:
    """8 members x 10 rows x 100 bytes: everybody receives all of them, or only the driver does."""
    work = sim.Workload(0, 1, 0, rows=10, row_bytes=100, memory_rows=10**6)
    link = sim.Link(rate=1e9, serial_rate=1e9)
    every, shard = (
        simulated(sim, "sync", sim.Fleet(), work, link, share=share)["megabytes"] for share in ("all", "shard")
    )
    assert shard == pytest.approx(0.008)
    assert every == pytest.approx(0.008 + 4 * 0.008)
    small = sim.Workload(0, 1, 0, rows=10, row_bytes=100, memory_rows=20)  # older rows would be overwritten
    assert simulated(sim, "sync", sim.Fleet(), small, link)["megabytes"] == pytest.approx(0.008 + 4 * 0.002)


def test_the_driver_is_one_resource(sim: Any) -> None:
    """Each of four shards is sent and received in 0.5 seconds: the last one starts after 2 seconds and ends after 4;
    its evaluation takes nothing but the eight messages."""
    result = simulated(sim, "sync", sim.Fleet(), link=sim.Link(call_seconds=0.5), generations=1)
    assert result["train_seconds"] == pytest.approx(2 + 2 + 0.5)
    assert result["evaluate_seconds"] == pytest.approx(4)


def real_run(sim: Any, **more: Any) -> dict[str, Any]:
    return {
        "workload": "LunarLander-v3 PPO", "workers": 2, "shards": 2, "members": 4,
        "one_process_generation_seconds": 5.0, "one_process_evaluation_seconds": 3.0,
        "one_shard_generation_seconds": 3.0, "generation_seconds": 3.0, "evaluation_seconds": 1.5, **more,
    }  # fmt: skip


def test_a_check_predicts_two_workers_from_one_process(sim: Any) -> None:
    [found] = sim.check([real_run(sim)])
    assert found["predicted_generation_seconds"] == pytest.approx(3.0, rel=0.01)  # and some milliseconds of pipes
    assert found["predicted_evaluation_seconds"] == pytest.approx(1.5, rel=0.01)
    [slower] = sim.check([real_run(sim, slowdown=1.1)])
    assert slower["predicted_generation_seconds"] == pytest.approx(3.3, rel=0.01)


@pytest.mark.parametrize(("evaluation_seconds", "code"), [(1.5, 0), (1.7, 0), (1.8, 1)])
def test_a_check_fails_beyond_the_tolerance(
    sim: Any, evaluation_seconds: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "real.jsonl"
    path.write_text(json.dumps(real_run(sim, evaluation_seconds=evaluation_seconds)) + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["scale_simulation.py", "--check", str(path)])
    with pytest.raises(SystemExit) as ended:
        sim.main()
    assert ended.value.code == code


def test_a_shard_that_outlives_its_workers_is_refused(sim: Any) -> None:
    with pytest.raises(ValueError, match=r"a shard takes 20\.0 h, and a worker fails 1 times an hour"):
        simulated(sim, "sync", sim.Fleet(failures_per_hour=1), sim.Workload(0, 36_000, 0))
