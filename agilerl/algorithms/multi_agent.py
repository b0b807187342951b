"""Multi-agent algorithms: several policies in one environment. Their base, until they are built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch

from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.algorithms.registry import HyperparameterConfig
from agilerl.errors import NotAvailableYetError

Spaces = Sequence[gym.Space[Any]] | Mapping[str, gym.Space[Any]]


class MultiAgentRLAlgorithm(EvolvableAlgorithm):
    """An algorithm for several agents in one environment.

    Args:
        observation_spaces, action_spaces: of each agent: a list in the order of `agent_ids`, or a mapping by agent.
        agent_ids: names of the agents; the keys of the mappings where they are left out.
        normalize_images: divide image observations by 255.
        placeholder_value: what stands in observations for agents that are not there.

    The other arguments are `EvolvableAlgorithm`'s.

    Raises:
        NotAvailableYetError: always, in this version.
    """

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        index: int = 0,
        agent_ids: Sequence[str] | None = None,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        normalize_images: bool = True,
        placeholder_value: float | None = -1,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        raise NotAvailableYetError(
            f"{name or type(self).__name__} is a multi-agent algorithm. Those (MADDPG, MATD3, IPPO and algorithms of "
            "one's own) come with a later version. fix: one of the single-agent algorithms, or RLAlgorithm as the base."
        )
