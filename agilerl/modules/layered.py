"""Modules made of named layers whose units come and go in groups: one rule carries the weights of all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.evolvable import EvolvableModule, first
from agilerl.modules.morph import Index, Transfer, best_ridge, leading, refit

Factor = tuple[str, int]  # a group of units and its size
Axis = tuple[Factor, ...]  # one dimension of a parameter, slowest factor first: ((gate, 4), (hidden, H))
Initial = Callable[[Sequence[int], torch.Generator], Tensor]
OUTPUT = "linear_output"


@dataclass(frozen=True)
class Layer:
    """One layer as data.

    Attributes:
        make: the module, its parameters not yet set.
        key: what it is beside the shapes of its parameters (stride, activation); an unchanged layer is kept as it is.
        axes: parameter name -> its dimensions, the one that names the layer's own units first.
        initial: parameter name -> its first values.
    """

    make: Callable[[], nn.Module]
    key: tuple[Any, ...]
    axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    initial: Mapping[str, Initial] = field(default_factory=dict)


@dataclass
class Change:
    """What the next `recreate_network` does.

    Attributes:
        groups: group of units -> where its units come from; a group that is not named keeps its leading units.
        initial: "layer.parameter" -> values [new shape] of the fresh entries.
        target: [B, O] what a layer gave before, to be fitted afterwards; `fitted` names it.
        inserted: a new layer that starts as an identity, where a module looks for the best of those.
    """

    groups: dict[str, Index] = field(default_factory=dict)
    initial: dict[str, Tensor] = field(default_factory=dict)
    target: Tensor | None = None
    fitted: str = OUTPUT
    inserted: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Change:
        return replace(self, groups=dict(self.groups), initial=dict(self.initial))


@dataclass(frozen=True)
class Built:
    """What the present layers were made of: name -> axes of their parameters, and keys. Copies share it."""

    axes: Mapping[str, Mapping[str, tuple[Axis, ...]]] = field(default_factory=dict)
    keys: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Built:
        return self  # nothing in it changes


def drawn_amount(rng: Any, steps: Sequence[int], given: int | None, fits: Callable[[int], bool]) -> int:
    """The amount given, or drawn from `steps` and lowered to the largest that fits; 0 if none does."""
    if given is not None:
        return int(given) if given > 0 and fits(int(given)) else 0
    drawn = int(first(rng.choice(list(steps))))
    return max((step for step in steps if step <= drawn and fits(step)), default=0)


def pick_layer(rng: Any, widths: Sequence[int], given: int | None, fits: Callable[[int], bool]) -> int:
    """The layer given (beyond the last means the last), or one drawn among those whose width fits, else among all."""
    if given is not None:
        return min(int(given), len(widths) - 1)
    choices = [i for i, width in enumerate(widths) if fits(width)] or list(range(len(widths)))
    return choices[int(first(rng.integers(0, len(choices))))]


def moved(new: Axis, old: Axis, groups: Mapping[str, Index]) -> Index:
    """Old position (or -1) of every position of a dimension whose groups changed."""
    result = np.zeros(1, dtype=np.int64)
    for (name, size), (_, old_size) in zip(new, old, strict=True):
        part = groups.get(name, leading(old_size, size))
        if len(part) != size:
            raise ValueError(f"the change of group {name!r} has {len(part)} units; the layer has {size}")
        both = result[:, None] * old_size + part[None, :]
        result = np.where((result[:, None] < 0) | (part[None, :] < 0), -1, both).ravel()
    return result


def length(axis: Axis) -> int:
    """Entries along one dimension."""
    return int(np.prod([size for _, size in axis], dtype=np.int64))


class LayeredModule(EvolvableModule):
    """A module whose layers are declared by `layers()` and rebuilt from that after every mutation.

    New units get random incoming weights, and the units that were there ignore them (zero weights): growth leaves the
    function as it was unless a normalisation sees the new units. The subclass sets its sizes, then calls `build()`.
    Every such module ends in `linear_output` and `act_output`; `output_features` is what those read.
    """

    num_outputs: int
    output_activation: str | None
    activation: str | None = None  # of the hidden layers; None where there is none to change
    resizes_outputs = True
    container: ClassVar[type[nn.Module]] = nn.ModuleDict

    def build(self) -> None:
        """Make the layers for the first time."""
        self.model: Any = self.container()
        self._built = Built()
        self._change = Change()
        self.recreate_network()
        self.last_transfer = {}

    def layers(self) -> dict[str, Layer]:
        """The layers for the present sizes, by name, in the order of their parameters."""
        raise NotImplementedError

    def output_features(self, x: Any) -> Tensor:
        """Inputs [B, F] of the output layer for inputs of the module."""
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """Output layer and output activation: [..., F] -> [..., O]."""
        return cast(Tensor, self.model["act_output"](self.model[OUTPUT](features)))

    # -- rebuilding ----------------------------------------------------------------------------------------------

    def recreate_network(self, **kwargs: Any) -> None:
        """Build the layers for the present sizes, carrying weights over; unchanged layers stay the same objects."""
        change, self._change = self._change, Change()
        self.last_transfer, self.last_refit = {}, False
        layers = self.layers()
        modules = {name: self._carry(name, layer, change) for name, layer in layers.items()}
        self.model = self.container(OrderedDict(modules)).train(self.training)
        self._built = Built(
            {n: layer.axes for n, layer in layers.items()}, {n: layer.key for n, layer in layers.items()}
        )
        if change.target is not None:
            self.settle(change)

    def _carry(self, name: str, layer: Layer, change: Change) -> nn.Module:
        before = self.model._modules.get(name)
        old_axes = self._built.axes.get(name, {})
        same_key = self._built.keys.get(name) == layer.key
        touched = {
            parameter: old_axes.get(parameter) != axes
            or f"{name}.{parameter}" in change.initial
            or any(group in change.groups for axis in axes for group, _ in axis)
            for parameter, axes in layer.axes.items()
        }
        if before is not None and same_key and not any(touched.values()):
            return cast(nn.Module, before)
        module, like = layer.make(), self._like()
        module.to(device=like.device, dtype=like.dtype)
        for parameter, axes in layer.axes.items():
            old = None if before is None else cast("nn.Parameter | None", getattr(before, parameter, None))
            if old is not None and not touched[parameter]:
                setattr(module, parameter, old)
                continue
            known = old is not None and [len(a) for a in old_axes[parameter]] == [len(a) for a in axes]
            index = tuple(
                moved(axis, old_axes[parameter][i], change.groups) if known else np.full(length(axis), -1)
                for i, axis in enumerate(axes)
            )
            transfer = Transfer(index)
            full = f"{name}.{parameter}"
            values = change.initial.get(full)
            if values is None:
                values = self.first_values(name, layer, parameter, transfer)
            value = transfer.apply(old if known else None, values.to(device=like.device, dtype=like.dtype))
            setattr(module, parameter, nn.Parameter(value, requires_grad=like.requires_grad))
            self.last_transfer[f"model.{full}"] = transfer
        return module

    def first_values(self, name: str, layer: Layer, parameter: str, transfer: Transfer) -> Tensor:
        """Of new units in the layer `name`; zero where a unit that stays meets something new."""
        rows = transfer.index[0] < 0
        if len(transfer.index) > 1 and self.fresh == "preserve" and not rows.all():
            values = torch.zeros(transfer.shape)
            if rows.any():
                shape = (int(rows.sum()), *transfer.shape[1:])
                values[torch.as_tensor(rows)] = layer.initial[parameter](shape, self.generator())
            return values
        return layer.initial[parameter](transfer.shape, self.generator())

    def resize_outputs(self, index: Index) -> None:
        """Change the output width: `index` maps new outputs to old ones (-1: new, with random weights)."""
        self._change = Change(groups={"output": index})
        self.num_outputs = len(index)
        self.recreate_network()

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Change the hidden activation, with `output` also the output's; with probe inputs the output is refitted."""
        known_activation(activation, hidden=True)
        target = self.output_target()
        if self.activation is not None:
            self.activation = activation
        if output:
            self.output_activation = activation
        self._change = Change(target=target)
        self.recreate_network()
        self.last_mutation_attr = "change_activation"

    # -- looking inside ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def output_target(self) -> Tensor | None:
        """What the output layer gives for the probe inputs [..., O]; None without them or with random freshness."""
        if self.probe_inputs is None or self.fresh == "random":
            return None
        return cast(Tensor, self.model[OUTPUT](self.output_features(self.probe_inputs)))

    @torch.no_grad()
    def settle(self, change: Change) -> None:
        """Refit the output layer, in place, to give the change's target for the probe inputs."""
        assert change.target is not None
        linear: Any = self.model[OUTPUT]
        features = self.output_features(self.probe_inputs).flatten(0, -2)
        target = change.target.flatten(0, -2)
        ridge = best_ridge(features, target, linear.weight, linear.bias)
        weight, bias = refit(features, target, linear.weight, linear.bias, ridge)
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
        self.last_refit = True

    def as_input(self, x: Any) -> Tensor:
        """A tensor of this module's dtype and device from a tensor or an array."""
        like = self._like()
        return torch.as_tensor(x).to(device=like.device, dtype=like.dtype)

    def _like(self) -> Tensor:
        """A tensor with this module's dtype, device and requires_grad."""
        parameter = next(self.parameters(), None)
        return nn.Parameter(torch.empty(0, device=self._device)) if parameter is None else parameter


def check_limits(limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError unless every (min, max) is positive and in order."""
    for what, (low, high) in limits.items():
        if not 0 < low <= high:
            raise ConfigError(f"limits of {what} must be positive with min <= max; got {low}..{high}.")
