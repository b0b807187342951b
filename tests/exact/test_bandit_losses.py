"""Confidence widths, design matrices and choices of neural bandits, by numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import NeuralTS, NeuralUCB
from agilerl.losses.bandits import inverse_design, scaled_gradient, squared_width, with_choice

CONTEXTS, ARMS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
# One lane, two arms, one hidden unit: rewards 0.5 and 0.2, inputs of the last layer 0 and 2.
OUTPUTS = torch.tensor([[[0.5, 0.0], [0.2, 2.0]]], dtype=torch.float64)


def test_the_gradient_of_the_last_layer_is_its_inputs_and_one_over_the_root_of_the_width() -> None:
    gradient = scaled_gradient(torch.tensor([3.0, 4.0, 0.0, 12.0]))
    assert gradient.tolist() == [1.5, 2.0, 0.0, 6.0, 0.5]


def test_a_squared_width() -> None:
    # (3, 4, 1)/√2 and Z = 2 I: (9 + 16 + 1)/2 · 1/2
    gradient = scaled_gradient(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    assert squared_width(gradient, torch.eye(3, dtype=torch.float64) / 2).tolist() == pytest.approx([6.5])


def test_a_choice_is_counted_as_by_inverting_the_sum() -> None:
    gradient = torch.tensor([1.0, 1.0], dtype=torch.float64)
    counted = with_choice(torch.eye(2, dtype=torch.float64), gradient)
    # Z = [[2, 1], [1, 2]]
    assert counted.flatten().tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 2 / 3])
    assert torch.allclose(counted, inverse_design(gradient[None], 1.0))
    # g g' twice: [[3, 2], [2, 3]]
    assert with_choice(counted, gradient).flatten().tolist() == pytest.approx([0.6, -0.4, -0.4, 0.6])


def test_no_choice_leaves_the_identity_over_lambda() -> None:
    assert inverse_design(torch.zeros(0, 3, dtype=torch.float64), 4.0).tolist() == (np.eye(3) / 4).tolist()


@pytest.mark.parametrize(
    ("gamma", "arm", "inverse"),
    [
        # Widths √(0² + 1²) = 1 and √(2² + 1²) = 2.236: bounds 0.6 and 0.424, so arm 0, whose gradient is (0, 1).
        (0.1, 0, [[1, 0], [0, 0.5]]),
        # Bounds 1.5 and 2.436, so arm 1, whose gradient is (2, 1): I − g g' / (1 + 5).
        (1.0, 1, [[1 / 3, -1 / 3], [-1 / 3, 5 / 6]]),
    ],
)
def test_neural_ucb_chooses_the_highest_bound_and_counts_it(gamma: float, arm: int, inverse: list[list[float]]) -> None:
    agent = NeuralUCB(CONTEXTS, ARMS, gamma=gamma, seed=0)
    scale = torch.tensor(agent.width_scale(), dtype=torch.float64)
    arms, counted = agent.choose(OUTPUTS, torch.eye(2, dtype=torch.float64), scale, ())
    assert arms.tolist() == [arm]
    assert counted.tolist() == pytest.approx(np.array(inverse))
    assert agent.greedy(OUTPUTS).tolist() == [0]


def test_a_mask_takes_the_best_arm_away() -> None:
    agent = NeuralUCB(CONTEXTS, ARMS, gamma=1.0, seed=0)
    inverse, scale = torch.eye(2, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    arms, _ = agent.choose(OUTPUTS, inverse, scale, (), np.array([[1, 0]]))
    assert arms.tolist() == [0]


def test_neural_ts_draws_rewards_with_the_deviation_of_its_paper() -> None:
    agent = NeuralTS(CONTEXTS, ARMS, gamma=0.5, lamb=4.0, seed=0)
    assert agent.sigma_inv[0, 0] == 0.25
    # ν √(λ g'(4 I)⁻¹ g) = 0.5 · 1 and 0.5 · √5; draws −1 and 1: 0.5 − 0.5 and 0.2 + 1.118
    width = agent.width_scale() * squared_width(scaled_gradient(OUTPUTS[..., 1:]), torch.eye(2).double() / 4).sqrt()
    scores = agent.arm_scores(OUTPUTS[..., 0], width, (np.array([[-1.0, 1.0]]),))
    assert scores[0].tolist() == pytest.approx([0.0, 0.2 + 0.5 * math.sqrt(5)])
    draws = agent.draw_exploration(np.random.default_rng(0), (3,))
    assert [part.shape for part in draws] == [(3, 2)]


def test_lanes_of_one_call_are_counted_one_after_another() -> None:
    agent = NeuralUCB(CONTEXTS, ARMS, seed=0)
    inverse, scale = torch.eye(2, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    both, counted = agent.choose(OUTPUTS.expand(2, 2, 2), inverse, scale, ())
    assert both.tolist() == [1, 1], "neither saw the other"
    gradient = torch.tensor([[2.0, 1.0]] * 2, dtype=torch.float64)
    assert torch.allclose(counted, inverse_design(gradient, 1.0))


def test_the_loss_is_the_squared_error_and_the_distance_to_the_initial_weights() -> None:
    agent = NeuralUCB(CONTEXTS, ARMS, reg=0.5, seed=0)
    batch = {"obs": np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), "reward": np.array([1.0, 0.0], np.float32)}
    assert agent.learn(batch) == 0.5, "f(x; θ₀) = 0, so that the error is (1 + 0)/2, and nothing has moved"
    with torch.no_grad():
        for parameter, initial in zip(agent.actor.parameters(), agent.actor_target.parameters(), strict=True):
            parameter.copy_(initial)
        bias = agent.actor.head_net.model.get_submodule("linear_output").bias
        bias.fill_(0.5)
    # errors 0.5 and −0.5: 0.25, and reg · 0.5² = 0.125
    assert agent.learn(batch) == pytest.approx(0.375)
