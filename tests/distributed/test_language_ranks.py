"""Two processes train one population of language policies; all in one start of both (`language_ranks.py`)."""

from __future__ import annotations

from typing import Any

import language_ranks
import pytest
from language_ranks import CASES
from launching import in_copies

from agilerl.language.tiny import tiny_base, tiny_tokenizer

pytest.importorskip("accelerate")
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("language-ranks")
    tiny_base(folder / "base", tiny_tokenizer("0123456789+= "))
    return in_copies(language_ranks.main, folder)


@pytest.mark.parametrize("learner", ["fused", "sequential"])
@pytest.mark.parametrize("case", CASES)
def test_halves_of_what_was_written_teach_what_all_of_it_teaches_one(found: Found, case: str, learner: str) -> None:
    for own in found:
        assert own["gradients"][f"{case} moved"] > 1e-3
        assert own["gradients"][f"{case} steps"] >= (1 if case in ("GRPO", "GRPO sequence") else 2)
        assert own["gradients"][f"{case} {learner}"] < 1e-9


@pytest.mark.parametrize("algo", ["GRPO", "DPO", "resumed"])
def test_ranks_end_with_one_population(found: Found, algo: str) -> None:
    assert found[0]["runs"][algo] == found[1]["runs"][algo]


def test_a_run_that_was_stopped_goes_on_on_all_ranks_as_if_it_had_not(found: Found) -> None:
    assert found[0]["runs"]["resumed"] == found[0]["runs"]["GRPO"]


def test_each_rank_has_answered_prompts_of_its_own(found: Found) -> None:
    first, second = (set(own["runs"]["asked"]) for own in found)
    assert first != second
