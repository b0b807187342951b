"""The entropy bonus of PPO with squashed actions: its expected gradient against quadrature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import PPO
from agilerl.algorithms.base.policy_actions import as_drawn
from agilerl.algorithms.base.policy_gradient import policy_gradient
from agilerl.engine.protocol import RolloutBatch
from agilerl.errors import ShapeError

BOX = gym.spaces.Box(-1, 1, (1,), np.float64)
NET = {"encoder_config": {"hidden_size": [4]}, "head_config": {"hidden_size": [4]}, "latent_dim": 8}
ROWS = 50_000


def entropy_by_quadrature(mean: float, log_std: float) -> float:
    """−∫ p log p over (−1, 1) of tanh(u), u ~ N(mean, std²), by the rule of Gauss and Hermite with 200 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    u = mean + math.exp(log_std) * nodes
    log_slope = 2 * (math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))  # log(1 − tanh²u)
    return log_std + 0.5 + 0.5 * math.log(2 * math.pi) + float(weights @ log_slope) / math.sqrt(2 * math.pi)


def batch(mean: float, log_std: float) -> RolloutBatch:
    """Actions of the policy itself with an advantage of 0: what is left of the gradient is that of the bonus."""
    rng = np.random.default_rng(1)
    draw = lambda: torch.from_numpy(rng.standard_normal((ROWS, 1)))  # noqa: E731
    action, zeros = (mean + math.exp(log_std) * draw()).tanh(), torch.zeros(ROWS).double()
    return RolloutBatch(None, action, zeros, zeros, zeros, zeros, torch.full((ROWS,), 1 / ROWS).double(), noise=draw())


def gradient_of(ppo: PPO, raw: torch.Tensor, batch: RolloutBatch, hp: dict[str, torch.Tensor]) -> Any:
    return policy_gradient(ppo.distribution, ppo._raw(raw), as_drawn(ppo.action_space, batch.action), batch, hp)


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, -0.2), (-1.0, 0.3), (0.0, -1.5)])
def test_its_expected_gradient_is_that_of_the_entropy(mean: float, log_std: float) -> None:
    ppo = PPO(gym.spaces.Box(-1, 1, (3,)), BOX, net_config={**NET, "squash_output": True}, seed=1)
    raw = torch.tensor([mean, log_std], dtype=torch.float64).expand(ROWS, 2).clone()
    hp = {"clip_coef": torch.tensor(0.2), "ent_coef": torch.tensor(1.0)}
    _, entropy, _, gradient = gradient_of(ppo, raw, batch(mean, log_std), hp)
    step = 1e-5
    expected = [
        (entropy_by_quadrature(mean + step, log_std) - entropy_by_quadrature(mean - step, log_std)) / (2 * step),
        (entropy_by_quadrature(mean, log_std + step) - entropy_by_quadrature(mean, log_std - step)) / (2 * step),
    ]
    assert float(entropy) == pytest.approx(entropy_by_quadrature(mean, log_std), abs=0.02)
    # The loss is minus the bonus. The deviation of one row is at most 2.5 here, of the mean of 50,000 of them 0.011.
    np.testing.assert_allclose(-gradient.sum(0).numpy(), expected, atol=0.035)


def test_a_minibatch_without_its_numbers_is_refused_by_name() -> None:
    ppo = PPO(gym.spaces.Box(-1, 1, (3,)), BOX, net_config={**NET, "squash_output": True}, seed=1)
    hp = {"clip_coef": torch.tensor(0.2), "ent_coef": torch.tensor(1.0)}
    with pytest.raises(ShapeError, match="a squashed policy needs noise"):
        gradient_of(ppo, torch.zeros(ROWS, 2).double(), replace(batch(0.0, 0.0), noise=None), hp)


@pytest.mark.parametrize("squash", [False, True])
def test_only_squashed_policies_draw_numbers_for_it(squash: bool) -> None:
    ppo = PPO(gym.spaces.Box(-1, 1, (3,)), BOX, net_config={**NET, "squash_output": squash}, seed=1)
    rng, untouched = np.random.default_rng(3), np.random.default_rng(3)
    drawn = ppo.draw_entropy_noise(rng, 6)
    assert (drawn is not None and drawn.shape == (6, 1)) == squash
    assert (rng.random() == untouched.random()) != squash
