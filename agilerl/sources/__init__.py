"""Sources of experience, keyed by what an algorithm learns from and imported lazily."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# `Experience.name` that an algorithm declares -> (module, class).
SOURCES = {
    "dataset": ("agilerl.sources.offline", "OfflineSource"),
    "transitions": ("agilerl.sources.off_policy", "OffPolicySource"),
    "rounds": ("agilerl.sources.bandit", "BanditSource"),
    "team_transitions": ("agilerl.sources.teams.transitions", "TeamTransitions"),
    "rollouts": ("agilerl.sources.rollouts", "OnPolicySource"),
    "team_rollouts": ("agilerl.sources.teams.rollouts", "TeamRolloutSource"),
    "completions": ("agilerl.language.sources.source", "LanguageSource"),
    "preferences": ("agilerl.language.sources.source", "LanguageSource"),
    "examples": ("agilerl.language.sources.source", "LanguageSource"),
}
# (`Experience.name`, `options.LoopOptions.opponents`) -> (module, class).
AGAINST = {("team_rollouts", "self"): ("agilerl.sources.teams.self_play", "SelfPlaySource")}


def source_for(experience: Any, opponents: str | None = None) -> Any:
    """Return the source class that collects the declared experience (`algorithms.declared.Experience`).

    opponents: see `options.LoopOptions`.
    """
    module, name = SOURCES[experience.name] if opponents is None else AGAINST[experience.name, opponents]
    return getattr(import_module(module), name)
