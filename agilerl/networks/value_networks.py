"""State values, and the learned temperature of maximum-entropy methods."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.core.ranges import Positive, check
from agilerl.modules.base import EvolvableModule, is_untouched
from agilerl.modules.layers import DenseLayer, DenseStack
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options


class ValueNetwork(EvolvableNetwork):
    """V(s): observations [..., O] -> values [..., 1]. Arguments as `EvolvableNetwork`."""

    @takes_options("observation_space", *BY_POSITION)
    def __init__(self, observation_space: spaces.Space[Any], options: NetworkOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(observation_space, **vars(options))
        self.build_head(1)


class Temperature(EvolvableModule):
    """log α, one learned number, as a dense layer without inputs, so that it is stacked in rows like any network.
    initial: initial α, above 0."""

    def __init__(
        self, initial: float = 1.0, device: str | torch.device = "cpu", random_seed: int | None = None
    ) -> None:
        super().__init__(device, random_seed)
        check("initial", initial, Positive, 1.0, unit="the temperature to begin with")
        self.initial = float(initial)
        self.weight = nn.Parameter(torch.empty(1, 0, device=device))
        self.bias = nn.Parameter(torch.full((1,), math.log(initial), device=device))

    def forward(self, nothing: Tensor | None = None) -> Tensor:
        """Return log α [..., 1] for inputs [..., 0]; [1] without inputs."""
        if nothing is None:
            nothing = self.weight.new_empty(0)
        return F.linear(nothing, self.weight, self.bias)

    @property
    def alpha(self) -> float:
        """Current α."""
        return math.exp(float(self.bias.detach()))

    def dense_stack(self) -> DenseStack | None:
        if type(self).forward is not Temperature.forward or not is_untouched(self):
            return None
        return DenseStack((DenseLayer(0, 1),), ((self.weight, self.bias),))
