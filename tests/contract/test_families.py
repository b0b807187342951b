"""A subclass of a shipped algorithm that overrides a method is asked for it, wherever the algorithm itself is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from agilerl.algorithms import find_algorithm

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import cases

# What an algorithm is made, copied and saved with is no hook. A subclass with its own `learn` or `get_action` is
# trained by it (test_overridden_methods.py).
NO_HOOKS = {"__init__", "__new__", "learn", "published_learn", "get_action", "_greedy", "test"}
RUNS = [
    "dqn-n-step", "rainbow-priorities-n-step", "ddpg", "td3", "sac-box", "sac-discrete", "ppo-discrete",
    "ppo-recurrent", "ippo", "ippo-recurrent", "mappo", "maddpg", "matd3", "cqn", "cql", "iql", "td3bc", "bc",
]  # fmt: skip


def hooks_of(cls: type) -> dict[str, tuple[type, FunctionType]]:
    """The methods of an algorithm and of its bases in this package, by name."""
    found: dict[str, tuple[type, FunctionType]] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("agilerl."):
            own = {n: (base, f) for n, f in vars(base).items() if isinstance(f, FunctionType) and n not in NO_HOOKS}
            found = {**own, **found}
    return {name: (base, f) for name, (base, f) in found.items() if not name.startswith("__")}


def noted(name: str, function: FunctionType, calls: set[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.add(name)
        return function(self, *args, **kwargs)

    return method


def population_of(
    cls: Any,
    algo: str,
    net: Any,
    hp: None,
    *spaces: Any,
    population_size: int,
    algo_kwargs: dict[str, Any],
    **more: Any,
) -> list[Any]:
    """As `create_population`, of this class."""
    seeded = {name: more[name] for name in ("hp_config", "seed")}
    found: list[Any] = cls.population(population_size, *spaces, net_config=net, **seeded, **algo_kwargs)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("run", RUNS)
def test_what_a_subclass_overrides_is_called(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"algo": "DQN", **cases.CASES[run], "steps": 120, "evolution": False}
    cls = find_algorithm(case["algo"])
    hooks = hooks_of(cls)
    of_algorithm: set[str] = set()
    with monkeypatch.context() as patched:
        for name, (base, function) in hooks.items():
            patched.setattr(base, name, noted(name, function, of_algorithm))
        cases.trained(case)
    of_subclass: set[str] = set()
    overriding = {name: noted(name, function, of_subclass) for name, (_, function) in hooks.items()}
    mine = type("Mine", (cls,), overriding)
    monkeypatch.setattr(cases, "create_population", functools.partial(population_of, mine))
    cases.trained(case)
    assert {"update"} <= of_algorithm
    assert run != "cql" or "_policy_loss" in of_algorithm, "which was once called by the name of another algorithm"
    assert of_algorithm <= of_subclass, f"not asked of a subclass: {sorted(of_algorithm - of_subclass)}"
