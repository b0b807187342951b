"""Cost of training a member, in counted operations, and selection by score for each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from agilerl.errors import ConfigError
from agilerl.hpo.effects import evaluating, output_of
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.tournament import Agent, TournamentSelection
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.observations import sample_batch
from agilerl.spaces import parts_of
from agilerl.telemetry.record import MemberRecord

# A backward pass has two matrix products for each one of the forward pass (Kaplan et al. 2020, arXiv:2001.08361,
# section 2.1).
FORWARD_AND_BACKWARD = 3

CostOf = Callable[[Any], float]


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Sum the operations of the calls of torch inside the block, by the formulas of `torch.utils.flop_counter`.

    Its `FlopCounterMode` counts the same, but loads torch's compiler at its first call, which takes a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True loads the compiler, to exclude this class from it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


def forward_operations(network: Any, name: str) -> int:
    """Count the floating-point operations of a forward pass over one observation, without noise.

    Those of matrix products, convolutions and attention, by `torch.utils.flop_counter`: a multiplication and an
    addition are two. A network that reads the features of another one counts its head alone, and a module without
    matrices, such as SAC's temperature, nothing.

    Args:
        network: neither its weights nor any random stream change. name: for messages.
    Raises:
        ConfigError: a network that cannot be run on an observation alone, or with recurrent layers of torch, which
            are not counted. (Those of the project are.)
    """
    if not any(parameter.numel() for parameter in network.parameters() if parameter.dim() >= 2):
        return 0
    if not isinstance(network, EvolvableNetwork):
        raise _uncounted(f"{name} is of class {type(network).__name__}, not an EvolvableNetwork")
    layers = (type(module).__name__ for _, module in network.named_modules() if isinstance(module, nn.RNNBase))
    if (recurrent := next(layers, None)) is not None:
        raise _uncounted(f"{name} has a torch.nn.{recurrent}")
    like, run = next(network.parameters()), cast(Callable[..., Any], network.output)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(network):
            observation = _one_observation(network.observation_space)
            counter = OperationCounter()
            with counter:
                if network.encoder_source is not None:
                    network.head_net(like.new_zeros(1, network.head_net.num_inputs))
                elif network.num_beside:
                    run(observation, like.new_zeros(1, network.num_beside))
                else:
                    output_of(network, observation)
    except Exception as error:  # a network of the user may take anything
        raise _uncounted(f"{name}, a {type(network).__name__}, fails on one observation ({error})") from error
    return counter.total


def _one_observation(space: spaces.Space[Any]) -> Any:
    """Return an observation [1, ...]; a dict of them for spaces with parts, for which `tensordict` is not imported."""
    parts = {key: _one_observation(part) for key, part in parts_of(space).items()}
    return parts or sample_batch(space, 1, np.random.default_rng(0))


def _uncounted(reason: str) -> ConfigError:
    return ConfigError(f"evolution.objective: operations cannot be counted: {reason}. fix: evolution.objective=score.")


def rollout_operations(forward: float, update_epochs: int) -> float:
    """Return operations per environment step of on-policy learning: each row is learned from in every epoch.

    Args:
        forward: operations of one pass through all networks, which acting makes too.
    """
    return forward * (1 + FORWARD_AND_BACKWARD * update_epochs)


def replay_operations(acting: float, learning: float, targets: float, rows: float) -> float:
    """Return operations per step of learning from replay, or from data.

    Args:
        acting: operations of one pass through the policy; 0 if there is nothing to act in.
        learning, targets: of one pass through all trained networks, and through their targets.
        rows: learned from per step: batch size times updates per step.
    """
    return acting + rows * (FORWARD_AND_BACKWARD * learning + targets)


def per_cost(fitness: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Return (fitness - lowest finite fitness) / cost of each member [N]; NaN and infinite fitness stay as they are."""
    finite = [value for value in fitness if math.isfinite(value)]
    lowest = min(finite, default=0.0)
    return [
        (value - lowest) / cost if math.isfinite(value) else value for value, cost in zip(fitness, costs, strict=True)
    ]


class PerCost(Evolution):
    """Apply another evolution to records whose fitness is `per_cost`; births and agents keep the score.

    Args:
        inner: reads fitness from the records alone. cost: of an agent's training, in operations per step.
    """

    def __init__(self, inner: Evolution, cost: CostOf) -> None:
        self.inner, self.cost = inner, cost
        self.shrinks, self.sets_size = inner.shrinks, inner.sets_size

    @property
    def shares_budget(self) -> bool:
        return self.inner.shares_budget

    @property
    def is_on(self) -> bool:
        return self.inner.is_on

    def begin_anew(self, env_steps: int) -> None:
        self.inner.begin_anew(env_steps)

    def budget_left(self, env_steps: int) -> None:
        self.inner.budget_left(env_steps)

    def renamed(self, ids: Mapping[int, int]) -> None:
        self.inner.renamed(ids)

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        fitness = per_cost([record.fitness for record in records], [self.cost(agent) for agent in population])
        worth = [replace(record, fitness=value) for record, value in zip(records, fitness, strict=True)]
        return self.inner.next(population, worth, generation)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state(state)


class TournamentPerCost(TournamentSelection):
    """Tournament selection by `per_cost` in place of fitness, also of the member that elitism carries over.

    Args:
        cost: of an agent's training, in operations per step. See `TournamentSelection` for the others.
    """

    def __init__(self, *args: Any, cost: CostOf, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cost = cost

    def values(self, population: Sequence[Agent]) -> list[float]:
        return per_cost(super().values(population), [self.cost(agent) for agent in population])
