"""The residual network: its formula, exact growth, removal, and how a network chooses it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from agilerl.errors import ConfigError
from agilerl.modules import EvolvableResNet, ResNetNetConfig
from agilerl.networks import QNetwork

IMAGE, TWO = spaces.Box(0, 255, (11, 12, 3), dtype=np.uint8), spaces.Discrete(2)


def learned(seed: int = 0, **arguments: int) -> EvolvableResNet:
    net = EvolvableResNet((3, 11, 12), 4, 16, random_seed=seed, **arguments).double()
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return net


def images(count: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 11, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_forward_is_the_formula() -> None:
    net, x = learned(), images()
    p = dict(net.model.named_parameters())

    def conv(name: str, y: torch.Tensor, **options: int) -> torch.Tensor:
        return F.conv2d(y, p[f"{name}.weight"], p[f"{name}.bias"], **options)

    z = conv("conv_input", x, stride=2)
    assert z.shape == (6, 16, 5, 5)
    for k in range(2):
        y = conv(f"block_{k}_conv_0", torch.relu(z), padding=1)
        z = z + conv(f"block_{k}_conv_1", torch.relu(y), padding=1)
    expected = F.linear(torch.relu(z).flatten(1), p["linear_output.weight"], p["linear_output.bias"])
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(net(x.reshape(2, 3, 3, 11, 12)), expected.reshape(2, 3, 4))


def test_growth_is_exact_and_the_new_parts_learn() -> None:
    net, x = learned(), images()
    before = net(x).detach()
    net.add_block()
    net.add_channel(8)
    net.add_block()
    net.add_channel(16)
    torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    assert (net.channel_size, net.num_blocks, net.last_refit) == (40, 4, False)
    net(x).square().sum().backward()
    assert net.model["block_3_conv_1"].weight.grad.any()
    assert net.model["linear_output"].weight.grad.reshape(4, 40, -1)[:, 16:].any()


def error(net: EvolvableResNet, method: str, argument: tuple[int, ...], probe: torch.Tensor | None) -> float:
    twin, x = net.clone(), images(40, 1)
    twin.probe(probe)
    getattr(twin, method)(*argument)
    assert twin.last_mutation_attr == method
    return float((twin(x) - net(x)).detach().norm() / net(x).detach().norm())


@pytest.mark.parametrize(("method", "argument"), [("remove_channel", (8,)), ("remove_block", ())])
def test_removal_is_refitted(method: str, argument: tuple[int, ...]) -> None:
    ratios = []
    for seed in range(4):
        net = EvolvableResNet((3, 11, 12), 4, 32, random_seed=seed).double()
        ratios.append(error(net, method, argument, images(256, 2)) / error(net, method, argument, None))
    assert max(ratios) < 0.8


def test_channels_that_nothing_reads_go_first() -> None:
    dead = [0, 5, 6, 11, 17, 18, 30, 31]  # after Tanh no other channel is silent on the probe images
    net = EvolvableResNet((3, 11, 12), 4, 32, activation="Tanh", random_seed=0).double()
    with torch.no_grad():
        net.model["linear_output"].weight.view(4, 32, -1)[:, dead] = 0
        for k in range(2):
            for i in range(2):
                net.model[f"block_{k}_conv_{i}"].weight[:, dead] = 0
    assert error(net, "remove_channel", (8,), None) < 1e-12
    assert error(net, "remove_channel", (8,), images(64, 2)) < 1e-12


def test_limits() -> None:
    net = EvolvableResNet((3, 11, 12), 4, 20, num_blocks=1, max_blocks=1, max_channel_size=24)
    assert not any(net.can_apply(m) for m in net.mutation_methods)
    assert net.add_channel() == {"numb_new_channels": 0}
    with pytest.raises(ConfigError, match="layer 0 has a kernel of"):
        EvolvableResNet((3, 4, 4), 2, kernel_size=5)


def test_how_a_network_chooses_it_and_round_trips() -> None:
    for config in (ResNetNetConfig(16, num_blocks=1), {"channel_size": 16, "num_blocks": 1}):
        net = QNetwork(IMAGE, TWO, encoder_config=config, random_seed=0)
        assert net.describe() == "resnet 16x1 64 [64]"
    assert isinstance(QNetwork(IMAGE, TWO, encoder_cls=EvolvableResNet).encoder, EvolvableResNet)
    net.apply_mutation("encoder.add_channel", 8)
    net.add_latent_node(8)
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec())))
    assert twin.spec() == net.spec()
    twin.load_state_dict(net.state_dict())
    x = np.random.default_rng(0).integers(0, 256, (4, 11, 12, 3), dtype=np.uint8)
    torch.testing.assert_close(twin(x), net(x))
    with pytest.raises(ConfigError, match="EvolvableResNet reads images"):
        QNetwork(spaces.Box(-1, 1, (4,)), TWO, encoder_config=ResNetNetConfig())
