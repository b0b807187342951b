"""Losses of one optimiser step of language algorithms, token by token, with networks that answer with given numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.algorithms import DPO, LLMPPO
from agilerl.language.algorithms import scoring
from agilerl.language.algorithms.batches import TextBatch, without_silent_rows
from agilerl.language.algorithms.scoring import mean_likelihood
from agilerl.language.scoring import Texts

F64 = torch.float64


class Answers:
    """An engine of one member; networks answer the first tokens of a text with the next rows of these numbers."""

    def __init__(self, hp: dict[str, float], **answers: Tensor) -> None:
        self.hp = {name: torch.tensor(value, dtype=F64) for name, value in hp.items()}
        self.answers, self.losses, self.steps = answers, list[float](), list[str]()

    def network(self, name: str) -> Any:
        rows = iter(self.answers[name])

        def run(texts: Texts, temperature: Any = 1.0) -> Tensor:
            count, length = texts.completion_mask.shape[-2:]
            return torch.stack([next(rows)[:length] for _ in range(count)])

        return run

    def accumulate(self, loss: Tensor) -> None:
        self.losses.append(float(loss))

    def step(self, name: str, max_norm: Any, live: Any) -> None:
        self.steps.append(name)


def texts(mask: list[list[int]]) -> Texts:
    """Prompts of one token with completions of these masks."""
    marks = torch.tensor(mask).bool()
    attention = torch.cat((torch.ones_like(marks[:, :1]), marks), 1)
    return Texts(torch.ones(attention.shape, dtype=torch.long), attention, marks)


def agent(kind: Any, **options: Any) -> Any:
    """One without networks, which an update does not ask for."""
    bare = kind.__new__(kind)
    bare.__dict__.update({"micro_batch_size": None, "max_grad_norm": 0.0, **options})
    return bare


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        # V = 1, 3, −2, returns 0, 2, 0, values of before 0.9, 1, −1: squared errors 1, 1, 4 of three of four tokens.
        (None, (1 + 1 + 4) / 2 / 4),
        # Within 0.5: 1, 1.5, −1.5; squared errors 1, 0.25, 2.25: the larger of each pair are those of above.
        (0.5, (1 + 1 + 4) / 2 / 4),
        # Within 0.05: 0.95, 1.05, −1.05 with 0.9025, 0.9025, 1.1025.
        (0.05, (1 + 1 + 4) / 2 / 4),
    ],
)
def test_values_far_from_returns_are_not_clipped(clip: float | None, expected: float) -> None:
    assert value_loss(clip, [1.0, 3.0, -2.0], [0.0, 2.0, 0.0], [0.9, 1.0, -1.0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        # V = 1, 3, −2, returns 1, 3, 0, values of before 0, 1, −3: squared errors 0, 0, 4.
        (None, (0 + 0 + 4) / 2 / 4),
        # Within 0.5 of those: 0.5, 1.5, −2.5 with squared errors 0.25, 2.25, 6.25.
        (0.5, (0.25 + 2.25 + 6.25) / 2 / 4),
        # Within 1: 1, 2, −2 with 0, 1, 4.
        (1.0, (0 + 1 + 4) / 2 / 4),
    ],
)
def test_values_that_came_nearer_count_as_if_they_had_stayed_near_their_old_ones(
    clip: float | None, expected: float
) -> None:
    assert value_loss(clip, [1.0, 3.0, -2.0], [1.0, 3.0, 0.0], [0.0, 1.0, -3.0]) == pytest.approx(expected)


def value_loss(clip: float | None, values: list[float], returns: list[float], before: list[float]) -> float:
    """The critic's loss of three tokens of weight ¼ and one that is not the policy's."""
    row = lambda numbers: torch.tensor([[*numbers, 99.0]], dtype=F64)  # noqa: E731
    engine = Answers({"clip_coef": 0.2, "temperature": 1.0}, actor=row([0.0] * 3), critic=row(values))
    weight = torch.tensor([[0.25, 0.25, 0.25, 0.0]], dtype=F64)
    batch = TextBatch(
        texts([[1, 1, 1, 0]]), weight[:, :3], *(row([0.0] * 3)[:, :3] for _ in range(2)), returns=row(returns)[:, :3],
        values=row(before)[:, :3],
    ).rows(slice(0, 1))  # fmt: skip
    result = agent(LLMPPO, vf_clip=clip).update(engine, batch)
    assert engine.steps == ["optimizer", "optimizer_critic"]
    assert float(result.loss) == engine.losses[1]
    return engine.losses[1]


@pytest.mark.parametrize("size", [None, 1, 2, 3, 5])
def test_preferences_in_parts_of_any_size_are_those_of_whole_pairs(size: int | None) -> None:
    """Three pairs with margins of 1, −2 and 4: the mean of −log σ(β m), β = ½, whichever pairs share a pass."""
    mask = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
    policy = torch.tensor(
        [[-1.0, -1, 9], [-2.0, 9, 9], [-1.0, -1, -1], [-0.5, -0.5, 9], [-1.0, 9, 9], [-2.0, -2, -1]], dtype=F64
    )  # sums −2, −2, −3, −1, −1, −5
    reference = torch.tensor(
        [[-1.5, -1.5, 7], [-2.0, 7, 7], [-1.0, -1, -1], [-1.5, -1.5, 7], [-1.0, 7, 7], [-1.0, 0, 0]], dtype=F64
    )  # sums −3, −2, −3, −3, −1, −1
    engine = Answers({"beta": 0.5, "label_smoothing": 0.0, "nll_alpha": 0.0}, actor=policy)
    batch = TextBatch(texts(mask), torch.full((6,), 1 / 3, dtype=F64), reference=reference)
    result = agent(DPO, micro_batch_size=size).update(engine, batch)
    margins = [1.0, -2.0, 4.0]
    expected = sum(math.log1p(math.exp(-0.5 * m)) for m in margins) / 3
    assert float(result.loss) == pytest.approx(expected, rel=1e-12)
    assert float(result.kl) == pytest.approx(sum(margins) / 3, rel=1e-12)
    assert len(engine.losses) == (1 if size is None else math.ceil(3 / size))
    assert engine.steps == ["optimizer"]


def test_members_keep_as_many_rows_as_the_one_with_the_most() -> None:
    signal = torch.tensor([[True, False, True, False], [False, False, False, True]])
    whole = texts([[1, 1]] * 8)
    stack = Texts(*(x.view(2, 4, -1) for x in (whole.tokens, whole.attention, whole.completion_mask)))
    weight = torch.arange(16.0).view(2, 4, 2)
    batch = without_silent_rows(TextBatch(stack, weight), signal)
    assert batch is not None
    assert batch.weight[..., 0].tolist() == [[0, 4], [8, 14]]
    assert batch.live is None
    nothing = torch.zeros(2, 4, dtype=torch.bool)
    assert without_silent_rows(TextBatch(stack, weight), nothing) is None
    one = without_silent_rows(TextBatch(stack, weight), torch.stack((signal[0], nothing[0])))
    assert one is not None
    assert one.live == (True, False)


def test_a_likelihood_is_a_mean_over_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of 1 and 3 tokens with −4 and −6: −10 of 4 tokens, not the mean of −4 and −2."""
    table = [np.array([[-4.0, 1.0], [-6.0, 3.0]])]
    monkeypatch.setattr(scoring, "likelihoods", lambda *inputs: table)
    assert mean_likelihood([], [SimpleNamespace()], [], "test") == [-2.5]
