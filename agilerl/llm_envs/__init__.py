"""Environments and data sets for language models. Imports are lazy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.llm_envs.games import GuessNumber, TextGame
    from agilerl.llm_envs.multiturn import SyncMultiTurnVecEnv, TokenObservationWrapper
    from agilerl.llm_envs.preference import PreferenceGym
    from agilerl.llm_envs.prompts import Example, Pair, Prompt, Scores, Turns
    from agilerl.llm_envs.reasoning import ReasoningGym
    from agilerl.llm_envs.rewards import RewardError
    from agilerl.llm_envs.sft import SFTGym

__all__ = [
    "Example",
    "GuessNumber",
    "Pair",
    "PreferenceGym",
    "Prompt",
    "ReasoningGym",
    "RewardError",
    "SFTGym",
    "Scores",
    "SyncMultiTurnVecEnv",
    "TextGame",
    "TokenObservationWrapper",
    "Turns",
]

_WHERE = {
    "Example": "prompts",
    "GuessNumber": "games",
    "Pair": "prompts",
    "PreferenceGym": "preference",
    "Prompt": "prompts",
    "ReasoningGym": "reasoning",
    "RewardError": "rewards",
    "SFTGym": "sft",
    "Scores": "prompts",
    "SyncMultiTurnVecEnv": "multiturn",
    "TextGame": "games",
    "TokenObservationWrapper": "multiturn",
    "Turns": "prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'agilerl.llm_envs' has no attribute {name!r}")
    return getattr(import_module(f"agilerl.llm_envs.{_WHERE[name]}"), name)
