"""Sampled transitions in either published dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl.errors import ShapeError

FIELDS = ("obs", "action", "reward", "next_obs", "done")
OLD_FIELDS = {"state": "obs", "next_state": "next_obs"}


def experience_fields(experiences: Any) -> dict[str, Any]:
    """Sampled transitions in either dialect as obs, action, reward, next_obs, done and what else was stored."""
    if isinstance(experiences, Mapping) or hasattr(experiences, "keys"):
        found = {OLD_FIELDS.get(str(k), str(k)): experiences[k] for k in experiences.keys()}  # noqa: SIM118
    elif isinstance(experiences, tuple | list) and len(experiences) >= len(FIELDS):
        found = dict(zip(FIELDS, experiences, strict=False))
    else:
        raise ShapeError(
            f"learn got experiences of type {type(experiences).__name__}; expected a TensorDict, a mapping or a tuple "
            f"with {', '.join(FIELDS)}. fix: agent.learn(memory.sample(agent.batch_size))"
        )
    missing = [name for name in FIELDS if name not in found]
    if missing:
        raise ShapeError(f"learn got experiences without {', '.join(missing)}; it has {', '.join(found)}.")
    return found
