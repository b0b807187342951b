"""Whole runs with resets of dormant units: every scheme counts them, and resume, shards and workers keep the bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from faulty_runs import StopAfter
from inline_workers import InlineWorkers
from scheme_runs import REPLAY, SCHEMES, Match, resume, rows_of, state_of, train

import agilerl
from agilerl.errors import ConfigError
from agilerl.runs.directory import RunDirectory
from agilerl.training.manifest import launch
from agilerl.training.manifest import workers as manifest_workers
from agilerl.views.report.schedule import schedule_of

RESETS = {"mutation.reset_dormant": 0.3}  # tiny networks have few units below the usual 0.1


def counts(path: Path) -> list[list[int]]:
    """Reset units by generation and member."""
    rows = rows_of(path)
    found: list[list[int]] = [[] for _ in range(1 + max(int(row["generation"]) for row in rows))]
    for row in rows:
        found[int(row["generation"])].append(int(row["details.reset_units"]))
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_resets_and_a_run_stopped_in_each_generation_becomes_the_same_bits(
    scheme: str, tmp_path: Path
) -> None:
    case = {**SCHEMES[scheme], **RESETS}
    whole = train(case, tmp_path / "whole")
    by_generation = counts(whole.path)
    assert not any(by_generation[0]), "founders are as they were drawn"
    assert all(any(row) for row in by_generation[1:])
    part = train(case, tmp_path / "part", StopAfter(1))
    while part.interrupted:
        part = resume(part.path, StopAfter(1))
    assert state_of(part.path) == state_of(whole.path)


class Sets:
    """Asks after the first generation to set a hyperparameter of all members."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_generation(self, record: Any) -> None:
        if record.generation == 0:
            (run,) = (file.parent for file in self.path.rglob("run.json"))
            agilerl.steer(run, "set", name="lr", value=1e-3)


def test_members_that_a_request_has_changed_have_the_counts_of_their_parents(tmp_path: Path) -> None:
    """The request replaces every member by a copy after the resets, in the second generation."""
    case = {"scheme": "pbt", "interval": 100, "mutation.reset_dormant": 0.9, "steps": 24}
    run = train(case, tmp_path, callbacks=[Sets(tmp_path)])
    assert [birth.generation for birth in run.lineage if birth.kind == "steered"] == [2] * 4
    assert all(counts(run.path)[2])


def test_nobody_is_reset_between_a_run_that_has_ended_and_its_sequel(tmp_path: Path) -> None:
    run = train({**SCHEMES["pbt"], "mutation.reset_dormant": 0.9, "steps": 16}, tmp_path)
    with mock.patch.object(launch, "write_report"):
        sequel = agilerl.resume(run.path, env=Match, steps=32, verbose=False)
    assert [any(row) for row in counts(sequel.path)] == [False, True, False, True]


@pytest.mark.parametrize("more", [{}, REPLAY], ids=["PPO", "DQN"])
def test_workers_change_no_bit(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs: list[int] = []

    class Counted(InlineWorkers):
        def submit(self, worker: int, job: bytes) -> None:
            jobs.append(worker)
            super().submit(worker, job)

    monkeypatch.setattr(manifest_workers, "LocalWorkers", Counted)
    case = {**SCHEMES["pbt"], **RESETS, **more, "training.shards": 2}
    alone = train(case, tmp_path / "alone")
    assert not jobs
    helped = train(case, tmp_path / "helped", workers=2)
    assert len(jobs) >= 4
    assert any(map(any, counts(alone.path)))
    assert state_of(helped.path) == state_of(alone.path)


def test_the_schedule_of_a_winner_resets_too_and_without_evolution_nobody_is_reset(tmp_path: Path) -> None:
    evolved = train({**SCHEMES["pbt"], **RESETS}, tmp_path / "evolved")
    file = schedule_of(evolved.path).write(tmp_path / "schedule.yaml")
    with mock.patch.object(launch, "write_report"):
        alone = agilerl.train(Match, schedule=file, out=tmp_path / "alone", verbose=False)
    assert any(map(any, counts(alone.path)))
    frozen = train(RESETS, tmp_path / "frozen", evolution=False)
    assert "details.reset_units" not in rows_of(frozen.path)[0]
    note = "no effect without evolution: mutation.reset_dormant=0.3"
    assert note in RunDirectory.open(frozen.path).facts()["notes"]
    assert note not in RunDirectory.open(evolved.path).facts()["notes"]


def test_without_the_setting_nothing_is_counted(tmp_path: Path) -> None:
    off = train(SCHEMES["pbt"], tmp_path / "off")
    also_off = train({**SCHEMES["pbt"], "mutation.reset_dormant": None}, tmp_path / "null")
    assert "details.reset_units" not in rows_of(off.path)[0]
    assert state_of(off.path) == state_of(also_off.path)


def test_recurrent_networks_are_refused(tmp_path: Path) -> None:
    lstm = {"recurrent": True, "max_seq_len": 4, "network.encoder": {"hidden_state_size": 8}}
    lstm |= {"network.encoder_config.hidden_size": None}
    with pytest.raises(ConfigError, match=r"mutation\.reset_dormant=0\.3 resets units .* recurrent, .* fix: "):
        train({**RESETS, **lstm}, tmp_path)
    assert not list(tmp_path.glob("*/metrics.csv"))
