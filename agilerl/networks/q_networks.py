"""Networks that estimate action values."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces

from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.joint_actions import JointActions


class QNetwork(EvolvableNetwork):
    """Q(s, ·) for every choice of a Discrete or MultiDiscrete space: observations [..., O] -> values [..., A].

    Choices are numbered as `JointActions` does.

    Arguments as `EvolvableNetwork`.

    Raises:
        ValueError: the action space is of another kind, or has too many combinations.
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
        choices = JointActions.of(action_space, "QNetwork")
        super().__init__(
            observation_space, action_space, encoder_cls, encoder_config, head_config,
            min_latent_dim, max_latent_dim, latent_dim, simba, recurrent, device, random_seed, scale_observations,
        )  # fmt: skip
        self.num_actions = choices.count
        self.build_head(self.num_actions)
