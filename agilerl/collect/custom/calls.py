"""Table of the calls that training makes on agents with methods of their own, and checks against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.core import foreign
from agilerl.errors import AlgorithmError


@dataclass(frozen=True)
class Call:
    """Arguments with which training calls a method.

    Attributes:
        positional: passed by position. named: passed by name, with their defaults.
        optional, of_team: passed by name if the method takes them: to one agent, and to teams.
        is_required: called on agents that derive from nothing, too.
    """

    positional: tuple[str, ...]
    named: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    of_team: tuple[str, ...] = ()
    is_required: bool = False

    def accepted(self, agent: Any, method: str, is_team: bool) -> frozenset[str]:
        """Return the optional arguments that the agent's method takes."""
        names = self.of_team if is_team else self.optional
        return frozenset(name for name in names if foreign.takes(agent, method, name))


CALLS: Mapping[str, Call] = {
    "update": Call(("engine", "batch")),
    "greedy": Call(("outputs", "mask")),
    "explore": Call(("outputs", "draws", "epsilon", "mask")),
    "get_action": Call(("obs",), optional=("epsilon", "action_mask"), of_team=("infos",), is_required=True),
    "learn": Call(("experiences",), optional=("n_experiences", "per"), of_team=("per",), is_required=True),
    "test": Call(("env",), {"swap_channels": False, "max_steps": None, "loop": 1}, is_required=True),
}


def check_calls(agent: Any, *methods: str) -> None:
    """Check the signatures of methods that are not those of this package.

    Raises:
        AlgorithmError: a method cannot be called the way training calls it.
    """
    inner = unwrapped(agent)
    for name in methods:
        method, call = foreign.method(inner, name), CALLS[name]
        is_called = call.is_required or foreign.overridden(type(inner), name, or_missing=True) is not None
        if method is None or not is_called:
            continue
        reason = foreign.misfit(method, call.positional, call.named)
        if reason is not None:
            arguments = ", ".join(("self", *call.positional, *(f"{key}={value}" for key, value in call.named.items())))
            raise AlgorithmError(
                f"{type(inner).__name__}.{name} does not take the arguments of training: {reason}. "
                f"fix: def {name}({arguments})."
            )


def reported_loss(result: Any) -> float | None:
    """Return the loss to record from the output of `learn`; None if it reports none.

    Args:
        result: None, a number, a one-element tensor or array, (actor loss or None, critic loss), of which the last
            that is not None is used, or a mapping of these by group, which is averaged.
    """
    if isinstance(result, Mapping | tuple | list):
        values = result.values() if isinstance(result, Mapping) else result
        losses = [loss for value in values if (loss := reported_loss(value)) is not None]
        return None if not losses else float(np.mean(losses)) if isinstance(result, Mapping) else losses[-1]
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if result is None or isinstance(result, str | bytes) or np.size(result) != 1:
        return None
    return float(np.ravel(result)[0])
