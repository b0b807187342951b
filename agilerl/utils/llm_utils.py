"""Published helpers of language scripts: an accelerator, quiet logs, and the environments by their former address."""

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
"""Packages that log much."""


def create_llm_accelerator(*, deepspeed_plugin: Any = None) -> Any:
    """An `accelerate.Accelerator` for the processes that were launched; None on a machine without a GPU.

    Args:
        deepspeed_plugin: changes nothing here, which is said once: the base is frozen, and adapters are not sharded.

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
    """Let the packages below language models log errors alone."""
    for name in VERBOSE:
        logging.getLogger(name).setLevel(logging.ERROR)
