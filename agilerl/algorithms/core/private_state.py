"""What of an agent a published file leaves out, and a run needs: private attributes, generators, modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registration import Registered
from agilerl.algorithms.core.registry import MutationRegistry
from agilerl.hpo.effects import MutationRecord
from agilerl.modules.base import EvolvableModule
from agilerl.modules.evolvable import MutationType
from agilerl.rng import restored_generator

_ELSEWHERE = ("_learner", "accelerator")  # rebuilt, or not the agent's
_FIXED = (nn.Module, OptimizerWrapper, MutationRegistry, gym.Space, torch.device, torch.dtype)  # made by the script


def is_plain(value: Any) -> bool:
    """Numbers, strings, tensors and arrays, nested in lists, tuples and dicts with string keys."""
    if isinstance(value, list | tuple):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
    return isinstance(value, int | float | str | bool | type(None) | Tensor | np.ndarray | np.generic)


def private_state(agent: Registered) -> dict[str, Any]:
    """Plain data, by kind; see `unsaved_attributes` for what is in none of them."""
    others = {name: value for name, value in agent.__dict__.items() if name not in _ELSEWHERE}
    networks = agent.evolvable_attributes(networks_only=True)
    record = others.get("mutation_record")
    return {
        "attributes": {k: v for k, v in others.items() if k.startswith("_") and is_plain(v)},
        "generators": {k: v.bit_generator.state for k, v in others.items() if isinstance(v, np.random.Generator)},
        "torch_generators": {k: v.get_state() for k, v in others.items() if isinstance(v, torch.Generator)},
        "parts": {k: v.state() for k, v in others.items() if _is_stateful(v)},
        "mutation_record": _plain_record(record) if isinstance(record, MutationRecord) else None,
        "modules": {name: _module_state(network) for name, network in networks.items()},
    }


def load_private_state(agent: Registered, state: Mapping[str, Any]) -> None:
    """Put back what `private_state` returned, into an agent whose networks are there already."""
    for name, value in state["attributes"].items():
        object.__setattr__(agent, name, _on_device(value, getattr(agent, "device", "cpu")))
    for name, value in state["generators"].items():
        object.__setattr__(agent, name, restored_generator(value))
    for name, value in state["torch_generators"].items():
        getattr(agent, name).set_state(value)
    for name, value in state["parts"].items():
        getattr(agent, name).load_state(value)
    agent.__dict__.pop("mutation_record", None)  # of the agent that this one was made from
    if state["mutation_record"] is not None:
        object.__setattr__(agent, "mutation_record", MutationRecord(**state["mutation_record"]))
    for name, value in state["modules"].items():
        _load_module_state(getattr(agent, name), value)


def unsaved_attributes(agent: Registered) -> list[str]:
    """Attributes that neither a file nor a run keeps, because their kind has no plain form."""
    networks, known = agent.evolvable_attributes(networks_only=True), (*_FIXED, np.random.Generator, torch.Generator)
    return [
        f"{name} ({type(value).__name__})"
        for name, value in agent.__dict__.items()
        if name not in (*_ELSEWHERE, "mutation_record", *networks)
        and not (is_plain(value) or isinstance(value, known) or _is_stateful(value) or callable(value))
    ]


def _is_stateful(value: Any) -> bool:
    if isinstance(value, (nn.Module, OptimizerWrapper, type)):
        return False
    return all(callable(getattr(value, name, None)) for name in ("state", "load_state"))


def _plain_record(record: MutationRecord) -> dict[str, Any]:
    values = asdict(record)
    return values if is_plain(values) else {**values, "before": str(record.before), "after": str(record.after)}


def _module_state(network: EvolvableModule) -> dict[str, Any]:
    """Generators (which modules may share), seeds and switches of a network and of every evolvable module in it."""
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
    """The value with its tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on_device(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_device(part, device) for part in value)
    return value
