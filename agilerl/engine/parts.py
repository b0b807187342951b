"""What a network consists of, as the engines see it: named parts, each of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from torch import Tensor

from agilerl.modules.base import EvolvableModule
from agilerl.modules.spec import DenseStack

Network = Callable[..., Tensor]
WHOLE = ""  # the part of a network that is one stack


class PartKind(Enum):
    """How a part runs."""

    DENSE = "dense"
    NOISY = "noisy"  # dense, with learned noise in at least one layer
    CELL = "cell"  # the recurrence of a cell: one plain layer, which runs once for every step of a sequence


class PartName(NamedTuple):
    """A part of a network of an agent."""

    network: str
    part: str = WHOLE


@dataclass(frozen=True, slots=True)
class Part:
    """A part that can live in rows."""

    kind: PartKind
    stack: DenseStack

    @classmethod
    def of(cls, stack: DenseStack) -> Part:
        """The part that is this stack."""
        if stack.is_cell:
            return cls(PartKind.CELL, stack)
        return cls(PartKind.NOISY if any(layer.noisy for layer in stack.layers) else PartKind.DENSE, stack)


def parts_of(network: Any) -> dict[str, Part] | None:
    """The parts of which a network consists, by name; None where it is anything else.

    A network that is one stack (`dense_stack()`) has one part. Any other offers `dense_parts()` and
    `combine(parts, *inputs)`: its output from the functions of its parts, the same whatever runs them.
    """
    if callable(getattr(network, "dense_parts", None)):
        stacks: dict[str, DenseStack] | None = network.dense_parts()
    else:
        stack = network.dense_stack()
        stacks = None if stack is None else {WHOLE: stack}
    return None if stacks is None else {name: Part.of(stack) for name, stack in stacks.items()}


def is_dense(network: Any) -> bool:
    """Whether a network is nothing but parts that can live in rows, without hooks."""
    return isinstance(network, EvolvableModule) and parts_of(network) is not None
