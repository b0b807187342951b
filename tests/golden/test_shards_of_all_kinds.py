"""Runs of every kind in two shards: one result, whoever does the pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from inline_workers import InlineWorkers
from saved_runs import RUNS, saved_run

import agilerl
from agilerl.core.checkpoint import encode_tree
from agilerl.training.manifest import workers as manifest_workers


def digest(run: agilerl.Run) -> str:
    total = hashlib.sha256(repr((run.history, run.lineage)).encode())
    for agent in run.population:
        total.update(encode_tree(agent.run_state()))
    return total.hexdigest()


FAST = ("IPPO-self-play", "CQN")  # the kinds that tests/unit/training/test_shards.py does not have


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_run_in_two_shards_has_one_result(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_workers, "LocalWorkers", InlineWorkers)
    results: list[Any] = []
    for workers in (1, 2, 3):
        (folder := tmp_path / str(workers)).mkdir()
        results.append(
            digest(saved_run(name, folder, shards=2, workers=workers, population=max(3, RUNS[name]["population"])))
        )
    assert results[1:] == results[:1] * 2
