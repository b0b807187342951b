"""A language algorithm of one's own: a subclass of a shipped one that overrides a hook trains, evolves and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import agilerl
from agilerl.algorithms import GRPO, find_algorithm
from agilerl.errors import AgileRLWarning, AlgorithmError
from agilerl.language.tiny import tiny_base, tiny_tokenizer


@pytest.mark.thorough
def test_a_subclass_of_grpo_trains_evolves_and_resumes(tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []

    class HalfAdvantages(GRPO):
        """GRPO whose advantages count half."""

        def advantages(self, rewards: Tensor) -> Tensor:
            calls.append(tuple(rewards.shape))
            return 0.5 * super().advantages(rewards)

    tiny_base(tmp_path / "base", tiny_tokenizer("0123456789+= "))
    run: Any = agilerl.train(
        "arithmetic/addition-1", HalfAdvantages, model=str(tmp_path / "base"), population=2, steps=64, evo_steps=16,
        seed=1, out=tmp_path / "runs", verbose=False, max_output_tokens=3, batch_size=8, group_size=4,
    )  # fmt: skip
    assert type(run.best) is HalfAdvantages
    assert calls
    assert len(run.history) > 1
    assert any(birth.kind != "founder" for birth in run.lineage)
    before = len(calls)
    again = agilerl.resume(run.path, steps=128, verbose=False)
    assert type(again.best) is HalfAdvantages
    assert len(calls) > before
    assert find_algorithm("HalfAdvantages") is HalfAdvantages


@pytest.mark.thorough
def test_a_published_method_that_training_does_not_call_is_named(tmp_path: Path) -> None:
    class CustomLearn(GRPO):
        def learn(self, experiences: Any) -> Any:
            return super().learn(experiences)

    class OwnTest(GRPO):
        def test(self, *args: Any, **kwargs: Any) -> Any:
            return super().test(*args, **kwargs)

    tiny_base(tmp_path / "base", tiny_tokenizer("0123456789+= "))
    more: dict[str, Any] = {"steps": 16, "evo_steps": 16, "seed": 1, "max_output_tokens": 3, "batch_size": 8}
    more |= {"model": str(tmp_path / "base"), "population": 2, "out": tmp_path / "runs", "verbose": False}
    with pytest.raises(
        AlgorithmError, match=r"CustomLearn overrides learn\(\).* fix: override update\(engine, batch\)"
    ):
        agilerl.train("arithmetic/addition-1", CustomLearn, group_size=4, **more)
    with pytest.warns(AgileRLWarning, match="OwnTest overrides test, which training of language policies does not"):
        agilerl.train("arithmetic/addition-1", OwnTest, group_size=4, **more)
