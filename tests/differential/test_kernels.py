"""Closed-form kernels against autograd and plain torch modules, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from agilerl.engine.rows.kernels import LayerViews, mlp_backward, mlp_forward
from agilerl.modules.activations import ACTIVATIONS
from agilerl.modules.layers import Window


def torch_layers(sizes: list[int], activation: str | None, norm: bool, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        modules.append(nn.Linear(fan_in, fan_out))
        if i < len(sizes) - 2:
            if norm:
                layer = nn.LayerNorm(fan_out)
                nn.init.normal_(layer.weight)
                nn.init.normal_(layer.bias)
                modules.append(layer)
            if activation:
                modules.append(getattr(nn, activation)())
    return nn.Sequential(*modules).double()


def views(nets: list[nn.Sequential], activation: str | None, width: int) -> list[LayerViews]:
    """Zero-padded copies of several networks' parameters; hidden layers padded to `width`."""
    linears = [[m for m in net if isinstance(m, nn.Linear)] for net in nets]
    norms = [[m for m in net if isinstance(m, nn.LayerNorm)] for net in nets]
    layers = []
    depth = len(linears[0])
    for i in range(depth):
        fan_in = linears[0][0].in_features if i == 0 else width
        last = i == depth - 1
        fan_out = linears[0][-1].out_features if last else width
        weight = torch.zeros(len(nets), fan_out, fan_in, dtype=torch.float64)
        bias = torch.zeros(len(nets), fan_out, 1, dtype=torch.float64)
        scale, shift = torch.zeros_like(bias), torch.zeros_like(bias)
        mask = torch.zeros_like(bias)
        count = torch.zeros(len(nets), 1, 1, dtype=torch.float64)
        for n, own in enumerate(linears):
            out, inn = own[i].weight.shape
            mask[n, :out, 0], count[n] = 1, out
            weight[n, :out, :inn], bias[n, :out, 0] = own[i].weight.detach(), own[i].bias.detach()
            if norms[n] and not last:
                scale[n, :out, 0] = norms[n][i].weight.detach()
                shift[n, :out, 0] = norms[n][i].bias.detach()
        padded = bool((mask == 0).any())
        has_norm = bool(norms[0]) and not last
        layers.append(
            LayerViews(
                weight,
                bias,
                scale if has_norm else None,
                shift if has_norm else None,
                ACTIVATIONS[activation] if activation and not last else None,
                mask if padded else None,
                (mask / count).mT if has_norm else None,
            )
        )
    return layers


def unpack(layers: list[LayerViews], parts: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The gradients layer by layer: weight [N, out, in], bias and (with LayerNorm) its weight and bias [N, out]."""
    rest, blocks = list(parts), []
    for layer in layers:
        size = 2 if layer.norm_weight is None else 4
        block, rest = rest[:size], rest[size:]
        blocks.append([block[0].view(layer.weight.shape), *block[1:]])
    assert not rest
    return blocks


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", [*(name for name, a in ACTIVATIONS.items() if a.pointwise), None])
def test_stack_equals_each_network_alone_in_outputs_and_gradients(activation: str | None, norm: bool) -> None:
    nets = [torch_layers([5, w, w + 3, 2], activation, norm, seed) for seed, w in enumerate((7, 16, 11))]
    layers = views(nets, activation, 19)
    x = torch.randn(3, 33, 5, dtype=torch.float64)
    weight = torch.randn(3, 33, 2, dtype=torch.float64)
    out, saved = mlp_forward(layers, x, save=True)
    parts, dx = mlp_backward(layers, saved, weight, inputs=True)
    assert dx is not None
    grads = unpack(layers, parts)
    for n, net in enumerate(nets):
        own = x[n].clone().requires_grad_()
        expected = net(own)
        (expected * weight[n]).sum().backward()
        torch.testing.assert_close(out[n], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dx[n], own.grad, rtol=1e-11, atol=1e-12)
        linears = [m for m in net if isinstance(m, nn.Linear)]
        norms = [m for m in net if isinstance(m, nn.LayerNorm)]
        for i, linear in enumerate(linears):
            o, k = linear.weight.shape
            torch.testing.assert_close(grads[i][0][n, :o, :k], linear.weight.grad, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(grads[i][1][n, :o], linear.bias.grad, rtol=1e-11, atol=1e-12)
            assert not grads[i][0][n, o:].any(), "gradient leaked into padded units"
            assert not grads[i][0][n, :, k:].any(), "gradient leaked into padded inputs"
            assert not grads[i][1][n, o:].any()
            if i < len(norms):
                torch.testing.assert_close(grads[i][2][n, :o], norms[i].weight.grad, rtol=1e-11, atol=1e-12)
                torch.testing.assert_close(grads[i][3][n, :o], norms[i].bias.grad, rtol=1e-11, atol=1e-12)
                assert not grads[i][2][n, o:].any()
                assert not grads[i][3][n, o:].any()
    nothing, same = mlp_backward(layers, saved, weight, parameters=False, inputs=True)
    assert not nothing
    assert torch.equal(same, dx)


@pytest.mark.parametrize("norm", [False, True])
def test_inputs_shared_by_several_columns_equal_their_copies(norm: bool) -> None:
    """Three actions of two numbers beside each of four rows of features, as CQL evaluates them."""
    nets = [torch_layers([5, w, 6, 1], "Tanh", norm, seed) for seed, w in enumerate((7, 9))]
    layers = views(nets, "Tanh", 11)
    features, actions = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 12, 2, dtype=torch.float64)
    weight = torch.randn(2, 12, 1, dtype=torch.float64)
    together, saved = mlp_forward(layers, features, True, True, actions)
    parts, (of_features, of_actions) = mlp_backward(layers, saved, weight, inputs=True)
    copies = torch.cat((features.repeat(1, 3, 1), actions), -1)
    alone, kept = mlp_forward(layers, copies, True)
    expected, of_inputs = mlp_backward(layers, kept, weight, inputs=True)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(parts, expected, strict=True):
        torch.testing.assert_close(mine.flatten(1), theirs.flatten(1), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(of_actions, of_inputs[..., 3:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(of_features, of_inputs[..., :3].unflatten(1, (3, 4)).sum(1), rtol=1e-11, atol=1e-12)


def test_a_convolution_of_ones_sums_each_patch() -> None:
    """The image 0..8 under a kernel of four ones: 0+1+3+4, 1+2+4+5, 3+4+6+7, 4+5+7+8; pixel 4 is in all four sums."""
    ones, zero = torch.ones(1, 1, 4), torch.zeros(1, 1, 1)
    layer = LayerViews(ones, zero, None, None, None, window=Window(1, (3, 3), (2, 2), (1, 1), (0, 0)))
    output, saved = mlp_forward([layer], torch.arange(9.0).view(1, 1, 9), save=True)
    assert output.flatten().tolist() == [8, 12, 20, 24]
    (of_weight, of_bias), of_image = mlp_backward([layer], saved, torch.ones(1, 1, 4), inputs=True)
    assert of_image.flatten().tolist() == [1, 2, 1, 2, 4, 2, 1, 2, 1]
    assert of_weight.flatten().tolist() == [8, 12, 20, 24]
    assert of_bias.flatten().tolist() == [4]


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
def test_two_convolutions_equal_each_network_alone_in_outputs_and_gradients(
    stride: tuple[int, int], padding: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    pairs = [(nn.Conv2d(3, 4, (3, 2), stride, padding), nn.Conv2d(4, 5, 2, 1, padding)) for _ in range(2)]
    nets = [nn.Sequential(first, nn.Tanh(), second).double() for first, second in pairs]
    images = torch.randn(2, 6, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([net(x) for net, x in zip(nets, images, strict=True)])
    grad = torch.randn_like(expected)
    (expected * grad).sum().backward()
    layers, size = [], (9, 8)
    for k, act in ((0, ACTIVATIONS["Tanh"]), (2, None)):
        convolutions = [net[k] for net in nets]
        weight = torch.stack([c.weight.detach() for c in convolutions]).flatten(2)
        bias = torch.stack([c.bias.detach() for c in convolutions]).unsqueeze(2)
        one = convolutions[0]
        window = Window(one.in_channels, size, one.kernel_size, one.stride, one.padding)
        layers.append(LayerViews(weight, bias, None, None, act, window=window))
        size = one(torch.zeros(1, one.in_channels, *size).double()).shape[2:]
    output, saved = mlp_forward(layers, images.detach().flatten(2), save=True)
    parts, of_images = mlp_backward(layers, saved, grad.flatten(2), inputs=True)
    assert images.grad is not None
    torch.testing.assert_close(output, expected.flatten(2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_images, images.grad.flatten(2), rtol=1e-11, atol=1e-12)
    for part, parameters in zip(parts, zip(*(net.parameters() for net in nets), strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack([p.grad.flatten() for p in parameters]), rtol=1e-11, atol=1e-12)
