"""Environments and data sets for language models. Imports are lazy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl.core.lazy import attributes

if TYPE_CHECKING:
    from agilerl.llm_envs.games import GuessNumber, TextGame
    from agilerl.llm_envs.multiturn import SyncMultiTurnVecEnv, TokenObservationWrapper
    from agilerl.llm_envs.preference import PreferenceGym
    from agilerl.llm_envs.prompts import Example, Pair, Prompt, Scores, Turns
    from agilerl.llm_envs.reasoning import ReasoningGym
    from agilerl.llm_envs.rewards import RewardError
    from agilerl.llm_envs.sft import SFTGym

__all__ = [
    "Example", "GuessNumber", "Pair", "PreferenceGym", "Prompt", "ReasoningGym", "RewardError", "SFTGym", "Scores",
    "SyncMultiTurnVecEnv", "TextGame", "TokenObservationWrapper", "Turns",
]  # fmt: skip
_HOMES = {
    "games": "GuessNumber TextGame",
    "multiturn": "SyncMultiTurnVecEnv TokenObservationWrapper",
    "preference": "PreferenceGym",
    "prompts": "Example Pair Prompt Scores Turns",
    "reasoning": "ReasoningGym",
    "rewards": "RewardError",
    "sft": "SFTGym",
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
