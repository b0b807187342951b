"""Networks that estimate action values."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces

from agilerl.errors import AlgorithmError, NotAvailableYetError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork


class QNetwork(EvolvableNetwork):
    """Q(s, ·) for every discrete action: observations [..., O] -> values [..., A].

    Arguments as `EvolvableNetwork`.

    Raises:
        ValueError: the action space is not discrete.
        NotAvailableYetError: the action space is MultiDiscrete.
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
        if isinstance(action_space, spaces.MultiDiscrete):
            raise NotAvailableYetError("QNetwork for a MultiDiscrete action space is not built yet")
        if not isinstance(action_space, spaces.Discrete):
            kind = type(action_space).__name__
            raise AlgorithmError(f"Action space must be either Discrete or MultiDiscrete; got {kind}.")
        super().__init__(
            observation_space, action_space, encoder_cls, encoder_config, head_config,
            min_latent_dim, max_latent_dim, latent_dim, simba, recurrent, device, random_seed, scale_observations,
        )  # fmt: skip
        self.num_actions = int(action_space.n)
        self.build_head(self.num_actions)
