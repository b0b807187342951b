"""Agents built from the layers of other libraries: one method for each kind of policy."""

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
from agilerl.core.spaces import flat_size, is_image, parts_of
from agilerl.errors import AgileRLError, AlgorithmError, NotAvailableYetError, ShapeError
from agilerl.networks.actors import DeterministicActor, StochasticActor
from agilerl.networks.distributions import distribution_of
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork
from agilerl.networks.value_networks import ValueNetwork


@dataclass(frozen=True)
class Place:
    """Spaces, device and seed of an agent to build from a policy file.

    Attributes:
        observation_space, action_space: of one environment. source: the file, for messages. device, seed: of the agent.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    source: str
    device: str = "cpu"
    seed: int | None = None

    def check_inputs(self, layers: Sequence[Dense], num_actions: int = 0) -> None:
        """Check that the first layer reads an observation and `num_actions` components of an action.

        Raises:
            ShapeError: another number of inputs. NotAvailableYetError: images, or observations of several parts.
        """
        space = self.observation_space
        if is_image(space) or parts_of(space):
            kind = "images" if is_image(space) else "observations of several parts"
            raise NotAvailableYetError(
                f"{self.source}: policies of {kind} are not imported; the environment has observations {space}. "
                "fix: an environment with vector observations, or train a new agent."
            )
        expected, inputs = flat_size(space) + num_actions, layers[0].inputs
        if expected != inputs:
            raise ShapeError(
                f"{self.source} reads {inputs} numbers; the environment gives {expected} ({space}). "
                "fix: the environment, with its wrappers, that the policy was trained in."
            )

    def check_outputs(self, count: int, expected: int) -> None:
        """Raise ShapeError unless the network has an output for each of `expected` choices or components."""
        if count != expected:
            raise ShapeError(
                f"{self.source} has {count} outputs; {self.action_space} needs {expected}. "
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
        """Raise AlgorithmError unless actions are those of a Box."""
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
        """Build an agent with the hyperparameters of the file, and the defaults of manifests for the others.

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
        """Build a DQN agent; `target`: layers of its target network, None: a copy of `layers`."""
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
        """Build a PPO agent from a stochastic policy and a state value.

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
        """Build a SAC agent, whose policy's last layer gives means and log standard deviations."""
        self._check_actor_critic(policy, critics, 2)
        return self._with_critics(SAC, StochasticActor, policy, critics, targets, numbers, squash_output=True)

    def deterministic_actor_critic(
        self,
        policy: tuple[Sequence[Dense], Sequence[Dense]],
        critics: Sequence[Sequence[Dense]],
        targets: Sequence[Sequence[Dense]],
        numbers: Mapping[str, Any],
    ) -> Any:
        """Build a TD3 agent, or a DDPG agent for a single critic, from a policy that ends in tanh and its target."""
        actor, target = policy
        self._check_actor_critic(actor, critics, 1)
        cls = DDPG if len(critics) == 1 else TD3
        accepted = {name: value for name, value in numbers.items() if name in hyperparameters(cls)}
        agent = self._with_critics(cls, DeterministicActor, actor, critics, targets, accepted)
        split(target).fill(agent.actor_target)
        return agent

    def _check_actor_critic(self, policy: Sequence[Dense], critics: Sequence[Sequence[Dense]], factor: int) -> None:
        self.check_box()
        size = int(gym.spaces.flatdim(self.action_space))
        self.check_inputs(policy)
        self.check_outputs(policy[-1].width, factor * size)
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
        critic_arguments: dict[str, Any] = {"critic_networks": networks}
        if cls is DDPG:
            critic_arguments = {"critic_network": networks[0]}
        actor_network = self.network(actor, split(policy), output, **more)
        agent = self.agent(cls, numbers, actor_network=actor_network, **critic_arguments)
        target_networks = [agent.critic_target] if cls is DDPG else [agent.critic_target_1, agent.critic_target_2]
        for network, layers in zip(target_networks, targets, strict=True):
            split_critic(layers, size).fill(network)
        return agent


def with_log_std(mean: Dense, log_std: Tensor) -> Dense:
    """Append rows for log standard deviations that do not depend on the observation to the layer of means."""
    weight = torch.cat([mean.weight, torch.zeros(len(log_std), mean.inputs)])
    return Dense(weight, torch.cat([mean.bias, log_std.flatten()]))


def concatenated(mean: Dense, log_std: Dense) -> Dense:
    """Concatenate the outputs of two layers with the same inputs."""
    return Dense(torch.cat([mean.weight, log_std.weight]), torch.cat([mean.bias, log_std.bias]))
