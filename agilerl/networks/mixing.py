"""The mixing network of QMIX: one value of a team from the values of its agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.core.tree import Tree
from agilerl.modules.layers import DenseStack
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options
from agilerl.networks.stacks import dense_stacks, overrides


def monotonic_mix(values: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Q_tot = |w₂|ᵀ elu(|W₁| q + b₁) + b₂ [..., B], increasing in every q (eq. 5 of arXiv:1803.11485).

    Rashid et al. 2018, section 4: weights of the mixing network are non-negative, biases are not restricted.

    Args:
        values: [..., B, M], q of each agent.
        weights: [..., B, H·(M + 2)] of H mixing units: W₁ agent by agent, b₁, w₂.
        bias: [..., B, 1], b₂.
    """
    agents = values.shape[-1]
    units = weights.shape[-1] // (agents + 2)
    first, first_bias, second = torch.split(weights, [agents * units, units, units], -1)
    by_agent = first.abs().view(*values.shape, units)
    hidden = F.elu((values.unsqueeze(-1) * by_agent).sum(-2) + first_bias)
    return (hidden * second.abs()).sum(-1) + bias.squeeze(-1)


class MixingNetwork(EvolvableNetwork):
    """Q_tot(s, q): joint observations [..., B, ...] and values of M agents [..., B, M] -> values [..., B].

    Two hypernetworks give the mixing network's parameters: `head_net` weights and the first bias, `value_net` the last
    bias. Departs from the paper: they read features of the state, of an encoder, in place of the state itself, so that
    images and nested observations are read too, and those of the weights have a hidden layer.

    Args:
        num_agents: M.
        mixing_size: H, hidden units of the mixing network.

    See `EvolvableNetwork` for the other arguments.
    """

    @takes_options("observation_space", "num_agents", *BY_POSITION)
    def __init__(
        self, observation_space: spaces.Space[Any], num_agents: int, options: NetworkOptions = DEFAULT_OPTIONS,
        mixing_size: int = 32,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, **vars(options))
        self.num_agents, self.mixing_size = num_agents, mixing_size
        self.build_head(mixing_size * (num_agents + 2))
        self.build_value_head(1)

    def combine(  # type: ignore[override]
        self, parts: Mapping[str, Callable[[Tensor], Tensor]], obs: Tensor, values: Tensor
    ) -> Tensor:
        """Compute Q_tot [..., B] with the functions of the parts; obs preprocessed [..., B, in], values [..., B, M]."""
        features = self.encode_by(parts, obs)
        return monotonic_mix(values, parts["head_net"](features), parts["value_net"](features))

    def output(self, obs: Tree, values: Tensor) -> Tensor:  # type: ignore[override]
        """Return values of the team [..., B]."""
        return self.combine({"encoder": self.encoder, **self._heads()}, self.preprocess(obs), values)

    def forward(self, obs: Tree, values: Tensor) -> Tensor:  # type: ignore[override]
        return self.output(obs, values)

    def effect_output(self, obs: Tree) -> Tensor:
        """Return the parameters of the mixing network, used to measure the effect of mutations."""
        features = self.extract_features(obs)
        return torch.cat([head(features) for head in self._heads().values()], -1)

    def dense_parts(self) -> dict[str, DenseStack] | None:
        encoder = self.encoder_parts()
        if encoder is None or overrides(self, MixingNetwork, "output", "combine"):
            return None
        return dense_stacks(self, {**encoder, **self._heads()})
