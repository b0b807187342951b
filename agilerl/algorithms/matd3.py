"""Multi-agent TD3 (Ackermann et al. 2019, arXiv:1910.01465)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch

from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.teams.deterministic import CentralisedCritics, Noise
from agilerl.algorithms.teams.names import Spaces
from agilerl.algorithms.teams.networks import by_group
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.errors import ConfigError
from agilerl.networks.base import EvolvableNetwork


class MATD3(CentralisedCritics):
    """MADDPG with twin centralised critics, delayed policy updates and smoothed target actions.

    A row's priority uses the larger TD error of each agent's two critics.

    Args:
        policy_freq: critic updates per update of the policies and of all targets.
        policy_noise, noise_clip: σ and c of target policy smoothing, in units of raw actions; not for discrete actions.
        critic_networks: two mappings of networks by group to use instead of building them.

    See `MADDPG` for the other arguments.
    """

    critic_names = ("critics_1", "critics_2")
    optimizer_names = ("critic_1_optimizers", "critic_2_optimizers")

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        O_U_noise: Annotated[bool, hp(False, "independent noise explores as well, and has no state")] = True,
        expl_noise: Annotated[Noise, hp(values=NonNegative)] = 0.1,
        vect_noise_dim: Count = 1,
        mean_noise: Annotated[Noise, hp(values=Number)] = 0.0,
        theta: Annotated[NonNegative, hp()] = 0.15,
        dt: Annotated[Positive, hp()] = 1e-2,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        policy_freq: Annotated[Count, hp()] = 2,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(256, "joint actions make targets noisier")] = 64,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-3,
        lr_critic: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-2,
        learn_step: Annotated[StepsPerUpdate, hp(8, "an update costs as much as its environment steps")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.95,
        tau: Annotated[PositiveFraction, hp()] = 0.01,
        normalize_images: bool = True,
        mut: str | None = None,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        critic_networks: Sequence[Mapping[str, EvolvableNetwork]] | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        temperature: Annotated[Positive, hp()] = 1.0,
        policy_noise: Annotated[NonNegative, hp()] = 0.2,
        noise_clip: Annotated[NonNegative, hp()] = 0.5,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_spaces, action_spaces, index, agent_ids, hp_config, device, accelerator, torch_compiler,
            normalize_images, seed=seed,
        )  # fmt: skip
        self._take(locals())
        both = (None, None) if critic_networks is None else critic_networks
        if not isinstance(both, list | tuple) or len(both) != 2:
            raise ConfigError(
                f"{self.algo}: critic_networks must be two mappings by group, of the first and the second critics. "
                "fix: [{group: network}, {group: network}]."
            )
        self._build(actor_networks, *both)

    critics_1 = by_group("critics_1")
    critics_2 = by_group("critics_2")
    critic_targets_1 = by_group("critic_targets_1")
    critic_targets_2 = by_group("critic_targets_2")
    critic_1_optimizers = by_group("critic_1_optimizers")
    critic_2_optimizers = by_group("critic_2_optimizers")
