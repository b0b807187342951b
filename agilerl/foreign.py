"""What objects that are not ours say of themselves: environments with their specs and spaces, streams, callbacks.

Whoever wrote them may have left any of it out, so this is the one place that asks by name, and that says what holds
where there is no answer. Agents are read by `algorithms.base.adapted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def has_methods(thing: Any, *names: str) -> bool:
    """Whether all of these are methods of it."""
    return all(callable(getattr(thing, name, None)) for name in names)


def method(thing: Any, name: str) -> Callable[..., Any] | None:
    """The method of this name, None where there is none."""
    found = getattr(thing, name, None)
    return found if callable(found) else None


def name_of_function(function: Any, default: str) -> str:
    """The name of a function or class; `default` for what has none, such as a partial function."""
    return str(getattr(function, "__name__", default))


def close(thing: Any) -> None:
    """Close what can be closed."""
    if (end := method(thing, "close")) is not None:
        end()


def module_of(function: Any) -> str:
    """The module that a function or class stands in; empty where it does not say."""
    return str(getattr(function, "__module__", ""))


def search_path(package: Any) -> Sequence[str]:
    """The folders that a package is in; [] of a plain module."""
    return getattr(package, "__path__", ())


def marks(item: Any) -> Sequence[Any]:
    """What stands in an annotation: the marks inside a field of pydantic, else the item itself."""
    return getattr(item, "metadata", (item,))


def num_processes(accelerator: Any) -> int:
    """Processes that train together, as Accelerate says it; 1 where nothing does."""
    return int(getattr(accelerator, "num_processes", 1))


def is_terminal(stream: Any) -> bool:
    """Whether a stream is shown to somebody as it is written."""
    asked = method(stream, "isatty")
    return asked is not None and bool(asked())


def notes(error: BaseException) -> list[str]:
    """What was added to an error by `add_note`."""
    return list(getattr(error, "__notes__", ()))


def parents(tournament: Any) -> Sequence[int]:
    """The index of the parent of each member that a tournament has chosen; [] where it does not say."""
    return getattr(tournament, "parents", ())


def policies(registry: Any) -> Sequence[str]:
    """The names of the policies that an agent has registered; [] where it registers in its own way."""
    return getattr(registry, "policies", ())


def mutation_record(agent: Any) -> Any:
    """What the last mutation did to an agent (`hpo.effects.MutationRecord`); None before the first."""
    return getattr(agent, "mutation_record", None)


def is_missing(update: Any) -> bool:
    """Whether a method says that its class leaves it to subclasses."""
    return bool(getattr(update, "is_missing", False))


def published_learn(kind: type) -> Any:
    """The `learn` of this package that a class of agents has; None of a class that subclasses nothing of ours."""
    return getattr(kind, "published_learn", None)


# --- environments -----------------------------------------------------------------------------------------------------


def num_envs(env: Any) -> int:
    """How many environments a vector holds; 1 for a single environment."""
    return max(1, int(getattr(env, "num_envs", 1)))


def can_replicate(env: Any) -> bool:
    """Whether it makes lanes of its own copies (`replicate`), as the vectors of this package do."""
    return has_methods(env, "replicate")


def copies(env: Any) -> list[Any]:
    """The environments in a vector that holds them in this process; [] for any other."""
    return list(getattr(env, "envs", None) or ())


def single(env: Any) -> Any:
    """The first environment of a vector that holds them in this process, else what was given."""
    return next(iter(copies(env)), env)


def bare(env: Any) -> Any:
    """The environment inside all wrappers."""
    found = getattr(env, "unwrapped", None)
    return env if found is None else found


def unlimited(env: Any) -> Any:
    """The environment under a limit of steps of this package."""
    return getattr(env, "unlimited", env)


def metadata(env: Any) -> Mapping[str, Any]:
    """Its metadata; {} without any."""
    return getattr(env, "metadata", None) or {}


def render_mode(env: Any) -> str | None:
    """How it was made to render."""
    found: str | None = getattr(env, "render_mode", None)
    return found


def observation_space(env: Any, prefix: str = "") -> Any:
    """The observation space of an environment or agent, None where it has none; `prefix`: "single_" of a vector."""
    return getattr(env, f"{prefix}observation_space", None)


def action_space(env: Any, prefix: str = "") -> Any:
    """The action space of an environment or agent, None where it has none; `prefix`: "single_" of a vector."""
    return getattr(env, f"{prefix}action_space", None)


SPACES = (("observation_space", observation_space), ("action_space", action_space))
"""(name, what reads it) of both spaces."""


def single_spaces(env: Any) -> tuple[Any, Any]:
    """(observation space, action space) of one environment, given that or a vector; None where it has none."""
    return tuple(
        own if (own := ask(env, "single_")) is not None else ask(env) for ask in (observation_space, action_space)
    )  # type: ignore[return-value]


def env_id(env: Any) -> str | None:
    """The id under which Gymnasium knows it, None where it was not made by one."""
    found: str | None = getattr(spec(env), "id", None)
    return found


def own_id(env: Any) -> str | None:
    """The id that a vector of environments was made by, None where it does not say."""
    found: str | None = getattr(env, "env_id", None)
    return found


def takes_seed_per_lane(env: Any) -> bool:
    """Whether the `reset` of a vector takes one seed for each of its environments, and says so."""
    return bool(getattr(env, "takes_seed_per_lane", False))


def registered_limit(env: Any) -> Any:
    """What it gives as the steps of an episode, or its registration; None where nothing says."""
    return getattr(env, "max_episode_steps", None) or getattr(spec(env), "max_episode_steps", None)


def registered_maker(env: Any) -> Any:
    """What Gymnasium makes it from, None where it was not made by an id."""
    return getattr(spec(env), "entry_point", None)


def reward_threshold(registered: Any) -> float | None:
    """The return at which an environment counts as solved by its registration, None where that names none."""
    found = getattr(registered, "reward_threshold", None)
    return None if found is None else float(found)


def spec(env: Any) -> Any:
    """How Gymnasium registers it, None where it was not made by an id."""
    return getattr(env, "spec", None)


def own_state_space(env: Any) -> Any:
    """The space of `env.state()` of PettingZoo, None where it does not say."""
    return getattr(env, "state_space", None)


def turn_based(conversions: Any) -> Any:
    """PettingZoo's class of games of turns that step in parallel; none where its conversions are not loaded."""
    return getattr(conversions, "turn_based_aec_to_parallel_wrapper", ())


def state_space(env: Any) -> Any:
    """The space of the state that an environment of several agents shows; None where it shows none."""
    return getattr(team(env), "state_space", None)


def team(env: Any) -> Any:
    """What the environments of a vector have in common, as this package describes a team; None of any other."""
    return getattr(env, "team", None)


def own_name(env: Any) -> str:
    """What a gym of texts is called; empty where it does not say."""
    return str(getattr(env, "name", "") or "")


# --- data sets, tokenizers and modules --------------------------------------------------------------------------------


def file_of(data: Any) -> str | None:
    """The file that an open HDF5 file or group is in; None of anything else."""
    found: str | None = getattr(data, "filename", None)
    return found


def hdf5_attributes(data: Any) -> dict[str, Any]:
    """The attributes of an HDF5 file; {} of anything else."""
    return dict(getattr(data, "attrs", {}))


def recorded_id(data: Any) -> str | None:
    """The id of the environment that a data set of Minari was recorded in, None where it does not say."""
    found: str | None = getattr(getattr(spec(data), "env_spec", None), "id", None)
    return found


def name_or_path(tokenizer: Any) -> str:
    """The folder or the id of a hub that a tokenizer came from; empty where it does not say."""
    return str(getattr(tokenizer, "name_or_path", "") or "")


def chat_template(tokenizer: Any) -> Any:
    """How a tokenizer writes turns of a conversation, None where it does not say."""
    return getattr(tokenizer, "chat_template", None)


def hidden_size(module: Any) -> list[int]:
    """The widths of the hidden layers of a network that says them, else []."""
    return list(getattr(module, "hidden_size", ()))


def weight(module: Any) -> Any:
    """The weights of a layer, None of a module without any of its own."""
    return getattr(module, "weight", None)


def bias(module: Any) -> Any:
    """The bias of a layer, None of one without."""
    return getattr(module, "bias", None)


def context_of(config: Any) -> int | None:
    """Tokens that a language model reads at most; None where its configuration does not say."""
    return int(getattr(config, "max_position_embeddings", 0)) or None


def has_generation_config(model: Any) -> bool:
    """Whether a language model has settings of its own for writing."""
    return getattr(model, "generation_config", None) is not None


def activation(module: Any) -> str | None:
    """The name of the activation of a network that has one."""
    found: str | None = getattr(module, "activation", None)
    return found


def value(member: Any) -> Any:
    """The value of an enumeration's member; anything else as it is."""
    return getattr(member, "value", member)


# --- spaces and arrays ------------------------------------------------------------------------------------------------


def shape(thing: Any) -> tuple[int, ...] | None:
    """The shape of an array, a tensor or a space; None where there is none."""
    found = getattr(thing, "shape", None)
    return None if found is None else tuple(found)


def start(space: Any) -> Any:
    """The lowest choice of a Discrete or MultiDiscrete space; 0 of any other."""
    return getattr(space, "start", 0)


def parts(space: Any) -> Any:
    """The spaces inside a Dict, a Tuple or the like; None for a plain one."""
    return getattr(space, "spaces", None)


def dtype_name(thing: Any) -> str:
    """The dtype of an array, else the name of its class: for messages."""
    return str(getattr(thing, "dtype", type(thing).__name__))


def ndim(thing: Any) -> int:
    """Axes of an array; 1 for anything else."""
    return int(getattr(thing, "ndim", 1))


def attributes(thing: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(name, value) of those of `names` that it has."""
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)
