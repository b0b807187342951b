"""Optional attributes of third-party objects: environments with their specs and spaces, streams, callbacks.

Any attribute may be missing from objects written by others. This module is the only one that looks them up by name, and
it defines the defaults. Agents are read through `algorithms.base.adapted`; here only by the layers below it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.core.interfaces import Accelerator as Accelerator
    from agilerl.core.interfaces import Agent as Agent
    from agilerl.core.interfaces import Env as Env
    from agilerl.core.interfaces import EnvLike as EnvLike
    from agilerl.core.interfaces import Tokenizer as Tokenizer


def has_methods(thing: object, *names: str) -> bool:
    """Whether `thing` has all of these methods."""
    return all(callable(getattr(thing, name, None)) for name in names)


def method(thing: object, name: str) -> Callable[..., Any] | None:
    """Return the method of this name, or None."""
    attribute = getattr(thing, name, None)
    return attribute if callable(attribute) else None


def name_of_function(function: object, default: str) -> str:
    """Return the name of a function or class; `default` for objects without one, such as partial functions."""
    return str(getattr(function, "__name__", default))


def can_be_called(function: Callable[..., Any]) -> bool:
    """Whether a function needs no arguments; True if its signature is unknown."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def close(thing: object) -> None:
    """Close `thing` if it has a `close` method."""
    if (end := method(thing, "close")) is not None:
        end()


def module_of(function: object) -> str:
    """Return the module of a function or class; empty if unknown."""
    return str(getattr(function, "__module__", ""))


def search_path(package: object) -> Sequence[str]:
    """Return the folders of a package; [] for a plain module."""
    return getattr(package, "__path__", ())


def marks(item: object) -> Sequence[Any]:
    """Return the metadata of a pydantic field, else the item itself."""
    return getattr(item, "metadata", (item,))


def num_processes(accelerator: object) -> int:
    """Return the number of processes of an accelerator; 1 without one."""
    return int(getattr(accelerator, "num_processes", 1))


def is_terminal(stream: object) -> bool:
    """Whether a stream is an interactive terminal."""
    isatty = method(stream, "isatty")
    return isatty is not None and bool(isatty())


def notes(error: BaseException) -> list[str]:
    """Return the notes added to an error by `add_note`."""
    return list(getattr(error, "__notes__", ()))


def parents(tournament: object) -> Sequence[int]:
    """Return the parent index of each member selected by a tournament; [] if unknown."""
    return getattr(tournament, "parents", ())


def policies(registry: object) -> Sequence[str]:
    """Return the names of an agent's registered policies; [] for other registries."""
    return getattr(registry, "policies", ())


def mutation_record(agent: object) -> Any:
    """Return the record of an agent's last mutation (`hpo.effects.MutationRecord`); None before the first."""
    return getattr(agent, "mutation_record", None)


def is_missing(update: object) -> bool:
    """Whether a method is marked as left to subclasses."""
    return bool(getattr(update, "is_missing", False))


def overridden(kind: type, *names: str, or_missing: bool = False) -> str | None:
    """Return the first of these methods in which `kind`, written outside this package, replaces one of the package;
    `or_missing`: also one that the package leaves to subclasses."""
    for name in names:
        owners = [base for base in kind.__mro__ if name in vars(base)]
        shipped = [
            base for base in owners[1:] if _is_shipped(base) and (or_missing or not is_missing(vars(base)[name]))
        ]
        if shipped and not _is_shipped(owners[0]):
            return name
    return None


def defined_outside(kind: type, name: str, *, unless: str) -> bool:
    """Whether the method `name` comes from outside this package, unless an equally or more derived class there has
    `unless`."""
    for base in kind.__mro__:
        if unless in vars(base) and not _is_shipped(base):
            return False
        if name in vars(base):
            return not _is_shipped(base)
    return False


def _is_shipped(kind: type) -> bool:
    return kind.__module__.startswith("agilerl.")


def takes(agent: object, method: str, name: str) -> bool:
    """Whether `agent.method(..., name=...)` accepts the argument `name`.

    A method with `**kwargs` passes them on, so the method that it overrides decides, and for a wrapper the wrapped
    agent; without either it accepts everything.
    """
    inherited = [vars(base)[method] for base in type(agent).__mro__ if method in vars(base)]
    for function in [getattr(agent, method), *(one for one in inherited[1:] if not is_missing(one))]:
        parameters = inspect.signature(function).parameters
        if name in parameters:
            return True
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return False
    inner = getattr(agent, "unwrapped", agent)
    return True if inner is agent else takes(inner, method, name)


def misfit(method: Callable[..., Any], positional: Sequence[str], named: Iterable[str] = ()) -> str | None:
    """Return why a bound method cannot be called with these arguments; None if it can, or has no signature."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        return str(error)
    return None


def published_learn(kind: type) -> Any:
    """Return the `learn` that an agent class inherits from this package; None for other classes."""
    return getattr(kind, "published_learn", None)


# --- environments -----------------------------------------------------------------------------------------------------


def possible_agents(env: object) -> Any:
    """Return the ids of an environment's agents; None for a single-agent environment."""
    return getattr(env, "possible_agents", None)


def num_envs(env: object) -> int:
    """Return the number of environments of a vector; 1 for a single environment."""
    count = getattr(env, "num_envs", None)
    return max(1, int(count)) if isinstance(count, Integral) else 1


def can_replicate(env: object) -> bool:
    """Whether it can create lanes of copies (`replicate`), like the vectors of this package."""
    return has_methods(env, "replicate")


def copies(env: object) -> list[Any]:
    """Return the environments of an in-process vector; [] for any other."""
    envs = getattr(env, "envs", None)
    return list(envs) if isinstance(envs, Iterable) else []


def single(env: object) -> Any:
    """Return the first environment of an in-process vector, else `env` itself."""
    return next(iter(copies(env)), env)


def bare(env: object) -> Any:
    """Return the environment or agent inside all wrappers."""
    inner = getattr(env, "unwrapped", None)
    return env if inner is None else inner


def unlimited(env: object) -> Any:
    """Return the environment inside an episode limit of this package."""
    return getattr(env, "unlimited", env)


def metadata(env: object) -> Mapping[str, Any]:
    """Return its metadata; {} by default."""
    declared = getattr(env, "metadata", None)
    return declared if isinstance(declared, Mapping) else {}


def render_mode(env: object) -> str | None:
    """Return its render mode."""
    mode: str | None = getattr(env, "render_mode", None)
    return mode


def observation_space(env: object, prefix: str = "") -> Any:
    """Return the observation space of an environment or agent, or None; `prefix`: "single_" for a vector."""
    return _called(getattr(env, f"{prefix}observation_space", None))


def action_space(env: object, prefix: str = "") -> Any:
    """Return the action space of an environment or agent, or None; `prefix`: "single_" for a vector."""
    return _called(getattr(env, f"{prefix}action_space", None))


def _called(space: object) -> Any:
    """Return the result of a method without arguments; PettingZoo's methods by agent are unchanged."""
    return space() if inspect.ismethod(space) and not inspect.signature(space).parameters else space


SPACES = (("observation_space", observation_space), ("action_space", action_space))
"""(name, function that reads it) of both spaces."""


def env_id(env: object) -> str | None:
    """Return its Gymnasium id, None if it was not created from one."""
    identifier: str | None = getattr(spec(env), "id", None)
    return identifier


def own_id(env: object) -> str | None:
    """Return the id that a vector of environments was created from, None if unknown."""
    identifier: str | None = getattr(env, "env_id", None)
    return identifier


def takes_seed_per_lane(env: object) -> bool:
    """Whether the `reset` of a vector declares that it takes one seed per environment."""
    return bool(getattr(env, "takes_seed_per_lane", False))


def registered_limit(env: object) -> Any:
    """Return its episode limit, or that of its registration; None if neither is set."""
    return getattr(env, "max_episode_steps", None) or getattr(spec(env), "max_episode_steps", None)


def registered_maker(env: object) -> Any:
    """Return the entry point of its Gymnasium registration, None if it was not created from an id."""
    return getattr(spec(env), "entry_point", None)


def reward_threshold(registered: object) -> float | None:
    """Return the return at which a registered environment counts as solved, or None."""
    threshold = getattr(registered, "reward_threshold", None)
    return None if threshold is None else float(threshold)


def spec(env: object) -> Any:
    """Return its Gymnasium spec, None if it was not created from an id."""
    return getattr(env, "spec", None)


def own_state_space(env: object) -> Any:
    """Return the space of PettingZoo's `env.state()`, None if undeclared."""
    return getattr(env, "state_space", None)


def turn_based(conversions: object) -> Any:
    """Return PettingZoo's class of turn-based games stepped in parallel; empty if its conversions are not loaded."""
    return getattr(conversions, "turn_based_aec_to_parallel_wrapper", ())


def state_space(env: object) -> Any:
    """Return the space of a multi-agent environment's global state; None if there is none."""
    return getattr(team(env), "state_space", None)


def team(env: object) -> Any:
    """Return the team description of a vector of this package; None for any other."""
    return getattr(env, "team", None)


def own_name(env: object) -> str:
    """Return the name of a text gym; empty if unknown."""
    return str(getattr(env, "name", "") or "")


# --- data sets, tokenizers and modules --------------------------------------------------------------------------------


def file_of(data: object) -> str | None:
    """Return the path of an open HDF5 file or group; None for anything else."""
    path: str | None = getattr(data, "filename", None)
    return path


def hdf5_attributes(data: object) -> dict[str, Any]:
    """Return the attributes of an HDF5 file; {} for anything else."""
    return dict(getattr(data, "attrs", {}))


def recorded_id(data: object) -> str | None:
    """Return the environment id of a Minari data set, None if unknown."""
    identifier: str | None = getattr(getattr(spec(data), "env_spec", None), "id", None)
    return identifier


def name_or_path(tokenizer: object) -> str:
    """Return the folder or hub id of a tokenizer; empty if unknown."""
    return str(getattr(tokenizer, "name_or_path", "") or "")


def chat_template(tokenizer: object) -> Any:
    """Return a tokenizer's chat template, or None."""
    return getattr(tokenizer, "chat_template", None)


def hidden_size(module: object) -> list[int]:
    """Return the hidden layer widths of a network, else []."""
    return list(getattr(module, "hidden_size", ()))


def weight(module: object) -> Any:
    """Return the weights of a layer, None for modules without."""
    return getattr(module, "weight", None)


def bias(module: object) -> Any:
    """Return the bias of a layer, None if it has none."""
    return getattr(module, "bias", None)


def context_of(config: object) -> int | None:
    """Return the context length of a language model in tokens; None if not configured."""
    return int(getattr(config, "max_position_embeddings", 0)) or None


def has_generation_config(model: object) -> bool:
    """Whether a language model has a generation config."""
    return getattr(model, "generation_config", None) is not None


def activation(module: object) -> str | None:
    """Return the name of a network's activation, or None."""
    name: str | None = getattr(module, "activation", None)
    return name


def value(member: object) -> Any:
    """Return the value of an enum member; anything else unchanged."""
    return getattr(member, "value", member)


# --- spaces and arrays ------------------------------------------------------------------------------------------------


def shape(thing: object) -> tuple[int, ...] | None:
    """Return the shape of an array, tensor or space; None without one."""
    dims = getattr(thing, "shape", None)
    return None if dims is None else tuple(dims)


def start(space: object) -> Any:
    """Return the lowest action of a Discrete or MultiDiscrete space; 0 for any other."""
    return getattr(space, "start", 0)


def parts(space: object) -> Any:
    """Return the spaces inside a Dict, Tuple or similar; None for a plain space."""
    return getattr(space, "spaces", None)


def dtype_name(thing: object) -> str:
    """Return the dtype of an array, else the class name; for messages."""
    return str(getattr(thing, "dtype", type(thing).__name__))


def ndim(thing: object) -> int:
    """Return the number of axes of an array; 1 for anything else."""
    return int(getattr(thing, "ndim", 1))


def attributes(thing: object, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for those of `names` that it has."""
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)
