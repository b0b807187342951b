"""Keys of the manifest: their aliases, the tree of their sections, full names of short ones, likely intended ones."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agilerl.algorithms import find_algorithm, shipped_in
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.schema import Algorithm, HyperparameterRange, Manifest, algorithm_model
from agilerl.core.signatures import SYNONYMS
from agilerl.errors import ConfigError, nearest

SECTION_ALIASES = {"selection_strategy": "tournament_selection"}
KEY_ALIASES = {
    ("algorithm", "learning_rate"): "lr",
    ("algorithm", "model"): "model_name",
    ("environment", "env_id"): "name",
    ("training", "total_timesteps"): "max_steps",
    ("training", "population_size"): "pop_size",
    ("training", "target"): "target_score",
    ("training", "min_noise_scale"): "explore_least",
    ("training", "max_confirmation_episodes"): "confirm_most",
    ("training", "confirmation_batch"): "confirm_screen",
    ("training", "screening_episodes"): "eval_screen",
    ("training", "max_eval_fraction"): "eval_share",
}
REMOVED: dict[str, dict[str, typing.Any]] = {  # keys of earlier records that are ignored at their defaults
    "evolution": {"objective": "score", "explore": True, "parents": "best", "then": None},
    "mutation": {"reset_dormant": None},
}
TOP_LEVEL_ALIASES = {
    "algo": ("algorithm", "name"),
    "env_id": ("environment", "name"),
    "total_timesteps": ("training", "max_steps"),
    "learning_rate": ("algorithm", "lr"),
}
IMAGE_KEYS = ("channel_size", "kernel_size", "stride_size", "padding_size", "cnn_config", "num_blocks", "block_type")
# Names used by other libraries, and everyday words, for our keys.
MEANT: dict[str, tuple[str, ...]] = {
    **{word: names[:1] for word, names in SYNONYMS.items()},
    "id": ("name",),
    "step": ("max_steps",),
    "steps": ("max_steps",),
    "total_steps": ("max_steps",),
    "timesteps": ("max_steps",),
    "budget": ("max_steps",),
    "frames": ("max_steps",),
    "population": ("pop_size",),
    "members": ("pop_size",),
    "learning_starts": ("learning_delay",),
    "buffer_size": ("max_size",),
    "memory_size": ("max_size",),
    "n_envs": ("num_envs",),
    "net_arch": ("hidden_size",),
    "target": ("target_score",),
    "epsilon": ("eps_start", "eps_end"),
    "exploration_fraction": ("eps_decay",),
    "max_episode_steps": ("train_max_episode_steps", "eval_steps"),
}
MIN_SIMILARITY = 0.7  # of names of settings: "beta" and "extra" have 0.67
RANGES = ("rl_hp_selection", "restart_ranges")  # sections whose keys are hyperparameters
NULLABLE = ("network.encoder_config",)  # sections that can be set to null as a whole
_FREE = (
    "mutation.rl_hp_selection.",
    "evolution.restart_ranges.",
    "environment.kwargs.",
    "network.encoder.",
    "algorithm.lora_config.",
)  # keys below these are free


def section_fields(model: type[BaseModel], algorithm: str) -> dict[str, FieldInfo]:
    """The fields of a section; for the algorithm its hyperparameters and its name."""
    fields = dict(model.model_fields)
    if model is Algorithm:
        fields |= algorithm_model(algorithm).model_fields
    return fields


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section type of a field, nullable ones included; None for a plain value."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def item_of(annotation: object) -> type[BaseModel] | None:
    """The section type of the items of a list, nullable ones included; None for anything else."""
    lists = [part for part in (annotation, *typing.get_args(annotation)) if typing.get_origin(part) is list]
    return section_of(typing.get_args(lists[0])[0]) if lists else None


def leaf_paths(algorithm: str, model: type[BaseModel] = Manifest, prefix: str = "") -> list[str]:
    """Dotted paths of all keys of an algorithm."""
    paths = []
    for name, field in section_fields(model, algorithm).items():
        section = section_of(field.annotation)
        if section is not None:
            paths += leaf_paths(algorithm, section, f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return paths


def located(
    loc: tuple[int | str, ...], algorithm: str, model: type[BaseModel] = Manifest
) -> tuple[str, FieldInfo | None, list[str]]:
    """(dotted path from `model`, the field there or None for a section, the keys of the innermost section)."""
    path: list[str] = []
    for position, part in enumerate(loc):
        fields = section_fields(model, algorithm)
        if part not in fields:
            break
        path.append(str(part))
        annotation, after = fields[str(part)].annotation, loc[position + 1 : position + 2]
        section, item = section_of(annotation), item_of(annotation)
        if section is not None:
            model = section
        elif item is not None and after and isinstance(after[0], int):
            below, field, siblings = located(loc[position + 2 :], algorithm, item)
            return f"{'.'.join(path)}[{after[0]}]{'.' if below else ''}{below}", field, siblings
        elif part in RANGES and position + 1 < len(loc):
            path.append(str(loc[position + 1]))
            rest, bounds = loc[position + 2 :], HyperparameterRange.model_fields
            if rest and rest[0] in bounds:
                return ".".join([*path, str(rest[0])]), bounds[str(rest[0])], list(bounds)
            return ".".join(path), None, list(bounds)
        else:
            return ".".join(path), fields[str(part)], list(fields)
    return ".".join(path), None, list(section_fields(model, algorithm))


def resolve_key(name: str, paths: list[str], source: str, algorithm: str) -> str:
    """Resolve `name` to its full dotted path; `paths`: those of the algorithm."""
    path = without_aliases(name)
    if path in paths or path in NULLABLE or path.startswith(_FREE):
        return path
    below = [p for p in paths if p.startswith(path + ".")]
    if below:
        raise ConfigError(f"{source}: {name} is a section. fix: set one of its keys: {', '.join(below)}.")
    if name == "net_config":
        raise ConfigError(
            f"{source}: net_config is an argument of algorithm classes. fix: its parts, such as latent_dim=64, "
            "encoder={'hidden_size': [64]} and **{'network.head_config.hidden_size': [64]}."
        )
    if "." not in path:
        return _unique_leaf(path, paths, source, algorithm)
    section = path.rpartition(".")[0]
    siblings = [p.removeprefix(section + ".") for p in paths if p.startswith(section + ".")]
    if siblings:
        raise ConfigError(f"{source}: {unknown_key(name, siblings, algorithm)}")
    hint = _hint(path, paths) or "fix: `agilerl train ENV_ID --dry-run` prints every key."
    raise ConfigError(f"{source}: {name} is not a known key. {hint}")


def unknown_key(path: str, known: Sequence[str], algorithm: str) -> str:
    """A message for an unknown key. `path` is dotted; `known` are the keys of its section."""
    section, _, leaf = path.rpartition(".")
    place = _place_of(leaf, algorithm)
    if section and place:
        return f"{path} is not a known key; {leaf} is one of the section {place.rpartition('.')[0]}. fix: {place}."
    hint = hint_for(leaf, known)
    if section == "algorithm" and not hint:
        return undeclared(path, algorithm)
    hint = hint or f"(known: {', '.join(known)}) fix: a known one."
    where = "" if section else " at the top level"
    return f"{path} is not a known key{where}. {hint}"


def _place_of(leaf: str, algorithm: str) -> str:
    """Return the dotted path of a last name that only one key has; else an empty string."""
    matches = [path for path in leaf_paths(algorithm) if path.rpartition(".")[2] == leaf]
    return matches[0] if len(matches) == 1 else ""


def beside_sections(name: str, algorithm: str) -> str:
    """The message for a key that stands at the top level of a file and belongs in a section; empty for any other."""
    place = name if name in leaf_paths(algorithm) else _place_of(name, algorithm)
    if not place:
        return ""
    *sections, leaf = place.split(".")
    nested = "".join(f"{section}: {{" for section in sections) + f"{leaf}: ..." + "}" * len(sections)
    return f"{name} is a key of the section {'.'.join(sections)}. fix: {nested}."


def hint_for(name: str, known: Sequence[str]) -> str:
    """The likely intended key for an unknown one, with the fix; empty if none is close.

    Synonyms come before spelling: keys of image encoders belong in `network.encoder`, and other libraries' names map
    to ours.
    """
    if name in IMAGE_KEYS:
        return f"image keys belong in network.encoder. fix: network.encoder.{name}."
    words = {word: keys for word, keys in MEANT.items() if set(keys) <= set(known)}
    matches = [name.lower()] if name.lower() in words else nearest(name, [*known, *words], 1, MIN_SIMILARITY)
    close = [key for word in matches for key in (words.get(word, (word,)) if word not in known else (word,))]
    return f"Did you mean {' or '.join(map(repr, close))}? fix: {' or '.join(close)}." if close else ""


def undeclared(name: str, algorithm: str) -> str:
    """The message for a key that is near no other one: what the algorithm takes, and how a custom one declares more."""
    accepted = ", ".join(hyperparameters(find_algorithm(algorithm))) or "no hyperparameters"
    more = "`agilerl train ENV_ID --dry-run` prints every key"
    if shipped_in(algorithm) is None:
        leaf = name.rpartition(".")[2]
        more = f"declare it in the constructor of {algorithm}: {leaf}: Annotated[float, hp()] = 0.1"
    return f"{name} is not a known key; {algorithm} takes {accepted}. fix: one of these, or {more}."


def without_aliases(name: str) -> str:
    """The key that a dotted or top-level alias stands for; other names unchanged."""
    if name in TOP_LEVEL_ALIASES:
        return ".".join(TOP_LEVEL_ALIASES[name])
    head, dot, rest = name.partition(".")
    head = SECTION_ALIASES.get(head, head)
    return f"{head}{dot}{KEY_ALIASES.get((head, rest), rest)}"


def _unique_leaf(leaf: str, paths: list[str], source: str, algorithm: str) -> str:
    leaf = {alias: name for (_, alias), name in KEY_ALIASES.items()}.get(leaf, leaf)
    matches = [p for p in paths if p.rpartition(".")[2] == leaf]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"{source}: {leaf} is ambiguous: {', '.join(matches)}. fix: write the dotted name.")
    leaves = {p.rpartition(".")[2] for p in paths}
    leaves |= {alias for (_, alias), name in KEY_ALIASES.items() if name in leaves}
    hint = _hint(leaf, sorted(leaves))
    if not hint:
        raise ConfigError(f"{source}: {undeclared(leaf, algorithm)}")
    raise ConfigError(f"{source}: {leaf} is not a known key. {hint}")


def _hint(name: str, valid_names: list[str]) -> str:
    if name.rpartition(".")[2] in ("model_name", "lora_config"):
        return "fix: it is of language algorithms, such as algo='GRPO'."
    return hint_for(name, valid_names)


OLDER = ("INIT_HP", "MUTATION_PARAMS", "NET_CONFIG")
# Keys that a section has in the newer generation only: section -> names. Its complete files have at least two.
NEWER = {
    "algorithm": ("cudagraphs", "use_vllm", "vllm_config"),
    "environment": ("env_type", "dataset", "features", "targets", "prompt_template"),
    "mutation": ("rand_seed", "super_param_mut", "regrama_param_mut", "function_preserving"),
    "network": ("arch", "pretrained_model_name_or_path", "max_context_length"),
    "training": ("eval_loop", "evaluation_interval"),
    "selection_strategy": ("strategy",),
    "tournament_selection": ("strategy",),
    "replay_buffer": ("memory_size", "per", "standard_buffer", "n_step_buffer", "per_buffer"),
}


def is_published(data: object) -> bool:
    """Whether a file's content is a configuration of the published library rather than a manifest."""
    if not isinstance(data, Mapping):
        return False
    if any(str(key).upper() in OLDER for key in data):
        return True
    sections = {name: data[name] for name in NEWER if isinstance(data.get(name), Mapping)}
    # One alone is a mistake in a manifest, such as eval_loop in the wrong section.
    return sum(key in NEWER[name] for name, section in sections.items() for key in section) > 1
