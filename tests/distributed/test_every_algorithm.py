"""Every algorithm on two processes: each generation compares their weights, and the results are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launching import ended, torchrun, written

pytest.importorskip("accelerate")


@pytest.mark.slow
def test_every_algorithm_trains_one_population_on_two_ranks(tmp_path: Path) -> None:
    status, output = ended(torchrun("every_algorithm.py", str(tmp_path)))
    assert status == 0, output
    first, second = written(tmp_path)
    errors = {name: found["error"] for own in (first, second) for name, found in own.items() if "error" in found}
    assert not errors, "\n".join(f"{name}: {text}" for name, text in errors.items())
    unlike: dict[str, Any] = {name: (found, second[name]) for name, found in first.items() if found != second[name]}
    assert not unlike
    assert len(first) == 20
