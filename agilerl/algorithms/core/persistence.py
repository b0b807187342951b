"""Copies and files of an agent: nothing is shared, nothing is pickled, nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.private_state import is_plain, load_private_state, private_state, unsaved_attributes
from agilerl.algorithms.core.registration import Registered
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.checkpoint import load_tree, save_tree
from agilerl.errors import RunError
from agilerl.hostile import malformed
from agilerl.modules.base import EvolvableModule
from agilerl.modules.copying import copy_value
from agilerl.networks.limits import check_sizes

_PRIVATE = ("_learner",)  # never copied, compared or saved


class Persistent(Registered):
    """A registered object that can be cloned, pickled, saved and loaded."""

    index: int
    algo: str
    device: str | torch.device

    def hyperparameters(self) -> dict[str, float]:
        """The numbers that describe the agent in records and files."""
        raise NotImplementedError

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """An independent copy: networks, optimiser moments, counters and every other attribute; nothing is shared.

        Args:
            index: id of the copy; the same as here by default.
            wrap: accepted for compatibility; there is nothing to wrap in one process.
        """
        self.check_registry()
        twin = object.__new__(type(self))
        memo: dict[int, Any] = {id(getattr(self, "accelerator", None)): getattr(self, "accelerator", None)}
        for name, value in self.__dict__.items():
            if name in _PRIVATE:
                continue
            if isinstance(value, EvolvableModule):
                memo[id(value)] = twin.__dict__[name] = value.clone()
        for name, value in self.__dict__.items():
            if name in twin.__dict__ or name in _PRIVATE:
                continue
            twin.__dict__[name] = (
                _clone_optimizer(value, twin) if isinstance(value, OptimizerWrapper) else copy_value(value, memo)
            )
        twin.link_encoders()
        if index is not None:
            twin.index = index
        return twin

    def __getstate__(self) -> dict[str, Any]:
        self._own_tensors()
        state = self.__dict__.copy()
        state.pop("_learner", None)
        return state

    def _own_tensors(self) -> None:
        """Give parameters and moments that are views of a row storage of their own: pickle writes whole storages."""
        for network in self.evolvable_attributes(networks_only=True).values():
            for tensor in (*network.parameters(), *network.buffers()):
                if _is_part(tensor):
                    tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
        for config in self.registry.optimizers:
            for state in getattr(self, config.name).optimizer.state.values():
                state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and _is_part(v)})

    def state(self) -> dict[str, Any]:
        """Plain nested state: networks (spec and weights), optimisers, and every JSON-able or tensor attribute."""
        self.check_registry()
        networks = self.evolvable_attributes(networks_only=True)
        return {
            "algo": self.algo,
            "class": type(self).__name__,
            "registry": repr(self.registry.signature()),
            "networks": {
                k: {"spec": v.spec(), "weights": {n: t.detach() for n, t in v.state_dict().items()}}
                for k, v in networks.items()
            },
            "optimizers": {o.name: _string_keys(getattr(self, o.name).state_dict()) for o in self.registry.optimizers},
            "hp_config": {name: _limits(parameter) for name, parameter in self.hp_config.items()},
            "attributes": {k: v for k, v in self.inspect_attributes(self).items() if is_plain(v)},
        }

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the agent to one file: safetensors with a JSON manifest in its header, atomically, no pickle."""
        save_tree(path, self.state())

    def load_checkpoint(self, path: str | Path) -> None:
        """Read a file of `save_checkpoint` in place. The live device wins.

        Raises:
            ValueError: the file belongs to an algorithm with another registry.
        """
        self.load_state(load_tree(path), str(path))

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", accelerator: Any = None) -> Self:
        """The agent in a file of `save_checkpoint`: architecture, hyperparameters and spaces are read from the file.

        A file of a wrapped agent gives the wrapped agent back, in its wrapper.

        Raises:
            RunError: no such file, a pickle, or the file of another class.
        """
        tree = load_tree(path)
        with malformed(path):
            if "wrapper" in tree:  # wrappers lie above the algorithms: they are looked up when there is one
                wrapped: Self = import_module("agilerl.wrappers.agent").wrapped_from(
                    tree, cls, path, device, accelerator
                )
                return wrapped
            if tree["class"] != cls.__name__:
                raise RunError(
                    f"Loaded registry does not match the algorithm's registry: {path} holds a {tree['class']}, "
                    f"this is {cls.__name__}.load. fix: {tree['class']}.load(path)"
                )
            check_sizes(tree["networks"], str(path))
            agent = cls._blank(tree, device, accelerator)
            agent.load_state(tree, str(path))
        return agent

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        """An agent that `load_state(state)` fills; a subclass whose constructor needs arguments overrides this."""
        return cls(device=device, accelerator=accelerator)

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Put back what `state()` returned."""
        with malformed(source):
            check_sizes(state["networks"], source)
            self._load_state(state, source)

    def _load_state(self, state: Mapping[str, Any], source: str) -> None:
        if state["registry"] != repr(self.registry.signature()):
            raise RunError(
                f"Loaded registry does not match the algorithm's registry: {source} holds a {state['class']}, "
                f"this is a {type(self).__name__}. fix: {state['class']}.load(path)"
            )
        device = self.device
        for name, value in state["attributes"].items():
            if name.startswith("__") or callable(getattr(type(self), name, None)):
                raise RunError(f"{source} would replace {type(self).__name__}.{name}. fix: do not use this file.")
            if name != "device":
                object.__setattr__(self, name, value)
        for name, saved in state["networks"].items():
            before = getattr(self, name)
            network = before.rebuilt(saved["spec"], device)
            network.to(next(w.dtype for w in saved["weights"].values() if w.is_floating_point()))
            network.load_state_dict(saved["weights"])
            network.requires_grad_(any(p.requires_grad for p in before.parameters())).train(before.training)
            object.__setattr__(self, name, network)
        self.link_encoders()
        if not self.hp_config:
            self.registry.hp_config = HyperparameterConfig(
                **{name: _parameter(limits) for name, limits in state.get("hp_config", {}).items()}
            )
        self.reinit_optimizers()
        for name, saved in state["optimizers"].items():
            getattr(self, name).load_state_dict(_integer_keys(saved))

    def run_state(self) -> dict[str, Any]:
        """As `state`, with everything else on which the rest of a run depends: private attributes, generators,
        modes, the networks' own draws, objects that have `state` and `load_state`."""
        return {**self.state(), "private": private_state(self)}

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Become the agent that `run_state` was taken from, to the bit."""
        if state.get("hp_config"):
            limits = {name: _parameter(values) for name, values in state["hp_config"].items()}
            self.registry.hp_config = HyperparameterConfig(**limits)
        self.load_state(state, source)
        load_private_state(self, state["private"])

    def unsaved_attributes(self) -> list[str]:
        """Attributes that neither `state` nor `run_state` holds, because their kind has no plain form."""
        return unsaved_attributes(self)

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policy: algorithm, network with its spaces, hyperparameters."""
        return {
            "algo": self.algo,
            "network": self.policy_module().spec(),
            "hyperparameters": self.hyperparameters(),
        }

    def policy_state(self) -> dict[str, Tensor]:
        """The policy's weights, contiguous copies."""
        return {
            k: v.detach().clone(memory_format=torch.contiguous_format)
            for k, v in self.policy_module().state_dict().items()
        }


def _is_part(tensor: Tensor) -> bool:
    """Whether the tensor is a view of a larger storage."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


_DTYPES: dict[str, type] = {"int": int, "float": float, "ndarray": np.ndarray}


def _limits(parameter: RLParameter) -> dict[str, Any]:
    names = ("min", "max", "shrink_factor", "grow_factor")
    return {**{name: getattr(parameter, name) for name in names}, "dtype": parameter.dtype.__name__}


def _parameter(limits: Mapping[str, Any]) -> RLParameter:
    return RLParameter(**{**limits, "dtype": _DTYPES.get(limits["dtype"], float)})


def _clone_optimizer(wrapper: OptimizerWrapper, twin: Registered) -> OptimizerWrapper:
    names = wrapper.network_names or []
    copied = OptimizerWrapper(
        wrapper.optimizer_cls,
        [getattr(twin, name) for name in names],
        wrapper.lr,
        wrapper.optimizer_kwargs,
        names,
        wrapper.lr_name,
    )
    for mine, theirs in zip(wrapper.optimizer.param_groups, copied.optimizer.param_groups, strict=True):
        theirs.update({k: v for k, v in mine.items() if k != "params"})
        for old, new in zip(mine["params"], theirs["params"], strict=True):
            if old in wrapper.optimizer.state:
                copied.optimizer.state[new] = {
                    k: v.clone(memory_format=torch.contiguous_format) if isinstance(v, Tensor) else copy.deepcopy(v)
                    for k, v in wrapper.optimizer.state[old].items()
                }
    return copied


def _string_keys(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {str(k): v for k, v in state["state"].items()}}


def _integer_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {int(k): v for k, v in state["state"].items()}}
