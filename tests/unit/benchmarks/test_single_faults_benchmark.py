"""The list of benchmarks/single_faults.py against the tree, and its verdicts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


@pytest.fixture
def faults(benchmark_module: Any) -> Any:
    return benchmark_module("single_faults")


def test_every_fault_fits_the_tree_and_names_tests_that_exist(faults: Any) -> None:
    listed = faults.read_faults()
    assert len(listed) >= 100
    assert [f["id"] for f in listed if faults.occurrences(f) != 1 or f["old"] == f["new"]] == []
    named = {test for f in listed for test in f["tests"]}
    assert sorted(test for test in named if not (faults.ROOT / test.partition("::")[0]).is_file()) == []
    assert [name for name, count in Counter(f["id"] for f in listed).items() if count > 1] == []


def test_only_a_failed_test_catches_a_fault(faults: Any) -> None:
    failed = "FAILED tests/a.py::test_b[0.5 - x] - assert 1 == 2\n1 failed in 0.1s"
    assert faults.verdict_of(0, "3 passed") == ("survived", None)
    assert faults.verdict_of(None, "") == ("timed out", None)
    assert faults.verdict_of(1, "FAILED tests/a.py::test_b - assert 1 == 2\n") == ("caught", "tests/a.py::test_b")
    assert faults.verdict_of(1, failed)[0] == "caught"
    assert faults.verdict_of(2, "ERROR tests/a.py\n") == ("invalid", None)
