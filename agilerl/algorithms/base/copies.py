"""Parts of clones and checkpoints of an agent, which are complete, independent, and without pickle.

An agent OWNS its networks and their weights, the moments of its optimisers, every plain attribute, its generators and
modes. The row that holds its parameters (`_learner`), the accelerator and objects of the calling script (spaces,
devices) are not owned: they are shared or rebuilt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter
from agilerl.core.rng import restored_generator
from agilerl.core.spaces import space_from_json, space_to_json
from agilerl.errors import NotAvailableYetError
from agilerl.modules.base import EvolvableModule, MutationType

_DTYPES: dict[str, type] = {"int": int, "float": float, "ndarray": np.ndarray}
SPACE = "gymnasium space"  # the only key of an encoded space in a network's specification

# --- copies -------------------------------------------------------------------------------------------------------


def is_part(tensor: Tensor) -> bool:
    """Whether the tensor is a view of a larger storage."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def clone_optimizer(wrapper: OptimizerWrapper, network_of: Callable[[str], Any]) -> OptimizerWrapper:
    names, kind, options = wrapper.network_names or [], wrapper.optimizer_cls, wrapper.optimizer_kwargs
    copied = OptimizerWrapper(kind, [network_of(name) for name in names], wrapper.lr, options, names, wrapper.lr_name)
    for mine, theirs in zip(wrapper.optimizer.param_groups, copied.optimizer.param_groups, strict=True):
        theirs.update({k: v for k, v in mine.items() if k != "params"})
        for old, new in zip(mine["params"], theirs["params"], strict=True):
            if old in wrapper.optimizer.state:
                copied.optimizer.state[new] = {
                    k: v.clone(memory_format=torch.contiguous_format) if isinstance(v, Tensor) else copy.deepcopy(v)
                    for k, v in wrapper.optimizer.state[old].items()
                }
    return copied


# --- checkpoints --------------------------------------------------------------------------------------------------


def space_or_none(space: gym.Space[Any]) -> dict[str, Any] | None:
    """Return the space as JSON, None for an unsupported kind."""
    try:
        return space_to_json(space)
    except NotAvailableYetError:
        return None


def plain_spec(spec: Any) -> Any:
    """Encode the spaces of a specification as JSON. Networks hold spaces as objects, custom modules as JSON."""
    if isinstance(spec, gym.Space):
        return {SPACE: space_to_json(spec)}
    if isinstance(spec, dict):
        return {key: plain_spec(value) for key, value in spec.items()}
    return type(spec)(map(plain_spec, spec)) if type(spec) in (list, tuple) else spec


def read_spec(spec: Any) -> Any:
    """Invert `plain_spec`."""
    if isinstance(spec, dict):
        if set(spec) == {SPACE}:
            return space_from_json(spec[SPACE])
        return {key: read_spec(value) for key, value in spec.items()}
    return type(spec)(map(read_spec, spec)) if type(spec) in (list, tuple) else spec


def is_plain(value: object) -> bool:
    """Whether the value consists of numbers, strings, tensors and arrays in lists, tuples and string-keyed dicts."""
    if isinstance(value, list | tuple):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
    return isinstance(value, int | float | str | bool | type(None) | Tensor | np.ndarray | np.generic)


def saved_hp_config(saved: Mapping[str, Any]) -> HyperparameterConfig:
    limits = {name: {**fields, "dtype": _DTYPES.get(fields["dtype"], float)} for name, fields in saved.items()}
    return HyperparameterConfig(**{name: RLParameter(**fields) for name, fields in limits.items()})


def with_keys(state: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return a torch optimiser's state with parameter numbers as `kind`: files need string keys."""
    return {**state, "state": {kind(k): v for k, v in state["state"].items()}}


# --- run state: private attributes, generators, modes --------------------------------------------------------------


def is_stateful(value: object) -> bool:
    if isinstance(value, (nn.Module, OptimizerWrapper, type)):
        return False
    return all(callable(getattr(value, name, None)) for name in ("state", "load_state"))


def module_state(network: EvolvableModule) -> dict[str, Any]:
    """Generators (possibly shared), seeds and flags of a network and of every evolvable module in it."""
    modules = list(network.evolvable_modules())
    owners = list({id(m._rng): m._rng for m in modules if isinstance(m._rng, np.random.Generator)}.values())
    return {
        "training": network.training,
        "generators": [rng.bit_generator.state for rng in owners],
        "owner": [next((i for i, rng in enumerate(owners) if rng is m._rng), -1) for m in modules],
        "seed": [m.random_seed for m in modules],
        "fresh": [m._fresh for m in modules],
        "disabled": [sorted(kind.name for kind in m._disabled) for m in modules],
    }


def load_module_state(network: EvolvableModule, state: Mapping[str, Any]) -> None:
    network.train(state["training"])
    generators = [restored_generator(each) for each in state["generators"]]
    rows = zip(*(state[name] for name in ("owner", "seed", "fresh", "disabled")), strict=True)
    for module, (owner, seed, fresh, disabled) in zip(network.evolvable_modules(), rows, strict=True):
        module._rng = generators[owner] if owner >= 0 else module._rng
        module.random_seed, module._fresh = seed, fresh
        module._disabled = {MutationType[name] for name in disabled}


def on_device(value: object, device: str | torch.device) -> Any:
    """Move all tensors in a value to `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: on_device(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_device(part, device) for part in value)
    return value
