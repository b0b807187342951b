"""Clones and checkpoints of an agent: complete, independent, without pickle.

An agent OWNS its networks and their weights, the moments of its optimisers, every plain attribute, its generators and
modes. The row that holds its parameters (`_learner`), the accelerator and objects of the calling script (spaces,
devices) are not owned: they are shared or rebuilt.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import (
    HyperparameterConfig,
    MutationRegistry,
    RLParameter,
    resolve,
)
from agilerl.algorithms.base.wrapped import wrapped_from
from agilerl.checkpoint import load_tree
from agilerl.errors import AlgorithmError, NotAvailableYetError, RunError
from agilerl.hostile import malformed
from agilerl.hpo.effects import MutationRecord
from agilerl.modules.base import EvolvableModule, MutationType
from agilerl.modules.copying import copy_value
from agilerl.networks.specs import check_sizes
from agilerl.rng import restored_generator
from agilerl.signatures import constructor_arguments, taken_by, takes_any_name
from agilerl.spaces import space_from_json, space_to_json
from agilerl.telemetry.record import as_dict

if TYPE_CHECKING:
    from agilerl.algorithms.base.agent import EvolvableAlgorithm

Agent = TypeVar("Agent", bound="EvolvableAlgorithm")

_CACHES = ("_learner",)  # rows and engines: never copied, compared or saved
_ELSEWHERE = (*_CACHES, "accelerator")  # rebuilt, or not owned by the agent
_FIXED = (nn.Module, OptimizerWrapper, MutationRegistry, gym.Space, torch.device, torch.dtype)  # created by the script
_LIMITS = ("min", "max", "shrink_factor", "grow_factor")
_DTYPES: dict[str, type] = {"int": int, "float": float, "ndarray": np.ndarray}
SPACE = "gymnasium space"  # the only key of an encoded space in a network's specification

# --- copies -------------------------------------------------------------------------------------------------------


def clone(agent: Agent, index: int | None = None) -> Agent:
    """Return an independent copy of networks, optimiser moments, counters and all other attributes."""
    agent.check_registry()
    twin = object.__new__(type(agent))
    accelerator = agent.__dict__.get("accelerator")
    memo: dict[int, Any] = {id(accelerator): accelerator}
    for name, value in agent.__dict__.items():
        if name not in _CACHES and isinstance(value, EvolvableModule):
            memo[id(value)] = twin.__dict__[name] = value.clone()
    for name, value in agent.__dict__.items():
        if name in twin.__dict__ or name in _CACHES:
            continue
        wrapped = isinstance(value, OptimizerWrapper)
        twin.__dict__[name] = _clone_optimizer(value, twin) if wrapped else copy_value(value, memo)
    twin.link_encoders()
    if index is not None:
        twin.index = index
    return twin


def pickled(agent: EvolvableAlgorithm) -> dict[str, Any]:
    """Return the pickled state of an agent; afterwards its tensors own their storage.

    Pickle writes whole storages, so parameters and moments that are views of a row are copied first.
    """
    for network in agent.evolvable_attributes(networks_only=True).values():
        for tensor in (*network.parameters(), *network.buffers()):
            if _is_part(tensor):
                tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    for config in agent.registry.optimizers:
        for state in config.wrapper(agent).optimizer.state.values():
            state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and _is_part(v)})
    return {name: value for name, value in agent.__dict__.items() if name not in _CACHES}


def _is_part(tensor: Tensor) -> bool:
    """Whether the tensor is a view of a larger storage."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def _clone_optimizer(wrapper: OptimizerWrapper, twin: EvolvableAlgorithm) -> OptimizerWrapper:
    names, kind, options = wrapper.network_names or [], wrapper.optimizer_cls, wrapper.optimizer_kwargs
    networks = [resolve(twin, name) for name in names]
    copied = OptimizerWrapper(kind, networks, wrapper.lr, options, names, wrapper.lr_name)
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


def state(agent: EvolvableAlgorithm) -> dict[str, Any]:
    """Return plain nested state: networks (spec and weights), optimisers, every JSON-able or tensor attribute."""
    agent.check_registry()
    networks = agent.evolvable_attributes(networks_only=True)
    return {
        "algo": agent.algo,
        "class": type(agent).__name__,
        "registry": repr(agent.registry.signature()),
        "networks": {
            k: {"spec": _plain_spec(v.spec()), "weights": {n: t.detach() for n, t in v.state_dict().items()}}
            for k, v in networks.items()
        },
        "optimizers": {o.name: _with_keys(o.wrapper(agent).state_dict(), str) for o in agent.registry.optimizers},
        "hp_config": {
            name: {k: vars(parameter)[k] for k in _LIMITS} | {"dtype": parameter.dtype.__name__}
            for name, parameter in agent.hp_config.items()
        },
        "attributes": {k: v for k, v in agent.inspect_attributes(agent).items() if is_plain(v)},
    }


def load(cls: type[Agent], path: str | Path, device: str | torch.device, accelerator: Any) -> Any:
    """Load the agent in a file of `save_checkpoint`; a wrapped agent is loaded with its wrapper.

    Raises:
        RunError: missing file, a pickle, or a file of another class.
    """
    tree = load_tree(path)
    with malformed(path):
        if "wrapper" in tree:
            return wrapped_from(tree, cls, path, device, accelerator)
        if tree["class"] != cls.__name__:
            raise RunError(
                f"Loaded registry does not match the algorithm's registry: {path} holds a {tree['class']}, "
                f"this is {cls.__name__}.load. fix: {tree['class']}.load(path)"
            )
        check_sizes(tree["networks"], str(path))
        try:
            agent = cls._blank(tree, device, accelerator)
        except TypeError as error:  # raised by the constructor, not by the file
            reason = str(error).partition("; known: ")[0]
            raise AlgorithmError(
                f"{cls.__name__}.load cannot make a {cls.__name__}: {reason}. fix: let its constructor take that "
                "argument (and hand it on), or make the agent and then agent.load_checkpoint(path)."
            ) from error
        agent.load_state(tree, str(path))
    return agent


def blank_arguments(
    cls: type[EvolvableAlgorithm], saved: Mapping[str, Any], device: str | torch.device, accelerator: Any
) -> dict[str, Any]:
    """Return constructor arguments of `cls` for an agent that `load_state(saved)` then fills.

    Spaces, and required arguments that are attributes of the agent, come from the file. Of the optional arguments only
    those of `cls.structure` are read, because they decide which networks exist. Arguments that only a base class
    requires are left out if the file lacks them: the constructor of `cls` may set them.

    Raises:
        RunError: the file lacks a required argument.
    """
    parameters = constructor_arguments(cls)
    own: Any = cls.__init__
    rest = takes_any_name(parameters)
    spaces, attributes = saved.get("spaces", {}), saved["attributes"]
    arguments = taken_by(cls, {"device": device, "accelerator": accelerator})
    needed = [
        k for k, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    for name in dict.fromkeys((*needed, *(spaces if rest else [k for k in spaces if k in parameters]))):
        if name in spaces and spaces[name] is not None:
            arguments[name] = space_from_json(spaces[name])
        elif name in attributes:
            arguments[name] = attributes[name]
        elif name not in arguments and name in inspect.signature(own).parameters:
            raise RunError(f"the file does not hold the {name}. fix: make the agent, then load_checkpoint(path).")
    return arguments | {name: attributes[name] for name in cls.structure if name in parameters and name in attributes}


def load_state(agent: EvolvableAlgorithm, state: Mapping[str, Any], source: str = "state") -> None:
    """Restore the result of `state`; `source` is named in errors.

    Raises:
        RunError: the state has another registry, or contains attributes that are methods of this agent.
    """
    with malformed(source):
        check_sizes(state["networks"], source)
        if state["registry"] != repr(agent.registry.signature()):
            raise RunError(
                f"Loaded registry does not match the algorithm's registry: {source} holds a {state['class']}, "
                f"this is a {type(agent).__name__}. fix: {state['class']}.load(path)"
            )
        device = agent.device
        for name, value in state["attributes"].items():
            if name.startswith("__") or callable(getattr(type(agent), name, None)):
                raise RunError(f"{source} would replace {type(agent).__name__}.{name}. fix: do not use this file.")
            if name != "device":
                object.__setattr__(agent, name, value)
        for name, network in state["networks"].items():
            before = resolve(agent, name)
            is_alike = _plain_spec(before.spec()) == network["spec"]  # then nothing has to be built
            loaded = before if is_alike else before.rebuilt(_read_spec(network["spec"]), device)
            loaded.to(next(w.dtype for w in network["weights"].values() if w.is_floating_point()))
            loaded.load_state_dict(network["weights"])
            loaded.requires_grad_(any(p.requires_grad for p in before.parameters())).train(before.training)
            object.__setattr__(agent, name, loaded)
        agent.link_encoders()
        if not agent.hp_config:
            agent.registry.hp_config = _hp_config(state.get("hp_config", {}))
        agent.reinit_optimizers()
        for name, optimizer in state["optimizers"].items():
            resolve(agent, name).load_state_dict(_with_keys(optimizer, int))


def space_or_none(space: gym.Space[Any]) -> dict[str, Any] | None:
    """Return the space as JSON, None for an unsupported kind."""
    try:
        return space_to_json(space)
    except NotAvailableYetError:
        return None


def _plain_spec(spec: Any) -> Any:
    """Encode the spaces of a specification as JSON. Networks hold spaces as objects, custom modules as JSON."""
    if isinstance(spec, gym.Space):
        return {SPACE: space_to_json(spec)}
    if isinstance(spec, dict):
        return {key: _plain_spec(value) for key, value in spec.items()}
    return type(spec)(map(_plain_spec, spec)) if type(spec) in (list, tuple) else spec


def _read_spec(spec: Any) -> Any:
    """Invert `_plain_spec`."""
    if isinstance(spec, dict):
        if set(spec) == {SPACE}:
            return space_from_json(spec[SPACE])
        return {key: _read_spec(value) for key, value in spec.items()}
    return type(spec)(map(_read_spec, spec)) if type(spec) in (list, tuple) else spec


def is_plain(value: Any) -> bool:
    """Whether the value consists of numbers, strings, tensors and arrays in lists, tuples and string-keyed dicts."""
    if isinstance(value, list | tuple):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
    return isinstance(value, int | float | str | bool | type(None) | Tensor | np.ndarray | np.generic)


def _hp_config(saved: Mapping[str, Any]) -> HyperparameterConfig:
    limits = {name: {**fields, "dtype": _DTYPES.get(fields["dtype"], float)} for name, fields in saved.items()}
    return HyperparameterConfig(**{name: RLParameter(**fields) for name, fields in limits.items()})


def _with_keys(state: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return a torch optimiser's state with parameter numbers as `kind`: files need string keys."""
    return {**state, "state": {kind(k): v for k, v in state["state"].items()}}


# --- run state: private attributes, generators, modes --------------------------------------------------------------


def run_state(agent: EvolvableAlgorithm) -> dict[str, Any]:
    """Return `state` plus everything else needed to resume a run: private attributes, generators, modes, the
    networks' random state, objects with `state` and `load_state`.

    See `unsaved_attributes` for what is not saved.
    """
    others = {name: value for name, value in agent.__dict__.items() if name not in _ELSEWHERE}
    networks = agent.evolvable_attributes(networks_only=True)
    record = others.get("mutation_record")
    values = None
    if isinstance(record, MutationRecord):
        values = as_dict(record)
        values |= {} if is_plain(values) else {"before": str(record.before), "after": str(record.after)}
    private = {
        "attributes": {k: v for k, v in others.items() if k.startswith("_") and is_plain(v)},
        "generators": {k: v.bit_generator.state for k, v in others.items() if isinstance(v, np.random.Generator)},
        "torch_generators": {k: v.get_state() for k, v in others.items() if isinstance(v, torch.Generator)},
        "parts": {k: v.state() for k, v in others.items() if _is_stateful(v)},
        "mutation_record": values,
        "modules": {name: _module_state(network) for name, network in networks.items()},
    }
    return {**agent.state(), "private": private}


def load_run_state(agent: EvolvableAlgorithm, state: Mapping[str, Any], source: str = "state") -> None:
    """Restore the result of `run_state`, bit for bit."""
    if state.get("hp_config"):
        agent.registry.hp_config = _hp_config(state["hp_config"])
    agent.load_state(state, source)
    private = state["private"]
    for name, value in private["attributes"].items():
        object.__setattr__(agent, name, _on_device(value, agent.device))
    for name, value in private["generators"].items():
        object.__setattr__(agent, name, restored_generator(value))
    for name, value in private["torch_generators"].items():
        resolve(agent, name).set_state(value)
    for name, value in private["parts"].items():
        resolve(agent, name).load_state(value)
    agent.__dict__.pop("mutation_record", None)  # belongs to the agent that this one was created from
    if private["mutation_record"] is not None:
        object.__setattr__(agent, "mutation_record", MutationRecord(**private["mutation_record"]))
    for name, value in private["modules"].items():
        _load_module_state(resolve(agent, name), value)


def unsaved_attributes(agent: EvolvableAlgorithm) -> list[str]:
    """Return the attributes saved by neither checkpoints nor runs, because their type has no plain form."""
    networks, types = agent.evolvable_attributes(networks_only=True), (*_FIXED, np.random.Generator, torch.Generator)
    return [
        f"{name} ({type(value).__name__})"
        for name, value in agent.__dict__.items()
        if name not in (*_ELSEWHERE, "mutation_record", *networks)
        and not (is_plain(value) or isinstance(value, types) or _is_stateful(value) or callable(value))
    ]


def _is_stateful(value: Any) -> bool:
    if isinstance(value, (nn.Module, OptimizerWrapper, type)):
        return False
    return all(callable(getattr(value, name, None)) for name in ("state", "load_state"))


def _module_state(network: EvolvableModule) -> dict[str, Any]:
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


def _load_module_state(network: EvolvableModule, state: Mapping[str, Any]) -> None:
    network.train(state["training"])
    generators = [restored_generator(each) for each in state["generators"]]
    rows = zip(*(state[name] for name in ("owner", "seed", "fresh", "disabled")), strict=True)
    for module, (owner, seed, fresh, disabled) in zip(network.evolvable_modules(), rows, strict=True):
        module._rng = generators[owner] if owner >= 0 else module._rng
        module.random_seed, module._fresh = seed, fresh
        module._disabled = {MutationType[name] for name in disabled}


def _on_device(value: Any, device: str | torch.device) -> Any:
    """Move all tensors in a value to `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on_device(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_device(part, device) for part in value)
    return value
