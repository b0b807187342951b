"""Mutation methods: the decorator that marks them, what they may return, and how likely each is drawn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from agilerl.modules.evolvable import EvolvableModule

Method = TypeVar("Method", bound=Callable[..., Any])


class MutationType(Enum):
    """What a mutation method changes."""

    LAYER = "layer"
    NODE = "node"
    ACTIVATION = "activation"


class Refused(dict[str, Any]):
    """What a mutation method returns when it stands at its limit: nothing was changed, nothing is recreated."""


def mutation(kind: MutationType, **recreate_kwargs: Any) -> Callable[[Method], Method]:
    """Mark a method of an `EvolvableModule` as a mutation.

    After the method its module's `recreate_network(**recreate_kwargs)` runs once, `last_mutation_attr` holds the
    name of what was applied and `last_transfer` covers every parameter whose shape changed; the method's own return
    value (its arguments as a dict) is passed on. A method that returns `Refused` has changed nothing:
    `last_mutation_attr` is None. A method may fall back on another mutation method: that one's name is then reported.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def run(self: EvolvableModule, *args: Any, **kwargs: Any) -> Any:
            shapes = {name: tuple(p.shape) for name, p in self.named_parameters()}
            self.last_mutation_attr, self.last_transfer, self.last_refit = None, {}, False
            result = method(self, *args, **kwargs)
            if isinstance(result, Refused) or self.last_mutation_attr is not None:
                return result
            self.recreate_network(**recreate_kwargs)
            self.last_mutation_attr = method.__name__
            self._complete_transfer(shapes)
            return result

        run.mutation_type = kind  # type: ignore[attr-defined]
        return cast(Method, run)

    return decorate


def first(drawn: Any) -> Any:
    """The draw itself where a generator returned a list of one draw."""
    many = isinstance(drawn, (list, tuple)) or (isinstance(drawn, np.ndarray) and drawn.ndim > 0)
    return first(drawn[0]) if many else drawn


@functools.lru_cache(maxsize=256)
def marked_methods(cls: type) -> dict[str, MutationType]:
    """Name -> kind of every method that the class or a base of it marks; a class is looked through once."""
    return {n: f.mutation_type for c in reversed(cls.__mro__) for n, f in vars(c).items() if _marked(f)}


def _marked(attribute: Any) -> bool:
    return inspect.isfunction(attribute) and "mutation_type" in vars(attribute)


def probabilities(layers: int, nodes: int, new_layer_prob: float) -> list[float]:
    if not layers or not nodes:
        return [1 / max(layers + nodes, 1)] * (layers + nodes)
    return [new_layer_prob / layers] * layers + [(1 - new_layer_prob) / nodes] * nodes
