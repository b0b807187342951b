"""Updates as data, for a back end that runs whole updates without the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agilerl.networks.distributions import ActionDistribution

if TYPE_CHECKING:
    from agilerl.engine.protocol import Trainable


@dataclass(frozen=True, slots=True)
class TDRecipe:
    """Q-learning with a target network and the squared error (`DQN.update` and `CQN.update` in torch).

    Hyperparameters are `lr` and `tau`.

    Attributes:
        network: name of the action values; its shared network is the target. optimizer: name of its optimiser.
        is_double: whether the evaluation network selects the next action (van Hasselt et al. 2016, arXiv:1509.06461).
        conservative: name of the hyperparameter that weights the conservative term (`losses.conservative_penalty`),
            which is added to half the squared error; None without it.
    """

    network: str
    optimizer: str
    is_double: bool = False
    conservative: str | None = None

    stands_for: ClassVar[frozenset[str]] = frozenset({"update"})


@dataclass(frozen=True, slots=True)
class PolicyGradientRecipe:
    """Clipped policy gradient and value loss of one minibatch (`PPO.update` in torch).

    Hyperparameters are `lr`, `clip_coef`, `ent_coef`, `vf_coef` and `max_grad_norm`.

    Attributes:
        policy, critic: names of the networks. optimizer: name of the optimiser of both.
        distribution: of the actions, one of `KINDS`. clips_value: whether the value loss is clipped too.
    """

    policy: str
    critic: str
    optimizer: str
    distribution: ActionDistribution
    clips_value: bool

    stands_for: ClassVar[frozenset[str]] = frozenset({"update", "_raw", "_row"})
    KINDS: ClassVar[frozenset[str]] = frozenset({"categorical", "multi_categorical", "normal"})


@dataclass(frozen=True, slots=True)
class ActorCriticRecipe:
    """A deterministic actor with one or two critics (`DDPG.update` and `TD3.update` in torch).

    Hyperparameters are `tau`, the learning rates `lr_actor` and `lr_critic`, and `policy_noise` and `noise_clip` if
    `smooths`.

    Attributes:
        actor: name of the policy. critics: names of the critics, whose heads read features and actions.
        actor_optimizer: of the policy. critic_optimizers: one per critic.
        policy_interval: updates per step of the policy. tracks_with_policy: whether targets of critics wait for it.
        smooths: whether target actions are smoothed. low, high: bounds of the policy's outputs.
    """

    actor: str
    critics: tuple[str, ...]
    actor_optimizer: str
    critic_optimizers: tuple[str, ...]
    policy_interval: int
    tracks_with_policy: bool
    smooths: bool
    low: float = -1.0
    high: float = 1.0

    stands_for: ClassVar[frozenset[str]] = frozenset(
        {"update", "taken_features", "next_actions", "critic_rows", "critic_values", "policy_loss", "priorities"}
    )


@dataclass(frozen=True, slots=True)
class SoftActorCriticRecipe:
    """A stochastic actor with two critics and a temperature (`SAC.update` in torch).

    Hyperparameters are `tau`, `target_entropy` and the learning rates `lr_actor`, `lr_critic` and `lr_alpha`.

    Attributes:
        actor: name of the policy, with logits of choices, or mean and log standard deviation before tanh.
        critics: names of the critics, of which heads of Box actions read features and actions.
        temperature: name of the network whose only parameter is the logarithm of the temperature.
        actor_optimizer, temperature_optimizer: of these. critic_optimizers: one per critic.
        is_discrete: whether the update takes expectations over choices. learns_temperature: whether it is moved.
    """

    actor: str
    critics: tuple[str, str]
    temperature: str
    actor_optimizer: str
    critic_optimizers: tuple[str, str]
    temperature_optimizer: str
    is_discrete: bool
    learns_temperature: bool

    stands_for: ClassVar[frozenset[str]] = frozenset(
        {"update", "_update_critics", "_next_value", "_values", "_policy_loss", "_target_entropy"}
    )


@dataclass(frozen=True, slots=True)
class AgentLayout:
    """One agent of a team.

    Attributes:
        name: of the agent. sizes: choices of each component of its action; empty for a Box.
        column: of its action in stored rows. start, width: of its features among those of all agents.
        legal: of its choices in masks.
    """

    name: str
    sizes: tuple[int, ...]
    column: int
    start: int
    width: int
    legal: int


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Agents that share networks: their positions, and names of the policy, of its critics and of their optimisers."""

    agents: tuple[int, ...]
    actor: str
    critics: tuple[str, ...]
    actor_optimizer: str
    critic_optimizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TeamActorCriticRecipe:
    """Deterministic policies of a team with one or two centralised critics each (`MADDPG.update`, `MATD3.update`).

    Hyperparameters are those of `ActorCriticRecipe`.

    Attributes:
        agents, groups: of the team, in order. temperature: of relaxed discrete actions.
        policy_interval: updates per step of policies and targets. smooths: whether target actions are smoothed.
    """

    agents: tuple[AgentLayout, ...]
    groups: tuple[GroupLayout, ...]
    temperature: float
    policy_interval: int
    smooths: bool

    stands_for: ClassVar[frozenset[str]] = ActorCriticRecipe.stands_for | {"_smoothed"}


OffPolicyRecipe = TDRecipe | ActorCriticRecipe | SoftActorCriticRecipe | TeamActorCriticRecipe
Recipe = OffPolicyRecipe | PolicyGradientRecipe


def recipe_of(agent: Trainable) -> Recipe | None:
    """Return the agent's recipe; None without one, or if methods that it stands for are overridden or replaced."""
    bases = type(agent).__mro__
    owner = next((k for k, base in enumerate(bases) if "recipe" in vars(base)), None)
    description = None if owner is None else agent.recipe()
    if owner is None or description is None:
        return None
    for k, base in enumerate(bases):
        for name in description.stands_for & vars(base).keys():
            if k < owner or vars(base)[name].__module__ != base.__module__:
                return None
    return description
