"""Networks of several dense stacks: which stacks they are, so that a population of them can run as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl.modules.base import EvolvableModule, is_untouched
from agilerl.modules.spec import DenseStack


def dense_stacks(network: EvolvableModule, parts: Mapping[str, Any]) -> dict[str, DenseStack] | None:
    """The dense stack of each part of `network`, by name, in order.

    None where the parts are more than dense layers, something hooks into the network, or the parts together do not
    hold its parameters exactly once, of one dtype and on one device.
    """
    if not is_untouched(network):
        return None
    stacks: dict[str, DenseStack] = {}
    for name, part in parts.items():
        stack = part.dense_stack()
        if stack is None:
            return None
        stacks[name] = stack
    held = [p for stack in stacks.values() for layer in stack.parameters for p in layer]
    ids = {id(p) for p in held}
    if len(ids) != len(held) or ids != {id(p) for p in network.parameters()}:
        return None
    return stacks if len({(p.dtype, p.device, p.requires_grad) for p in held}) == 1 else None


def overrides(network: Any, base: type, *names: str) -> bool:
    """Whether the network's class replaces one of the methods that `base` runs over rows."""
    return any(getattr(type(network), name) is not getattr(base, name) for name in names)


def joined(stacks: Mapping[str, DenseStack] | None) -> DenseStack | None:
    """Stacks that run one after another, as one; None for None."""
    if stacks is None:
        return None
    layers = tuple(layer for stack in stacks.values() for layer in stack.layers)
    parameters = tuple(p for stack in stacks.values() for p in stack.parameters)
    return DenseStack(layers, parameters, tuple(pair for stack in stacks.values() for pair in stack.buffers))
