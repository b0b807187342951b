"""The older published form of the replay buffer: `memory_size`, `field_names`, `save_to_memory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl.components.data import with_batch_axis
from agilerl.errors import ConfigError, ShapeError, warn_once

# Names under which users keep the five fields -> the names that the engine reads.
ROLES = {"state": "obs", "observation": "obs", "next_state": "next_obs", "next_observation": "next_obs"}
ROLES |= {"terminated": "done", "termination": "done", "rewards": "reward", "actions": "action"}


class OlderDialect:
    """`save_to_memory(*fields)` in the order of `field_names`, for a buffer that has `add`.

    Attributes:
        field_names: names of the arguments of `save_to_memory`; None in the newer dialect.
    """

    field_names: list[str] | None

    def add(self, data: Any) -> Any:
        """Add a batch (the newer dialect)."""
        raise NotImplementedError

    def save_to_memory(self, *fields: Any, is_vectorised: bool = False) -> None:
        """The older dialect: one transition, or one per environment, in the order of `field_names`."""
        if is_vectorised:
            self.save_to_memory_vect_envs(*fields)
        else:
            self.save_to_memory_single_env(*fields)

    def save_to_memory_single_env(self, *fields: Any) -> None:
        """The older dialect: one transition, without a batch axis."""
        self._save(with_batch_axis(fields))

    def save_to_memory_vect_envs(self, *fields: Any) -> None:
        """The older dialect: [L, ...] arrays, one row per environment."""
        self._save(fields)

    def _save(self, fields: Sequence[Any]) -> None:
        if self.field_names is None:
            raise ConfigError("save_to_memory() needs field_names. fix: ReplayBuffer(memory_size=, field_names=[...]).")
        if len(fields) != len(self.field_names):
            raise ShapeError(f"save_to_memory() takes {self.field_names}: got {len(fields)} values.")
        self.add(dict(zip(self.field_names, fields, strict=True)))


def warn_of_field_names(field_names: Sequence[str] | None) -> list[str] | None:
    """`field_names` as a list, with one warning that they are the older form."""
    if field_names is None:
        return None
    message = "ReplayBuffer(memory_size=, field_names=) is the older form; use ReplayBuffer(max_size=) and add()."
    warn_once("replay_buffer:field_names", message, DeprecationWarning, stacklevel=4)
    return list(field_names)


def own_names(field_names: Sequence[str] | None) -> dict[str, str]:
    """Role -> name, for the names in `field_names`."""
    return {ROLES.get(name, name): name for name in field_names or ()}
