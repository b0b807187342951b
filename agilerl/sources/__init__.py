"""Sources of experience, by what an algorithm learns from; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# `Experience.name` that an algorithm declares -> (module, class).
SOURCES = {
    "transitions": ("agilerl.sources.off_policy", "OffPolicySource"),
    "team_transitions": ("agilerl.sources.teams", "TeamTransitions"),
    "rollouts": ("agilerl.sources.rollouts", "OnPolicySource"),
    "team_rollouts": ("agilerl.sources.team_rollouts", "TeamRolloutSource"),
}


def source_for(experience: Any) -> Any:
    """The class of sources that collects what is declared (`algorithms.declared.Experience`)."""
    module, name = SOURCES[experience.name]
    return getattr(import_module(module), name)
