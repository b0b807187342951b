"""Runs of language policies from a manifest: base model, prompts, and the score of the best agent."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from agilerl.algorithms import DEFAULT_BY_GYM, find_algorithm
from agilerl.config import Manifest
from agilerl.config.presets import check_kind
from agilerl.core import foreign
from agilerl.errors import ConfigError
from agilerl.hpo.kinds import KINDS
from agilerl.language import needs
from agilerl.language.base import load_base
from agilerl.language.collect.collector import LanguageCollector
from agilerl.language.tokenizer import load_tokenizer
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.training.manifest.resolve import hyperparameter_config
from agilerl.training.manifest.task import Task

GYMS = {"completions": "ReasoningGym", "preferences": "PreferenceGym", "examples": "SFTGym"}
"""Experience of an algorithm -> gym that provides it."""


class LanguageTask(Task):
    """Prompts, preference pairs or examples for language policies."""

    no_random_play = "a language policy has no random play"

    def resolve(self, env: Any) -> Manifest:
        """Resolve the path of the base model, if it is a local folder.

        Loads the tokenizer and creates the environment, as the run will; the base itself is only loaded by the run.

        Raises:
            ConfigError: no base, no tokenizer, an environment that does not match the algorithm, or mutations of
                architectures. EnvError: unknown environment.
        """
        manifest = self.manifest
        name, model = manifest.algorithm.name, manifest.algorithm.hyperparameters["model_name"]
        if env is None:
            check_kind(name, manifest.environment.name)
        if model is None:
            raise ConfigError(
                f"{name} trains an adapter of a language model, and none is named. fix: "
                "model='PATH', a folder with config.json, model.safetensors and tokenizer.json, or a hub id."
            )
        folder = Path(model).expanduser()
        if not folder.exists():
            _check_hub(str(model))
        else:  # independent of the working directory on resume
            values = {**manifest.algorithm.model_dump(), "model_name": str(folder.resolve())}
            manifest = manifest.model_copy(update={"algorithm": type(manifest.algorithm)(**values)})
        check_mutations(manifest)
        questions(manifest, env, None)
        return manifest

    def environments(self, env: Any, device: str) -> tuple[Any, Any]:
        """Return the same prompts for training and evaluation. The base is cached, so that all members share it."""
        self._base = load_base(self.manifest.algorithm.hyperparameters["model_name"], device=device)
        prompts = questions(self.manifest, env, self._base.tokenizer)
        return prompts, prompts

    def population(self, env: Any, seed: int, device: str) -> list[Any]:
        manifest = self.manifest
        founders: list[Any] = find_algorithm(manifest.algorithm.name).population(
            manifest.training.pop_size,
            seed=seed,
            hp_config=hyperparameter_config(manifest),
            device=device,
            **manifest.algorithm.hyperparameters,
        )
        return founders

    def score_before(self, founder: foreign.Agent, env: Any) -> Evaluation | None:
        return self.final_score(founder, env)

    def notes_of(self, baseline: Baseline, before: Evaluation | None) -> list[str]:
        return [] if before is None else [f"before training: {before}"]

    def final_score(self, agent: Any, env: Any) -> Evaluation | None:
        """Score on the held-out report split; None without that split."""
        return agent.evaluate("report", env) if "report" in env.splits else None


def is_gym(env: Any) -> bool:
    """Whether an environment passed by the user is for language models."""
    return foreign.has_methods(env, "split", "batch")


def _check_hub(model: str) -> None:
    """Raise ConfigError for a missing path, or a hub name without access to a hub, where a request takes minutes."""
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
    """Raise ConfigError for any mutation other than of hyperparameters."""
    chances = manifest.mutation.probabilities
    keys = [kind.key for kind in KINDS.values() if not kind.of_language and vars(chances)[kind.key] > 0]
    wrong = [f"mutation.probabilities.{key}" for key in keys]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: the base of a language policy is frozen, and its hyperparameters alone mutate. "
            f"fix: {wrong[0]}=0, and rl_hp_mut above 0."
        )


def questions(manifest: Manifest, env: Any, tokenizer: foreign.Tokenizer | None) -> Any:
    """Return the environment passed by the user (object or factory), else create that of the id.

    tokenizer: of the base; None loads it.
    """
    cls, name = find_algorithm(manifest.algorithm.name), manifest.environment.name
    if env is None:
        if tokenizer is None:
            tokenizer = load_tokenizer(manifest.algorithm.hyperparameters["model_name"])
        kwargs = dict(manifest.environment.kwargs)
        return LanguageCollector.make_envs(name, tokenizer, cls.experience.name, **kwargs)
    prompt_env = env if is_gym(env) or not callable(env) else env()
    if not is_gym(prompt_env) and foreign.has_methods(prompt_env, "episodes"):
        raise ConfigError(
            f"agilerl.train asks one question a prompt; {type(prompt_env).__name__} plays games of several turns. "
            "fix: agilerl.training.train_llm.finetune_llm_multiturn."
        )
    if not is_gym(prompt_env):
        check_kind(manifest.algorithm.name, name)
    gyms = [base.__name__ for base in type(prompt_env).__mro__ if base.__name__ in DEFAULT_BY_GYM]
    wanted = GYMS[cls.experience.name]
    if gyms and wanted not in gyms:
        raise ConfigError(
            f"{cls.__name__} {cls.experience.says}: it takes a {wanted}, and got a {gyms[0]}. "
            f"fix: algo={DEFAULT_BY_GYM[gyms[0]]!r}."
        )
    return prompt_env
