"""Tokens drawn by hand: top-p, top-k, temperatures and shortest texts of each member, and rows that are left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from agilerl.language import scoring
from agilerl.language.generate import Sampling, _still, choose
from agilerl.language.scoring import Texts, log_probs, shared_prompts

SHARES = [0.1, 0.4, 0.3, 0.2]  # of the tokens 0 to 3


def drawn(numbers: Sequence[float], *how: Sampling, step: int = 9, shares: Sequence[float] = SHARES) -> list[int]:
    """The tokens of as many rows as numbers, in equal parts for each member; token 2 ends a text."""
    logits = torch.tensor([[math.log(x) for x in shares]] * len(numbers))
    return choose(logits, how, torch.tensor(numbers, dtype=torch.float64), step, 2, len(how)).tolist()


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [(0.39, [1]), (0.41, [1, 2]), (0.69, [1, 2]), (0.71, [1, 2, 3]), (0.89, [1, 2, 3]), (0.91, [0, 1, 2, 3])],
)
def test_top_p_is_the_smallest_set_whose_share_reaches_it(top_p: float, tokens: list[int]) -> None:
    """By share the tokens are 1, 2, 3, 0; the one with which the sum reaches p is part of the set."""
    how, total = Sampling(top_p=top_p), sum(SHARES[token] for token in tokens)
    below = 0.0
    for token in tokens:  # the first and the last number of each token's part of [0, 1)
        part = SHARES[token] / total
        assert drawn([below + 1e-6, below + part - 1e-6], how) == [token, token]
        below += part
    assert below == pytest.approx(1)


def test_top_k_keeps_the_k_most_probable() -> None:
    """0.4 and 0.3 of 0.7: token 1 below 4/7."""
    assert drawn([0.0, 4 / 7 - 1e-6, 4 / 7 + 1e-6, 0.999999], Sampling(top_k=2)) == [1, 1, 2, 2]


def test_each_member_has_its_own_temperature_bounds_and_shortest_text() -> None:
    """At temperature ½ shares are squared: 1, 16, 9 and 4 of 30."""
    half, whole, greedy = Sampling(temperature=0.5), Sampling(min_tokens=4), Sampling(temperature=0.0)
    numbers = [1 / 30 - 1e-6, 17 / 30 + 1e-6, 0.1 - 1e-6, 0.5 + 1e-6, 0.0, 0.99]
    assert drawn(numbers, half, whole, greedy) == [0, 2, 0, 2, 1, 1]
    # Before its fourth token the second member does not end: 0.1, 0.4 and 0.2 of 0.7.
    assert drawn(numbers, half, whole, greedy, step=3) == [0, 2, 0, 1, 1, 1]
    assert drawn([0.5 / 0.7 - 1e-6, 0.5 / 0.7 + 1e-6], whole, step=3) == [1, 3]
    assert drawn(numbers, whole, half, greedy) == [0, 2, 1, 1, 1, 1]


def test_rows_that_go_on_stay_and_members_keep_equally_many() -> None:
    def rows(*going: str) -> list[int] | None:
        retained = _still(torch.tensor([[mark == "x" for mark in marks] for marks in going]).flatten(), len(going))
        return None if retained is None else retained.tolist()

    assert rows("x.x.", ".x..") == [0, 2, 4, 5], "the second member keeps a row that has ended"
    assert rows("....", "...x") == [0, 7]
    assert rows("xxxx", "....") is None, "dropping saves nothing"


def test_a_prompt_is_shared_by_equal_tokens_with_equal_padding() -> None:
    """Padding may be a token of a prompt: [0, 1] with both tokens, and [1] alone."""
    tokens = torch.tensor([[0, 1, 5], [0, 1, 6], [0, 1, 7], [0, 1, 8], [0, 1, 9], [0, 1, 9]])
    attention = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]]).bool()
    shared = shared_prompts(Texts(tokens, attention, attention[:, 2:]), 1)
    assert shared is not None
    rows, place = shared
    assert attention[rows, 0].tolist() == [attention[k, 0].item() for k in rows.tolist()]
    for row in range(6):
        assert attention[rows[place[row]], :2].tolist() == attention[row, :2].tolist()


def test_chunks_of_logits_have_the_temperatures_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 3, 5), (7, 5)))
    tokens, rates = torch.randint(0, 7, (4, 3), generator=generator), torch.tensor([0.5, 1.0, 2.0, 4.0])

    def expected() -> Tensor:
        rows = [(hidden[r] @ head.T / float(rates[r])).log_softmax(-1) for r in range(4)]
        return torch.stack([row.gather(-1, tokens[r, :, None])[:, 0] for r, row in enumerate(rows)])

    for chunk in (7 * 12, 7 * 5, 7):  # all at once, five rows of logits, one
        monkeypatch.setattr(scoring, "CHUNK", chunk)
        torch.testing.assert_close(log_probs(hidden, head, tokens, rates), expected(), rtol=1e-12, atol=1e-12)
        leaf = hidden.clone().requires_grad_(True)
        log_probs(leaf, head, tokens, rates).sum().backward()
        whole = hidden.clone().requires_grad_(True)
        monkeypatch.setattr(scoring, "CHUNK", 1 << 22)
        log_probs(whole, head, tokens, rates).sum().backward()
        torch.testing.assert_close(leaf.grad, whole.grad, rtol=1e-12, atol=1e-12)
