"""`learn` of DPO and SFT takes what `reset` and `step` of their environments return, as published loops do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agilerl.algorithms import DPO, SFT
from agilerl.errors import AlgorithmError
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, SFTGym

KINDS: dict[str, tuple[Any, Any]] = {"DPO": (DPO, PreferenceGym), "SFT": (SFT, SFTGym)}
ROWS = [{"prompt": f"{k}+1=", "chosen": str(k + 1), "rejected": "11" * k, "completion": "1" * k} for k in range(1, 9)]


@pytest.mark.parametrize("algo", KINDS)
def test_a_loop_by_hand_learns_what_the_batches_hold(algo: str, tmp_path: Path) -> None:
    tiny_base(tmp_path, tiny_tokenizer("0123456789+="))
    base, (cls, gym) = load_base(tmp_path), KINDS[algo]
    by_hand, by_rows = (cls(actor_network=base, batch_size=2, lr=1e-2, seed=1) for _ in range(2))
    env = gym(ROWS[:6], ROWS[6:], base.tokenizer, data_batch_size_per_gpu=3)
    batch = env.reset()
    for number in range(3):
        assert by_hand.learn(batch) == by_rows.learn(env.batch(number))
        batch = env.step()
    for one, other in zip(by_hand.actor.parameters(), by_rows.actor.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(AlgorithmError, match=r"learn\(\) got a batch without .* fix: what reset\(\) or step\(\) of a"):
        by_hand.learn({"prompt": ["1"]})
    for wrong, kind in ((["1+1=2"], "str"), (None, "NoneType"), (3, "int")):
        with pytest.raises(
            AlgorithmError,
            match=rf"^learn\(\) got {kind}\. fix: what reset\(\) or step\(\) of a {gym.__name__} returned\.$",
        ):
            by_hand.learn(wrong)
