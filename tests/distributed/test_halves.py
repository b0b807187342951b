"""Two processes learn from halves of each batch what one learns from all of it (`halves.py`), update by update."""

from __future__ import annotations

from typing import Any

import halves
import pytest
from halves import CASES, ROLLOUTS, TEXTS
from launching import in_copies

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_copies(halves.main, tmp_path_factory.mktemp("halves"))


@pytest.mark.parametrize("case", [*CASES, *TEXTS, *ROLLOUTS])
def test_halves_of_every_batch_teach_what_the_whole_teaches_one(found: list[dict[str, Any]], case: str) -> None:
    for own in found:
        ways = dict(own[case])
        assert ways.pop("moved") > 1e-4
        assert max(ways.values()) < 1e-10, ways
