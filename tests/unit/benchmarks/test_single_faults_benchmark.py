"""The list of benchmarks/single_faults.py against the tree, and its verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
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


def test_a_crash_catches_a_fault_too(faults: Any) -> None:
    assert faults.verdict_of(-11, "") == ("caught", None)


def test_tests_that_run_a_faulty_line_are_chosen_the_quickest_first(
    faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = next(f for f in faults.read_faults() if f["id"] == "losses-returns-2")
    (line,) = faults.lines_of(fault)
    text = (faults.ROOT / fault["file"]).read_text().splitlines()
    assert text[line - 1].strip() == fault["old"]
    covered = {
        "tests": ["a", "b", "c", "d"], "seconds": [9.0, 1.0, 2.0, 0.5],
        "lines": {fault["file"]: {str(line): [0, 1, 2], str(line + 1): [3]}},
        "kernels": {"Forward": [0, 3], "TemporalDifference": [2]},
    }  # fmt: skip
    assert faults.covering(fault, covered) == ["b", "c", "a"]
    monkeypatch.setattr(faults, "COVERED_SECONDS", 4)
    assert faults.covering(fault, covered) == ["b", "c"]
    kernels = faults.KERNELS
    assert faults.covering({"file": f"{kernels}temporal_difference.h"}, covered) == ["c"]
    assert faults.covering({"file": f"{kernels}dense.h"}, covered) == ["d", "c"]


def test_a_fault_is_taken_out_again(faults: Any, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\n")
    fault = {"file": "a.py", "old": "= 1", "new": "= 2"}
    with faults.faulty(fault, tmp_path) as is_valid:
        assert is_valid
        assert (tmp_path / "a.py").read_text() == "one = 2\n"
    assert (tmp_path / "a.py").read_text() == "one = 1\n"
    with faults.faulty({**fault, "old": "= 3"}, tmp_path) as is_valid:
        assert not is_valid
