"""Evolvable modules: the base class, the mutation decorator, and containers of modules."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np
import torch
from gymnasium import Space
from torch import nn

from agilerl.core import foreign
from agilerl.core.rng import Purpose, resolve_seed, stream
from agilerl.core.signatures import ignored_arguments, taken_by
from agilerl.core.tree import Tree, map_leaves
from agilerl.errors import ConfigError, unknown_choice, warn_once
from agilerl.modules.copying import copy_module, copy_value
from agilerl.modules.layers import DenseStack
from agilerl.modules.morph import Index, Transfer, fresh, leading_block, prefixed

Fresh = Literal["preserve", "random"]
# Constructor arguments determined by the surrounding network rather than by the configuration.
SURROUNDINGS = frozenset({
    "num_inputs", "num_outputs", "input_shape", "input_size", "observation_space", "sample_input", "device", "name",
    "random_seed",
})  # fmt: skip
_DATA = (bool, int, float, str, torch.Tensor, np.ndarray, np.generic, Space)  # constructor arguments kept in specs
_TABLES = ("_parameters", "_buffers", "_modules")  # torch's storage of non-plain attributes
_unseeded = itertools.count()  # makes unseeded modules differ from each other, but not between runs of a script
Method = TypeVar("Method", bound=Callable[..., Any])
Module = TypeVar("Module", bound=nn.Module)


def next_seed() -> int:
    """Return a new seed, derived from torch's initial seed."""
    return resolve_seed(None) + next(_unseeded)


class MutationType(Enum):
    """Kind of change made by a mutation method."""

    LAYER = "layer"
    NODE = "node"
    ACTIVATION = "activation"


class Refused(dict[str, Any]):
    """Return value of a mutation method at its limit: nothing was changed, nothing is recreated."""


def mutation(kind: MutationType, **recreate_kwargs: Any) -> Callable[[Method], Method]:
    """Mark a method of an `EvolvableModule` as a mutation.

    After the method, `recreate_network(**recreate_kwargs)` of its module runs once, `last_mutation_attr` is the name of
    the applied mutation and `last_transfer` covers every parameter whose shape changed. The method's return value (its
    arguments as a dict) is passed on. A method that returns `Refused` has changed nothing: `last_mutation_attr` is
    None. A method may fall back to another mutation method, whose name is then reported.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def run(self: EvolvableModule, *args: Any, **kwargs: Any) -> Any:
            shapes = {name: tuple(p.shape) for name, p in self.named_parameters()}
            self.last_mutation_attr, self.last_transfer, self.last_refit = None, {}, False
            result = method(self, *args, **kwargs)
            if isinstance(result, Refused) or self.last_mutation_attr is not None:
                return result
            self.recreate_network(**recreate_kwargs)
            self.last_mutation_attr = method.__name__
            self._complete_transfer(shapes)
            return result

        run.mutation_type = kind  # type: ignore[attr-defined]
        return cast(Method, run)

    return decorate


def single_draw(drawn: Any) -> Any:
    """Unwrap the draw if a generator returned a list of one."""
    many = isinstance(drawn, (list, tuple)) or (isinstance(drawn, np.ndarray) and drawn.ndim > 0)
    return single_draw(drawn[0]) if many else drawn


@functools.lru_cache(maxsize=256)
def marked_methods(cls: type) -> dict[str, MutationType]:
    """Return name -> kind of every method marked in the class or its bases; cached by class."""
    functions = [(name, f) for c in reversed(cls.__mro__) for name, f in vars(c).items() if inspect.isfunction(f)]
    return {name: vars(f)["mutation_type"] for name, f in functions if "mutation_type" in vars(f)}


def probabilities(layers: int, nodes: int, new_layer_prob: float) -> list[float]:
    if not layers or not nodes:
        return [1 / max(layers + nodes, 1)] * (layers + nodes)
    return [new_layer_prob / layers] * layers + [(1 - new_layer_prob) / nodes] * nodes


def is_untouched(module: nn.Module) -> bool:
    """Whether calling `module` runs only its class's code: no hooks, parametrizations, compilation or patches."""
    calls = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_compiled_call_impl")
    for _, part in module.named_modules():
        state = part.__dict__
        if any(state.get(name) for name in calls) or "forward" in state or "parametrizations" in part._modules:
            return False
    return True


class EvolvableModule(nn.Module):
    """Base class of all networks that evolution can change.

    To make a module evolvable, subclass this, mark methods with `@mutation(...)` and rebuild the layers in
    `recreate_network`. Evolvable sub-modules contribute their methods under dotted names ("encoder.add_node").

    Note:
        `modules()` returns the evolvable children by name, as published; torch itself uses `named_modules()`.

    Args:
        device: device of the parameters.
        random_seed: seed of this module's random numbers; None counts up from torch's initial seed.
    """

    resizes_outputs: ClassVar[bool] = False  # whether `resize_outputs` can change the output width
    output_layernorm: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_init_arguments", (args, kwargs))
        return self

    def __init__(self, device: str | torch.device = "cpu", random_seed: int | None = None) -> None:
        super().__init__()
        if not isinstance(device, str | torch.device):
            raise TypeError(
                f"{type(self).__name__}: device must be a device or its name; got {type(device).__name__}. "
                "fix: device='cpu', or the other arguments by their names."
            )
        self._device = str(device)
        self.random_seed = next_seed() if random_seed is None else int(random_seed)
        self._rng: Any = stream(self.random_seed, Purpose.INITIAL_WEIGHTS)
        self._fresh: Fresh = "preserve"
        self._disabled: set[MutationType] = set()
        self.last_mutation_attr: str | None = None
        self.last_transfer: dict[str, Transfer] = {}
        self.last_refit = False  # whether the last mutation also changed entries that `last_transfer` marks as kept
        self.probe_inputs: Any = None  # a tensor [B, ...], or a mapping of tensors

    # -- identity ------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            state = self.__dict__
            for table in _TABLES:  # torch's lookup, inlined
                entries = state.get(table)
                if entries is not None and name in entries:
                    return entries[name]
            return self.derived(name)

    def derived(self, name: str) -> Any:
        """Resolve a dotted name that is no attribute, such as "head_net.add_layer", to its mutation method, as in
        `get_mutation_methods`. AttributeError for other names."""
        if "." in name and name in self.surface():
            return functools.partial(self.apply_mutation, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def device(self) -> str:
        """Current device of the parameters."""
        parameter = next(self.parameters(), None)
        return self._device if parameter is None else str(parameter.device)

    @device.setter
    def device(self, device: str | torch.device) -> None:
        self._device = str(device)

    @property
    def init_dict(self) -> dict[str, Any]:
        """Constructor arguments that reproduce this module's current architecture."""
        return self.get_init_dict()

    def get_init_dict(self) -> dict[str, Any]:
        """Return `init_dict`: current attributes named like an argument, else the original arguments."""
        args, kwargs = self._init_arguments  # type: ignore[misc]
        kwargs = {name: value for name, value in kwargs.items() if name not in ignored_arguments(type(self))}
        bound = inspect.signature(self.__init__).bind_partial(*args, **kwargs)  # type: ignore[misc]
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        arguments.update(arguments.pop("kwargs", {}))
        for name in arguments:
            is_part = name in self._modules and isinstance(arguments[name], nn.Module)
            if is_part or name in self.__dict__ or isinstance(getattr(type(self), name, None), property):
                arguments[name] = getattr(self, name)
        arguments = {k: list(v) if isinstance(v, list) else v for k, v in arguments.items()}
        return arguments | {"device": self.device, "random_seed": self.random_seed}

    @property
    def net_config(self) -> dict[str, Any]:
        """`init_dict` without arguments set by the surroundings: input and output sizes, device, name and seed."""
        return {k: v for k, v in self.get_init_dict().items() if k not in SURROUNDINGS}

    def spec(self) -> dict[str, Any]:
        """Return the architecture as data: modules by their specs, other objects by their class; see `from_spec`."""
        drop = ("device", "random_seed")
        arguments = {k: described(v) for k, v in self.get_init_dict().items() if k not in drop}
        return {"class": type(self).__name__, **arguments}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """Build a module with the architecture of `spec` and fresh weights; `arguments`: `device`, `random_seed`."""
        data = dict(spec)
        if data.pop("class", cls.__name__) != cls.__name__:
            raise ConfigError(wrong_class(cls, spec))
        module = cls(**{**data, **taken_by(cls, arguments)})
        return module.to(arguments.get("device", module.device))

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> Self:
        """Build with `from_spec`; user-defined modules, objects and encoder classes come from this instance.
        more: `random_seed`, of the fresh weights."""
        return type(self).from_spec(self.with_objects(spec, device, **more), device=device, **more)

    def with_objects(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> dict[str, Any]:
        """Return the spec with what `described` replaced: modules rebuilt, copies of this instance's other objects."""
        own = self.get_init_dict()
        return {name: _with_objects(value, own.get(name), device, more) for name, value in spec.items()}

    def clone(self) -> Self:
        """Return an independent copy without shared storage or generators, and without probe inputs."""
        memo: dict[int, Any] = {id(module): module for module in self.not_owned()}
        for module in self.evolvable_modules():
            if module.probe_inputs is not None:
                memo[id(module.probe_inputs)] = None
        return cast(Self, copy_module(self, memo))

    def not_owned(self) -> Sequence[Any]:
        """Return referenced objects that copies share."""
        return ()

    # -- sub-modules ---------------------------------------------------------------------------------------------

    def modules(self) -> dict[str, EvolvableModule]:  # type: ignore[override]
        """Return the evolvable children by name."""
        return {name: child for name, child in self._modules.items() if isinstance(child, EvolvableModule)}

    def torch_modules(self) -> dict[str, nn.Module]:
        """Return all other children by name."""
        evolvable = self.modules()
        return {name: child for name, child in self._modules.items() if child is not None and name not in evolvable}

    def evolvable_modules(self) -> Iterator[EvolvableModule]:
        """Iterate over this module and all evolvable modules below it."""
        yield self
        for child in self.modules().values():
            yield from child.evolvable_modules()

    @property
    def rng(self) -> Any:
        """Random generator of this module: any object with `choice` and `integers`. Setting it includes sub-modules."""
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator) -> None:
        for module in self.evolvable_modules():
            module._rng = rng

    @property
    def fresh(self) -> Fresh:
        """ "preserve": growth keeps the function (default). "random": published behaviour. Applies to sub-modules."""
        return self._fresh

    @fresh.setter
    def fresh(self, fresh: Fresh) -> None:
        if fresh not in ("preserve", "random"):
            raise ConfigError(unknown_choice("value of fresh", str(fresh), ("preserve", "random")))
        for module in self.evolvable_modules():
            module._fresh = fresh

    def probe(self, inputs: Tree | None) -> None:
        """Store inputs [B, ...] of this module, by which mutations measure importance; None clears them.
        `inputs`: a tensor, or a (nested) mapping of tensors if the module takes one."""
        self.probe_inputs = None if inputs is None else map_leaves(lambda leaf: leaf.detach(), inputs)

    def generator(self) -> torch.Generator:
        """Return a torch generator seeded by one draw of `rng`."""
        generator = torch.Generator()
        generator.manual_seed(int(single_draw(self.rng.integers(0, 2**31 - 1))))
        return generator

    # -- mutations -----------------------------------------------------------------------------------------------

    def own_mutations(self) -> dict[str, MutationType]:
        """Return the methods marked by this class, without the disabled kinds."""
        marked = marked_methods(cast(Any, type(self)))
        return {name: kind for name, kind in marked.items() if kind not in self._disabled}

    def surface(self) -> dict[str, MutationType]:
        """Return dotted name -> kind, for this module and all evolvable modules below."""
        names = self.own_mutations()
        for key, child in self.modules().items():
            names.update({f"{key}.{name}": kind for name, kind in child.surface().items()})
        return names

    @property
    def layer_mutation_methods(self) -> list[str]:
        """Return dotted names of the methods that change the number of layers."""
        return [name for name, kind in self.surface().items() if kind is MutationType.LAYER]

    @property
    def node_mutation_methods(self) -> list[str]:
        """Return dotted names of the methods that change the width of layers."""
        return [name for name, kind in self.surface().items() if kind is MutationType.NODE]

    @property
    def mutation_methods(self) -> list[str]:
        """Return layer methods, then node methods."""
        return self.layer_mutation_methods + self.node_mutation_methods

    def get_mutation_methods(self) -> dict[str, Callable[..., Any]]:
        """Return dotted name -> callable that applies the mutation and updates this module's records."""
        return {name: functools.partial(self.apply_mutation, name) for name in self.surface()}

    def apply_mutation(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Apply the method `name` of this module or of one below, and return its result."""
        if name not in self.surface():
            raise ConfigError(unknown_choice(f"mutation method of {type(self).__name__}", name, self.surface()))
        if "." not in name:
            return getattr(self, name)(*args, **kwargs)
        key, rest = name.split(".", 1)
        child = self.modules()[key]
        result = child.apply_mutation(rest, *args, **kwargs)
        self.last_mutation_attr = child.last_mutation_attr and f"{key}.{child.last_mutation_attr}"
        self.last_transfer, self.last_refit = prefixed(key, child.last_transfer), child.last_refit
        self.after_child_mutation(key)
        return result

    def after_child_mutation(self, key: str) -> None:
        """Hook after a mutation of the child `key`; overridden if a parent depends on its child's shape."""

    def can_apply(self, name: str) -> bool:
        """Return False if the method is at its limit; it is then not sampled."""
        if "." not in name:
            return True
        key, rest = name.split(".", 1)
        return self.modules()[key].can_apply(rest)

    def get_mutation_probs(self, new_layer_prob: float) -> list[float]:
        """Return the probability of each of `mutation_methods`, in that order, ignoring limits."""
        return probabilities(len(self.layer_mutation_methods), len(self.node_mutation_methods), new_layer_prob)

    def sample_mutation_method(
        self, new_layer_prob: float, rng: np.random.Generator | None = None, *, excluded: Sequence[str] = ()
    ) -> str | None:
        """Sample an applicable method: its dotted name, or None if all methods are at their limit.

        Args:
            new_layer_prob: total probability of the layer methods, divided equally; node methods share the rest. If
                only one kind is applicable, its methods are equally likely.
            rng: any object with numpy's `choice(a, size, replace, p)`; this module's generator by default.
            excluded: names to exclude.

        Raises:
            ValueError: the module has no mutation methods.
        """
        if not self.mutation_methods:
            raise ConfigError(f"No mutation methods available for {type(self).__name__}.")
        layers, nodes = (
            [name for name in names if name not in excluded and self.can_apply(name)]
            for names in (self.layer_mutation_methods, self.node_mutation_methods)
        )
        if not layers and not nodes:
            return None
        chosen = (rng or self.rng).choice(layers + nodes, p=probabilities(len(layers), len(nodes), new_layer_prob))
        return str(single_draw(chosen))

    def disable_mutations(self, mut_type: MutationType | None = None) -> None:
        """Disable mutations of one kind (all kinds by default) of this module and of those below it."""
        if mut_type is not None and not isinstance(mut_type, MutationType):
            raise ConfigError(f"Invalid mutation type {mut_type!r}; expected one of {[m.name for m in MutationType]}.")
        for module in self.evolvable_modules():
            module._disabled |= set(MutationType) if mut_type is None else {mut_type}

    def recreate_network(self, **kwargs: Any) -> None:
        """Rebuild the layers for the current configuration, keeping weights. Overridden by subclasses with mutation
        methods."""
        raise NotImplementedError(f"{type(self).__name__} marks mutation methods: define recreate_network(**kwargs).")

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Change the hidden activation (with `output` also the output's) here and below; weights are unchanged."""
        for child in self.modules().values():
            child.change_activation(activation, output=output)

    @staticmethod
    @torch.no_grad()
    def preserve_parameters(old_net: Module, new_net: Module) -> Module:
        """Copy into `new_net` its common part with `old_net`: the leading block of every parameter and buffer with the
        same name and number of axes; the rest is unchanged. Modifies `new_net` in place."""
        before = dict(itertools.chain(old_net.named_parameters(), old_net.named_buffers()))
        for name, tensor in itertools.chain(new_net.named_parameters(), new_net.named_buffers()):
            old = before.get(name)
            if old is not None and old.dim() == tensor.dim():
                block = tuple(slice(min(sizes)) for sizes in zip(old.shape, tensor.shape, strict=True))
                tensor[block].copy_(old[block])
        return new_net

    def resize_outputs(self, index: Index) -> None:
        """Change the output width: `index` maps new outputs to old ones (-1: new). See `resizes_outputs`."""
        raise NotImplementedError(f"{type(self).__name__} cannot change the width of its output")

    def short(self) -> Any:
        """Return the architecture in short form, for tables: the class name by default."""
        return type(self).__name__

    def dense_stack(self) -> DenseStack | None:
        """Return the network as plain dense layers, or None if it contains more (learners then call it directly)."""
        return None

    def _complete_transfer(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Add transfers of reshaped parameters that the mutation did not specify: leading block, else fresh."""
        for name, parameter in self.named_parameters():
            old, new = shapes.get(name), tuple(parameter.shape)
            if name in self.last_transfer or old == new:
                continue
            same_rank = old is not None and len(old) == len(new)
            self.last_transfer[name] = (
                leading_block(old or (), new) if same_rank else Transfer(tuple(fresh(size) for size in new))
            )


def wrong_class(cls: type, spec: Mapping[str, Any]) -> str:
    """Message for the spec of another class."""
    return (
        f"this is the spec of a {spec['class']}, not of a {cls.__name__}. "
        "fix: make the agent with its network, then agent.load_checkpoint(path)."
    )


def described(value: Any) -> Any:
    """Return a constructor argument as data: modules by their specs, other objects by the name of their class."""
    if value is None or isinstance(value, _DATA):  # Dict spaces are mappings too
        return value
    if isinstance(value, EvolvableModule):
        return value.spec()
    if isinstance(value, Mapping):
        return {key: described(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(described, value))
    named = value if hasattr(value, "__qualname__") else type(value)
    return {"class": f"{named.__module__}.{named.__qualname__}"}


def _with_objects(data: Any, own: Any, device: str | torch.device, more: Mapping[str, Any]) -> Any:
    """Invert `described` with the corresponding argument `own` of an existing module."""
    if type(data) in (list, tuple) and type(own) in (list, tuple):
        pairs = itertools.zip_longest(data, own[: len(data)])
        return type(data)(_with_objects(part, mine, device, more) for part, mine in pairs)
    if not isinstance(data, Mapping) or own is None or isinstance(own, _DATA):
        return data
    if isinstance(own, EvolvableModule) and "class" in data:  # whose sizes were checked
        return own.rebuilt(data, device, **more)
    if isinstance(own, Mapping):
        return {key: _with_objects(part, own.get(key), device, more) for key, part in data.items()}
    return copy_value(own, {})


class ModuleDict(EvolvableModule):
    """Evolvable modules under string keys, in insertion order; their mutations appear as "key.method".

    Args:
        modules: a mapping of modules, or pairs (key, module).
        device: device of modules created later; given ones are not moved.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module] | Iterable[tuple[str, nn.Module]] | None = None,
        device: str | torch.device = "cpu", *, random_seed: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(modules, str | torch.device):
            raise TypeError(f"ModuleDict: modules must be a mapping; got {modules!r}. fix: device={str(modules)!r}.")
        super().__init__(device, random_seed)
        self.update({} if modules is None else modules)

    def get_init_dict(self) -> dict[str, Any]:
        return {"modules": dict(self.items()), "device": self.device, "random_seed": self.random_seed}

    @property
    def activation(self) -> str | None:
        """Activation of the first module that has one."""
        return next((a for module in self.values() if (a := foreign.activation(module)) is not None), None)

    def __setitem__(self, key: str, module: nn.Module) -> None:
        self.add_module(key, module)

    def __getitem__(self, key: str) -> nn.Module:
        return cast(nn.Module, self._modules[key])

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> list[str]:
        return list(self._modules)

    def values(self) -> list[nn.Module]:
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, nn.Module]]:
        return [(key, self[key]) for key in self]

    def get(self, key: str, default: object = None) -> Any:
        """Return the module under `key`, or `default`."""
        return self._modules.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove and return the module under `key`, or return `default`; KeyError without a default."""
        if key not in self and default:
            return default[0]
        module = self[key]
        del self[key]
        return module

    def update(self, modules: Mapping[str, nn.Module] | Iterable[tuple[str, nn.Module]]) -> None:
        """Add or replace modules: a mapping, or pairs (key, module)."""
        for key, module in modules.items() if isinstance(modules, Mapping | nn.ModuleDict) else modules:
            self[key] = module


class EvolvableWrapper(EvolvableModule):
    """Wraps another evolvable module under the same mutation names; override `forward` to extend it."""

    def __init__(self, module: EvolvableModule) -> None:
        super().__init__(module.device, module.random_seed)
        self.wrapped = module

    def derived(self, name: str) -> Any:
        if "wrapped" in self.__dict__.get("_modules", {}) and name in self.surface():
            return functools.partial(self.apply_mutation, name)
        return super().derived(name)

    def surface(self) -> dict[str, MutationType]:
        return self.wrapped.surface()

    def can_apply(self, name: str) -> bool:
        return self.wrapped.can_apply(name)

    def apply_mutation(self, name: str, *args: Any, **kwargs: Any) -> Any:
        result = self.wrapped.apply_mutation(name, *args, **kwargs)
        self.last_mutation_attr = self.wrapped.last_mutation_attr
        self.last_transfer, self.last_refit = prefixed("wrapped", self.wrapped.last_transfer), self.wrapped.last_refit
        return result

    def probe(self, inputs: Any) -> None:
        super().probe(inputs)
        self.wrapped.probe(inputs)

    @property
    def activation(self) -> str | None:
        return foreign.activation(self.wrapped)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.wrapped(*args, **kwargs)


class DummyEvolvable(EvolvableModule):
    """Wraps any `nn.Module` as an evolvable one: its weights can be mutated, but not its architecture.

    It has no mutation methods and no activation to change: an architecture mutation leaves the agent unchanged. Other
    attributes are delegated to the module. Its spec contains only the class name of the module: to build a network from
    it, `from_spec` needs the module (`module=` or `module_fn=`), because a file must not determine which code is
    imported.

    Args:
        module: the module itself; also the first argument, before `device`.
        device: its device. A module passed here is treated as `module`.
        module_fn: creates the module, with `module_kwargs`, if `module` is not given.
    """

    def __init__(
        self, device: str | torch.device | nn.Module = "cpu", module: nn.Module | str | torch.device | None = None,
        module_fn: Callable[..., nn.Module] | None = None, module_kwargs: Mapping[str, Any] | None = None,
        *, random_seed: int | None = None,
    ) -> None:  # fmt: skip
        wrapped, place = module, device
        if isinstance(device, nn.Module) and not isinstance(module, nn.Module):
            wrapped, place = device, "cpu" if module is None else module
        super().__init__(place, random_seed)  # type: ignore[arg-type]  # rejects a module
        if (wrapped is None) == (module_fn is None):
            raise ConfigError(f"{type(self).__name__} needs either module or module_fn")
        inner = module_fn(**dict(module_kwargs or {})) if module_fn is not None else wrapped
        if not isinstance(inner, nn.Module):
            raise TypeError(f"{type(self).__name__} wraps a torch.nn.Module; got {type(inner).__name__}")
        self.module = inner.to(self._device)

    def derived(self, name: str) -> Any:
        """Return an attribute of the wrapped module."""
        module = self.__dict__.get("_modules", {}).get("module")
        if module is None or name.startswith("__"):
            return super().derived(name)
        return getattr(module, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def change_activation(self, activation: str, output: bool = False) -> None:
        """No-op with one warning: the activations of an arbitrary module are unknown."""
        name = type(self.module).__name__
        warn_once(
            f"activation of {name}",
            f"activation mutation leaves {name} as it is: the activations of a wrapped module are unknown. "
            "fix: make it an EvolvableModule with change_activation.",
        )

    def get_init_dict(self) -> dict[str, Any]:
        return {"module": self.module, "device": self.device, "random_seed": self.random_seed}

    def spec(self) -> dict[str, Any]:
        kind = type(self.module)
        return {"class": type(self).__name__, "module": f"{kind.__module__}.{kind.__qualname__}"}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """Wrap the module in `arguments`, which must have the class named in `spec`.
        Raises ConfigError: no module, or one of another class."""
        if arguments.get("module") is None and arguments.get("module_fn") is None:
            raise ConfigError(
                f"the network is a {spec.get('module')} in a {cls.__name__}: a spec does not hold its code. "
                "fix: make the agent with it, or from_spec(spec, module=...)."
            )
        wrapper = cls(**arguments)
        if wrapper.spec() != dict(spec):
            raise ConfigError(f"this is the spec of {dict(spec)}; got {wrapper.spec()}")
        return wrapper

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> Self:
        return type(self).from_spec(spec, module=copy_module(self.module, {}), device=device, **more)
