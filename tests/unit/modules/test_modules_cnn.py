"""The evolvable CNN: sizes, shapes, exact growth, errors, and images as observations of a network."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from agilerl.core.spaces import is_channels_last
from agilerl.errors import ConfigError, ShapeError
from agilerl.modules import CnnNetConfig, EvolvableCNN
from agilerl.modules.cnn import ConvGeometry, centred
from agilerl.modules.morph import RIDGES, best_ridge, refit
from agilerl.networks import QNetwork

TWO = spaces.Discrete(2)
SHAPES = {"Conv1d": (3, 30), "Conv2d": (3, 14, 11), "Conv3d": (2, 11, 12, 11)}


def images(shape: tuple[int, ...], count: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(net: EvolvableCNN, seed: int = 0) -> EvolvableCNN:
    """In float64, with biases of a net that has learned something."""
    g = torch.Generator().manual_seed(seed)
    for p in net.double().parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return net


def error(net: EvolvableCNN, x: torch.Tensor, before: torch.Tensor) -> float:
    return float((net(x) - before).detach().norm() / before.norm())


def test_sizes_follow_the_formula() -> None:
    # The network of Mnih et al. 2015: 84 -> (84 - 8) / 4 + 1 = 20 -> (20 - 4) / 2 + 1 = 9 -> (9 - 3) / 1 + 1 = 7.
    shape = ConvGeometry((84, 84), ((8, 8), (4, 4), (3, 3)), ((4, 4), (2, 2), (1, 1)), ((0, 0),) * 3)
    assert shape.sizes == ((20, 20), (9, 9), (7, 7))
    net = EvolvableCNN((4, 84, 84), 5, [32, 64, 64], [8, 4, 3], [4, 2, 1], random_seed=0)
    assert net.model["linear_output"].weight.shape == (5, 64 * 7 * 7)
    assert centred(5, 7).tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert centred(7, 5).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", SHAPES)
def test_forward_is_convolutions_and_one_dense_layer_with_any_leading_axes(kind: str) -> None:
    shape = SHAPES[kind]
    net = learned(EvolvableCNN(shape, 4, [8, 6], [3, 2], [2, 1], block_type=kind, padding_size=[1, 0], random_seed=0))
    x = images(shape, 6)
    p = dict(net.model.named_parameters())
    convolve = getattr(F, kind.lower())
    y = torch.relu(convolve(x, p["conv_0.weight"], p["conv_0.bias"], stride=2, padding=1))
    y = torch.relu(convolve(y, p["conv_1.weight"], p["conv_1.bias"]))
    expected = F.linear(y.flatten(1), p["linear_output.weight"], p["linear_output.bias"])
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(net(x.reshape(2, 3, *shape)), expected.reshape(2, 3, 4))
    torch.testing.assert_close(net(x[1].numpy()), expected[1:2])


@pytest.mark.parametrize("kind", SHAPES)
def test_exact_growth_is_exact(kind: str) -> None:
    shape = SHAPES[kind]
    net = learned(EvolvableCNN(shape, 4, [16, 16], [3, 2], [2, 1], block_type=kind, random_seed=0))
    x = images(shape)
    for name, arguments in (
        ("add_channel", (0, 8)), ("add_channel", (1, 16)), ("add_layer", ()), ("change_kernel", (4, 1)),
        ("change_kernel", (7, 2)), ("add_channel", (2, 8)), ("add_layer", ()),
    ):  # fmt: skip
        before = net(x).detach()
        getattr(net, name)(*arguments)
        assert net.last_mutation_attr == name
        assert not net.last_refit
        torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    assert len(net.channel_size) == 4
    assert net.kernel_size[1:3] == [4, 7]


def test_a_larger_kernel_is_the_old_one_in_a_ring_of_zeros() -> None:
    net = EvolvableCNN((1, 8, 8), 2, [16, 16], [3, 3], random_seed=0)
    old = net.model["conv_1"].weight.detach().clone()
    net.change_kernel(5, 1)
    new = net.model["conv_1"].weight
    assert torch.equal(new[:, :, 1:4, 1:4], old)
    assert float(new.detach().abs().sum()) == pytest.approx(float(old.abs().sum()))
    assert net.padding_size == [0, 1]
    index = net.last_transfer["model.conv_1.weight"].index
    assert index[2].tolist() == [-1, 0, 1, 2, -1]


def test_what_is_approximate_is_refitted() -> None:
    """Each refitted change costs less than the same change without probe inputs, on images it was not fitted to."""
    x, shape = images((2, 12, 12), 64, seed=5), (2, 12, 12)
    for name, arguments, options in (
        ("remove_channel", (0, 8), {}), ("remove_channel", (1, 8), {}), ("remove_layer", (), {}),
        ("change_kernel", (3, 1), {}), ("add_layer", (), {"activation": "Tanh"}),
        ("add_channel", (1, 8), {"layer_norm": True}),
    ):  # fmt: skip
        net = learned(EvolvableCNN(shape, 3, [24, 24], [3, 5], random_seed=0, **options))  # type: ignore[arg-type]
        before, errors = net(x).detach(), []
        for probe in (images(shape, 64, seed=6), None):
            twin = net.clone()
            twin.probe(probe)
            getattr(twin, name)(*arguments)
            assert twin.last_refit == (probe is not None)
            errors.append(error(twin, x, before))
        assert errors[0] < 0.8 * errors[1], (name, errors)


def test_a_removed_identity_layer_leaves_no_trace() -> None:
    net, x = learned(EvolvableCNN((2, 9, 9), 3, [16, 16], random_seed=0)), images((2, 9, 9))
    before = net(x).detach()
    net.add_layer()
    net.remove_layer()
    torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)


def test_limits_and_fallbacks() -> None:
    net = EvolvableCNN((1, 6, 6), 2, [16], 5, max_channel_size=20, random_seed=0)
    assert [m for m in net.mutation_methods if net.can_apply(m)] == []  # 2 x 2 pixels leave no room for a layer
    assert net.add_channel() == {"hidden_layer": 0, "numb_new_channels": 0}
    assert net.remove_channel(0, 8)["numb_new_channels"] == 0
    net.add_layer()
    assert net.last_mutation_attr is None
    single = EvolvableCNN((1, 12, 12), 2, [32], 3, random_seed=0)
    assert not single.can_apply("change_kernel")
    single.change_kernel()
    assert single.last_mutation_attr == "add_layer"
    assert single.mut_kernel_size == single.kernel_size
    assert EvolvableCNN((1, 12, 12), 2, [24], 3).remove_channel(0, 8) == {"hidden_layer": 0, "numb_new_channels": 8}


def test_published_freshness_draws_unpadded_layers_and_drops_the_last_channels() -> None:
    net = EvolvableCNN((1, 20, 20), 2, [32, 32], random_seed=3)
    net.fresh = "random"
    old = net.model["conv_0"].weight.detach().clone()
    net.remove_channel(0, 8)
    assert torch.equal(net.model["conv_0"].weight, old[:24])
    net.add_layer()
    assert net.padding_size == [0, 0, 0]
    assert net(torch.zeros(1, 1, 20, 20)).shape == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"block_type": "Conv4d"}, "Invalid block type"),
        ({"kernel_size": [(3, 3, 3), 3]}, "have a length of 2"),
        ({"kernel_size": [3]}, "one entry per layer, 2"),
        ({"kernel_size": 9}, r"layer 0 has a kernel of \(9, 9\) for an input of \(8, 8\)"),
        ({"stride_size": 0}, "stride_size of layer 0 must be an integer of at least 1"),
        ({"channel_size": []}, "channel_size must be a non-empty list"),
        ({"block_type": "Conv3d"}, "fix: give sample_input"),
        ({"activation": "Relu"}, "Did you mean 'ReLU'"),
    ],
)
def test_errors_name_the_layer_and_the_fix(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EvolvableCNN((3, 8, 8), 2, **{"channel_size": [16, 16], **arguments})


def test_conv3d_takes_its_depth_from_a_sample() -> None:
    net = EvolvableCNN((2, 8, 8), 3, [16], 3, sample_input=torch.zeros(1, 2, 5, 8, 8), block_type="Conv3d")
    assert net.input_shape == (2, 5, 8, 8)
    assert net.clone()(torch.zeros(4, 2, 5, 8, 8)).shape == (4, 3)
    assert EvolvableCNN(**net.init_dict).spec() == net.spec()


def test_refit_in_the_space_of_rows_equals_refit_in_the_space_of_features() -> None:
    g = torch.Generator().manual_seed(0)
    phi, w = torch.randn(40, 1500, generator=g).double(), torch.randn(3, 1500, generator=g).double()
    target, bias = torch.randn(40, 3, generator=g).double(), torch.zeros(3).double()
    weight, new_bias = refit(phi, target, w, bias, ridge=1e-2)
    centred_phi = phi - phi.mean(0)
    gram = centred_phi.T @ centred_phi
    gram += 1e-2 * gram.diagonal().mean() * torch.eye(1500)
    residual = target - phi @ w.T
    expected = w + torch.linalg.solve(gram, centred_phi.T @ (residual - residual.mean(0))).T
    torch.testing.assert_close(weight, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(new_bias, (target - phi @ expected.T).mean(0), atol=1e-9, rtol=1e-9)


def test_the_ridge_is_weak_where_the_fit_carries_over_and_strong_where_it_does_not() -> None:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).double()

    w, phi = draw(3, 20), draw(400, 20)
    assert best_ridge(phi, phi @ w.T, torch.zeros(3, 20).double(), torch.zeros(3).double()) == RIDGES[0]
    wide = draw(64, 64)  # as many features as rows, and nothing in them
    ridge = best_ridge(wide, draw(64, 3), torch.zeros(3, 64).double(), torch.zeros(3).double())
    assert ridge == RIDGES[-1]
    assert best_ridge(wide[:3], draw(3, 3), torch.zeros(3, 64).double(), torch.zeros(3).double()) == RIDGES[-1]


# -- images as observations ------------------------------------------------------------------------------------------


def test_images_are_divided_by_255_and_turned_to_channels_first() -> None:
    space = spaces.Box(0, 255, (10, 8, 3), dtype=np.uint8)
    net = QNetwork(space, TWO, encoder_config={"channel_size": [16], "kernel_size": 3}, random_seed=0)
    image = np.arange(240, dtype=np.uint8).reshape(10, 8, 3)
    x = net.preprocess(image)
    assert x.shape == (1, 3, 10, 8)
    torch.testing.assert_close(x[0, 2, 4, 5], torch.tensor(image[4, 5, 2] / 255, dtype=torch.float32))
    turned = np.moveaxis(image, -1, 0)  # as a loop with swap_channels hands it over
    torch.testing.assert_close(net.preprocess(turned), x)
    batch = np.stack([image, image[::-1]])
    torch.testing.assert_close(net(batch)[0], net(image)[0])
    assert net(batch[None]).shape == (1, 2, 2)
    with pytest.raises(ShapeError, match=r"built for \(10, 8, 3\)"):
        net(np.zeros((2, 8, 10, 3)))


def test_only_images_of_bytes_are_divided_and_only_if_asked() -> None:
    unit = QNetwork(spaces.Box(0, 1, (3, 8, 8)), TWO, random_seed=0)
    ones = np.ones((3, 8, 8), dtype=np.float32)
    assert unit.preprocess(ones).max() == 1
    floats = QNetwork(spaces.Box(0, 255, (3, 8, 8)), TWO, random_seed=0)
    torch.testing.assert_close(floats.preprocess(ones * 51), torch.full((1, 3, 8, 8), 0.2))
    floats.normalize_images = False
    assert floats.preprocess(ones * 51).max() == 51
    again = QNetwork.from_spec(json.loads(json.dumps(floats.spec())))
    assert not again.normalize_images
    ram = QNetwork(spaces.Box(0, 255, (4,), dtype=np.uint8), TWO, random_seed=0)  # not an image
    assert ram.preprocess(np.full(4, 255, dtype=np.uint8)).max() == 255


@pytest.mark.parametrize(
    ("shape", "last"),
    [((84, 84, 3), True), ((4, 84, 84), False), ((84, 84, 4), True), ((10, 10, 7), True), ((3, 3, 3), False),
     ((7, 7, 3), True), ((64, 20, 20), False), ((28, 28, 1), True)],
)  # fmt: skip
def test_where_the_channels_are(shape: tuple[int, ...], last: bool) -> None:
    assert is_channels_last(spaces.Box(0, 1, shape)) == last


def test_network_on_images_evolves_and_round_trips() -> None:
    space = spaces.Box(0, 255, (12, 12, 3), dtype=np.uint8)
    net = QNetwork(space, TWO, encoder_config=CnnNetConfig([16, 24], [3, 3], [2, 1]), random_seed=0).double()
    assert net.activation == net.encoder.output_activation == "ReLU"
    encoder_methods = [m for m in net.mutation_methods if m.startswith("encoder.")]
    assert encoder_methods == ["encoder.add_channel", "encoder.remove_channel", "encoder.change_kernel"]
    x = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
    before = net(x).detach()
    net.add_latent_node(16)
    net.apply_mutation("encoder.add_channel", 1, 16)
    net.apply_mutation("encoder.change_kernel", 5, 1)
    net.apply_mutation("head_net.add_node", 0, 16)
    torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    net.probe(x)
    net.remove_latent_node(8)
    net.change_activation("ELU")
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec())), random_seed=1).double()
    twin.load_state_dict(net.state_dict())
    torch.testing.assert_close(twin(x), net(x))
    assert twin.spec() == net.spec()
    assert net.describe() == "cnn 16k3 40k5 72 [80]"
    stack = net.dense_stack()
    assert stack is not None
    assert [layer.window is None for layer in stack.layers] == [False, False, True, True, True]
    large = QNetwork(spaces.Box(0, 255, (33, 32, 3), np.uint8), TWO, encoder_config=CnnNetConfig([16], [3], [1]))
    assert large.dense_stack() is None


def test_boxes_of_other_ranks_need_a_word() -> None:
    signal = spaces.Box(-1, 1, (2, 20))
    flat = QNetwork(signal, TWO, random_seed=0)
    assert flat.encoder.num_inputs == 40
    conv = QNetwork(signal, TWO, encoder_config={"block_type": "Conv1d"}, random_seed=0)
    assert conv.encoder.input_shape == (2, 20)
    assert conv(np.zeros((5, 2, 20))).shape == (5, 2)
    video = spaces.Box(0, 255, (3, 5, 9, 9), dtype=np.uint8)
    deep = QNetwork(video, TWO, encoder_config={"block_type": "Conv3d", "channel_size": [16]}, random_seed=0)
    assert deep.preprocess(np.full((3, 5, 9, 9), 255, dtype=np.uint8)).max() == 1
    with pytest.raises(ConfigError, match=r"fix: encoder_config=\{'block_type': 'Conv3d', "):
        QNetwork(video, TWO)
    with pytest.raises(ConfigError, match="EvolvableSimBa reads vectors"):
        QNetwork(spaces.Box(0, 1, (3, 8, 8)), TWO, simba=True)
