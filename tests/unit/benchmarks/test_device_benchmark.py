"""The benchmark of devices: a line on the CPU, and updates that run where nothing can be read back."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

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


def test_whole_runs_give_a_line_for_each_algorithm(
    benchmark_module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = benchmark_module("device_runs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["device_runs.py", "--cases", "64x4", "--share", "0.03", "--print"])
    runs.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["algo"], line["env_steps"]) for line in lines] == [
        ("DQN", 48),
        ("PPO", 122),
        ("SAC", 24),
        ("TD3", 24),
    ]
    assert all(0 < line["run_seconds"] <= line["seconds"] + 0.01 for line in lines)
    assert [case[0] for case in runs.cases(["images", "128x1"], 1.0)] == ["images"] * 2 + ["128x1"] * 2
