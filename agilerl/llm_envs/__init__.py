"""Environments and data of language models. Nothing is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.llm_envs.preference import PreferenceGym
    from agilerl.llm_envs.prompts import Example, Pair, Prompt, Scores
    from agilerl.llm_envs.reasoning import ReasoningGym
    from agilerl.llm_envs.rewards import RewardError
    from agilerl.llm_envs.sft import SFTGym

__all__ = ["Example", "Pair", "PreferenceGym", "Prompt", "ReasoningGym", "RewardError", "SFTGym", "Scores"]

_WHERE = {
    "Example": "prompts",
    "Pair": "prompts",
    "PreferenceGym": "preference",
    "Prompt": "prompts",
    "ReasoningGym": "reasoning",
    "RewardError": "rewards",
    "SFTGym": "sft",
    "Scores": "prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'agilerl.llm_envs' has no attribute {name!r}")
    return getattr(import_module(f"agilerl.llm_envs.{_WHERE[name]}"), name)
