"""The benchmark of devices: a line on the CPU, and updates that run where nothing can be read back."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from agilerl.engine.rows.kernels import TORCH


@pytest.fixture
def device(benchmark_module: Any) -> Any:
    return benchmark_module("device")


def test_one_line_for_each_number_of_members(
    device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--device cpu --members 1 3 --width 8 --updates 1 --rounds 1 --print"
    monkeypatch.setattr(sys, "argv", ["device.py", *arguments.split()])
    device.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["members"], line["width"]) for line in lines] == [(1, 8), (3, 8)]
    assert all(line["cpu"]["torch"] > 0 and "gpu" not in line for line in lines)


def test_the_updates_that_are_timed_read_nothing_back(device: Any) -> None:
    learner, batches = device.learner_on("meta", 2, 8, TORCH), device.batches_on("meta", 2)
    results = learner.groups[0].learn_each(batches)
    assert [(result.loss.device.type, tuple(result.loss.shape)) for result in results] == [("meta", (2,))] * device.POOL
