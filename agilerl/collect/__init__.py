"""Collectors of experience, keyed by what an algorithm learns from and imported lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.algorithms.base.declared import Experience

# `Experience.name` that an algorithm declares -> (module, class).
COLLECTORS = {
    "dataset": ("agilerl.collect.offline", "OfflineCollector"),
    "transitions": ("agilerl.collect.off_policy", "OffPolicyCollector"),
    "rounds": ("agilerl.collect.bandit", "BanditCollector"),
    "team_transitions": ("agilerl.collect.teams.transitions", "TeamTransitions"),
    "team_values": ("agilerl.collect.teams.transitions", "TeamTransitions"),
    "rollouts": ("agilerl.collect.rollouts", "OnPolicyCollector"),
    "team_rollouts": ("agilerl.collect.teams.rollouts", "TeamRolloutCollector"),
    "completions": ("agilerl.language.collect.collector", "LanguageCollector"),
    "preferences": ("agilerl.language.collect.collector", "LanguageCollector"),
    "examples": ("agilerl.language.collect.collector", "LanguageCollector"),
}
# (`Experience.name`, `options.LoopOptions.opponents`) -> (module, class).
AGAINST = {("team_rollouts", "self"): ("agilerl.collect.teams.self_play", "SelfPlayCollector")}


def collector_for(experience: Experience, opponents: str | None = None) -> Any:
    """Return the collector class that collects the declared experience (`algorithms.declared.Experience`).

    opponents: see `options.LoopOptions`.
    """
    module, name = COLLECTORS[experience.name] if opponents is None else AGAINST[experience.name, opponents]
    return getattr(import_module(module), name)
