"""Multi-agent TD3 (Ackermann et al. 2019, arXiv:1910.01465)."""

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
from agilerl.errors import ConfigError
from agilerl.losses.actor_critic import smoothed_action, twin_target, weighted_squared_error
from agilerl.networks.base import EvolvableNetwork

CRITICS = ("critics_1", "critics_2")


class MATD3(team_critics.CentralisedCritics):
    """MADDPG with twin centralised critics, delayed policy updates and smoothed target actions.

    A row's priority uses the larger TD error of each agent's two critics.

    Args:
        policy_freq: critic updates per update of the policies and of all targets.
        policy_noise, noise_clip: σ and c of target policy smoothing, in units of raw actions; not for discrete actions.
        critic_networks: two mappings of networks by group to use instead of building them.

    See `MADDPG` for the other arguments.
    """

    critic_names = CRITICS

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
        self.policy_freq, self.policy_noise, self.noise_clip = policy_freq, policy_noise, noise_clip
        both = (None, None) if critic_networks is None else critic_networks
        if not isinstance(both, list | tuple) or len(both) != 2:
            raise ConfigError(
                f"{self.algo}: critic_networks must be two mappings by group, of the first and the second critics. "
                "fix: [{group: network}, {group: network}]."
            )
        self._build(
            networks_by_group(self, "actor_networks", actor_networks),
            [networks_by_group(self, "critic_networks", one) for one in both],
        )

    def _build(self, actors: Mapping[str, EvolvableNetwork], critics: Sequence[Mapping[str, EvolvableNetwork]]) -> None:
        weight_seeds = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 3 * len(self.grouped_agents), generation=2).tolist()
        for number, group in enumerate(self.grouped_agents):
            first = weight_seeds[3 * number]
            self.registered("actors", group, actors.get(group) or team_critics.make_actor(self, group, first))
            for k, (kind, networks) in enumerate(zip(CRITICS, critics, strict=True), 1):
                critic = networks.get(group) or team_critics.make_critic(self, group, weight_seeds[3 * number + k])
                self.registered(kind, group, critic)
        for group in self.grouped_agents:
            self.register_network("actors", "actor_targets", "actor_optimizers", group, "lr_actor", policy=True)
        for k, kind in enumerate(CRITICS, 1):
            for group in self.grouped_agents:
                names = f"critic_targets_{k}", f"critic_{k}_optimizers"
                self.register_network(kind, *names, group, "lr_critic")

    critics_1 = by_group("critics_1")
    critics_2 = by_group("critics_2")
    critic_targets_1 = by_group("critic_targets_1")
    critic_targets_2 = by_group("critic_targets_2")
    critic_1_optimizers = by_group("critic_1_optimizers")
    critic_2_optimizers = by_group("critic_2_optimizers")

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau", "policy_noise", "noise_clip")

    def update_options(self) -> tuple[Any, ...]:
        return self.temperature, self.policy_freq

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw Gumbel noise for the relaxed discrete actions and normal noise for the smoothing, [*shape, F] each."""
        size = (*shape, self.actions.width)
        return {"gumbel": rng.gumbel(size=size), "smoothing": rng.standard_normal(size)}

    def recipe(self) -> TeamActorCriticRecipe:
        optimizers = ("critic_1_optimizers", "critic_2_optimizers")
        return self._recipe(CRITICS, optimizers, self.policy_freq, smooths=True)

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Update as in `MADDPG`, with the three changes of TD3: minimum of two targets, delayed policies, smoothing."""
        axis, features, hp = team_critics.batch_axis(batch), self.actions.features(batch.action), engine.hp
        taken = features * team_critics.presence(self, batch.obs, features)
        discounts = batch.discounts(hp["gamma"])
        with torch.no_grad():
            following = team_critics.next_actions(self, engine, batch, axis, lambda raw: self._smoothed(raw, batch, hp))
        is_policy_step = batch.number % self.policy_freq == 0
        losses, policy_losses = [], []
        errors: dict[int, Tensor] = {}
        for alike in self.actions.alike:
            groups, count = alike.groups, alike.count
            first = tuple(f"critics_1.{group}" for group in groups)
            names = (*first, *(f"critics_2.{group}" for group in groups))
            weight, deciding = team_critics.weights_of(batch, alike, axis)
            with torch.no_grad():
                after = team_critics.critic_values(engine.targets(names), batch.next_obs, following, count, axis)
                reward, discount = (team_critics.of_groups(alike, x, axis) for x in (batch.reward, discounts))
                goal = twin_target(reward, discount, *after.chunk(2))
            values = team_critics.critic_values(engine.networks(names), batch.obs, taken, count, axis)
            loss, error = weighted_squared_error(values, torch.cat((goal, goal)), torch.cat((weight, weight)))
            engine.minimise(tuple(f"critic_{k}_optimizers.{group}" for k in (1, 2) for group in groups), loss)
            losses.append(loss.detach().sum(0))
            if batch.wants_priorities:
                larger = torch.stack(error.abs().chunk(2)).amax(0)  # of both critics
                errors |= team_critics.errors_of(alike, larger, axis)
            if is_policy_step:
                of_policy = team_critics.policy_loss(self, engine, batch, alike, first, taken, deciding, axis)
                engine.minimise(tuple(f"actor_optimizers.{group}" for group in groups), of_policy)
                policy_losses.append(of_policy.detach().sum(0))
                engine.track(names, hp["tau"])
        for name in self.registry.policies if is_policy_step else ():
            engine.track(name, hp["tau"])
        of_policies = sum(policy_losses) if policy_losses else None
        return UpdateResult(sum(losses), of_policies, team_critics.priorities(batch, errors))  # type: ignore[arg-type]

    def _smoothed(self, features: Tensor, batch: TransitionBatch, hp: Mapping[str, Tensor]) -> Tensor:
        """Add noise to raw components of features [..., B, F]; discrete choices are unchanged."""
        noisy = smoothed_action(features, batch.noise["smoothing"], hp["policy_noise"], hp["noise_clip"])
        is_raw = [not one.is_choice for one in self.actions.each for _ in range(one.width)]
        return torch.where(torch.tensor(is_raw, device=features.device), noisy, features)
