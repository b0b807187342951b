"""Published helpers for language scripts: an accelerator, quiet logs, and the environments at their former path."""

from __future__ import annotations

import logging
from typing import Any

import torch

from agilerl.errors import warn_once
from agilerl.language import needs
from agilerl.language.vllm import VLLMConfig
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym

__all__ = [
    "PreferenceGym",
    "ReasoningGym",
    "SFTGym",
    "VLLMConfig",
    "create_llm_accelerator",
    "suppress_verbose_logging",
]

VERBOSE = ("accelerate", "datasets", "deepspeed", "huggingface_hub", "peft", "transformers", "vllm")
"""Packages with verbose logging."""


def create_llm_accelerator(*, deepspeed_plugin: Any = None) -> Any:
    """An `accelerate.Accelerator` for the launched processes; None on a machine without a GPU.

    Args:
        deepspeed_plugin: ignored, with one warning: the base is frozen, and adapters are not sharded.

    Raises:
        ConfigError: accelerate is not installed.
    """
    if deepspeed_plugin is not None:
        warn_once(
            "create_llm_accelerator deepspeed_plugin",
            "create_llm_accelerator: deepspeed_plugin changes nothing here: each process holds the whole base.",
        )
    if not torch.cuda.is_available():
        return None
    return needs("accelerate", "create_llm_accelerator").Accelerator()


def suppress_verbose_logging() -> None:
    """Set the log level of the packages for language models to errors."""
    for name in VERBOSE:
        logging.getLogger(name).setLevel(logging.ERROR)
