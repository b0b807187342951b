"""Off-policy actor-critics: deterministic policies with exploration noise, and stochastic policies.

Both store raw Box actions, see `actions.NormalizedBoxActions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.actions import (
    NormalizedBoxActions,
    masked_argmax,
    noise_paths,
)
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.building import register_network, share_encoder
from agilerl.algorithms.base.single_agent import RLAlgorithm, UpdateLoss
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import Draws, Mask, Network, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import ActorCriticRecipe, Recipe
from agilerl.errors import ConfigError
from agilerl.losses.actor_critic import (
    bootstrap,
    deterministic_policy_loss,
    discrete_soft_value,
    smoothed_action,
    soft_policy_loss,
    weighted_squared_error,
)
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import categorical_sample, masked_logits, split_normal, squashed_normal_sample

RAW_RANGE = (-1.0, 1.0)  # of the raw actions of teams and of custom policies
CRITICS = ("critic_1", "critic_2")
CRITIC_OPTIMIZERS = ("critic_1_optimizer", "critic_2_optimizer")
OPTIONS = (
    "batch_size", "learn_step", "policy_freq", "lr_actor", "lr_critic", "gamma", "tau", "mut", "normalize_images",
    "net_config", "share_encoders", "O_U_noise", "expl_noise", "vect_noise_dim", "mean_noise", "theta", "dt",
    "policy_noise", "noise_clip", "temperature",
)  # fmt: skip
"""Constructor arguments of deterministic actor-critics that are attributes."""


def register_actor_critic(agent: RLAlgorithm, *critics: str) -> None:
    """Share the policy's encoder if enabled, and register the policy and its critics, all with targets."""
    share_encoder(agent, *critics)
    register_network(agent, "actor", "actor_target", "actor_optimizer", "lr_actor", policy=True)
    for name in critics:
        register_network(agent, name, name.replace("critic", "critic_target"), f"{name}_optimizer", "lr_critic")


class ActorCritic(RLAlgorithm):
    """An off-policy actor-critic with soft target updates."""

    action_form = NormalizedBoxActions()
    criterion = UpdateLoss()  # of the critics
    tau: float

    def soft_update(self, net: nn.Module, target: nn.Module) -> None:
        """Perform one soft update of `target` towards `net` with `tau`."""
        soft_update(net, target, self.tau)

    def report(self, result: UpdateResult) -> tuple[float | None, float]:
        """Return (actor loss, or None if the policy was not updated; critic loss), both before the update."""
        return None if result.actor_loss is None else float(result.actor_loss), float(result.loss)

    def get_action(
        self, obs: Tree, training: bool | None = None, action_mask: np.ndarray | None = None, *, epsilon: float = 0.0
    ) -> np.ndarray:
        """Return exploring actions to store if `training`, else greedy actions for the environment.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            training: whether to explore; None: according to the agent's mode.
            action_mask: [E, A] or [A], 1 = legal, for Discrete actions.
            epsilon: ignored; exploration is by noise or sampling.

        Returns:
            Raw actions [E, A] in training (see `environment_action`), else [E, *shape] within the bounds of the space;
            int64 [E] for Discrete actions.
        """
        return self._act_raw(obs, training, action_mask, epsilon)

    def _greedy(self, obs: Tree, mask: Mask = None) -> np.ndarray:
        return self.get_action(obs, False, mask)


@dataclass(frozen=True, slots=True)
class CriticRows:
    """Rows of a batch for groups whose critics run in one pass; a single agent is one group of one agent.

    Attributes:
        groups: names of the G groups. count: K, agents of each.
        critics, critic_optimizers: names [C·G], kind by kind. policy_optimizers: names [G].
        reward, discount, weight: [G, ..., K·B]. policy_weight: the weights of the policies' rows.
    """

    groups: tuple[str, ...]
    count: int
    critics: tuple[str, ...]
    critic_optimizers: tuple[str, ...]
    policy_optimizers: tuple[str, ...]
    reward: Tensor
    discount: Tensor
    weight: Tensor
    policy_weight: Tensor


class DeterministicActorCritic(EvolvableAlgorithm):
    """Deterministic policies with exploration noise, and one or two critics of each.

    Teams learn by the same `update`: they define what it reads by group.

    Attributes:
        critic_names, optimizer_names: kinds of critics; policies are trained with the first.
        smooths: whether target actions are smoothed. tracks_with_policy: whether targets of critics move only with the
            policies.
    """

    policy_class: ClassVar[type[EvolvableNetwork]] = DeterministicActor
    critic_names: ClassVar[tuple[str, ...]] = CRITICS
    optimizer_names: ClassVar[tuple[str, ...]] = CRITIC_OPTIMIZERS
    smooths: ClassVar[bool] = True
    tracks_with_policy: ClassVar[bool] = True
    actor: EvolvableModule
    action_size: int
    policy_freq: int
    O_U_noise = False
    expl_noise: float | np.ndarray
    mean_noise: float | np.ndarray = 0.0
    theta: float
    dt: float
    vect_noise_dim: int
    noise_state: np.ndarray
    _exploration: np.random.Generator

    def _take(self, arguments: Mapping[str, Any]) -> None:
        """Set arguments of the constructor as attributes, and the noise of all lanes to 0."""
        for name in OPTIONS:
            if name in arguments:
                setattr(self, name, arguments[name])
        for name, noise in (("expl_noise", self.expl_noise), ("mean_noise", self.mean_noise)):
            shape = np.shape(noise)
            if shape[-1:] not in ((), (1,), (self.action_size,)):
                text = f"{name} has shape {shape}, and an action {self.action_size} components"
                raise ConfigError(f"{self.algo}: {text}. fix: one number, or one for each.")
        self.noise_state = np.zeros((self.vect_noise_dim, self.action_size))

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        names = "lr_actor", "lr_critic", "gamma", "tau", *(("policy_noise", "noise_clip") if self.smooths else ())
        return self._numbers(*names)

    def update_options(self) -> tuple[Any, ...]:
        return (self.policy_freq,)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw standard normal numbers for target policy smoothing, [*shape, A]."""
        return {"smoothing": rng.standard_normal((*shape, self.action_size))} if self.smooths else {}

    def recipe(self) -> Recipe | None:
        return ActorCriticRecipe(
            "actor", self.critic_names, "actor_optimizer", self.optimizer_names, self.policy_freq,
            self.tracks_with_policy, self.smooths, *self.raw_bounds,
        )  # fmt: skip

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Update critics by squared TD error, then policies by the gradient of their first critic, then targets.

        Algorithm 1 of DDPG (arXiv:1509.02971), of TD3 (arXiv:1802.09477), and of MADDPG (arXiv:1706.02275, eq. 5 and
        6) for all groups of a team. Of two critics the smaller target counts (clipped double Q-learning, eq. 10 of
        TD3).
        """
        tau, is_policy_step = engine.hp["tau"], batch.number % self.policy_freq == 0
        losses, policy_losses, errors = list[Tensor](), list[Tensor](), list[Tensor]()
        taken = self.taken_features(batch.obs, batch.action).to(batch.reward.dtype)
        with torch.no_grad():
            following = self.next_actions(engine, batch)
        for rows in self.critic_rows(batch, engine.hp["gamma"]):
            with torch.no_grad():
                after = self.critic_values(engine.targets(rows.critics), batch.next_obs, following, rows)
                target = bootstrap(rows.reward, rows.discount, after.amin(0))
            values = self.critic_values(engine.networks(rows.critics), batch.obs, taken, rows)
            loss, error = weighted_squared_error(values, target, rows.weight)
            loss = loss.flatten(0, 1)
            engine.minimise(rows.critic_optimizers, loss)
            losses.append(loss.detach().sum(0))
            errors.append(error.detach().abs().amax(0))
            if is_policy_step:
                policy_loss = self.policy_loss(engine, batch, taken, rows)
                engine.minimise(rows.policy_optimizers, policy_loss)
                policy_losses.append(policy_loss.detach().sum(0))
            if is_policy_step or not self.tracks_with_policy:
                engine.track(rows.critics, tau)
        for name in self.registry.policies if is_policy_step else ():
            engine.track(name, tau)
        policy_loss = sum(policy_losses) if is_policy_step else None  # type: ignore[assignment]  # tensors
        return UpdateResult(sum(losses), policy_loss, self.priorities(batch, errors))  # type: ignore[arg-type]

    def taken_features(self, obs: Any, action: Tensor) -> Tensor:
        """Return stored actions as critics read them, [..., B, A]."""
        return action

    def next_actions(self, engine: UpdateEngine, batch: TransitionBatch) -> Tensor:
        """Return the target policy's next actions [..., B, A], smoothed if `smooths`."""
        action, hp = engine.target("actor")(batch.next_obs), engine.hp
        if not self.smooths:
            return action
        noise = batch.noise["smoothing"]
        return smoothed_action(action, noise, hp["policy_noise"], hp["noise_clip"], *self.raw_bounds)

    def critic_rows(self, batch: TransitionBatch, gamma: Tensor) -> Sequence[CriticRows]:
        """Return the rows that critics learn from."""
        numbers = (batch.reward, batch.discounts(gamma), batch.weight, batch.weight)
        names = self.critic_names, self.optimizer_names, ("actor_optimizer",)
        return (CriticRows(("",), 1, *names, *(x.unsqueeze(0) for x in numbers)),)

    def critic_values(self, critics: Network, obs: Any, actions: Tensor, rows: CriticRows) -> Tensor:
        """Return values [C, G, ..., K·B] of the actions by C kinds of critics of G groups."""
        return critics(obs, actions).squeeze(-1).unsqueeze(1)

    def policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, taken: Tensor, rows: CriticRows) -> Tensor:
        """Return the loss [G, ...] of each policy; `taken`: the stored actions."""
        inputs = [(batch.obs, engine.network("actor")(batch.obs))]
        values = engine.through_each(self.critic_names[:1])(inputs).squeeze(-1)
        return deterministic_policy_loss(values, rows.policy_weight)

    def priorities(self, batch: TransitionBatch, errors: Sequence[Tensor]) -> Tensor | None:
        """Return replay priorities [..., B] from |TD errors| [G, ..., K·B], of the critic with the larger one."""
        return errors[0][0]

    # --- acting -------------------------------------------------------------------------------------------------------

    @property
    def raw_bounds(self) -> tuple[float, float]:
        """Lowest and highest raw action."""
        return self.actor.raw_bounds if isinstance(self.actor, DeterministicActor) else RAW_RANGE

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the policy's raw actions [..., A]."""
        return outputs.cpu().numpy()

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return raw actions plus noise draws[0] [..., A], clipped to the raw bounds; `epsilon` is ignored."""
        action: np.ndarray = outputs.cpu().numpy()
        noisy: np.ndarray = np.clip(action + draws[0], *self.raw_bounds).astype(action.dtype)
        return noisy

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw noise [*shape, A] in units of raw actions; `shape` is (vector steps, E) or (E,)."""
        steps = int(np.prod(shape[:-1], dtype=int))
        return (noise_paths(self, rng, steps, shape[-1]).reshape(*shape, self.action_size),)

    def action_noise(self, action: np.ndarray | Tensor | None = None) -> np.ndarray:
        """Return noise [E, A] float32 of one vector step for actions [E, A]; E defaults to that of the last call."""
        shape = np.shape(self.noise_state if action is None else action)
        lanes = int(np.prod(shape[:-1], dtype=int))
        noise: np.ndarray = noise_paths(self, self._exploration, 1, lanes)[0].reshape(shape).astype(np.float32)
        return noise

    def reset_action_noise(self, indices: int | Sequence[int] | np.ndarray) -> None:
        """Reset the Ornstein-Uhlenbeck state in the lanes `indices` to 0."""
        state = np.array(self.noise_state)
        state[np.asarray(indices, dtype=int)] = 0
        self.noise_state = state


class StochasticActorCritic(ActorCritic):
    """An actor-critic with a stochastic policy: squashed normal for Box actions, categorical for Discrete actions."""

    policy_class: type[EvolvableNetwork] = StochasticActor

    @property
    def discrete(self) -> bool:
        """Whether the action space is Discrete."""
        return isinstance(self.action_space, gym.spaces.Discrete)

    # --- learning -----------------------------------------------------------------------------------------------------

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw standard normal numbers for sampled actions, [*shape, A] each; none for discrete actions."""
        if self.discrete:
            return {}
        size = *shape, self.action_size
        return {name: rng.standard_normal(size) for name in ("action", "next_action")}

    def _policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return (policy loss [...], detached entropy or its one-sample estimate [..., B])."""
        raw = engine.network("actor")(batch.obs)
        if self.discrete:
            log_prob = masked_logits(raw, batch.obs_mask).log_softmax(-1)
            first, second = (engine.frozen(name)(batch.obs) for name in CRITICS)
            loss = -(batch.weight * discrete_soft_value(first, second, log_prob, alpha)).sum(-1)
            return loss, -(log_prob.exp() * log_prob).sum(-1).detach()
        action, log_prob = squashed_normal_sample(raw, batch.noise["action"])
        first, second = (engine.through(name)(batch.obs, action).squeeze(-1) for name in CRITICS)
        return soft_policy_loss(first, second, log_prob, alpha, batch.weight), -log_prob.detach()

    # --- acting -------------------------------------------------------------------------------------------------------

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return tanh of the mean [..., A], or the most probable legal action [...]."""
        if self.discrete:
            return masked_argmax(outputs, mask)
        return split_normal(outputs)[0].tanh().cpu().numpy()

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw standard normal numbers [*shape, A], or uniform ones [*shape] for discrete actions."""
        return (rng.random(shape) if self.discrete else rng.standard_normal((*shape, self.action_size)),)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Sample the policy: raw actions [..., A], or a legal action [...]; `epsilon` is ignored."""
        numbers = to_device(torch.from_numpy(draws[0]), outputs.device, outputs.dtype)
        if self.discrete:
            legal = None if mask is None else torch.as_tensor(np.array(mask), device=outputs.device)
            chosen = categorical_sample(masked_logits(outputs, legal), numbers)
        else:
            chosen = squashed_normal_sample(outputs, numbers)[0]
        return chosen.cpu().numpy()

    def _sampled(self, rng: np.random.Generator, obs: Tree, mask: Mask = None) -> Any:
        return self._drawn(rng, obs, mask)
