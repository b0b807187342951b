"""Values of (state, action) pairs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.errors import AgileRLWarning, AlgorithmError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.spec import DenseStack
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.parts import dense_stacks, overrides


class ContinuousQNetwork(EvolvableNetwork):
    """Q(s, a): observations [..., O] and actions [..., A] -> values [..., 1].

    The encoder sees the observation, the head its features and the action. Discrete actions are taken too, as
    integers [...] (one-hot encoded) or as A weights [..., A].

    LayerNorm in the encoder is turned off with a warning: normalised features beside raw actions are known to make
    value estimates unstable. Arguments as `EvolvableNetwork`.

    Raises:
        AlgorithmError: actions that are neither Box nor Discrete.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        encoder_cls: type[EvolvableModule] | None = None,
        encoder_config: Any = None,
        head_config: Any = None,
        min_latent_dim: int = 8,
        max_latent_dim: int = 128,
        latent_dim: int = 64,
        simba: bool = False,
        recurrent: bool = False,
        device: str | torch.device = "cpu",
        random_seed: int | None = None,
        scale_observations: bool = False,
    ) -> None:
        if not isinstance(action_space, spaces.Box | spaces.Discrete):
            raise AlgorithmError(f"ContinuousQNetwork takes Box or Discrete actions; got {action_space}.")
        super().__init__(
            observation_space, action_space, encoder_cls, _without_layer_norm(encoder_config), head_config,
            min_latent_dim, max_latent_dim, latent_dim, simba, recurrent, device, random_seed, scale_observations,
        )  # fmt: skip
        self.num_actions = int(spaces.flatdim(action_space))
        self.build_head(1)

    def build_head(self, num_outputs: int) -> None:
        """Make `head_net`, an `EvolvableMLP` from latent features and action to `num_outputs`."""
        self.head_net = EvolvableMLP(
            num_inputs=self.latent_dim + self.num_actions,
            num_outputs=num_outputs,
            device=self._device,
            name="head",
            random_seed=self._seeds[1],
            **self._head_config,
        )
        self.head_net.rng = self.rng

    def _head_inputs(self, features: Tensor) -> Tensor:
        """Features beside uniform actions, which a refit can tell apart; a network with its own encoder is not probed.

        Actions of the policy would do worse: they follow from the features, and a refit would mix their weights.
        """
        if self.lender is None:
            return features
        low, high = getattr(self.lender, "raw_bounds", (-1.0, 1.0))
        generator = torch.Generator().manual_seed(self.random_seed % 2**63)
        numbers = torch.rand(len(features), self.num_actions, generator=generator)
        return torch.cat((features, (low + (high - low) * numbers).to(features)), -1)

    def prepare_action(self, action: Any) -> Tensor:
        """Actions (numpy or torch) as head input [..., A] in the network's dtype."""
        like = next(self.parameters())
        x = torch.as_tensor(np.asarray(action) if not isinstance(action, Tensor) else action, device=like.device)
        if isinstance(self.action_space, spaces.Discrete) and not x.is_floating_point():
            x = F.one_hot(x.long() - int(self.action_space.start), self.num_actions)
        elif isinstance(self.action_space, spaces.Box) and len(self.action_space.shape) != 1:
            lead = x.shape[: x.dim() - len(self.action_space.shape)]
            x = x if x.shape[-1:] == (self.num_actions,) else x.reshape(*lead, self.num_actions)
        if x.shape[-1:] != (self.num_actions,):
            raise ShapeError(
                f"ContinuousQNetwork got actions of shape {tuple(x.shape)}; its space is {self.action_space}. "
                f"fix: [..., {self.num_actions}], one row per observation."
            )
        x = x.to(like.dtype)
        return x.unsqueeze(0) if x.dim() == 1 else x

    @staticmethod
    def combine(parts: Mapping[str, Callable[[Tensor], Tensor]], obs: Tensor, action: Tensor) -> Tensor:
        """Values [..., 1] from what runs the encoder and the head; obs preprocessed [..., in], action [..., A]."""
        return parts["head_net"](torch.cat((parts["encoder"](obs), action), -1))

    def output(self, obs: Any, action: Any) -> Tensor:  # type: ignore[override]
        """Values [..., 1]; the actions may be of any form that `prepare_action` takes."""
        if self.lender is not None:
            return self.from_features(self.extract_features(obs), action)
        parts = {"encoder": self.encoder, "head_net": self.head_net}
        return self.combine(parts, self.preprocess(obs), self.prepare_action(action))

    def from_features(self, features: Tensor, action: Any) -> Tensor:  # type: ignore[override]
        """As `output`, from the features [..., latent_dim] of its observations."""
        value: Tensor = self.head_net(torch.cat((features, self.prepare_action(action)), -1))
        return value

    def forward(self, obs: Any, action: Any) -> Tensor:  # type: ignore[override]
        """As `output`."""
        return self.output(obs, action)

    def dense_parts(self) -> dict[str, DenseStack] | None:
        """The stacks that `combine` joins; None where one is no plain stack."""
        if self.lender is not None:
            return self.head_alone()
        if overrides(self, ContinuousQNetwork, "output"):
            return None
        return dense_stacks(self, {"encoder": self.encoder, "head_net": self.head_net})


def _without_layer_norm(config: Any) -> Any:
    """The encoder configuration with LayerNorm off."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {k: v for k, v in dataclasses.asdict(config).items() if v is not None}
    if not isinstance(config, Mapping) or not (config.get("layer_norm") or config.get("output_layernorm")):
        return config
    warnings.warn(
        "Layer normalization is not supported for the encoder of DDPG networks and is turned off in the critic "
        "(TD3 and SAC too). fix: layer_norm=False.",
        AgileRLWarning,
        stacklevel=4,
    )
    return {**config, "layer_norm": False, "output_layernorm": False}
