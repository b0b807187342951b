"""Runs of language policies from a manifest: what they stand on, what they are asked, what their best agent scores."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from agilerl import foreign
from agilerl.algorithms import DEFAULT_BY_GYM, find_algorithm
from agilerl.config import Manifest
from agilerl.config.load import check_kind
from agilerl.errors import ConfigError
from agilerl.language import needs
from agilerl.language.base import load_base
from agilerl.language.base import quiet as quietly_loading
from agilerl.language.tokenizer import load_tokenizer
from agilerl.sources.text.language import LanguageSource
from agilerl.telemetry.evaluation import Evaluation

GYMS = {"completions": "ReasoningGym", "preferences": "PreferenceGym", "examples": "SFTGym"}
"""What an algorithm learns from -> the gym that has it."""


def learns_language(manifest: Manifest) -> bool:
    """Whether the algorithm stands on a language model."""
    return bool(find_algorithm(manifest.algorithm.name).learns_language)


def is_gym(env: Any) -> bool:
    """Whether an environment that was handed over asks questions of language models."""
    return foreign.has_methods(env, "split", "batch")


def resolve_questions(manifest: Manifest, env: Any = None) -> Manifest:
    """The manifest with the whole path of its base, where that is a folder.

    The tokenizer is loaded and the environment made, as the run will; the base itself is loaded by the run alone.

    Raises:
        ConfigError: no base is named, no tokenizer is there, the environment has other questions than the algorithm
            learns from, or architectures would mutate. EnvError: no such environment.
    """
    name, model = manifest.algorithm.name, manifest.algorithm.hyperparameters["model_name"]
    if model is None:
        raise ConfigError(
            f"{name} trains an adapter of a language model, and none is named. fix: "
            "model='PATH', a folder with config.json, model.safetensors and tokenizer.json, or a hub id."
        )
    folder = Path(model).expanduser()
    if not folder.exists():
        _check_hub(str(model))
    else:  # a run goes on from wherever it is asked to
        values = {**manifest.algorithm.model_dump(), "model_name": str(folder.resolve())}
        manifest = manifest.model_copy(update={"algorithm": type(manifest.algorithm)(**values)})
    check_mutations(manifest)
    questions(manifest, env, None)
    return manifest


def _check_hub(model: str) -> None:
    """ConfigError for a path where nothing is, or a hub's name where no hub can be reached: asking takes minutes."""
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"there is no folder {model}. fix: --model with a folder that has config.json, or a hub id.")
    if os.environ.get("HF_HUB_OFFLINE") or getproxies():
        return
    if isinstance(needs("huggingface_hub").try_to_load_from_cache(model, "config.json"), str):
        return
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise ConfigError(
            f"there is no folder {model}, and the hub {host} cannot be reached ({error.strerror}). "
            "fix: --model with a folder that has config.json, or a connection."
        ) from None


def check_mutations(manifest: Manifest) -> None:
    """ConfigError where anything but hyperparameters would mutate."""
    chances = manifest.mutation.probabilities
    wrong = [f"mutation.probabilities.{n}" for n in ("arch_mut", "params_mut", "act_mut") if vars(chances)[n] > 0]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: the base of a language policy is frozen, and its hyperparameters alone mutate. "
            f"fix: {wrong[0]}=0, and rl_hp_mut above 0."
        )


def questions(manifest: Manifest, env: Any, tokenizer: Any) -> Any:
    """The environment that was handed over, as it is or from the function that makes it, else that of the id.

    tokenizer: of the base; None loads it.
    """
    cls, name = find_algorithm(manifest.algorithm.name), manifest.environment.name
    if env is None:
        check_kind(manifest.algorithm.name, name)
        if tokenizer is None:
            tokenizer = load_tokenizer(manifest.algorithm.hyperparameters["model_name"])
        kwargs = dict(manifest.environment.kwargs)
        return LanguageSource.make_envs(name, tokenizer, cls.experience.name, **kwargs)
    made = env if is_gym(env) or not callable(env) else env()
    if not is_gym(made) and foreign.has_methods(made, "episodes"):
        raise ConfigError(
            f"agilerl.train asks one question a prompt; {type(made).__name__} plays games of several turns. "
            "fix: agilerl.training.train_llm.finetune_llm_multiturn."
        )
    if not is_gym(made):
        check_kind(manifest.algorithm.name, name)
    gyms = [base.__name__ for base in type(made).__mro__ if base.__name__ in DEFAULT_BY_GYM]
    wanted = GYMS[cls.experience.name]
    if gyms and wanted not in gyms:
        raise ConfigError(
            f"{cls.__name__} {cls.experience.says}: it takes a {wanted}, and got a {gyms[0]}. "
            f"fix: algo={DEFAULT_BY_GYM[gyms[0]]!r}."
        )
    return made


def adapters_on_base(manifest: Manifest, seed: int, device: str, hp_config: Any) -> list[Any]:
    """The population on one base: equal hyperparameters, adapters of their own."""
    found: list[Any] = find_algorithm(manifest.algorithm.name).population(
        manifest.training.pop_size, seed=seed, hp_config=hp_config, device=device, **manifest.algorithm.hyperparameters
    )
    return found


def base_of(manifest: Manifest, device: str) -> Any:
    """The frozen model; whoever holds it shares it with all who ask for the same."""
    return load_base(manifest.algorithm.hyperparameters["model_name"], device=device)


def closing_score(agent: Any, env: Any) -> Evaluation | None:
    """What the best agent scores on the questions that chose nothing; None where there are none."""
    found: Evaluation | None = agent.evaluate("report", env) if "report" in env.splits else None
    return found


__all__: Sequence[str] = (
    "adapters_on_base",
    "base_of",
    "check_mutations",
    "closing_score",
    "is_gym",
    "learns_language",
    "questions",
    "quietly_loading",
    "resolve_questions",
)  # fmt: skip
