"""Declarations of constructor arguments: range, manifest default, and why it differs from the published one.

An argument is declared in the constructor's signature:

    lr: Annotated[Positive, hp(1e-3, "small networks of few steps want larger ones")] = 1e-4

This gives its name, its range (a type of `agilerl.ranges`), the published default (1e-4), the manifest default (1e-3)
and the reason for the difference. Configuration, command line, `INIT_HP`, error messages and lists derive from it.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

from agilerl.core.ranges import Range, check, usual_of, without_none
from agilerl.core.signatures import (
    bind,
    constructor_signature,
    constructors,
    hints_of,
    is_ours,
    is_simple,
    takes_any_name,
)
from agilerl.errors import AlgorithmError, ConfigError, RegistryError, nearest, unknown_choice

_PUBLISHED: Any = object()
OLD_ARGUMENTS = {  # constructor arguments before 2.0
    "state_dim": "observation_space", "action_dim": "action_space", "state_dims": "observation_spaces",
    "action_dims": "action_spaces", "one_hot": "observation_space (a Discrete is one-hot encoded)",
    "n_agents": "agent_ids", "discrete_actions": "action_spaces", "min_action": "action_space (its low)",
    "max_action": "action_space (its high)",
}  # fmt: skip


@dataclass(frozen=True)
class Experience:
    """Kind of experience that an algorithm learns from.

    Attributes:
        name: source that collects it (`agilerl.collect`). says: description in messages.
        has_training_episodes: whether training plays episodes whose returns can rank members.
        on_policy: whether all of it was collected by the current policy. The policy must then not change before it
            has learned.
        steps: unit of budgets and records, as named in texts.
    """

    name: str
    says: str
    on_policy: bool = False
    steps: str = "env steps"
    has_training_episodes: bool = True


STRUCTURE = frozenset({"share_encoders", "recurrent"})  # of most algorithms; see `EvolvableAlgorithm.structure`
TRANSITIONS = Experience("transitions", "learns from replay")
ROUNDS = Experience("rounds", "learns from the rewards of the arms that it chooses", steps="rounds")
ROLLOUTS = Experience("rollouts", "learns from its own rollouts", on_policy=True)
DATASET = Experience("dataset", "learns from a data set", steps="updates", has_training_episodes=False)
TEAM_TRANSITIONS = Experience("team_transitions", "learns from replay of several agents")
TEAM_VALUES = Experience("team_values", "learns action values from replay of several agents")
TEAM_ROLLOUTS = Experience("team_rollouts", "learns from its own rollouts of several agents", on_policy=True)
COMPLETIONS = Experience(
    "completions", "learns from rewards of what it writes", steps="prompts", has_training_episodes=False
)
PREFERENCES = Experience("preferences", "learns from pairs of completions", steps="pairs", has_training_episodes=False)
EXAMPLES = Experience("examples", "learns from given completions", steps="examples", has_training_episodes=False)


def why_not_together(algorithm: Any, other: Any) -> str:
    """Return why members of two algorithms cannot learn from one replay memory; empty if they can."""
    for cls in (algorithm, other):
        if cls.experience != TRANSITIONS:
            return f"{cls.__name__} {cls.experience.says}, so it shares no replay memory with other algorithms."
    if type(algorithm.action_form) is not type(other.action_form):
        return f"{algorithm.__name__} and {other.__name__} store actions in different forms."
    return ""


@dataclass(frozen=True)
class Declared:
    """Result of `hp` for an argument; `values` is set if the range is not the argument's own type."""

    manifest: Any
    because: str
    values: Any
    fixed: str = ""
    published: Any = _PUBLISHED


def hp(
    manifest: object = _PUBLISHED, because: str = "", *, values: object = None, fixed: str = "",
    published: object = _PUBLISHED,
) -> Declared:  # fmt: skip
    """Mark an argument of an algorithm's constructor as a hyperparameter that manifests may name.

    Args:
        manifest: default in manifests; the published one if omitted.
        because: reason for the difference; required if there is one.
        values: range in manifests, if the argument's type allows more (arrays, enums) than YAML can express.
        fixed: reason why a number cannot be mutated: later values of the attribute would have no effect.
        published: the argument's default, if it is a key of options (`on_policy.unpacked`).
    """
    if (manifest is not _PUBLISHED) != bool(because):
        raise TypeError("hp(manifest, because): a default of manifests and the reason for it go together.")
    return Declared(manifest, because, values, fixed, published)


OF_WEIGHTS = "it only sets the initial value of weights"  # why a number is fixed


@dataclass(frozen=True)
class Hyperparameter:
    """One declared argument.

    Attributes:
        values: annotated type with its range. published, manifest: the two defaults. because: why they differ.
    """

    name: str
    values: Any
    published: Any
    manifest: Any
    because: str

    @property
    def is_number(self) -> bool:
        """Whether it is an integer or a float, which evolution can change unless it is `fixed`."""
        return Range.of(self.values) is not None


@lru_cache(maxsize=64)
def _arguments(cls: Any) -> tuple[inspect.Signature, dict[str, tuple[Any, Any, Declared | None]]]:
    """Return the constructor's signature, and argument -> (type with range, published default, mark) for arguments
    that have a range or a mark.

    An argument that a constructor passes on by `**kwargs` keeps the declaration of the base class. So does one that it
    repeats without a range or a mark; its default is then that of manifests, too.
    """
    signature = constructor_signature(cls)
    hints: dict[str, Any] = {}
    repeated: set[str] = set()
    plain: set[str] = set()
    for constructor in reversed(constructors(cls)):
        constructor_hints = hints_of(constructor)
        if is_ours(constructor):
            plain |= {name for name, hint in constructor_hints.items() if is_simple(hint)}
        for name in inspect.signature(constructor).parameters:
            if name in hints and not _is_declared(constructor_hints.get(name)):
                repeated.add(name)
            else:
                hints[name] = constructor_hints.get(name)
                repeated.discard(name)
    arguments = {}
    for name, parameter in signature.parameters.items():
        hint = hints[name]
        mark = next((m for m in _metadata(hint) if isinstance(m, Declared)), None)
        if mark is not None and name in repeated:
            mark = Declared(_PUBLISHED, "", mark.values)
        values = hint
        if mark is not None:
            base, *rest = get_args(hint)
            annotations = tuple(item for item in rest if not isinstance(item, Declared) or item.fixed)
            annotated = Annotated[(base, *annotations)] if annotations else base
            values = annotated if mark.values is None else mark.values
            default = parameter.default if mark.manifest is _PUBLISHED else mark.manifest
            if default is inspect.Parameter.empty:
                fix = f"{name}: Annotated[float, hp()] = 0.1, say"
                raise AlgorithmError(f"{cls.__name__}: {name} is declared by hp() and has no default. fix: {fix}.")
            check(f"the default of {cls.__name__}: {name}", default, values, usual_of(values), AlgorithmError)
        if mark is not None or _is_declared(values) or name in plain:
            arguments[name] = values, parameter.default, mark
    return signature, arguments


def _is_declared(hint: object) -> bool:
    """Whether a type has a range or a mark."""
    return any(get_origin(kind) is Annotated for kind in (hint, without_none(hint)[0]))


def hyperparameters(cls: type) -> Mapping[str, Hyperparameter]:
    """Return the declared arguments by name, in constructor order; `**kwargs` adds those of the base classes."""
    declared = {}
    key: Any = cls
    for name, (values, published, mark) in _arguments(key)[1].items():
        if mark is not None:
            manifest = published if mark.manifest is _PUBLISHED else mark.manifest
            declared[name] = Hyperparameter(name, values, published, manifest, mark.because)
    return types.MappingProxyType(declared)


def check_arguments(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check constructor arguments against their ranges.

    Raises:
        AlgorithmError: out of range, with the range, the value and a fix; or renamed since an earlier version.
        ConfigError: an option that is none of its Literal.
        ArgumentError: unknown argument, with the nearest name; or too many arguments.
    """
    key: Any = cls
    signature, ranges = _arguments(key)
    old = [name for name in kwargs if name in OLD_ARGUMENTS and name not in signature.parameters]
    if old and not takes_any_name(signature.parameters):
        instead = ", ".join(f"{name} is now {OLD_ARGUMENTS[name]}" for name in old)
        fix = f"{cls.__name__}({', '.join(list(signature.parameters)[1:3])}, ...)"
        raise AlgorithmError(f"{cls.__name__} takes spaces in place of sizes: {instead}. fix: {fix}.")
    arguments = bind(cls.__name__, signature, (None, *args), kwargs)
    for name, (values, published, mark) in ranges.items():
        if name in arguments and not (name in key.arguments_by_agent and isinstance(arguments[name], Mapping)):
            is_option = mark is not None and mark.published is not _PUBLISHED and mark.values is None
            if is_option and get_origin(values) is Literal and arguments[name] not in get_args(values):
                raise ConfigError(unknown_choice(name, str(arguments[name]), get_args(values)))
            _check(cls, name, arguments[name], values, published, arrays=mark is not None and mark.values is not None)


def check_value(cls: type, name: str, value: object) -> Any:
    """Return the value of a numeric hyperparameter in its declared type.

    Raises:
        AlgorithmError: out of its declared range, or not a number.
    """
    values = _declared_range(cls, name)
    if values is None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AlgorithmError(f"{cls.__name__}: {name} must be a number; got {value!r}. fix: {name}=0.1, say.")
        return value
    numbers = Range.of(values)
    if numbers is not None and numbers.base is int and isinstance(value, float) and value.is_integer():  # 1e3
        value = int(value)
    usual = hyperparameters(cls)[name].published if name in hyperparameters(cls) else value
    _check(cls, name, value, values, usual)
    return value


def check_mutable(cls: type, ranges: Mapping[str, Any]) -> None:
    """Check that mutable hyperparameters exist and that their ranges lie within the declared ones.

    Args:
        ranges: name -> object with `min` and `max`. Undeclared names pass if a user's class has a constructor: it may
            set any attribute, which `check_registry` verifies later.

    Raises:
        RegistryError: unknown name. AlgorithmError: a fixed number, or a limit outside of the declared range.
    """
    key: Any = cls
    valid_names = [name for name, each in hyperparameters(cls).items() if each.is_number]
    inherited = {name: value for parent in reversed(cls.__mro__) for name, value in vars(parent).items()}
    for name, limits in ranges.items():
        if name not in valid_names and is_ours(key.__init__) and not isinstance(inherited.get(name), int | float):
            close = nearest(name, valid_names, limit=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise RegistryError(
                f"{cls.__name__}: hp_config names {name!r}, which is none of its hyperparameters.{hint} "
                f"fix: use one of {sorted(valid_names)}."
            )
        values = _declared_range(cls, name)
        if values is not None and (wrong := outside(values, limits)) is not None:
            raise AlgorithmError(f"{cls.__name__}: hp_config: the range of {name}: {wrong}")


def _declared_range(cls: type, name: str) -> Any:
    """Return the nearest constructor's declaration of an argument, or None: a user's constructor may forward all
    arguments."""
    constructors: list[Any] = [c for c in cls.__mro__ if "__init__" in vars(c)]
    for one in constructors:
        if (one is constructors[0] or is_ours(one.__init__)) and name in (arguments := _arguments(one)[1]):
            return arguments[name][0]
    return None


def outside(values: object, limits: Any) -> str | None:
    """Return which limit lies outside of the declared range, or why the number is fixed, and the fix; None if it fits.

    Args:
        values: annotated type. limits: object with `min` and `max`.
    """
    kind = without_none(values)[0]
    if reason := next((mark.fixed for mark in _metadata(kind) if isinstance(mark, Declared)), ""):
        return f"mutations would have no effect, because {reason}. fix: leave it out."
    numbers = Range.of(kind)
    if numbers is None:
        return None
    for name, bound, is_open, value in (
        ("min", numbers.low, numbers.open_low, limits.min),
        ("max", numbers.high, numbers.open_high, limits.max),
    ):
        if value != value or not numbers.holds(value):
            fix = f"another {name}" if is_open or not math.isfinite(bound) else f"{name}={bound:g}"
            return f"{name} must be {numbers}; got {value!r}. fix: {fix}."
    return None


def _metadata(kind: object) -> tuple[Any, ...]:
    """Return the annotations of a type; empty for a plain one."""
    return tuple(get_args(kind)[1:]) if get_origin(kind) is Annotated else ()


def _check(cls: type, name: str, value: object, values: object, usual: object, *, arrays: bool = True) -> None:
    if Range.of(values) is not None or is_simple(values):
        check(f"{cls.__name__}: {name}", value, values, usual, AlgorithmError, arrays=arrays)
