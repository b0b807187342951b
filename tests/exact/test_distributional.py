"""The projection of return distributions by hand: bins, clamps, discounts row by row, mass, divergence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agilerl.losses.td import categorical_divergence, expected_index, project, spread_in_order

T = lambda *values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
LOW, HIGH = torch.tensor(0.0, dtype=torch.float64), torch.tensor(4.0, dtype=torch.float64)

# Five atoms 0, 1, 2, 3, 4; the whole mass on one of them. (atom, reward, discount, projected distribution)
BY_HAND: list[tuple[int, float, float, list[float]]] = [
    (2, 1.0, 1.0, [0, 0, 0, 1, 0]),  # 1 + 2 = 3: on an atom
    (2, 0.0, 1.0, [0, 0, 1, 0, 0]),  # nothing moves
    (2, 0.5, 0.5, [0, 0.5, 0.5, 0, 0]),  # 1.5: half and half
    (3, 0.25, 0.5, [0, 0.25, 0.75, 0, 0]),  # 1.75
    (4, 1.0, 1.0, [0, 0, 0, 0, 1]),  # 5 is cut to 4
    (0, -1.0, 1.0, [1, 0, 0, 0, 0]),  # -1 is cut to 0
    (4, 4.0, 0.0, [0, 0, 0, 0, 1]),  # terminated: the reward alone, on the last atom
    (1, 0.0, 0.0, [1, 0, 0, 0, 0]),  # terminated: the reward alone, on the first atom
    (4, 2.2, 0.0, [0, 0, 0.8, 0.2, 0]),  # terminated between two atoms
]


def test_single_atoms_land_where_they_should_each_row_with_its_own_discount() -> None:
    p = torch.eye(5, dtype=torch.float64)[[atom for atom, *_ in BY_HAND]]
    reward, discount = (T(*[row[k] for row in BY_HAND]) for k in (1, 2))
    got = project(p, reward, discount, LOW, HIGH)
    torch.testing.assert_close(got, T(*[row[3] for row in BY_HAND]), rtol=0, atol=1e-12)


def test_a_mixture_is_projected_atom_by_atom() -> None:
    # 0.5·atom0 -> 0.5, 0.3·atom2 -> 1.5, 0.2·atom4 -> 2.5 with r = 0.5, γ = 0.5
    got = project(T(0.5, 0, 0.3, 0, 0.2)[None], T(0.5), T(0.5), LOW, HIGH)
    torch.testing.assert_close(got[0], T(0.25, 0.25 + 0.15, 0.15 + 0.1, 0.1, 0), rtol=0, atol=1e-12)


def test_members_have_supports_of_their_own() -> None:
    p = torch.eye(5, dtype=torch.float64)[2].expand(2, 1, 5)
    low, high = T(0, -2)[:, None], T(4, 6)[:, None]  # spacings 1 and 2: the middle is 2 for both
    got = project(p, T(1, 1)[:, None], T(1, 1)[:, None], low, high)
    assert got[:, 0].tolist() == [[0, 0, 0, 1, 0], [0, 0, 0.5, 0.5, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mass_is_kept_and_the_mean_too_where_nothing_is_cut(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    low, high = torch.tensor(-10.0, dtype=dtype), torch.tensor(10.0, dtype=dtype)
    z = torch.linspace(-10, 10, 51, dtype=dtype)
    for _ in range(50):
        p = torch.randn(64, 51, generator=g).to(dtype).mul(3).softmax(-1)
        reward, discount = torch.rand(64, generator=g).to(dtype), torch.rand(64, generator=g).to(dtype) * 0.9
        m = project(p, reward, discount, low, high)
        assert (m >= 0).all()
        # 51 probabilities in float32, each rounded to 6e-8 a few times; the mean weighs them by up to 10.
        tight = 1e-5 if dtype is torch.float32 else 1e-12
        torch.testing.assert_close(m.sum(-1), torch.ones(64, dtype=dtype), rtol=0, atol=tight)
        torch.testing.assert_close((m * z).sum(-1), reward + discount * (p * z).sum(-1), rtol=0, atol=10 * tight)


def test_the_divergence_is_zero_at_the_target_and_has_the_gradient_of_the_cross_entropy() -> None:
    target = T(0.0, 0.25, 0.75)
    logits = T(-800.0, 0.25, 0.75).clone()
    logits[1:] = logits[1:].log()
    assert float(categorical_divergence(logits, target)) == pytest.approx(0, abs=1e-12)
    free = T(0.3, -0.2, 0.5).requires_grad_()
    got = categorical_divergence(free, target)
    expected = nn.functional.kl_div(free.log_softmax(-1), target, reduction="sum")
    torch.testing.assert_close(got, expected)
    (slope,) = torch.autograd.grad(got, free)
    torch.testing.assert_close(slope, free.detach().softmax(-1) - target, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: categorical_divergence(x, target), (free,))


def test_actions_are_ranked_alike_by_atom_index_and_by_return() -> None:
    logits: Tensor = torch.randn(200, 4, 11, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for low, high in ((-3.0, 5.0), (0.0, 1.0), (-200.0, -100.0)):
        returns = (logits.softmax(-1) * torch.linspace(low, high, 11, dtype=torch.float64)).sum(-1)
        torch.testing.assert_close(low + (high - low) / 10 * expected_index(logits), returns)
        assert torch.equal(expected_index(logits).argmax(-1), returns.argmax(-1))


def test_sums_in_a_fixed_order_are_the_projection() -> None:
    """Half of the atoms fall on the last one, some exactly on an atom, and the rest between two."""
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(3, 40, 11, generator=rng, dtype=torch.float64).softmax(-1)
    place = torch.rand(3, 40, 11, generator=rng, dtype=torch.float64).mul(20).clamp(max=10)
    place[:, ::4] = place[:, ::4].round()
    below = place.long()
    above, share = (below + 1).clamp(max=10), place - below
    expected = torch.zeros_like(p)
    for j in range(11):
        for i in range(11):
            expected[..., i] += p[..., j] * (1 - (place[..., j] - i).abs()).clamp(0, 1)
    torch.testing.assert_close(spread_in_order(p, below, above, share), expected, rtol=0, atol=1e-15)
    reward, discount = place[..., 0], torch.full((3, 40), 0.5, dtype=torch.float64)
    low, high = torch.tensor(0.0, dtype=torch.float64), torch.tensor(10.0, dtype=torch.float64)
    place = (reward[..., None] + 0.5 * torch.arange(11)).clamp(max=10)
    below = place.long()
    ordered = spread_in_order(p, below, (below + 1).clamp(max=10), place - below)
    torch.testing.assert_close(ordered, project(p, reward, discount, low, high), rtol=0, atol=1e-15)
