"""Short seeded runs of language algorithms against stored ones; see `test_curves` for how and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import outline, sums
from language_cases import LANGUAGE, language_curve
from stored import IS_UPDATE, read, write

STORED = Path(__file__).with_name("language.json")


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_run_is_the_stored_one(name: str, tmp_path: Path) -> None:
    found, states = language_curve(name, tmp_path)
    if IS_UPDATE:
        write(STORED, name, found, LANGUAGE)
        return
    expected = read(STORED)[name]
    assert found["mutations"] == expected["mutations"]
    assert found["labels"] == expected["labels"]
    assert found["fitness"] == [pytest.approx(row, rel=1e-6, abs=1e-9) for row in expected["fitness"]]
    for state, now, before in zip(states, found["states"], expected["states"], strict=True):
        assert now["outline"] == before["outline"], "\n".join(["its entries are now:", *outline(state)])
        stored = dict(zip(sums(state), before["sums"], strict=True))
        assert sums(state) == pytest.approx(stored, rel=1e-6, abs=1e-9)
    assert found["structure"] == expected["structure"], "files of the run, or keys and kinds in them, are others"
