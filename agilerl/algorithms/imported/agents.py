"""Agents from the layers of other libraries: one function for each kind of policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.algorithms.imported.dense import Dense, split, split_critic
from agilerl.errors import AgileRLError, AlgorithmError, NotAvailableYetError, ShapeError
from agilerl.networks.actors import DeterministicActor, StochasticActor
from agilerl.networks.distributions import distribution_of
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork
from agilerl.networks.value_networks import ValueNetwork
from agilerl.spaces import flat_size, is_image, parts_of


@dataclass(frozen=True)
class Place:
    """Where an agent acts, and what made its policy.

    Attributes:
        observation_space, action_space: of one environment. source: the file, for messages. device, seed: of the agent.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    source: str
    device: str = "cpu"
    seed: int | None = None

    def check_inputs(self, layers: Sequence[Dense], beside: int = 0) -> None:
        """Raise ShapeError unless the first layer reads an observation and `beside` further numbers.

        NotAvailableYetError for images and for observations of several parts.
        """
        space = self.observation_space
        if is_image(space) or parts_of(space):
            kind = "images" if is_image(space) else "observations of several parts"
            raise NotAvailableYetError(
                f"{self.source}: policies of {kind} are not imported; the environment shows {space}. "
                "fix: an environment of vectors, or train a new agent."
            )
        needed, reads = flat_size(space) + beside, layers[0].inputs
        if needed != reads:
            raise ShapeError(
                f"{self.source} reads {reads} numbers; the environment gives {needed} ({space}). "
                "fix: the environment, with its wrappers, that the policy was trained in."
            )

    def check_outputs(self, count: int, needed: int) -> None:
        """Raise ShapeError unless the network has an output for each of `needed` choices or components."""
        if count != needed:
            raise ShapeError(
                f"{self.source} has {count} outputs; {self.action_space} needs {needed}. "
                "fix: the environment that the policy was trained in."
            )

    def check_actions(self, *kinds: type) -> None:
        """Raise AlgorithmError for another kind of action space."""
        if not isinstance(self.action_space, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise AlgorithmError(
                f"{self.source} is a policy for {names} actions; the environment takes {self.action_space}. "
                "fix: the environment that the policy was trained in."
            )

    def check_box(self) -> None:
        """Raise AlgorithmError for other actions than those of a Box."""
        self.check_actions(gym.spaces.Box)

    def network(self, cls: Any, layers: Any, output_activation: str | None = None, **more: Any) -> Any:
        """Build a network of `cls` with the layers of a `Split`."""
        spaces = {"observation_space": self.observation_space}
        if cls is not ValueNetwork:
            spaces["action_space"] = self.action_space
        options = vars(layers.options(output_activation)) | {"device": self.device, "random_seed": self.seed}
        network = cls(**spaces, **options, **more)
        layers.fill(network)
        return network

    def agent(self, cls: Any, numbers: Mapping[str, Any], **networks: Any) -> Any:
        """Build an agent: hyperparameters of the file, else the defaults of manifests.

        Raises:
            AlgorithmError: a hyperparameter out of range.
        """
        arguments = {name: each.manifest for name, each in hyperparameters(cls).items()} | dict(numbers)
        if "share_encoders" in arguments:
            arguments["share_encoders"] = False
        spaces = self.observation_space, self.action_space
        try:
            return cls(*spaces, device=self.device, seed=self.seed, **arguments, **networks)
        except AgileRLError as error:
            raise type(error)(f"{self.source}: {error}") from None

    def values(self, layers: Sequence[Dense], target: Sequence[Dense] | None, numbers: Mapping[str, Any]) -> Any:
        """An agent that acts by values of discrete actions; `target`: layers of its target network."""
        self.check_actions(gym.spaces.Discrete)
        self.check_inputs(layers)
        self.check_outputs(layers[-1].width, int(self.action_space.n))  # type: ignore[attr-defined]
        agent = self.agent(DQN, numbers, actor_network=self.network(QNetwork, split(layers)))
        if target is not None:
            split(target).fill(agent.actor_target)
        return agent

    def policy_gradient(
        self, policy: Sequence[Dense], value: Sequence[Dense], log_std: Tensor | None, numbers: Mapping[str, Any]
    ) -> Any:
        """An agent with a stochastic policy and a state value.

        Args:
            log_std: [A] of Box actions, in units of the environment; None for discrete ones.
        """
        kinds = gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary
        self.check_actions(*(kinds if log_std is None else (gym.spaces.Box,)))
        for layers in (policy, value):
            self.check_inputs(layers)
        kind, units = distribution_of(self.action_space), {}
        if log_std is not None:
            policy = [*policy[:-1], with_log_std(policy[-1], log_std)]
            units = {"action_scaling": "none"}
        self.check_outputs(policy[-1].width, kind.raw_size)
        numbers = {**numbers, "recurrent": False, "normalize_observations": False, "squash_output": False, **units}
        return self.agent(
            PPO, numbers, actor_network=self.network(StochasticActor, split(policy), **units),
            critic_network=self.network(ValueNetwork, split(value)),
        )  # fmt: skip

    def stochastic_actor_critic(
        self,
        policy: Sequence[Dense],
        critics: Sequence[Sequence[Dense]],
        targets: Sequence[Sequence[Dense]],
        numbers: Mapping[str, Any],
    ) -> Any:
        """An agent with a squashed normal policy, whose last layer gives means and log standard deviations."""
        self._check_actor_critic(policy, critics, 2)
        return self._with_critics(SAC, StochasticActor, policy, critics, targets, numbers, squash_output=True)

    def deterministic_actor_critic(
        self,
        policy: tuple[Sequence[Dense], Sequence[Dense]],
        critics: Sequence[Sequence[Dense]],
        targets: Sequence[Sequence[Dense]],
        numbers: Mapping[str, Any],
    ) -> Any:
        """An agent with a policy that ends in tanh, with its target, and one or two critics."""
        actor, target = policy
        self._check_actor_critic(actor, critics, 1)
        cls = DDPG if len(critics) == 1 else TD3
        taken = {name: value for name, value in numbers.items() if name in hyperparameters(cls)}
        agent = self._with_critics(cls, DeterministicActor, actor, critics, targets, taken)
        split(target).fill(agent.actor_target)
        return agent

    def _check_actor_critic(self, policy: Sequence[Dense], critics: Sequence[Sequence[Dense]], each: int) -> None:
        self.check_box()
        size = int(gym.spaces.flatdim(self.action_space))
        self.check_inputs(policy)
        self.check_outputs(policy[-1].width, each * size)
        for layers in critics:
            self.check_inputs(layers, size)

    def _with_critics(
        self,
        cls: Any,
        actor: Any,
        policy: Sequence[Dense],
        critics: Sequence[Sequence[Dense]],
        targets: Sequence[Sequence[Dense]],
        numbers: Mapping[str, Any],
        **more: Any,
    ) -> Any:
        size = int(gym.spaces.flatdim(self.action_space))
        output = "Tanh" if actor is DeterministicActor else None
        networks = [self.network(ContinuousQNetwork, split_critic(layers, size)) for layers in critics]
        named: dict[str, Any] = {"critic_networks": networks}
        if cls is DDPG:
            named = {"critic_network": networks[0]}
        agent = self.agent(cls, numbers, actor_network=self.network(actor, split(policy), output, **more), **named)
        shadows = [agent.critic_target] if cls is DDPG else [agent.critic_target_1, agent.critic_target_2]
        for shadow, layers in zip(shadows, targets, strict=True):
            split_critic(layers, size).fill(shadow)
        return agent


def with_log_std(mean: Dense, log_std: Tensor) -> Dense:
    """Return the layer of means with rows for log standard deviations that do not depend on the observation."""
    weight = torch.cat([mean.weight, torch.zeros(len(log_std), mean.inputs)])
    return Dense(weight, torch.cat([mean.bias, log_std.flatten()]))


def side_by_side(mean: Dense, log_std: Dense) -> Dense:
    """Return one layer with the outputs of both."""
    return Dense(torch.cat([mean.weight, log_std.weight]), torch.cat([mean.bias, log_std.bias]))
