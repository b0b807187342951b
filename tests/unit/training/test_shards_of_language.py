"""Language policies in shards: one result for any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inline_workers import InlineWorkers
from unit.training.test_shards import digest

import agilerl
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import ReasoningGym
from agilerl.training.manifest import workers as manifest_workers

SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]


def reward(completion: str, answer: Any, question: str) -> float:
    return completion.count("7") / 4


@pytest.mark.thorough
def test_grpo_in_shards_has_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_workers, "LocalWorkers", InlineWorkers)
    tiny_base(tmp_path, tiny_tokenizer("0123456789+= "))
    tokenizer = load_base(tmp_path).tokenizer

    def trained(**more: Any) -> agilerl.Run:
        gym = ReasoningGym(SUMS[:24], SUMS[24:], tokenizer, reward, data_batch_size_per_gpu=4)
        return agilerl.train(
            gym, algo="GRPO", model_name=str(tmp_path), population=3, steps=24, evo_steps=8, seed=1, out=None,
            verbose=False, max_output_tokens=4, group_size=4, batch_size=8, lr=3e-3, **more,
        )  # fmt: skip

    alone = trained(shards=2)
    assert any(value != 0 for row in alone.history for value in row)
    assert digest(trained(shards=2, workers=2)) == digest(alone)
    assert digest(trained()) != digest(alone)
