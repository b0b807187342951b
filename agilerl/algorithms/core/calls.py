"""What may be asked of an agent's methods: which arguments they take, and whose `learn` it is, through wrappers."""

from __future__ import annotations

import inspect
from typing import Any


def unwrapped(agent: Any) -> Any:
    """The agent inside all wrappers; the agent itself where there is none."""
    return getattr(agent, "unwrapped", agent)


def takes(agent: Any, method: str, name: str) -> bool:
    """Whether `agent.method(..., name=...)` reaches somebody who takes the argument `name`.

    A method with `**kwargs` takes everything; that of a wrapper passes it on, so the agent inside decides.
    """
    parameters = inspect.signature(getattr(agent, method)).parameters
    if name in parameters:
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return False
    inner = unwrapped(agent)
    return True if inner is agent else takes(inner, method, name)


def brings_learn(agent: Any) -> bool:
    """Whether the agent, or a wrapper around it, has a `learn` other than the one this package publishes."""
    kind, inner = type(agent), unwrapped(agent)
    own = kind.learn is not getattr(kind, "published_learn", None)
    return own or (inner is not agent and brings_learn(inner))
