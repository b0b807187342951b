"""How many Python calls one fused vector step may take, with its update. The numbers may fall, never rise.

Counted as `benchmarks/calls.py` counts them: entries of this package's own functions in the middle of a generation,
population 4, 16 environments that are stepped as arrays, one update of every member per vector step.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from agilerl.native.library import library

BUDGETS = {
    "dqn": 94.5,
    "td3": 135,
    "sac": 194,
    "ppo": 55,
    "maddpg": 195.75,
    "matd3": 175.25,
}  # calls per vector step, updates in torch, two of the clock, three of hooks; of PPO a step without learning
IN_C = {"dqn": 84.5, "td3": 90, "sac": 101, "maddpg": 91.75, "matd3": 92.75}
STEPS = 24  # vector steps that are counted
SMALL: dict[str, Any] = {
    "latent_dim": 8,
    "encoder_config": {"hidden_size": [16, 16]},
    "head_config": {"hidden_size": [16]},
}
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `benchmarks/calls.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmark_of_calls", BENCHMARKS / "calls.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", BUDGETS)
def test_a_fused_vector_step_keeps_its_budget_of_calls(calls: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    before = sys.getprofile()
    window = calls.count(calls.SETUPS[name], STEPS, **SMALL)
    assert sys.getprofile() is before
    found = calls.line(name, window)
    assert 0 < found["calls"] <= BUDGETS[name], found["by_function"]
    assert found["calls"] < found["all_calls"]
    assert found["c_calls"] > 0


@pytest.mark.skipif(library() is None, reason="no kernels were built for this machine")
@pytest.mark.parametrize("name", IN_C)
def test_a_step_with_updates_in_c_keeps_its_budget_of_calls(calls: Any, name: str) -> None:
    found = calls.line(name, calls.count(calls.SETUPS[name], STEPS, **SMALL))
    assert 0 < found["calls"] <= IN_C[name], found["by_function"]


def test_a_window_counts_the_functions_of_the_package_and_no_comprehensions(calls: Any) -> None:
    from agilerl.core.rng import resolve_seed

    window = calls.Window(1, 1)
    window.progress(0, 0.0)
    found = [resolve_seed(seed) for seed in range(3)]
    window.progress(0, 0.0)
    assert found == [0, 1, 2]
    assert {name: n for (_, _, name), n in window.own().items()} == {"resolve_seed": 3, "check_seed": 3}
