"""Language environments by id: "reasoning/chain_sum", "arithmetic/addition-2"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agilerl.core import foreign
from agilerl.errors import ConfigError, EnvError, nearest, unknown_choice
from agilerl.llm_envs import arithmetic
from agilerl.llm_envs.data import DataGym
from agilerl.llm_envs.preference import PreferenceGym
from agilerl.llm_envs.reasoning import ReasoningGym
from agilerl.llm_envs.sft import SFTGym

Row = Mapping[str, Any]
_SIZES = {"train_size": 2048, "test_size": 256, "report_size": 256}
_COMMON = (*_SIZES, "seed", "template", "batch", "max_context_length")
_OF_REWARDS = ("reward_timeout",)
_OF_REASONING = ("config", "exact")


def make_language_env(
    env_id: str, tokenizer: foreign.Tokenizer, learns: str = "completions", **kwargs: Any
) -> DataGym[Any]:
    """Make the environment of an id, with a training, a test and a report split.

    Args:
        env_id: "reasoning/<task of reasoning-gym>", or "arithmetic/addition-<digits>".
        tokenizer: of the base.
        learns: kind of training data: "completions", "preferences" or "examples".
        kwargs: train_size, test_size, report_size (questions of each split, 2048, 256 and 256), seed (of questions and
            of the order of batches), template (messages of a conversation with {question}), batch (of one member in
            one iteration, 32), max_context_length (tokens of a prompt). For rewarded completions also reward_timeout
            (seconds); for reasoning-gym config (of the task) and exact (1 for a full score, else 0); for additions
            terms.

    Raises:
        EnvError: an unknown id; the nearest one is named. ConfigError: an unknown setting, or one out of range.
    """
    family, _, task = env_id.partition("/")
    if family == "reasoning":
        _check_settings(env_id, kwargs, (*_COMMON, *(_OF_REWARDS if learns == "completions" else ()), *_OF_REASONING))
        return _reasoning(env_id, task, tokenizer, learns, kwargs)
    digits = re.fullmatch(r"addition-([1-9])", task)
    if family != "arithmetic" or digits is None:
        shown = [f"arithmetic/addition-{count}" for count in (1, 2, 3)]
        close = nearest(env_id, shown, limit=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise EnvError(
            f"unknown environment {env_id!r}.{hint} (known: arithmetic/addition-<digits of a term>, reasoning/<task of "
            "reasoning-gym>)"
        )
    _check_settings(env_id, kwargs, (*_COMMON, *(_OF_REWARDS if learns == "completions" else ()), "terms"))
    return _addition(int(digits[1]), tokenizer, learns, kwargs)


def _check_settings(env_id: str, kwargs: Mapping[str, Any], valid_names: tuple[str, ...]) -> None:
    for name in kwargs:
        if name not in valid_names:
            raise ConfigError(f"{env_id}: {unknown_choice('key of environment.kwargs', name, valid_names)}")


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments shared by all gyms."""
    names = {"template": "conversation_template", "batch": "data_batch_size_per_gpu"}
    valid_names = (*names, "max_context_length", "reward_timeout")
    return {"data_batch_size_per_gpu": 32, **{names.get(k, k): v for k, v in kwargs.items() if k in valid_names}}


def _reasoning(
    env_id: str, task: str, tokenizer: foreign.Tokenizer, learns: str, kwargs: Mapping[str, Any]
) -> DataGym[Any]:
    if learns == "preferences":
        raise EnvError(
            f"{env_id} has questions with answers, and no pairs of completions. fix: algo='GRPO', or a PreferenceGym "
            "of your own: agilerl.train(gym, algo='DPO', model=...)."
        )
    sizes = {name: kwargs.get(name, usual) for name, usual in _SIZES.items()}
    more = {name: kwargs[name] for name in _OF_REASONING if name in kwargs}
    seed = kwargs.get("seed", 42)
    options = _options(kwargs)
    try:
        gym = ReasoningGym.from_reasoning_gym(task, tokenizer, seed=seed, **sizes, **more, **options)
    except ConfigError as error:
        raise type(error)(f"{env_id}: {error}") from None
    if learns == "completions":
        return gym
    splits = [_answered(env_id, gym.split(name)) if name in gym.splits else None for name in _NAMES]
    return SFTGym(splits[0], splits[1], tokenizer, seed=seed, report_dataset=splits[2], **options)


_NAMES = ("train", "test", "report")


def _answered(env_id: str, prompts: Any) -> list[Row]:
    without = sum(prompt.answer is None for prompt in prompts)
    if without:
        raise EnvError(f"{env_id}: {without} of {len(prompts)} questions lack an answer to learn. fix: algo='GRPO'.")
    return [{"prompt": prompt.question, "completion": str(prompt.answer)} for prompt in prompts]


def _addition(digits: int, tokenizer: foreign.Tokenizer, learns: str, kwargs: Mapping[str, Any]) -> DataGym[Any]:
    seed, terms = kwargs.get("seed", 0), kwargs.get("terms", 2)
    sizes = {name: kwargs[name] for name in _SIZES if name in kwargs}
    splits = arithmetic.addition(digits, terms, seed, **sizes)
    options = {"seed": seed, **_options(kwargs)}
    if learns == "preferences":
        train, test, report = (arithmetic.pairs(rows, seed) for rows in splits)
        return PreferenceGym(train, test, tokenizer, report_dataset=report, **options)
    if learns == "examples":
        train, test, report = (arithmetic.examples(rows) for rows in splits)
        return SFTGym(train, test, tokenizer, report_dataset=report, **options)
    train, test, report = splits
    return ReasoningGym(train, test, tokenizer, arithmetic.reward_fn, report_dataset=report, **options)
