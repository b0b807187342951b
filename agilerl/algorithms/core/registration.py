"""What an algorithm registers: networks, optimisers and hyperparameters, found by the attributes that hold them."""

from __future__ import annotations

import copy
import numbers
from typing import Any, Self

import numpy as np
from torch import nn

from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import (
    HyperparameterConfig,
    MutationRegistry,
    NetworkGroup,
    OptimizerConfig,
)
from agilerl.algorithms.declared import check_arguments
from agilerl.errors import RegistryError
from agilerl.modules.base import EvolvableModule


class Registered:
    """An object that knows which of its attributes are networks, optimisers and learning rates.

    Assigning does the registering: an `OptimizerWrapper` is asked which networks it moves, a new learning rate reaches
    its optimiser, and a network that replaces another one starts without moments. What replaces a network that shares
    an encoder must have one of the same architecture (KeyError), and gives it up.
    """

    registry: MutationRegistry

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        check_arguments(cls, args, kwargs)
        object.__setattr__(self, "registry", MutationRegistry(HyperparameterConfig()))
        return self

    # --- registration -------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name)
        if name in self.registry.lenders:
            self._check_reader(name, value)
        object.__setattr__(self, name, value)
        if isinstance(value, OptimizerWrapper):
            self._register_optimizer(name, value)
        elif isinstance(value, nn.Module) and before is not None and before is not value:
            self.link_encoders()  # first: what an optimiser moves is settled by it
            for config in self.registry.optimizers:
                getattr(self, config.name).forget(name, value)
        elif _is_number(value):
            for config in self.registry.optimizers:
                if config.lr == name and config.name in self.__dict__:
                    getattr(self, config.name).set_lr(value)

    def _register_optimizer(self, name: str, wrapper: OptimizerWrapper) -> None:
        if wrapper.network_names is None:
            wrapper.network_names = [self._name_of(module, name) for module in wrapper.networks]
        if wrapper.lr_name is None:
            wrapper.lr_name = self._learning_rate_name(wrapper.lr, name)
        self.registry.optimizers = [o for o in self.registry.optimizers if o.name != name]
        self.registry.optimizers.append(OptimizerConfig(name, wrapper.network_names, wrapper.lr_name))

    def _name_of(self, module: Any, where: str) -> str:
        found = next((k for k, v in self.__dict__.items() if v is module), None)
        if found is None:
            raise AttributeError(
                f"{where}: a network given to an OptimizerWrapper or NetworkGroup is no attribute of "
                f"{type(self).__name__}. "
                "fix: assign it first (self.actor = ...), then wrap it."
            )
        return found

    def _learning_rate_name(self, lr: float, where: str) -> str:
        numbers = {k: v for k, v in self.__dict__.items() if _is_number(v)}
        same = [k for k, v in numbers.items() if v is lr]
        equal = [k for k, v in numbers.items() if v == lr]
        for candidates in (same, equal):
            if len(candidates) == 1:
                return candidates[0]
        raise AttributeError(
            f"{type(self).__name__}.{where}: cannot tell which attribute is its learning rate {lr}; candidates: "
            f"{sorted(set(same + equal)) or 'none'}. fix: OptimizerWrapper(..., lr_name='lr')."
        )

    def register_network_group(self, group: NetworkGroup) -> None:
        """Register networks for mutation; modules in `group` are replaced by their attribute names."""
        named = copy.copy(group)
        named.eval_network = self._network_name(group.eval_network)
        shared = group.shared_networks
        shared = [] if shared is None else shared if isinstance(shared, list | tuple) else [shared]
        named.shared_networks = [self._network_name(network) for network in shared]
        self.registry.groups.append(named)

    def _network_name(self, network: Any) -> str:
        if isinstance(network, str):
            if network not in self.__dict__:
                raise AttributeError(f"register_network_group: {type(self).__name__} has no attribute {network!r}")
            return network
        return self._name_of(network, "register_network_group")

    def _check_reader(self, name: str, network: Any) -> None:
        """Raise where `network` cannot take the place of one that shares the encoder of another."""
        lender = self.registry.lenders[name]
        if not hasattr(network, "check_same_encoder"):
            raise RegistryError(
                f"{type(self).__name__}.{name} reads the features of {lender}; a {type(network).__name__} cannot. "
                "fix: an EvolvableNetwork, or an agent with share_encoders=False."
            )
        if network.lender is None:
            network.check_same_encoder(getattr(self, lender))

    def link_encoders(self) -> None:
        """Let every network without an encoder read the features of the present network that lends it one."""
        for reader, lender in self.registry.lenders.items():
            getattr(self, reader).borrow_encoder(getattr(self, lender))

    def register_mutation_hook(self, hook: str) -> None:
        """Name a method that runs after each mutation of this agent."""
        self.registry.hooks.append(hook)

    def mutation_hook(self) -> None:
        """Run the registered hooks; called after every mutation."""
        for hook in self.registry.hooks:
            getattr(self, hook)()

    def check_registry(self) -> None:
        """Raise where the registration is incomplete. Runs on first use: cloning, mutation, training, saving.

        Raises:
            AttributeError: no group, no policy group, or a hyperparameter that is no numeric attribute.
        """
        if not self.registry.groups:
            raise RegistryError(
                "No network groups have been registered in the algorithms __init__ method. fix: "
                "self.register_network_group(NetworkGroup(eval_network=self.actor, policy=True))"
            )
        if self.registry.policy() is None:
            raise RegistryError("No network group has been registered as a policy. fix: NetworkGroup(..., policy=True)")
        for name in self.registry.hp_config.names():
            value = getattr(self, name, None)
            if not (_is_number(value) or isinstance(value, np.ndarray)):
                raise RegistryError(
                    f"hp_config names {name!r}, which is no numeric attribute of {type(self).__name__}. "
                    f"fix: use one of {sorted(self.numeric_attributes())}"
                )

    def numeric_attributes(self) -> dict[str, float]:
        """Public numeric attributes, counters apart: what `hp_config` may name."""
        counters = ("index", "seed", "learn_counter")
        return {k: v for k, v in self.__dict__.items() if _is_number(v) and not k.startswith("_") and k not in counters}

    def follow_optimizers(self) -> None:
        """Take over what was done to the networks or the torch optimisers themselves: parameters, a learning rate."""
        for config in self.registry.optimizers:
            wrapper = getattr(self, config.name)
            wrapper.follow()
            given = {float(group["lr"]) for group in wrapper.optimizer.param_groups}
            if len(given) == 1 and given != {float(wrapper.lr)}:
                setattr(self, config.lr, given.pop())

    @property
    def hp_config(self) -> HyperparameterConfig:
        """The agent's own mutable hyperparameters."""
        return self.registry.hp_config

    def policy_module(self) -> EvolvableModule:
        """The policy network. AttributeError without a policy group."""
        name = self.registry.policy()
        if name is None:
            raise AttributeError("No policy network has been registered")
        module: EvolvableModule = getattr(self, name)
        return module

    get_policy = policy_module

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """Registered networks by name, and the optimisers too unless `networks_only`."""
        kinds: tuple[type, ...] = (EvolvableModule,) if networks_only else (EvolvableModule, OptimizerWrapper)
        return {k: v for k, v in self.__dict__.items() if isinstance(v, kinds)}

    @staticmethod
    def inspect_attributes(agent: Registered) -> dict[str, Any]:
        """Public attributes that are neither networks nor optimisers nor callables."""
        skip = (nn.Module, OptimizerWrapper, MutationRegistry)
        return {
            k: v
            for k, v in agent.__dict__.items()
            if not k.startswith("_") and not isinstance(v, skip) and not callable(v)
        }

    def reinit_optimizers(self) -> None:
        """Fresh optimisers around the present networks: moments start at zero."""
        for config in self.registry.optimizers:
            old = getattr(self, config.name)
            networks = [getattr(self, name) for name in config.networks]
            lr = getattr(self, config.lr)
            setattr(
                self,
                config.name,
                OptimizerWrapper(old.optimizer_cls, networks, lr, old.optimizer_kwargs, config.networks, config.lr),
            )


def _is_number(value: Any) -> bool:
    """A number of Python or numpy, but no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
