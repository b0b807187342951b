"""SimBa: the formula, exact growth, what removal costs, and the network that it encodes for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from agilerl.errors import ConfigError
from agilerl.modules import EvolvableSimBa, SimBaNetConfig
from agilerl.networks import QNetwork

BOX, TWO = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)


def random_net(seed: int = 0, **arguments: object) -> EvolvableSimBa:
    net = EvolvableSimBa(5, 3, 32, 2, random_seed=seed, **arguments).double()  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters():  # biases and scales of a net that has learned something
        p.data += 0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return net


def test_forward_is_the_papers_formula() -> None:
    net, x = random_net(), torch.randn(7, 5, dtype=torch.float64)
    p = {name: parameter.detach() for name, parameter in net.model.named_parameters()}
    z = x @ p["linear_input.weight"].T + p["linear_input.bias"]
    for k in range(2):
        y = F.layer_norm(z, (32,), p[f"block_{k}_norm.weight"], p[f"block_{k}_norm.bias"], 128e-5 / 32)
        y = torch.relu(y @ p[f"block_{k}_linear_0.weight"].T + p[f"block_{k}_linear_0.bias"])
        assert y.shape == (7, 128)
        z = z + y @ p[f"block_{k}_linear_1.weight"].T + p[f"block_{k}_linear_1.bias"]
    z = F.layer_norm(z, (32,), p["norm_output.weight"], p["norm_output.bias"], 128e-5 / 32)
    torch.testing.assert_close(net(x), z @ p["linear_output.weight"].T + p["linear_output.bias"])


def test_growth_is_exact_and_the_new_parts_learn() -> None:
    net, x = random_net(), torch.randn(64, 5, dtype=torch.float64)
    for method, arguments in (("add_node", (16,)), ("add_block", ()), ("add_node", (64,)), ("add_block", ())):
        before = net(x).detach()
        getattr(net, method)(*arguments)
        torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    assert (net.hidden_size, net.num_blocks) == (112, 4)
    net(x).pow(2).sum().backward()
    assert net.model["linear_input"].weight.grad[-1].any()
    assert net.model["block_3_linear_1"].weight.grad.any()


def test_published_freshness_changes_the_function() -> None:
    net, x = random_net(), torch.randn(64, 5, dtype=torch.float64)
    net.fresh = "random"
    before = net(x).detach()
    net.add_block()
    assert (net(x) - before).norm() > 0.1 * before.norm()


def test_removal_takes_the_least_important_units_and_refits() -> None:
    ratios = []
    for seed in range(5):
        net, x = random_net(seed), torch.randn(256, 5, dtype=torch.float64)
        net.add_node(64)
        before = net(x).detach()
        errors = []
        for refits in (True, False):
            twin = net.clone()
            if refits:
                twin.probe(torch.randn(256, 5, dtype=torch.float64))
            twin.remove_node(32)
            assert twin.hidden_size == 64
            errors.append(float((twin(x) - before).detach().norm() / before.norm()))
        ratios.append(errors[0] / errors[1])
    assert max(ratios) < 0.8


def test_limits_hold_and_are_reported() -> None:
    net = EvolvableSimBa(5, 3, 24, 1, max_blocks=1, max_mlp_nodes=32, random_seed=0)
    assert not any(net.can_apply(m) for m in net.mutation_methods)
    assert set(net.mutation_methods) == {"add_block", "remove_block", "add_node", "remove_node"}
    assert net.add_node() == {"numb_new_nodes": 0}
    net.add_block()
    net.remove_block()
    assert net.last_mutation_attr is None
    with pytest.raises(ConfigError, match="hidden_size of EvolvableSimBa"):
        EvolvableSimBa(5, 3, [64])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limits of blocks"):
        EvolvableSimBa(5, 3, min_blocks=3, max_blocks=2)


def test_network_with_simba_and_its_round_trip() -> None:
    net = QNetwork(BOX, TWO, simba=True, random_seed=0)
    assert isinstance(net.encoder, EvolvableSimBa)
    assert (net.encoder.hidden_size, net.encoder.num_blocks) == (128, 2)
    assert net.encoder.output_activation == "ReLU" == net.activation
    assert net.describe() == "simba 128x2 64 [64]"
    assert [m for m in net.mutation_methods if m.startswith("encoder")] == ["encoder.add_node", "encoder.remove_node"]
    net.apply_mutation("encoder.add_node", 16)
    net.add_latent_node(8)
    net.change_activation("Tanh")
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec())), random_seed=1)
    assert twin.spec() == net.spec()
    twin.load_state_dict(net.state_dict())
    x = torch.randn(6, 4)
    torch.testing.assert_close(twin(x), net(x))
    typed = QNetwork(BOX, TWO, encoder_config=SimBaNetConfig(64, 1), random_seed=0)
    assert typed.encoder.short() == "simba 64x1"
    with pytest.raises(ConfigError, match="Did you mean 'num_blocks'"):
        QNetwork(BOX, TWO, encoder_config={"num_block": 1}, simba=True)


def test_latent_growth_of_a_simba_network_is_exact() -> None:
    net, x = QNetwork(BOX, TWO, simba=True, random_seed=0).double(), torch.randn(9, 4).double()
    before = net(x).detach()
    net.add_latent_node(16)
    torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    assert net.last_transfer["encoder.model.linear_output.weight"].shape == (80, 128)
