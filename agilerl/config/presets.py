"""Presets: which file holds the starting values of an environment and an algorithm, and its content."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from agilerl.algorithms import (
    DEFAULT_FOR_LANGUAGE,
    DEFAULT_FOR_TEAMS,
    DEFAULT_UNTUNED,
    canonical_name,
    find_algorithm,
    is_team,
    shipped_in,
)
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.yaml_text import parse_yaml
from agilerl.core import foreign
from agilerl.core.env_ids import TEAM_PACKAGES, is_language_id, is_team_id
from agilerl.errors import ConfigError

# Keys of an environment's preset that apply to every algorithm.
BUDGET = ("max_steps", "target_score", "stop_margin", "train_max_episode_steps", "eval_steps")
GENERAL, FEW_STEPS = "default", "few_steps"  # names of the presets of no environment


def preset_names() -> list[str]:
    """The environment ids with a preset."""
    return sorted({name for name, _ in _preset_files() if name not in (GENERAL, FEW_STEPS)})


def _preset_files() -> dict[tuple[str, str | None], Any]:
    """(environment id, algorithm or None for the environment's default) -> file.

    `<id>.yaml` is the preset of an environment, `<id>.<algorithm>.yaml` that of another algorithm there; the slash of
    an id, or the dot of a module, is written `__`.
    """
    files: dict[tuple[str, str | None], Any] = {}
    for file in (resources.files("agilerl") / "presets").iterdir():
        if file.name.endswith(".yaml"):
            stem, _, algorithm = file.name.removesuffix(".yaml").partition(".")
            of_module = re.search(r"_v\d+$", stem)  # a multi-agent environment is named by its module
            files[(stem.replace("__", "." if of_module else "/"), algorithm or None)] = file
    return files


def model_of_presets(algo: str) -> str:
    """The algorithm whose presets apply to `algo`: itself, or the shipped one that a custom class derives from.

    Presets name every hyperparameter of their algorithm, so that a class which does not take all of them has none.
    """
    cls = find_algorithm(algo)
    for base in cls.__mro__:
        if shipped_in(base.__name__) == base.__module__:
            return str(base.__name__) if set(hyperparameters(base)) <= set(hyperparameters(cls)) else algo
    return algo


def preset_content(
    env_id: str, algo: str | None = None, *, general: bool = False, few_steps: bool = False
) -> tuple[dict[str, Any], str]:
    """The plain mapping of a preset, and a name for it in messages; arguments as in `load.preset_for`."""
    name, files = GENERAL if general else FEW_STEPS if few_steps else _preset_name(env_id), _preset_files()
    if algo is None and name == GENERAL:
        algo = usual_algorithm(env_id)
    wanted = None if algo is None else canonical_name(str(algo))
    if name != GENERAL and wanted is not None and not is_language_id(env_id):
        check_kind(wanted, env_id)
    model = None if wanted is None else model_of_presets(wanted)
    label = f"{name}.{model}" if (name, model) in files and model is not None else name

    def content(key: tuple[str, str | None]) -> dict[str, Any]:
        return dict(parse_yaml(files[key].read_text(encoding="utf-8"), f"preset {key[0]}"))

    data = content((name, model if label != name else None))
    if model is not None and model != canonical_name(data["algorithm"]["name"]):
        usual = content((GENERAL, model)) if (GENERAL, model) in files else {}
        budget = {} if general else {k: data["training"][k] for k in BUDGET if k in data["training"]}
        data = {"environment": data.get("environment", {}), "algorithm": {}, **usual}
        data["training"] = {**usual.get("training", {}), **budget}
    if wanted is not None:
        data["algorithm"] = {**data["algorithm"], "name": wanted}
        if foreign.overridden(find_algorithm(wanted), "learn", "get_action"):  # then rewards are not scaled
            data["training"] = {k: v for k, v in data.get("training", {}).items() if k != "normalize_rewards"}
    data["environment"] = {**data.get("environment", {}), "name": env_id}
    return data, f"preset {label}"


def usual_algorithm(env_id: str) -> str:
    """The algorithm of an environment without a preset."""
    if is_language_id(env_id):
        return DEFAULT_FOR_LANGUAGE
    return DEFAULT_FOR_TEAMS if is_team_id(env_id) else DEFAULT_UNTUNED


def check_names(algo: str, env_id: str) -> None:
    """Raise ConfigError for an algorithm and an environment whose ids alone tell that they do not go together."""
    if is_language_id(env_id):
        check_kind(algo, env_id)
    elif is_team_id(env_id) and not is_team(algo):
        raise ConfigError(f"{env_id} has several agents, and {algo} trains one. fix: algorithm: {DEFAULT_FOR_TEAMS}.")
    elif is_team(algo) and not is_team_id(env_id):
        raise ConfigError(
            f"{algo} trains several agents, and ids of their environments begin with {' or '.join(TEAM_PACKAGES)}; got "
            f"{env_id}. fix: algorithm: {DEFAULT_UNTUNED}, or an id such as mpe2.simple_spread_v3."
        )


def check_kind(algo: str, env_id: str, is_of_language: bool = False) -> None:
    """Raise ConfigError for a language algorithm in an RL environment, or an RL algorithm in a language environment.

    is_of_language: whether it is a language environment, if its name does not tell.
    """
    learns_language = bool(find_algorithm(algo).learns_language)
    asks = is_of_language or is_language_id(env_id)
    if learns_language and not asks:
        raise ConfigError(
            f"{algo} trains language models, and {env_id} has observations and actions. fix: an id such as "
            "reasoning/chain_sum or arithmetic/addition-2, or another algorithm."
        )
    if asks and not learns_language:
        raise ConfigError(
            f"{env_id} asks questions of language models; {algo} has spaces of observations and actions. "
            "fix: algo='GRPO' with model='path/to/model'."
        )


def has_preset(env_id: str) -> bool:
    """Whether an environment, or another version of it, has a preset."""
    return _preset_name(env_id) != GENERAL


def has_few_steps(algo: str) -> bool:
    """Whether there is a general preset of an algorithm for budgets of few environment steps."""
    return (FEW_STEPS, canonical_name(algo)) in _preset_files()


def _preset_name(env_id: str) -> str:
    names = preset_names()
    if env_id in names:
        return env_id
    base = re.sub(r"[-_]v\d+$", "", env_id)
    versions = [n for n in names if re.sub(r"[-_]v\d+$", "", n) == base]
    return max(versions, key=lambda n: int(n.rpartition("v")[2])) if versions else GENERAL
