"""Multi-agent deterministic policy gradient (Lowe et al. 2017, arXiv:1706.02275)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.teams import deterministic as team_critics
from agilerl.algorithms.teams.names import Spaces
from agilerl.algorithms.teams.networks import by_group, networks_by_group
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.core.rng import Purpose, seeds
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import TeamActorCriticRecipe
from agilerl.losses.actor_critic import bootstrap, weighted_squared_error
from agilerl.networks.base import EvolvableNetwork


class MADDPG(team_critics.CentralisedCritics):
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

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        O_U_noise: Annotated[bool, hp(False, "independent noise explores as well, and has no state")] = True,
        expl_noise: Annotated[float | np.ndarray | Mapping[str, Any], hp(values=NonNegative)] = 0.1,
        vect_noise_dim: Count = 1,
        mean_noise: Annotated[float | np.ndarray | Mapping[str, Any], hp(values=Number)] = 0.0,
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
            observation_spaces,
            action_spaces,
            index,
            agent_ids,
            hp_config,
            device,
            accelerator,
            torch_compiler,
            normalize_images,
            seed=seed,
        )
        self.batch_size, self.learn_step, self.mut, self.net_config = batch_size, learn_step, mut, net_config
        self.lr_actor, self.lr_critic, self.gamma, self.tau = lr_actor, lr_critic, gamma, tau
        self.O_U_noise, self.vect_noise_dim = O_U_noise, vect_noise_dim
        self.theta, self.dt, self.temperature = theta, dt, temperature
        self.expl_noise, self.mean_noise = expl_noise, mean_noise
        self.noise_state = np.zeros((vect_noise_dim, self.action_size))
        self._build(
            networks_by_group(self, "actor_networks", actor_networks),
            networks_by_group(self, "critic_networks", critic_networks),
        )

    def _build(self, actors: Mapping[str, EvolvableNetwork], critics: Mapping[str, EvolvableNetwork]) -> None:
        weight_seeds = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 2 * len(self.grouped_agents), generation=2).tolist()
        for number, group in enumerate(self.grouped_agents):
            self.registered(
                "actors", group, actors.get(group) or team_critics.make_actor(self, group, weight_seeds[2 * number])
            )
            self.registered(
                "critics",
                group,
                critics.get(group) or team_critics.make_critic(self, group, weight_seeds[2 * number + 1]),
            )
        for group in self.grouped_agents:
            self.register_network("actors", "actor_targets", "actor_optimizers", group, "lr_actor", policy=True)
        for group in self.grouped_agents:
            self.register_network("critics", "critic_targets", "critic_optimizers", group, "lr_critic")

    critics = by_group("critics")
    critic_targets = by_group("critic_targets")
    critic_optimizers = by_group("critic_optimizers")

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau")

    def update_options(self) -> tuple[Any, ...]:
        return (self.temperature,)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw Gumbel noise for the relaxed discrete actions, [*shape, F]."""
        return {"gumbel": rng.gumbel(size=(*shape, self.actions.width))}

    def recipe(self) -> TeamActorCriticRecipe:
        return self._recipe(("critics",), ("critic_optimizers",), 1, smooths=False)

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Algorithm 1 of the paper for all agents: critics by squared TD error (eq. 6), policies by their critic's
        gradient (eq. 5), target updates."""
        axis, features = team_critics.batch_axis(batch), self.actions.features(batch.action)
        taken = features * team_critics.presence(self, batch.obs, features)
        discounts = batch.discounts(engine.hp["gamma"])
        with torch.no_grad():
            following = team_critics.next_actions(self, engine, batch, axis)
        losses, policy_losses = [], []
        errors: dict[int, Tensor] = {}
        for alike in self.actions.alike:
            critics, count = tuple(f"critics.{group}" for group in alike.groups), alike.count
            weight, deciding = team_critics.weights_of(batch, alike, axis)
            with torch.no_grad():
                after = team_critics.critic_values(engine.targets(critics), batch.next_obs, following, count, axis)
                reward, discount = (team_critics.of_groups(alike, x, axis) for x in (batch.reward, discounts))
                goal = bootstrap(reward, discount, after)
            value = team_critics.critic_values(engine.networks(critics), batch.obs, taken, count, axis)
            loss, error = weighted_squared_error(value, goal, weight)
            engine.minimise(tuple(f"critic_optimizers.{group}" for group in alike.groups), loss)
            losses.append(loss.detach().sum(0))
            if batch.wants_priorities:
                errors |= team_critics.errors_of(alike, error, axis)
            of_policy = team_critics.policy_loss(self, engine, batch, alike, critics, taken, deciding, axis)
            engine.minimise(tuple(f"actor_optimizers.{group}" for group in alike.groups), of_policy)
            policy_losses.append(of_policy.detach().sum(0))
            engine.track(critics, engine.hp["tau"])
        for name in self.registry.policies:
            engine.track(name, engine.hp["tau"])
        return UpdateResult(sum(losses), sum(policy_losses), team_critics.priorities(batch, errors))  # type: ignore[arg-type]
