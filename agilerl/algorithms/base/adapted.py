"""Read-only view of agents, so that capabilities are declared in one place and never inferred.

A user's agent need not subclass anything; it needs only the methods that a training function calls. `adapted` adds
every capability that `EvolvableAlgorithm` declares. Populations hold the agent itself.
"""

from __future__ import annotations

from typing import Any

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.core import foreign

CAPABILITIES = (
    "experience", "learns_language", "reads_texts", "imitates", "shares_in_populations", "reads_alone",
    "trains_unwrapped", "is_recurrent", "recurrent", "learns_from_obs_mask", "adapts_rate", "combined_reward",
    "action_masks", "normalize_observations", "evaluated_in", "origin", "mutation_record", "end_episodes",
)  # fmt: skip


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Placeholder for an optional method that the agent lacks."""


DEFAULTS: dict[str, Any] = {name: vars(EvolvableAlgorithm)[name] for name in CAPABILITIES} | {
    "learn_step": 1,
    "batch_size": 64,
    "beta": 0.4,
    "gamma": 0.99,
    "device": "cpu",
    "observation_space": None,
    "action_space": None,
    "acts_raw": True,
    "evaluation_networks": dict,
    "unsaved_attributes": list,
    "set_training_mode": _nothing,
}
"""Values of attributes that an adapted agent lacks."""


class AdaptedAgent:
    """Read-only view of one agent: missing attributes come from `DEFAULTS`.

    Attributes without a default stay missing, so `hasattr` works as on the agent. Assignment is not allowed.
    """

    __slots__ = ("_adapted",)
    _adapted: Any

    def __init__(self, agent: Any) -> None:
        object.__setattr__(self, "_adapted", agent)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and print protocols: the view's own
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._adapted, name, DEFAULTS[name]) if name in DEFAULTS else getattr(self._adapted, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is a read view. fix: assign {name} to the agent itself.")

    def __reduce__(self) -> tuple[Any, ...]:
        return (AdaptedAgent, (self._adapted,))

    def __repr__(self) -> str:
        return f"adapted({self._adapted!r})"

    @property
    def unwrapped(self) -> Any:
        """The agent inside all wrappers: the object itself, not a view."""
        return foreign.bare(self._adapted)


def adapted(agent: Any) -> AdaptedAgent:
    """Return a view of any agent, wrapped or not, that has every capability and every attribute of `DEFAULTS`.

    Compare and store the agent itself: a view is a different object.
    """
    return agent if isinstance(agent, AdaptedAgent) else AdaptedAgent(agent)


# --- declared experience ----------------------------------------------------------------------------------------------


def counted_in(agent: Any) -> str:
    """Return the unit of its steps: environment steps by default."""
    experience = adapted(agent).experience
    return "env steps" if experience is None else str(experience.steps)


def kind_of_experience(agent: Any) -> tuple[str | None, str]:
    """Return (name of its experience, description for messages); None for an agent that declares none."""
    experience = adapted(agent).experience
    return (None, "is no language algorithm") if experience is None else (experience.name, experience.says)
