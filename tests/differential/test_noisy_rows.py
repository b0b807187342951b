"""Noisy layers over rows against plain modules and autograd, in float64."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.engine.parts import MemberBinding, OptimizerBinding, Part, PartBinding, PartName
from agilerl.engine.rows.kernels import rule_of
from agilerl.engine.rows.rows_engine import RowsEngine
from agilerl.modules.layers import layer_noise, noise_size, noisy_layers
from agilerl.networks.q_networks import QNetwork

OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


def network(width: int, seed: int) -> QNetwork:
    made = QNetwork(
        OBS,
        ACTIONS,
        latent_dim=9,
        encoder_config={"hidden_size": [6]},
        head_config={"hidden_size": [width], "noisy": True, "activation": "Tanh"},
        random_seed=seed,
    ).double()
    return made


def bindings(pairs: list[tuple[QNetwork, QNetwork]]) -> list[MemberBinding]:
    members = []
    for net, target in pairs:
        stack, shadow = net.dense_stack(), target.dense_stack()
        assert stack is not None
        assert shadow is not None
        adam = torch.optim.Adam(net.parameters())
        rule = rule_of(adam)
        assert rule is not None
        optimizer = OptimizerBinding("optimizer", (PartName("actor"),), rule, adam)
        members.append(MemberBinding((PartBinding(PartName("actor"), Part(stack), Part(shadow)),), (optimizer,)))
    return members


def test_noisy_rows_equal_each_module_alone_in_outputs_and_gradients() -> None:
    pairs = [(network(w, i), network(w, 10 + i)) for i, w in enumerate((5, 8, 8))]
    rng = np.random.default_rng(0)
    sizes = [noise_size(net) for net, _ in pairs]
    assert sizes[0] < sizes[1]
    draws = np.zeros((2, 3, max(sizes)))
    for row, ((net, _), size) in enumerate(zip(pairs, sizes, strict=True)):
        draws[:, row, :size] = layer_noise(net, rng, 2)
    engine = RowsEngine(bindings(pairs), {"optimizer": "lr"}, {"actor": pairs[0][0]})
    (cohort,) = engine.cohorts
    engine.set_noise("actor", *torch.from_numpy(draws))
    x = torch.randn(3, 17, 3, dtype=torch.float64)
    weight = torch.randn(3, 17, 2, dtype=torch.float64)
    values, ran = engine.forward("actor", x)
    engine._gradients.backward(ran, weight)
    quiet = engine.frozen("actor", noisy=False)(x)
    value, target = engine.frozen_and_target("actor")(x)
    grads: list[dict[int, Tensor]] = [
        {id(parameter): view.clone() for parameter, view in cohort._pairs(row, cohort.grad)} for row in range(3)
    ]
    for row, (net, shadow) in enumerate(pairs):
        expected = net(x[row])
        torch.testing.assert_close(values[row], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(value[row], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(target[row], shadow(x[row]), rtol=1e-12, atol=1e-12)
        (expected * weight[row]).sum().backward()
        for parameter in net.parameters():
            torch.testing.assert_close(grads[row][id(parameter)], parameter.grad, rtol=1e-11, atol=1e-12)
        net.eval()
        torch.testing.assert_close(quiet[row], net(x[row]), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(quiet[row], expected)
        layer = noisy_layers(net)[0]
        assert layer.noise_in.tolist() == draws[0, row, : layer.in_features].tolist()
    engine.release()
    for net, _ in pairs:
        for layer in noisy_layers(net):
            assert layer.noise_in.untyped_storage().nbytes() == 8 * layer.in_features
