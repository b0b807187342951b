"""Distributions over actions: against torch.distributions, at the edges, by inversion, with masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Bernoulli, Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from agilerl.errors import ConfigError
from agilerl.networks.distributions import (
    categorical_sample,
    distribution_of,
    log_tanh_slope,
    masked_logits,
    squashed_normal_log_prob,
    squashed_normal_sample,
)

G = torch.Generator


def raw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=G().manual_seed(seed), dtype=torch.float64)


def test_the_normal_agrees_with_torch() -> None:
    kind = distribution_of(spaces.Box(-1, 1, (3,)))
    x, numbers = raw(2, 5, 6) / 2, raw(2, 5, 3, seed=1)  # log deviations below their limit of 2
    mean, log_std = x.chunk(2, -1)
    theirs = Independent(Normal(mean, log_std.exp()), 1)
    action = kind.sample(x, numbers)
    torch.testing.assert_close(action, mean + log_std.exp() * numbers)
    torch.testing.assert_close(kind.log_prob(x, action), theirs.log_prob(action))
    torch.testing.assert_close(kind.entropy(x), theirs.entropy())
    assert torch.equal(kind.mode(x), mean)


def test_the_squashed_normal_agrees_with_torch_and_with_its_own_inverse() -> None:
    x, numbers = raw(50, 4) / 2, raw(50, 2, seed=1)
    mean, log_std = x.chunk(2, -1)
    base = Independent(Normal(mean, log_std.exp()), 1)
    theirs = TransformedDistribution(base, TanhTransform(cache_size=1))
    action, log_prob = squashed_normal_sample(x, numbers)
    torch.testing.assert_close(log_prob, theirs.log_prob(theirs.transforms[0](mean + log_std.exp() * numbers)))
    inside = action.abs().amax(-1) < 0.999999  # beyond, the inverse of tanh has lost the digits
    assert inside.sum() > 30
    torch.testing.assert_close(squashed_normal_log_prob(x, action)[inside], log_prob[inside], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tanh_correction_is_exact_where_tanh_has_rounded_to_one(dtype: torch.dtype) -> None:
    # log(1 − tanh²u) = log(4 e^{−2|u|} / (1 + e^{−2|u|})²); for |u| = 20 and more that is log 4 − 2|u| to 1e-17.
    for u in (0.0, 0.3, -0.3, 2.0, -5.0, 20.0, -20.0, 300.0, -300.0):
        expected = math.log(4) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
        got = float(log_tanh_slope(torch.tensor(u, dtype=dtype)))
        assert got == pytest.approx(expected, rel=1e-6 if dtype is torch.float32 else 1e-14, abs=1e-6)
    x = torch.tensor([[100.0, 0.0]], dtype=dtype).requires_grad_()  # mean 100, std 1
    action, log_prob = squashed_normal_sample(x, torch.ones(1, 1, dtype=dtype))
    assert float(action) == 1.0
    assert float(log_prob) == pytest.approx(-0.5 - 0.5 * math.log(2 * math.pi) + 202 - math.log(4), rel=1e-6)
    (slope,) = torch.autograd.grad(log_prob.sum(), x)
    assert slope[0, 0] == pytest.approx(2), "d(−log(1 − tanh²u))/du = 2 tanh u"
    assert torch.isfinite(squashed_normal_log_prob(x, torch.ones(1, 1, dtype=dtype))).all()


def test_the_squashed_density_integrates_to_one() -> None:
    x = torch.tensor([0.4, -0.5], dtype=torch.float64)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    density = squashed_normal_log_prob(x.expand(len(grid), 2), grid[:, None]).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-6)
    assert torch.autograd.gradcheck(lambda r: squashed_normal_sample(r, raw(3, 2))[1], (raw(3, 4).requires_grad_(),))


def test_the_limits_of_the_deviation_hold() -> None:
    kind = distribution_of(spaces.Box(-1, 1, (1,)))
    numbers = torch.ones(1, 1)
    assert float(kind.sample(torch.tensor([[0.0, 50.0]]), numbers)) == pytest.approx(math.exp(2))
    assert float(kind.sample(torch.tensor([[0.0, -90.0]]), numbers)) == pytest.approx(math.exp(-20))


def test_discrete_kinds_agree_with_torch() -> None:
    x = raw(7, 5)
    kind, theirs = distribution_of(spaces.Discrete(5)), Categorical(logits=x)
    action = kind.sample(x, torch.rand(7, generator=G().manual_seed(0)).double())
    torch.testing.assert_close(kind.log_prob(x, action), theirs.log_prob(action))
    torch.testing.assert_close(kind.entropy(x), theirs.entropy())
    kind = distribution_of(spaces.MultiDiscrete([2, 3]))
    parts = [Categorical(logits=x[:, :2]), Categorical(logits=x[:, 2:])]
    action = kind.sample(x, torch.rand(7, 2, generator=G().manual_seed(0)).double())
    torch.testing.assert_close(kind.log_prob(x, action), sum(p.log_prob(action[:, i]) for i, p in enumerate(parts)))
    torch.testing.assert_close(kind.entropy(x), sum(p.entropy() for p in parts))
    assert torch.equal(kind.mode(x), torch.stack([x[:, :2].argmax(-1), x[:, 2:].argmax(-1)], -1))
    kind, bits = distribution_of(spaces.MultiBinary(5)), Independent(Bernoulli(logits=x), 1)
    action = kind.sample(x, torch.rand(7, 5, generator=G().manual_seed(0)).double())
    torch.testing.assert_close(kind.log_prob(x, action), bits.log_prob(action))
    torch.testing.assert_close(kind.entropy(x), bits.entropy())
    assert torch.equal(kind.mode(x), (x > 0).double())


def test_sampling_inverts_the_distribution_function() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).log().expand(6, 3)
    numbers = torch.tensor([0.0, 0.0999, 0.1001, 0.2999, 0.3001, 1 - 1e-16], dtype=torch.float64)
    assert categorical_sample(logits, numbers).tolist() == [0, 0, 1, 1, 2, 2]
    logits = raw(1, 4).expand(40_000, 4)
    drawn = categorical_sample(logits, torch.rand(40_000, generator=G().manual_seed(1)).double())
    share = torch.bincount(drawn, minlength=4) / 40_000
    # the standard deviation of a share is at most 0.5 / sqrt(40000) = 0.0025; four of them
    torch.testing.assert_close(share.double(), logits[0].softmax(-1), rtol=0, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_actions_are_never_drawn_whatever_the_number_rounds_to(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    top = 1 - torch.finfo(dtype).eps / 2
    for _ in range(300):
        logits = torch.as_tensor(rng.standard_normal(6), dtype=dtype) * 5
        mask = torch.as_tensor(rng.random(6) < 0.5)
        mask[int(rng.integers(6))] = True
        limited = masked_logits(logits, mask)
        for number in (0.0, float(rng.random()), top):
            assert mask[int(categorical_sample(limited, torch.tensor(number, dtype=dtype)))]
        assert torch.isfinite(distribution_of(spaces.Discrete(6)).entropy(logits, mask))


SHAPES: list[tuple[Any, bool, int, tuple[int, ...]]] = [
    (spaces.Box(-1, 1, (2, 3)), False, 12, (6,)),
    (spaces.Box(-1, 1, ()), True, 2, (1,)),
    (spaces.Discrete(4), False, 4, ()),
    (spaces.MultiDiscrete([2, 3, 4]), False, 9, (3,)),
    (spaces.MultiBinary(3), False, 3, (3,)),
]


@pytest.mark.parametrize(("space", "squash", "raw_size", "numbers"), SHAPES, ids=[str(s[0]) for s in SHAPES])
def test_sizes_follow_the_space(space: Any, squash: bool, raw_size: int, numbers: tuple[int, ...]) -> None:
    kind = distribution_of(space, squash)
    assert (kind.raw_size, kind.numbers_shape) == (raw_size, numbers)
    drawn = kind.sample(raw(3, 2, raw_size), torch.full((3, 2, *numbers), 0.5, dtype=torch.float64))
    assert drawn.shape == (3, 2, *numbers)
    assert kind.log_prob(raw(3, 2, raw_size), drawn).shape == (3, 2)


def test_what_has_no_distribution_or_no_entropy_says_so() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^actions must be Box, \(Multi\)Discrete or MultiBinary, or a Dict or Tuple of these; got Text",
    ):
        distribution_of(spaces.Text(3))
    with pytest.raises(ConfigError, match=r"no entropy in closed form\. fix: average"):
        distribution_of(spaces.Box(-1, 1, (1,)), True).entropy(raw(1, 2))
