"""Scripts of `benchmarks/`, which is no part of the package, as modules of one test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def forget() -> None:
    """Later imports read the scripts anew."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or ".").parent == BENCHMARKS:
            del sys.modules[name]


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports one by its name, with what it imports from its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    forget()
    yield importlib.import_module
    forget()
