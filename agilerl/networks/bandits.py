"""Reward model of neural bandits: predicted reward of a context, and what its last layer reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from agilerl.core.tree import Tree
from agilerl.errors import ConfigError
from agilerl.modules.base import EvolvableModule, EvolvableWrapper
from agilerl.modules.layers import DenseStack
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options
from agilerl.networks.stacks import dense_stacks, joined, overrides

HIDDEN, OUTPUT = "hidden", "output"  # parts: all layers but the last one, and the last one


class RewardNetwork(EvolvableNetwork):
    """f(x; θ) and the inputs h of its output layer: contexts [..., *context] -> [..., 1 + m].

    The output layer is linear, so that (h, 1) is the gradient of f in its weights and bias. It starts at zero, so that
    f(x; θ₀) = 0 for every context, which the initialisation of Zhou et al. 2020 (arXiv:1911.04462) has too.

    Args:
        observation_space: of the context of ONE arm. action_space: of the arms, stored only. Others as in
            `EvolvableNetwork`.

    Raises:
        ConfigError: a head without hidden layers, with noisy layers, or with an output activation or normalisation.
    """

    @takes_options("observation_space", "action_space", *BY_POSITION)
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | None = None,
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(observation_space, action_space=action_space, **vars(options))
        self.build_head(1)
        head = self.head_net
        is_linear = not head.noisy and not head.output_layernorm and head.output_activation in (None, "Identity")
        if not head.hidden_size or not is_linear:
            raise ConfigError(
                "the head of a bandit's network has hidden layers, then one linear output, whose inputs measure what "
                "is unknown. fix: head_config={'hidden_size': [64]}, without noisy, output_activation and "
                "output_layernorm."
            )
        with torch.no_grad():
            for parameter in self._last().parameters():
                parameter.zero_()

    def _last(self) -> Any:
        """Return the output layer."""
        return self.head_net.model.get_submodule("linear_output")

    @property
    def width(self) -> int:
        """m, the inputs of the output layer."""
        return int(self.head_net.hidden_size[-1])

    def hidden(self, x: Tree) -> Tensor:
        """Return the inputs h [..., m] of the output layer for preprocessed contexts."""
        features = self._encode(x)
        for name, layer in self.head_net.model.named_children():
            if name == "linear_output":
                break
            features = layer(features)
        return features

    def combine(self, parts: Mapping[str, Callable[[Any], Tensor]], *inputs: Any) -> Tensor:
        """Compute (f, h) [..., 1 + m] with the functions of the parts, for preprocessed contexts."""
        hidden = parts[HIDDEN](inputs[0])
        return torch.cat((parts[OUTPUT](hidden), hidden), -1)

    def output(self, obs: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return (f, h) [..., 1 + m] for contexts with any leading axes."""
        return self.combine({HIDDEN: self.hidden, OUTPUT: self._last()}, self.preprocess(obs))

    def effect_output(self, obs: Tree) -> Tensor:
        """Return f [..., 1], by which the effect of mutations is measured: h has no meaning across architectures."""
        return self.output(obs)[..., :1]

    def dense_parts(self) -> dict[str, DenseStack] | None:
        if overrides(self, RewardNetwork, "output", "combine", "hidden"):
            return None
        stacks = dense_stacks(self, {"encoder": self.encoder, "head_net": self.head_net})
        if stacks is None:
            return None
        head = stacks["head_net"]
        below = DenseStack(head.layers[:-1], head.parameters[:-1], head.buffers[:-1])
        last = DenseStack(head.layers[-1:], head.parameters[-1:], head.buffers[-1:])
        hidden = joined({"encoder": stacks["encoder"], HIDDEN: below})
        return None if hidden is None else {HIDDEN: hidden, OUTPUT: last}


class RewardModule(EvolvableWrapper):
    """f(x; θ) of an evolvable module of the script, and the inputs h of its last linear layer: -> [..., 1 + m].

    Raises:
        TypeError: no evolvable module, or none that ends with a linear layer of one output.
    """

    normalize_observations = False  # it reads contexts as they are

    def __init__(self, module: EvolvableModule) -> None:
        last = _last_linear(module) if isinstance(module, EvolvableModule) else None
        if last is None or last.out_features != 1:
            raise TypeError(
                "actor_network of a bandit must be an EvolvableModule with one output, of a linear layer; got "
                f"{type(module).__name__}. fix: EvolvableMLP(context_dim, 1, [64]), or net_config."
            )
        super().__init__(module)

    def _last(self) -> nn.Linear:
        return cast(nn.Linear, _last_linear(self.wrapped))

    @property
    def width(self) -> int:
        """m, the inputs of the last linear layer."""
        return self._last().in_features

    def output(self, obs: Tree) -> Tensor:
        """Return (f, h) [B, 1 + m] for contexts [B, *context]."""
        read: list[Tensor] = []
        hook = self._last().register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        try:
            return torch.cat((self.wrapped(obs), read[-1]), -1)
        finally:
            hook.remove()


def _last_linear(module: nn.Module) -> nn.Linear | None:
    """Return the last linear layer in the order of definition, or None."""
    layers = [part for _, part in module.named_modules() if isinstance(part, nn.Linear)]
    return layers[-1] if layers else None
