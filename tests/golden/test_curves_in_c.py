"""The same stored curves, with the updates in C: in float64, so that only a fault and not rounding shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CASES, MADE_HERE, curve, sums
from stored import read
from test_curves import STORED

from agilerl.collect import lanes
from agilerl.engine.rows.kernels import NATIVE
from agilerl.native.library import Library, library

CASES_IN_C = (
    "cartpole-fused-evolved",
    "cqn",
    "cqn-fitted",
    "ddpg",
    "dqn-carried-episodes",
    "dqn-n-step",
    "ppo-discrete",
    "sac-box",
    "sac-discrete",
    "td3",
    "track-one-after-another",
)


@pytest.mark.parametrize("name", CASES_IN_C)
def test_curve_in_c_is_the_stored_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGILERL_NATIVE", "1")
    if library() is None:
        pytest.skip("the kernels in C were not built")
    both = replace(NATIVE, whole=(torch.float32, torch.float64))
    monkeypatch.setattr(lanes, "available_kernels", lambda: both)
    precisions = []
    run = Library.run

    def noted(self: Library, call: Any, is_float64: bool) -> None:
        precisions.append(is_float64)
        run(self, call, is_float64)

    monkeypatch.setattr(Library, "run", noted)
    found, states = curve(name)
    expected = read(STORED)[name]
    tolerance = 1e-6 if CASES[name]["env"] in MADE_HERE else 1e-3
    assert precisions
    assert all(precisions)
    assert [found[key] for key in ("mutations", "labels", "networks")] == [
        expected[key] for key in ("mutations", "labels", "networks")
    ]
    assert found["fitness"] == [pytest.approx(row, rel=1e-6) for row in expected["fitness"]]
    assert found["weight_sums"] == pytest.approx(expected["weight_sums"], rel=1e-6)
    for state, now, before in zip(states, found["states"], expected["states"], strict=True):
        assert now["outline"] == before["outline"]
        stored = dict(zip(sums(state), before["sums"], strict=True))
        assert sums(state) == pytest.approx(stored, rel=tolerance, abs=1e-9)
