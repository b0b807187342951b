"""Activations by name, with closed-form derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.errors import ConfigError, unknown_choice

Map = Callable[[Tensor], Tensor]
Gradient = Callable[[Tensor, Tensor], Tensor]
aten = torch.ops.aten
softmax, log_softmax = partial(F.softmax, dim=-1), partial(F.log_softmax, dim=-1)


def _not_elementwise(grad: Tensor, _: Tensor) -> Tensor:
    raise TypeError("only elementwise activations have a closed-form backward")


@dataclass(frozen=True)
class Activation:
    """One activation function.

    Attributes:
        function: tensor to tensor, elementwise unless `pointwise` is False.
        module: the equivalent `nn.Module` class, constructed without arguments.
        zero_at_zero: True if f(0) = 0, so that a zero-padded unit stays exactly zero.
        in_place: like `function`, but may overwrite its argument.
        backward: (gradient of the output, saved tensor) -> gradient of the input; the saved tensor is the input if
            `needs_input`, else the output.
        pointwise: False for functions over the last axis; those are only allowed at the output.
    """

    function: Map
    module: Callable[[], nn.Module]
    zero_at_zero: bool
    in_place: Map
    backward: Gradient = _not_elementwise
    needs_input: bool = False
    pointwise: bool = True


def _of_input(function: Map, module: Callable[[], nn.Module], zero_at_zero: bool, backward: Gradient) -> Activation:
    return Activation(function, module, zero_at_zero, function, backward, needs_input=True)


ACTIVATIONS: dict[str, Activation] = {
    "ReLU": Activation(F.relu, nn.ReLU, True, torch.relu_, partial(aten.threshold_backward, threshold=0)),
    "ELU": Activation(F.elu, nn.ELU, True, F.elu_, lambda g, y: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y)),
    "GELU": _of_input(F.gelu, nn.GELU, True, aten.gelu_backward),
    "SiLU": _of_input(F.silu, nn.SiLU, True, aten.silu_backward),
    "Mish": _of_input(F.mish, nn.Mish, True, aten.mish_backward),
    "Tanh": Activation(torch.tanh, nn.Tanh, True, torch.tanh_, aten.tanh_backward),
    "LeakyReLU": Activation(
        F.leaky_relu, nn.LeakyReLU, True, F.leaky_relu_, lambda g, y: aten.leaky_relu_backward(g, y, 0.01, True)
    ),
    "Sigmoid": Activation(torch.sigmoid, nn.Sigmoid, False, torch.sigmoid_, aten.sigmoid_backward),
    "Softplus": _of_input(F.softplus, nn.Softplus, False, lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0)),
    "Softsign": _of_input(F.softsign, nn.Softsign, True, lambda g, x: g / (1 + x.abs()).square()),
    "Identity": Activation(lambda x: x, nn.Identity, True, lambda x: x, lambda g, y: g),
    "Softmax": Activation(softmax, partial(nn.Softmax, dim=-1), False, softmax, pointwise=False),
    "LogSoftmax": Activation(log_softmax, partial(nn.LogSoftmax, dim=-1), False, log_softmax, pointwise=False),
}


def activation(name: str | None, *, hidden: bool = False) -> Activation:
    """Return the activation `name`; None is the identity.

    Args:
        name: exact name, e.g. "ReLU".
        hidden: True for an activation between layers, which must be elementwise.

    Raises:
        ConfigError: unknown name, or an output activation where a hidden one is required.
    """
    name = "Identity" if name is None else name
    valid_names = [k for k, a in ACTIVATIONS.items() if a.pointwise or not hidden]
    if name not in valid_names:
        if name in ACTIVATIONS:
            raise ConfigError(f"{name!r} is for outputs; hidden layers take {', '.join(valid_names)}. fix: ReLU.")
        if name == "GumbelSoftmax":
            raise ConfigError(
                "activation 'GumbelSoftmax' draws noise in every pass, which networks here do not. "
                "fix: 'Softmax', or a custom network with agilerl.modules.custom_components.GumbelSoftmax."
            )
        raise ConfigError(unknown_choice("activation", str(name), valid_names))
    return ACTIVATIONS[name]
