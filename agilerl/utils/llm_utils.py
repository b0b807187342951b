"""Published helpers for language scripts: an accelerator, quiet logs, completions side by side, and the environments at
their former path."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from agilerl.core import foreign
from agilerl.errors import warn_once
from agilerl.language import needs
from agilerl.language.generate import PrefixShared, Sampling, uniform_numbers
from agilerl.language.vllm import VLLMConfig
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.llm_envs.templates import encoded

__all__ = [
    "PreferenceGym",
    "ReasoningGym",
    "SFTGym",
    "VLLMConfig",
    "compare_responses",
    "create_llm_accelerator",
    "sample_eval_prompts",
    "suppress_verbose_logging",
]

VERBOSE = ("accelerate", "datasets", "deepspeed", "huggingface_hub", "peft", "transformers", "vllm")
"""Packages with verbose logging."""


def create_llm_accelerator(*, deepspeed_plugin: object = None) -> Any:
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


def sample_eval_prompts(env: Any, n: int = 5, seed: int = 42) -> list[tuple[str, str, str | None]]:
    """Draw (prompt, chosen, rejected completion or None) of `n` test rows of an `SFTGym` or `PreferenceGym`."""
    items, decode = env.split("test"), env.tokenizer.decode
    rows = [items[row] for row in np.random.default_rng(seed).permutation(len(items))[:n]]
    answers = [(row.chosen, row.rejected) if isinstance(env, PreferenceGym) else (row.completion, ()) for row in rows]
    return [
        (decode(row.prompt), decode(chosen[:-1]), decode(rejected[:-1]) if rejected else None)
        for row, (chosen, rejected) in zip(rows, answers, strict=True)
    ]


def compare_responses(
    agent: Any, tokenizer: foreign.Tokenizer, samples: Sequence[tuple[str, str | None, str | None]],
    max_new_tokens: int = 200, temperature: float = 1.0, do_sample: bool = False, skip_special_tokens: bool = True,
    show_base_model: bool = True,
) -> None:  # fmt: skip
    """Print prompts with the completions of the data set, of the base model and of the agent.

    Args:
        samples: (prompt, chosen completion or None, rejected completion or None), see `sample_eval_prompts`.
        do_sample: sample at `temperature`, with the same random numbers for base model and agent; else greedy.
    """
    base, how = agent.base, Sampling(max_new_tokens, 0, temperature if do_sample else 0.0)
    for number, (prompt, chosen, rejected) in enumerate(samples):
        is_framed = bool(tokenizer.bos_token) and prompt.startswith(tokenizer.bos_token)
        tokens = torch.tensor([next(encoded(tokenizer, [(prompt, not is_framed)]))], device=base.device)
        numbers = uniform_numbers([agent.rng(number)], 1, max_new_tokens).to(base.device) if do_sample else None
        texts = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        decoders = {"base model": nullcontext(base.plain)} if show_base_model else {}
        for name, running in {**decoders, "fine-tuned model": agent.actor.running()}.items():
            with torch.no_grad(), running as forward:
                written = PrefixShared().write(base, forward, (tokens, torch.ones_like(tokens)), 1, [how], numbers)
            completion = written.tokens[0, written.prompt :][written.completion_mask[0]]
            texts[name] = tokenizer.decode(completion, skip_special_tokens=skip_special_tokens)
        print(*(f"{name.upper()}\n{text}\n" for name, text in texts.items() if text is not None), sep="\n")
