"""Losses of language models beside what TRL 1.16.0 gives for the same numbers (`benchmarks/opponent_trl.py losses`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from agilerl.losses import completions as losses

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "opponent_trl.py"
TRL = {
    "grpo": -0.17284607967691112,
    "dr_grpo": -0.27951046680882413,
    "dapo": -0.42647181843863236,
    "gspo": -0.15796884692172666,
    "cispo": 0.5078308363733939,
}
"""With use_bias_correction_kl=False; TRL else multiplies the divergence by the ratio, which these papers do not."""
NORMALISATION = {"grpo": "sequence", "dr_grpo": "constant", "dapo": "token", "gspo": "sequence", "cispo": "token"}


def opponent() -> Any:
    spec = importlib.util.spec_from_file_location("opponent_trl", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", TRL)
def test_losses_are_those_of_trl(case: str) -> None:
    module = opponent()
    given = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in module.numbers().items()}
    settings = module.CASES[case]
    low = torch.tensor(settings.get("epsilon", 0.2), dtype=torch.float64)
    high = torch.tensor(settings.get("epsilon_high", settings.get("epsilon")), dtype=torch.float64)
    said, advantage = given["mask"].bool(), given["advantage"]
    rows = torch.full((len(said),), 1 / len(said), dtype=torch.float64)
    weight = losses.completion_weights(said, rows, NORMALISATION[case], said.shape[1])
    ratios = losses.log_ratio(given["log_prob"], given["old"], said)
    if case == "cispo":  # TRL's epsilon_high is the bound itself, that of the paper lies 1 above it
        each = losses.clipped_importance(given["log_prob"].masked_fill(~said, 0), ratios, advantage, high - 1)
    else:
        ratio = losses.sequence_ratio(ratios, said) if case == "gspo" else ratios.exp()
        each = losses.clipped_surrogate(ratio, advantage, low, high)
    divergence = settings["beta"] * losses.kl_estimate(given["log_prob"], given["reference"], said)
    assert float((weight * (each + divergence)).sum()) == pytest.approx(TRL[case], abs=1e-12)
