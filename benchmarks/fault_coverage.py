"""Pytest plugin: the lines and kernels that each test runs, and its seconds. Needs the package `coverage`.

    PYTHONPATH=benchmarks FAULT_COVERAGE=covered.json python -m pytest -p fault_coverage

`single_faults.py --covered` reads the file: a fault is seen only by tests that run its lines. Those of other processes
are not recorded.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path.cwd()
PACKAGE = ROOT / "agilerl"
OUTPUT = Path(os.environ["FAULT_COVERAGE"])

recorder = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"], config_file=False, messages=False)
recorder.start()
kernels: dict[str, set[str]] = defaultdict(set)
seconds: dict[str, float] = {}
current = [""]


def cpu_seconds() -> float:
    """CPU seconds of this process and of the ended ones that it has started."""
    usage = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usage)


def pytest_collection_finish() -> None:
    from agilerl.native.library import Library  # after the recorder has started

    run = Library.run

    def recorded(self: Library, call: Any, is_float64: bool) -> None:
        kernels[type(call).__name__].add(current[0])
        run(self, call, is_float64)

    Library.run = recorded  # type: ignore[method-assign]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begun, current[0] = cpu_seconds(), item.nodeid
    recorder.switch_context(item.nodeid)
    yield
    seconds[item.nodeid] = round(cpu_seconds() - begun, 3)


def pytest_unconfigure() -> None:
    recorder.stop()
    data = recorder.get_data()
    tests = sorted(seconds)
    numbers = {name: number for number, name in enumerate(tests)}
    lines: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        lines[str(Path(file).relative_to(ROOT))] = {
            line: sorted(numbers[name] for name in names if name in numbers)
            for line, names in data.contexts_by_lineno(file).items()
        }
    called = {name: sorted(numbers[test] for test in names if test in numbers) for name, names in kernels.items()}
    content = {"tests": tests, "seconds": [seconds[name] for name in tests], "lines": lines, "kernels": called}
    OUTPUT.write_text(json.dumps(content))
