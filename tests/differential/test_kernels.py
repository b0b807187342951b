"""Closed-form kernels against autograd and plain torch modules, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from agilerl.engine.rows.kernels import LayerViews, mlp_backward, mlp_forward
from agilerl.modules.activations import ACTIVATIONS


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
