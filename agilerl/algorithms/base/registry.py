"""Registration for evolution: network groups, optimisers and mutable hyperparameters of an algorithm.

Names are paths: `actor`, or `actors.speaker_0` for an entry of a `ModuleDict` or mapping attribute.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.errors import RegistryError
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.modules.base import EvolvableModule
from agilerl.modules.paths import resolve as resolve

__all__ = ["HyperparameterConfig", "MutationRegistry", "NetworkGroup", "OptimizerConfig", "RLParameter", "resolve"]
_COUNTERS = ("index", "seed", "learn_counter")  # numeric, but not hyperparameters


@dataclass
class NetworkGroup:
    """An evaluation network and the untrained networks that share its architecture (targets).

    Attributes:
        eval_network: the network; replaced by its attribute name on registration.
        shared_networks: one network, a list of networks, or None; names after registration.
        policy: True for the group that selects actions; exactly one group of an algorithm has it.
    """

    eval_network: Any
    shared_networks: Any = None
    policy: bool = False

    def __init__(
        self,
        eval_network: Any = None,
        shared_networks: object = None,
        policy: bool = False,
        *,
        eval: object = None,
        shared: object = None,
    ) -> None:
        """`eval` and `shared` are aliases of `eval_network` and `shared_networks`."""
        self.eval_network = eval_network if eval_network is not None else eval
        if self.eval_network is None:
            raise TypeError("NetworkGroup needs eval_network. fix: NetworkGroup(eval_network=self.actor, policy=True)")
        self.shared_networks = shared_networks if shared_networks is not None else shared
        self.policy = policy

    def named(self, agent: Registered) -> NetworkGroup:
        """Return the group by the names of attributes of the agent."""
        shared = self.shared_networks
        shared = [] if shared is None else shared if isinstance(shared, list | tuple) else [shared]
        names = [_network_name(agent, network) for network in (self.eval_network, *shared)]
        group = copy.copy(self)
        group.eval_network, group.shared_networks = names[0], names[1:]
        return group


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimiser by name: the networks it updates and the hyperparameter that is its learning rate."""

    name: str
    networks: list[str]
    lr: str

    def wrapper(self, agent: object) -> OptimizerWrapper:
        """Return this agent's optimiser."""
        optimizer: OptimizerWrapper = resolve(agent, self.name)
        return optimizer

    def rate(self, agent: object) -> float:
        """Return its learning rate, the agent's current hyperparameter."""
        rate: float = resolve(agent, self.lr)
        return rate


@dataclass
class MutationRegistry:
    """Attributes of an algorithm, by name, that `Mutations` and learners may read and change; see `resolve`."""

    hp_config: HyperparameterConfig = field(default_factory=HyperparameterConfig)
    groups: list[NetworkGroup] = field(default_factory=list)
    optimizers: list[OptimizerConfig] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    encoder_sources: dict[str, str] = field(default_factory=dict)
    """Network without an encoder -> the network whose features it reads; both may be targets."""
    followers: dict[str, str] = field(default_factory=dict)
    """Attribute -> method (name, value) that is called with each new value, once the agent has optimisers."""
    watched: set[str] = field(default_factory=set)
    """Attributes whose assignment has side effects for values of any type; see `assigned`."""

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of all policies: one for a single agent, one per agent or group of agents otherwise."""
        return tuple(str(g.eval_network) for g in self.groups if g.policy)

    def policy(self) -> str | None:
        """Name of the first policy; None while no group has `policy=True`."""
        return next((str(g.eval_network) for g in self.groups if g.policy), None)

    def all_registered(self) -> set[str]:
        """Names of all registered networks."""
        return {name for g in self.groups for name in (g.eval_network, *(g.shared_networks or []))}

    def signature(self) -> tuple[Any, ...]:
        """Return a key that is equal for two agents that can load each other's checkpoints."""
        groups = tuple((g.eval_network, tuple(g.shared_networks or ()), g.policy) for g in self.groups)
        optimizers = tuple((o.name, tuple(o.networks), o.lr) for o in self.optimizers)
        return (groups, optimizers, *((tuple(self.encoder_sources.items()),) if self.encoder_sources else ()))


class Registered(Protocol):
    """An object whose networks, optimisers and hyperparameters are registered."""

    registry: MutationRegistry

    def link_encoders(self) -> None: ...


# --- assignment ---------------------------------------------------------------------------------------------------


def assigned(agent: Registered, name: str, value: Any) -> None:
    """Assign an attribute and register the value.

    Assigning an `OptimizerWrapper` records which networks it updates. A new learning rate is passed to its optimiser.
    The optimiser moments of a replaced network are reset. A network that replaces one with a shared encoder must have
    an encoder of the same architecture (KeyError otherwise), which is then dropped.
    """
    registry, before = agent.registry, agent.__dict__.get(name)
    if name in registry.encoder_sources:
        _check_reader(agent, name, value)
    object.__setattr__(agent, name, value)
    if isinstance(value, OptimizerWrapper):
        _register_optimizer(agent, name, value)
    elif isinstance(value, nn.Module) and before is not None and before is not value:
        agent.link_encoders()  # first: it determines which parameters an optimiser updates
        for config in registry.optimizers:
            config.wrapper(agent).forget(name, value)
    elif is_number(value):
        for config in registry.optimizers:
            if config.lr == name and config.name in agent.__dict__:
                config.wrapper(agent).set_lr(value)
    if name in registry.followers and registry.optimizers and value != before:
        resolve(agent, registry.followers[name])(name, value)


def _register_optimizer(agent: Registered, name: str, wrapper: OptimizerWrapper) -> None:
    if wrapper.network_names is None:
        wrapper.network_names = [_name_of(agent, module, name) for module in wrapper.networks]
    if wrapper.lr_name is None:
        wrapper.lr_name = _learning_rate_name(agent, wrapper.lr, name)
    registry = agent.registry
    registry.optimizers = [o for o in registry.optimizers if o.name != name]
    registry.optimizers.append(OptimizerConfig(name, wrapper.network_names, wrapper.lr_name))
    registry.watched.add(wrapper.lr_name)


def _modules(agent: Registered) -> Iterator[tuple[str, Any]]:
    """Iterate over (path, value) of the attributes, then over the contents of containers among them."""
    yield from agent.__dict__.items()
    for name, value in agent.__dict__.items():
        if isinstance(value, Mapping | nn.ModuleDict):
            yield from ((f"{name}.{key}", part) for key, part in value.items())


def _name_of(agent: Registered, module: nn.Module, where: str) -> str:
    name = next((k for k, v in _modules(agent) if v is module), None)
    if name is None:
        raise AttributeError(
            f"{where}: a network given to an OptimizerWrapper or NetworkGroup is not an attribute of "
            f"{type(agent).__name__}. fix: assign it first (self.actor = ...), then wrap it."
        )
    return name


def _learning_rate_name(agent: Registered, lr: float, where: str) -> str:
    numeric = {k: v for k, v in agent.__dict__.items() if is_number(v)}
    same = [k for k, v in numeric.items() if v is lr]
    equal = [k for k, v in numeric.items() if v == lr]
    for candidates in (same, equal):
        if len(candidates) == 1:
            return candidates[0]
    raise AttributeError(
        f"{type(agent).__name__}.{where}: cannot tell which attribute is its learning rate {lr}; candidates: "
        f"{sorted(set(same + equal)) or 'none'}. fix: OptimizerWrapper(..., lr_name='lr')."
    )


# --- groups and shared encoders -----------------------------------------------------------------------------------


def _network_name(agent: Registered, network: EvolvableModule | str) -> str:
    if not isinstance(network, str):
        return _name_of(agent, network, "register_network_group")
    if network.split(".")[0] not in agent.__dict__:
        raise AttributeError(f"register_network_group: {type(agent).__name__} has no attribute {network!r}")
    return network


def lend(agent: Registered, reader: str, encoder_source: str) -> None:
    """Drop the encoder of the network `reader`; it reads the features of `encoder_source` from here on."""
    agent.registry.encoder_sources[reader] = encoder_source
    agent.registry.watched.add(reader)


def _check_reader(agent: Registered, name: str, network: EvolvableModule) -> None:
    """Check that `network` can replace a network with a shared encoder."""
    encoder_source = agent.registry.encoder_sources[name]
    if not hasattr(network, "check_same_encoder"):
        raise RegistryError(
            f"{type(agent).__name__}.{name} reads the features of {encoder_source}; a {type(network).__name__} cannot. "
            "fix: an EvolvableNetwork, or an agent with share_encoders=False."
        )
    if network.encoder_source is None:
        network.check_same_encoder(resolve(agent, encoder_source))


def follow(agent: Registered, method: str, *names: str) -> None:
    """Call `method` (name, value) whenever one of the attributes `names` changes."""
    agent.registry.followers |= dict.fromkeys(names, method)
    agent.registry.watched |= set(names)


def is_number(value: object) -> bool:
    """Whether the value is a Python or numpy number other than a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
