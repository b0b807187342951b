"""Sampled transitions of teams, and rollouts, in their published form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from agilerl.algorithms.base.rollouts import RolloutExperiences

FIELDS = ("states", "actions", "rewards", "next_states", "dones")
ROLES = {"obs": "states", "action": "actions", "reward": "rewards", "next_obs": "next_states", "done": "dones"}
OF_ROLLOUTS = (
    "observations", "actions", "log_probs", "rewards", "dones", "values", "next_obs", "next_done", "truncateds",
    "final_observations",
)  # fmt: skip
OBSERVED = ("states", "next_states", "obs", "next_obs", "state", "next_state", "observations", "final_observations")
ROLES |= {"state": "states", "next_state": "next_states", "termination": "dones", "terminated": "dones"}


class TeamExperiences(tuple[Any, ...]):
    """The published tuple (states, actions, rewards, next_states, dones), with optional fields.

    Attributes:
        more: available fields by name: `discount` [B, M] of n steps, 0 after an end; `weights` [B] of prioritised
            replay; `obs_mask`, `next_mask` [B, W] legal choices (`TeamActions.masks`); `idxs` [B] rows of the memory.
    """

    more: dict[str, Any]

    def __new__(cls, entries: Iterable[Any], more: Mapping[str, Any] | None = None) -> Self:
        instance = super().__new__(cls, entries)
        instance.more = dict(more or {})
        return instance


def with_observations(experiences: Mapping[str, Any] | Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """Apply `change` to all observations by agent in the argument of `learn`, sampled or of a rollout."""
    if hasattr(experiences, "to_dict"):  # a TensorDict
        experiences = experiences.to_dict()
    if isinstance(experiences, Mapping):
        return {name: _changed(name, value, change) for name, value in experiences.items()}
    is_sampled = len(experiences) == len(FIELDS)
    names, kind = (FIELDS, TeamExperiences) if is_sampled else (OF_ROLLOUTS, RolloutExperiences)
    entries = [_changed(name, value, change) for name, value in zip(names, experiences, strict=is_sampled)]
    return kind(entries, experiences.more if isinstance(experiences, kind) else None)


def _changed(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a field with observations; in a rollout they are lists over time by agent."""
    if value is None or name not in OBSERVED:
        return value
    if not any(isinstance(entries, list) for entries in value.values()):
        return change(value)
    steps = len(next(iter(value.values())))
    each = [change({agent: entries[t] for agent, entries in value.items()}) for t in range(steps)]
    return {agent: [step[agent] for step in each] for agent in value}
