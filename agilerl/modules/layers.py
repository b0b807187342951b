"""Layers and activations as functions, with or without a leading member axis, and as `nn.Module` classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Activation:
    """One activation function.

    Attributes:
        function: tensor to tensor, elementwise unless `pointwise` is False.
        module: the `nn.Module` class that computes the same; made without arguments.
        zero_at_zero: True if f(0) = 0, so that a unit whose weights are all zero is exactly absent.
        derivative: f'(x) from (x, f(x)) where it is cheaper than autograd, else None.
        pointwise: False for functions over the last axis; those are allowed at the output only.
    """

    function: Callable[[Tensor], Tensor]
    module: Callable[[], nn.Module]
    zero_at_zero: bool
    derivative: Callable[[Tensor, Tensor], Tensor] | None = None
    pointwise: bool = True


def _softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def _log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, dim=-1)


def _gelu_derivative(x: Tensor, _: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


def _silu_derivative(x: Tensor, y: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate + y * (1 - gate)


ACTIVATIONS: dict[str, Activation] = {
    "ReLU": Activation(F.relu, nn.ReLU, True, lambda x, y: (x > 0).to(x.dtype)),
    "ELU": Activation(F.elu, nn.ELU, True, lambda x, y: torch.where(x > 0, torch.ones_like(x), y + 1)),
    "GELU": Activation(F.gelu, nn.GELU, True, _gelu_derivative),
    "SiLU": Activation(F.silu, nn.SiLU, True, _silu_derivative),
    "Mish": Activation(F.mish, nn.Mish, True),
    "Tanh": Activation(torch.tanh, nn.Tanh, True, lambda x, y: 1 - y * y),
    "LeakyReLU": Activation(F.leaky_relu, nn.LeakyReLU, True, lambda x, y: torch.where(x > 0, 1.0, 0.01).to(x.dtype)),
    "Sigmoid": Activation(torch.sigmoid, nn.Sigmoid, False, lambda x, y: y * (1 - y)),
    "Softplus": Activation(F.softplus, nn.Softplus, False, lambda x, y: torch.sigmoid(x)),
    "Softsign": Activation(F.softsign, nn.Softsign, True, lambda x, y: (1 + x.abs()).pow(-2)),
    "Identity": Activation(lambda x: x, nn.Identity, True, lambda x, y: torch.ones_like(x)),
    "Softmax": Activation(_softmax, lambda: nn.Softmax(dim=-1), False, pointwise=False),
    "LogSoftmax": Activation(_log_softmax, lambda: nn.LogSoftmax(dim=-1), False, pointwise=False),
}


def activation(name: str | None, *, hidden: bool = False) -> Activation:
    """The entry of `name`; None is the identity.

    Args:
        name: exact name, e.g. "ReLU".
        hidden: True where the activation stands between layers and must be elementwise.

    Raises:
        ConfigError: the name is unknown, or names an output activation where a hidden one is needed.
    """
    name = "Identity" if name is None else name
    known = [k for k, a in ACTIVATIONS.items() if a.pointwise or not hidden]
    if name not in known:
        if name in ACTIVATIONS:
            raise ConfigError(f"activation {name!r} works at the output only; hidden layers take {', '.join(known)}")
        raise ConfigError(unknown_name("activation", str(name), known))
    return ACTIVATIONS[name]


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Affine map, for one member or for a stack of members.

    Args:
        x: [..., I], or [N, B, I] where `weight` has a member axis.
        weight: [O, I] or [N, O, I].
        bias: [O] or [N, O], or None.

    Returns:
        [..., O] or [N, B, O].
    """
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016, arXiv:1607.06450), affine, per member.

    Args:
        x: [..., H], or [N, B, H] where `weight` has a member axis.
        weight, bias: [H] or [N, H].
        eps: added to the variance; 1e-5 is torch's default.
    """
    if weight.dim() == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    normed = F.layer_norm(x, x.shape[-1:], None, None, eps)
    return torch.addcmul(bias.unsqueeze(1), normed, weight.unsqueeze(1))


class Linear(nn.Linear):
    """`nn.Linear` whose weights start unset: the owner draws them from its own generator, never from torch's."""

    def reset_parameters(self) -> None:
        """Draw nothing: `init_linear` fills the weights."""


def init_linear(
    rows: int, columns: int, generator: torch.Generator, *, orthogonal: bool = True, gain: float = math.sqrt(2)
) -> Tensor:
    """Fresh weights [rows, columns] in float32 on the CPU.

    Orthogonal with `gain` (Saxe et al. 2014, arXiv:1312.6120), or torch's default for `nn.Linear`
    (uniform within 1/sqrt(columns)), in which case `gain` is not used.
    """
    weight = torch.empty(rows, columns)
    if weight.numel() == 0:
        return weight
    if orthogonal:
        return nn.init.orthogonal_(weight, gain, generator=generator)
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
