"""The evolvable MLP: construction, names, what is removed, and when it is still plain."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError
from agilerl.modules import EvolvableMLP
from agilerl.modules.layers import NoisyLinear, init_linear


def test_same_seed_gives_the_same_net_and_torch_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    a, b, c = (EvolvableMLP(3, 2, [8, 8], random_seed=s) for s in (5, 5, 6))
    a.add_node(0, 16)
    b.add_node(0, 16)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.model.linear_0.weight[:8], c.model.linear_0.weight)
    d, e = EvolvableMLP(3, 2, [8]), EvolvableMLP(3, 2, [8])
    assert not torch.equal(d.model.linear_0.weight, e.model.linear_0.weight)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 8), (8, 1), (16, 16)])
def test_initial_weights_are_those_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    ours, theirs = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = torch.nn.init.orthogonal_(torch.empty(*shape), 2.0, generator=theirs)
    torch.testing.assert_close(init_linear(*shape, ours, gain=2.0), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.thorough
def test_initial_weights_do_not_depend_on_the_processor() -> None:
    """MKL rounds differently with other vector instructions; a seed must have the same weights with all of them."""
    script = (
        "from agilerl.modules.mlp import EvolvableMLP\n"
        "net = EvolvableMLP(33, 65, [64, 127], random_seed=1)\n"
        "print(b''.join(p.detach().numpy().tobytes() for p in net.parameters()).hex())"
    )
    net = EvolvableMLP(33, 65, [64, 127], random_seed=1)
    here = b"".join(p.detach().numpy().tobytes() for p in net.parameters()).hex()
    for instructions in ("AVX2", "SSE4_2"):
        environment = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": instructions}
        found = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == here, instructions


def test_initial_weights_are_orthogonal_and_the_output_starts_small() -> None:
    net = EvolvableMLP(16, 4, [8], random_seed=0)
    gram = net.model.linear_0.weight @ net.model.linear_0.weight.T
    torch.testing.assert_close(gram, 2 * torch.eye(8), atol=1e-5, rtol=0)
    out = net.model.linear_output.weight
    torch.testing.assert_close(out @ out.T, 0.02 * torch.eye(4), atol=1e-5, rtol=0)
    assert not net.model.linear_0.bias.any()
    default = EvolvableMLP(16, 4, [8], init_layers=False, random_seed=0)
    assert 0.15 < default.model.linear_0.weight.abs().max() <= 0.25
    assert default.model.linear_0.bias.any()


def test_sizes_beyond_the_limits_are_accepted_at_the_start() -> None:
    net = EvolvableMLP(3, 2, [8] * 7, random_seed=0)
    assert net(torch.zeros(5, 3)).shape == (5, 2)
    net.remove_layer()
    assert net.hidden_size == [8] * 6


@pytest.mark.parametrize("bad", [[], [0], "64", 64])
def test_bad_widths_are_named(bad: object) -> None:
    with pytest.raises(ConfigError, match="hidden_size must be"):
        EvolvableMLP(3, 2, bad)  # type: ignore[arg-type]


def test_add_layer_keeps_all_names_and_entries() -> None:
    net = EvolvableMLP(3, 2, [40, 48], random_seed=0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.add_layer()
    assert net.hidden_size == [40, 48, 48]
    assert set(net.state_dict()) - set(before) == {"model.linear_2.weight", "model.linear_2.bias"}
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())


def test_the_least_important_units_go_first() -> None:
    net = EvolvableMLP(3, 2, [48], random_seed=0)
    dead = [1, 5, 7, 12, 13, 14, 15, 20, 21, 33, 34, 40]
    with torch.no_grad():
        net.model.linear_0.bias[dead] = -100.0  # never active, though their weights are the largest
        net.model.linear_0.weight[dead] *= 3
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    before = net(x)
    net.probe(x)
    net.remove_node(0, 12)
    kept = net.last_transfer["model.linear_0.weight"].index[0].tolist()
    assert not set(kept) & set(dead)
    assert kept == sorted(kept)
    torch.testing.assert_close(net(x), before, atol=1e-5, rtol=0)


def test_published_removal_drops_the_last_units() -> None:
    net = EvolvableMLP(3, 2, [64], random_seed=0)
    net.fresh = "random"
    old = net.model.linear_output.weight.clone()
    net.remove_node(0, 16)
    assert torch.equal(net.model.linear_output.weight, old[:, :48])


def test_growth_under_published_freshness_changes_the_function() -> None:
    net = EvolvableMLP(3, 2, [64], random_seed=0)
    x = torch.randn(16, 3)
    before = net(x)
    net.fresh = "random"
    net.add_layer()
    assert (net(x) - before).norm() > 0.3 * before.norm()


def test_drawn_amount_falls_to_what_the_limit_allows() -> None:
    class Largest:
        def choice(self, a: list[int], size: object = None, replace: bool = True, p: object = None) -> list[int]:
            return [a[-1]]

        def integers(self, low: int, high: int) -> int:
            return low

    net = EvolvableMLP(3, 2, [32, 64], random_seed=0)
    net.rng = Largest()
    assert net.remove_node() == {"hidden_layer": 1, "numb_new_nodes": 16}
    assert net.hidden_size == [32, 48]


def test_dense_stack_computes_the_same_and_holds_the_live_parameters() -> None:
    net = EvolvableMLP(3, 2, [8, 9], layer_norm=True, output_activation="Tanh", random_seed=0)
    stack = net.dense_stack()
    assert stack is not None
    assert [(layer.in_features, layer.out_features, layer.activation, layer.layer_norm) for layer in stack.layers] == [
        (3, 8, "ReLU", True), (8, 9, "ReLU", True), (9, 2, "Tanh", False),
    ]  # fmt: skip
    assert stack.parameters[0][0] is net.model.linear_0.weight
    assert stack.parameters[1][3] is net.model.norm_1.bias


class Scaled(EvolvableMLP):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_anything_added_makes_a_net_not_plain() -> None:
    def fresh() -> EvolvableMLP:
        return EvolvableMLP(3, 2, [8], random_seed=0)

    assert fresh().dense_stack() is not None
    assert Scaled(3, 2, [8], random_seed=0).dense_stack() is None
    assert EvolvableMLP(3, 2, [8], output_activation="Softmax", random_seed=0).dense_stack() is None
    for change in (
        lambda n: n.model.linear_0.register_forward_hook(lambda *a: None),
        lambda n: n.register_full_backward_hook(lambda *a: None),
        lambda n: setattr(n, "extra", nn.Parameter(torch.zeros(1))),
        lambda n: nn.utils.parametrizations.weight_norm(n.model.linear_0),
        lambda n: n.model.linear_0.double(),
        lambda n: setattr(n.model, "linear_0", nn.Linear(3, 8)) or n.model.linear_0.register_buffer("b", torch.ones(1)),
        lambda n: setattr(n, "forward", lambda x: x),
        lambda n: n.model.linear_0.requires_grad_(False),
    ):
        net = fresh()
        change(net)
        assert net.dense_stack() is None


def test_noisy_layers_are_noisy_in_training_only_and_grow_exactly() -> None:
    net = EvolvableMLP(3, 2, [32], noisy=True, output_vanish=False, random_seed=0)
    assert isinstance(net.model.linear_0, NoisyLinear)
    x = torch.randn(4, 3)
    net.reset_noise()
    assert not torch.allclose(net.train()(x), net.eval()(x))
    before = net(x)
    net.add_node(0, 16)
    torch.testing.assert_close(net(x), before)
    assert not net.model.linear_output.weight_sigma[:, 32:].any()
    assert set(net.last_transfer) >= {"model.linear_0.weight_sigma", "model.linear_output.weight_sigma"}


def test_numpy_input_and_any_leading_axes() -> None:
    net = EvolvableMLP(3, 2, [8], random_seed=0)
    x = torch.randn(4, 5, 3)
    torch.testing.assert_close(net(x)[1, 2:3], net(x[1, 2].numpy()))
