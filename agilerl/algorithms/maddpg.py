"""Multi-agent deterministic policy gradient (Lowe et al. 2017, arXiv:1706.02275)."""

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
from agilerl.networks.base import EvolvableNetwork


class MADDPG(CentralisedCritics):
    """Decentralised policies, centralised critics: each critic reads the observations and actions of all agents.

    Discrete actions are sampled with the Gumbel-max trick in exploration, and differentiated through its relaxation. A
    critic shared by several agents also reads the one-hot id of the agent.

    Absence is treated alike in observations, targets and masks. An agent that was not observed is absent. A terminated
    agent is absent from the observation after its last step. A truncated agent is present in that observation, where
    its value is bootstrapped, and absent afterwards. An absent agent's observation is zeros (discrete: the lowest
    choice), its action is zero, its mask is ignored, and its row is not learned from. An agent waiting for its next
    turn is also absent, but critics see its last action held and learn from the rewards received meanwhile; turn-based
    games still show its observation.

    With n-step replay each agent has its own sum of rewards and its own end. Prioritised replay (Schaul et al. 2016,
    arXiv:1511.05952) stores one priority per row, the mean |TD error| over present agents; importance weights multiply
    the losses of critics and policies, as in `DDPG`.

    Args:
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of all networks.
        batch_size: transitions per update. lr_actor, lr_critic: learning rates of Adam.
        learn_step: environment steps per update. gamma, tau: see `DQN`.
        O_U_noise, expl_noise, vect_noise_dim, mean_noise, theta, dt: noise on Box actions, see `DDPG`; `expl_noise` and
            `mean_noise` may be mappings by agent or group.
        temperature: τ of the relaxed discrete actions.
        actor_networks, critic_networks: networks by group to use instead of building them.

    See `MultiAgentRLAlgorithm` for the other arguments.
    """

    smooths = tracks_with_policy = False
    policy_freq = 1  # no argument: published dictionaries have POLICY_FREQ for MADDPG too, where it is ignored

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
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(256, "joint actions make targets noisier")] = 64,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-3,
        lr_critic: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-2,
        learn_step: Annotated[StepsPerUpdate, hp(8, "an update costs as much as its environment steps")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.95,
        tau: Annotated[PositiveFraction, hp()] = 0.01,
        mut: str | None = None,
        normalize_images: bool = True,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        critic_networks: Mapping[str, EvolvableNetwork] | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        temperature: Annotated[Positive, hp()] = 1.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_spaces, action_spaces, index, agent_ids, hp_config, device, accelerator, torch_compiler,
            normalize_images, seed=seed,
        )  # fmt: skip
        self._take(locals())
        self._build(actor_networks, critic_networks)

    critics = by_group("critics")
    critic_targets = by_group("critic_targets")
    critic_optimizers = by_group("critic_optimizers")
