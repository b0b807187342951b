"""Action-value networks of quantiles of the return: for discrete actions, and for (state, action) pairs."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor

from agilerl.core.tree import Tree
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import JointActions
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options
from agilerl.networks.q_networks import ContinuousQNetwork


class QuantileQNetwork(EvolvableNetwork):
    """Quantiles of the return of every joint action: observations [..., O] -> values [..., A], the means over them.

    `quantiles` gives them as [..., A, K], and `output` as [..., A·K], action by action: encoder and head are one stack
    of layers. Levels are those of `losses.quantiles.quantile_levels`; nothing sorts the quantiles.

    Args:
        num_quantiles: K.

    Other arguments as `EvolvableNetwork`. Raises ValueError: unsupported action space, or too many combinations."""

    stack_methods = ("output", "extract_features")
    outputs_apart = True  # `forward` averages

    @takes_options("observation_space", "action_space", "num_quantiles", *BY_POSITION)
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_quantiles: int = 200,
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:  # fmt: skip
        choices = JointActions.of(action_space, "QuantileQNetwork")
        super().__init__(observation_space, action_space=action_space, **vars(options))
        self.num_actions, self.num_quantiles = choices.count, int(num_quantiles)
        self.build_head(self.num_actions * self.num_quantiles)

    def quantiles(self, obs: Tree) -> Tensor:
        """Return quantiles [..., A, K]."""
        return by_quantile(self.output(obs), self.num_quantiles)

    def forward(self, obs: Tree) -> Tensor:  # type: ignore[override]
        """Return values [..., A]."""
        return self.quantiles(obs).mean(-1)

    def effect_output(self, obs: Tree) -> Tensor:
        """Return the values [..., A], used to measure the effect of mutations."""
        return self.forward(obs)


def by_quantile(output: Tensor, num_quantiles: int) -> Tensor:
    """Return outputs [..., A·K] of a `QuantileQNetwork` as quantiles [..., A, K]."""
    return output.view(*output.shape[:-1], -1, num_quantiles)


class QuantileCritic(ContinuousQNetwork):
    """Quantiles of the return of (s, a): observations [..., O] and actions [..., A] -> quantiles [..., K].

    Args:
        num_quantiles: K.

    See `ContinuousQNetwork` for the other arguments."""

    @takes_options("observation_space", "action_space", "num_quantiles", *BY_POSITION)
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], num_quantiles: int = 25,
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, **vars(options))
        self.num_quantiles = int(num_quantiles)
        self.build_head(self.num_quantiles)
