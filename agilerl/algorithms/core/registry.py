"""What an algorithm declares for evolution: its network groups, its optimisers, its mutable hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agilerl.hpo.operators import HyperparameterConfig, RLParameter

__all__ = ["HyperparameterConfig", "MutationRegistry", "NetworkGroup", "OptimizerConfig", "RLParameter"]


@dataclass
class NetworkGroup:
    """An evaluation network, and the networks that share its architecture but are not trained (targets).

    Attributes:
        eval_network: the network, replaced by its attribute name when the group is registered.
        shared_networks: one network or a list of them, or None; names after registration.
        policy: True for the group that selects actions; exactly one group of an algorithm has it.
    """

    eval_network: Any
    shared_networks: Any = None
    policy: bool = False

    def __init__(
        self,
        eval_network: Any = None,
        shared_networks: Any = None,
        policy: bool = False,
        *,
        eval: Any = None,
        shared: Any = None,
    ) -> None:
        """`eval` and `shared` are accepted as other names of the first two."""
        self.eval_network = eval_network if eval_network is not None else eval
        if self.eval_network is None:
            raise TypeError("NetworkGroup needs eval_network. fix: NetworkGroup(eval_network=self.actor, policy=True)")
        self.shared_networks = shared_networks if shared_networks is not None else shared
        self.policy = policy


@dataclass(frozen=True)
class OptimizerConfig:
    """One optimiser by name: the networks that it moves and the hyperparameter that is its learning rate."""

    name: str
    networks: list[str]
    lr: str


@dataclass
class MutationRegistry:
    """What `Mutations` and the learners may read and change of an algorithm, by attribute name."""

    hp_config: HyperparameterConfig
    groups: list[NetworkGroup] = field(default_factory=list)
    optimizers: list[OptimizerConfig] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    lenders: dict[str, str] = field(default_factory=dict)
    """Network without an encoder -> the network whose features it reads; both may be targets."""

    def policy(self) -> str | None:
        """Attribute name of the policy, None while no group has `policy=True`."""
        return next((str(g.eval_network) for g in self.groups if g.policy), None)

    def all_registered(self) -> set[str]:
        """Names of every registered network."""
        return {name for g in self.groups for name in (g.eval_network, *(g.shared_networks or []))}

    def signature(self) -> tuple[Any, ...]:
        """Two agents with equal signatures can read each other's checkpoints."""
        groups = tuple((g.eval_network, tuple(g.shared_networks or ()), g.policy) for g in self.groups)
        optimizers = tuple((o.name, tuple(o.networks), o.lr) for o in self.optimizers)
        return (groups, optimizers, *((tuple(self.lenders.items()),) if self.lenders else ()))
