"""Fast independent copies of modules: like `copy.deepcopy`, but skipping torch's empty dictionaries."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, cast

import torch
from gymnasium import Space
from torch import Tensor, nn

_PLAIN = {int, float, str, bool, type(None)}
_CONTAINERS = {dict, list, set, OrderedDict}
_ATOMS = (int, float, str, bool, bytes, type(None), type, torch.dtype, torch.device, Space)


def copy_module(module: nn.Module, memo: dict[int, Any]) -> Any:
    """Return an independent copy of a module and everything below it.

    Parameters and buffers get contiguous storage; tied parameters stay tied; hooks are copied; spaces are shared,
    because they are never sampled from here. A module's own `__deepcopy__` is respected.

    memo: as in `copy.deepcopy`: id of an object -> its copy. Extended in place."""
    if id(module) in memo:
        return memo[id(module)]
    if hasattr(module, "__deepcopy__"):
        return copy.deepcopy(module, memo)
    twin = object.__new__(type(module))
    memo[id(module)] = twin
    attributes = twin.__dict__
    for name, value in module.__dict__.items():
        kind = type(value)
        if kind in _PLAIN:
            attributes[name] = value
        elif kind in _CONTAINERS and not value:  # every module has a dozen empty ones
            attributes[name] = kind()
        elif name in ("_parameters", "_buffers"):
            attributes[name] = {k: _copy_tensor(v, memo) for k, v in value.items()}
        elif name == "_modules":
            attributes[name] = {k: v if v is None else copy_module(v, memo) for k, v in value.items()}
        else:
            attributes[name] = copy_value(value, memo)
    return twin


def copy_value(value: Any, memo: dict[int, Any]) -> Any:
    """Return an independent copy of an attribute: plain containers directly, others by `copy.deepcopy`."""
    if isinstance(value, _ATOMS):
        return value
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind in _CONTAINERS and not value:
        return kind()
    if isinstance(value, nn.Module):
        return copy_module(value, memo)
    if isinstance(value, Tensor) and value.is_leaf and kind in (Tensor, nn.Parameter):
        return _copy_tensor(value, memo)
    if kind is tuple:
        return tuple(copy_value(v, memo) for v in value)
    if kind not in (dict, list, set):
        return copy.deepcopy(value, memo)
    copied: Any = kind()
    memo[id(value)] = copied
    if kind is dict:
        copied.update({k: copy_value(v, memo) for k, v in value.items()})
    elif kind is list:
        copied.extend(copy_value(v, memo) for v in value)
    else:
        copied.update(copy_value(v, memo) for v in value)
    return copied


def _copy_tensor(tensor: Tensor | None, memo: dict[int, Any]) -> Tensor | None:
    if tensor is None:
        return None
    if id(tensor) not in memo:
        data = tensor.detach().clone(memory_format=torch.contiguous_format)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(data, tensor.requires_grad) if is_parameter else data.requires_grad_(tensor.requires_grad)
        )
    return cast(Tensor, memo[id(tensor)])
