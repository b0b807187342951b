"""Modules of named layers whose units change in groups, with one rule for carrying all weights over."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.core.tree import Tree
from agilerl.errors import ConfigError
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import EvolvableModule, MutationType, Refused, mutation, single_draw
from agilerl.modules.layers import Axis, Layer, length
from agilerl.modules.morph import Index, Transfer, best_ridge, grown, leading, refit, without

OUTPUT = "linear_output"


@dataclass
class Change:
    """Instructions for the next `recreate_network`.

    Attributes:
        groups: group of units -> origin of its units; other groups keep their leading units.
        initial: "layer.parameter" -> values [new shape] of the fresh entries.
        target: [B, O] previous output of the layer `fitted`, to be refitted afterwards.
        inserted: a new layer initialised as an identity, for modules that search for the best initialisation.
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
    """Construction of the current layers: name -> axes of their parameters, and keys. Shared by copies."""

    axes: Mapping[str, Mapping[str, tuple[Axis, ...]]] = field(default_factory=dict)
    keys: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Built:
        return self  # immutable


def drawn_amount(
    rng: np.random.Generator, steps: Sequence[int], amount: int | None, fits: Callable[[int], bool]
) -> int:
    """Return the given amount, or a sample of `steps`, lowered to the largest that fits; 0 if none does."""
    if amount is not None:
        return int(amount) if amount > 0 and fits(int(amount)) else 0
    drawn = int(single_draw(rng.choice(list(steps))))
    return max((step for step in steps if step <= drawn and fits(step)), default=0)


def drawn_step(
    rng: np.random.Generator, steps: Sequence[int], widths: Sequence[int], layer: int | None, amount: int | None,
    fits: Callable[[int, int], bool],
) -> tuple[int, int]:  # fmt: skip
    """Return a layer and the change of its width, each as given or sampled; see `drawn_amount`.
    layer: beyond the last means the last; None: one of those with room, else of all.
    fits: (width, amount) -> whether the limits allow it."""
    if layer is None:
        choices = [i for i, width in enumerate(widths) if fits(width, steps[0])] or list(range(len(widths)))
        layer = choices[int(single_draw(rng.integers(0, len(choices))))]
    number = min(int(layer), len(widths) - 1)
    return number, drawn_amount(rng, steps, amount, lambda n: fits(widths[number], n))


def moved(new: Axis, old: Axis, groups: Mapping[str, Index]) -> Index:
    """Map every position of a dimension whose groups changed to its old position (or -1)."""
    result = np.zeros(1, dtype=np.int64)
    for (name, size), (_, old_size) in zip(new, old, strict=True):
        part = groups.get(name, leading(old_size, size))
        if len(part) != size:
            raise ValueError(f"the change of group {name!r} has {len(part)} units; the layer has {size}")
        both = result[:, None] * old_size + part[None, :]
        result = np.where((result[:, None] < 0) | (part[None, :] < 0), -1, both).ravel()
    return result


@torch.no_grad()
def refit_in_place(linear: nn.Linear, features: Tensor, target: Tensor, ridge: float = 1e-4) -> None:
    """Set a dense layer's weights to reproduce `target` [B, O] from `features` [B, I]; see `morph.refit`."""
    weight, bias = refit(features, target, linear.weight, linear.bias, ridge)
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


class Range(NamedTuple):
    """Quantity that mutations increase and decrease.

    Attributes:
        attribute: attribute with the current number. limits: suffix of the attributes min_... and max_..., inclusive.
        steps: amounts to sample from.
    """

    attribute: str
    limits: str
    steps: tuple[int, ...] = (1,)


class LayeredModule(EvolvableModule):
    """A module whose layers are declared by `layers()` and rebuilt from that after every mutation.

    New units get random incoming weights and zero outgoing weights: growth preserves the function unless a
    normalisation sees the new units. The subclass sets its sizes, then calls `build()`. Every such module ends in
    `linear_output` and `act_output`, which read `output_features`.
    """

    num_outputs: int
    output_activation: str | None
    activation: str | None = None  # of the hidden layers; None if it cannot be changed
    ranges: ClassVar[Mapping[str, Range]] = {}  # by the noun in the names of the mutation methods
    resizes_outputs = True
    container: ClassVar[type[nn.Module]] = nn.ModuleDict

    def build(self) -> None:
        """Build the layers for the first time."""
        self.model: Any = self.container()
        self._built = Built()
        self._change = Change()
        self.recreate_network()
        self.last_transfer = {}

    def layers(self) -> dict[str, Layer]:
        """Return the layers for the current sizes, by name, in the order of their parameters."""
        raise NotImplementedError

    def output_features(self, x: Tensor) -> Tensor:
        """Return the inputs [B, F] of the output layer for inputs of the module."""
        raise NotImplementedError

    def finish(self, features: Tensor) -> Tensor:
        """Apply output layer and output activation: [..., F] -> [..., O]."""
        return cast(Tensor, self.model["act_output"](self.model[OUTPUT](features)))

    # -- rebuilding ----------------------------------------------------------------------------------------------

    def recreate_network(self, **kwargs: Any) -> None:
        """Build the layers for the current sizes, carrying weights over; unchanged layers are kept as objects."""
        change, self._change = self._change, Change()
        self.last_transfer, self.last_refit = {}, False
        layers = self.layers()
        modules = {name: self._carry(name, layer, change) for name, layer in layers.items()}
        self.model = self.container(OrderedDict(modules)).train(self.training)
        self._built = Built({n: spec.axes for n, spec in layers.items()}, {n: spec.key for n, spec in layers.items()})
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
            same_rank = old is not None and [len(a) for a in old_axes[parameter]] == [len(a) for a in axes]
            index = tuple(
                moved(axis, old_axes[parameter][i], change.groups) if same_rank else np.full(length(axis), -1)
                for i, axis in enumerate(axes)
            )
            transfer = Transfer(index)
            full = f"{name}.{parameter}"
            values = change.initial.get(full)
            if values is None:
                values = self.first_values(name, layer, parameter, transfer)
            value = transfer.apply(old if same_rank else None, values.to(device=like.device, dtype=like.dtype))
            setattr(module, parameter, nn.Parameter(value, requires_grad=like.requires_grad))
            self.last_transfer[f"model.{full}"] = transfer
        return module

    def first_values(self, name: str, layer: Layer, parameter: str, transfer: Transfer) -> Tensor:
        """Return initial values of new units in the layer `name`; zero between a kept unit and a new input."""
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
        self.set_activation(activation)
        if output:
            self.output_activation = activation
        self._change = Change(target=target)
        self.recreate_network()
        self.last_mutation_attr = "change_activation"

    def set_activation(self, activation: str) -> None:
        """Set the hidden activation, if there is one, for the next `recreate_network`."""
        if self.activation is not None:
            self.activation = activation

    def has_room(self, what: str, change: int) -> bool:
        """Whether the limits allow a change of the number of `what`."""
        attribute, limits, steps = self.ranges[what]
        now, low, high = getattr(self, attribute), getattr(self, f"min_{limits}"), getattr(self, f"max_{limits}")
        if steps == (1,):  # a number that starts outside of its limits may still move towards them
            return bool(now < high if change > 0 else now > low)
        return bool(low <= now + change <= high)

    def drawn(self, what: str, amount: int | None, sign: int = 1) -> int:
        """Return the number of `what` to add, or with sign -1 to remove, as given or sampled; 0 without room."""
        return drawn_amount(self.rng, self.ranges[what].steps, amount, lambda n: self.has_room(what, sign * n))

    def can_apply(self, name: str) -> bool:
        verb, _, what = name.partition("_")
        if what not in self.ranges:
            return super().can_apply(name)
        least = self.ranges[what].steps[0]
        return self.has_room(what, least if verb == "add" else -least)

    def remaining(self, scores: Tensor, count: int) -> Index:
        """Return the units left after removing the `count` least important (with random freshness the last) ones."""
        size = len(scores)
        return without(size, range(size - count, size) if self.fresh == "random" else scores.argsort()[:count].tolist())

    @torch.no_grad()
    def output_target(self) -> Tensor | None:
        """Return the output layer's values for the probe inputs [..., O]; None without or with random freshness."""
        if self.probe_inputs is None or self.fresh == "random":
            return None
        return cast(Tensor, self.model[OUTPUT](self.output_features(self.probe_inputs)))

    @torch.no_grad()
    def settle(self, change: Change) -> None:
        """Refit the output layer, in place, to the change's target for the probe inputs."""
        assert change.target is not None
        linear: Any = self.model[OUTPUT]
        features = self.output_features(self.probe_inputs).flatten(0, -2)
        target = change.target.flatten(0, -2)
        refit_in_place(linear, features, target, best_ridge(features, target, linear.weight, linear.bias))
        self.last_refit = True

    def as_input(self, x: Tree) -> Tensor:
        """Convert a tensor or an array to this module's dtype and device."""
        like = self._like()
        return torch.as_tensor(x).to(device=like.device, dtype=like.dtype)

    def _like(self) -> Tensor:
        """Return a tensor with this module's dtype, device and requires_grad."""
        parameter = next(self.parameters(), None)
        return nn.Parameter(torch.empty(0, device=self._device)) if parameter is None else parameter


class ResidualModule(LayeredModule):
    """A stem, residual blocks z ← z + block(z), and a dense layer; blocks are added and removed at the end.

    A subclass names its layers (`stem`, and `last` of a block) and the group of the trunk's units; those inside block k
    are the group `inner_k`, `expansion` times as many. It defines the range "block".
    """

    num_blocks: int
    expansion = 1
    stem: ClassVar[str]
    last: ClassVar[str]
    trunk: ClassVar[str]

    def inside(self, block: int, z: Tensor) -> Tensor:
        """Return the input of the last layer of a block, from the trunk."""
        raise NotImplementedError

    def after_blocks(self, x: Tensor) -> Tensor:
        """Return the trunk after the last block, for inputs of the module."""
        z: Tensor = self.model[self.stem](self.as_input(x))
        for k in range(self.num_blocks):
            z = z + self.model[f"block_{k}_{self.last}"](self.inside(k, z))
        return z

    @mutation(MutationType.LAYER)
    def add_block(self) -> dict[str, int]:
        """Append a block; exact, because its last layer starts at zero."""
        if not self.can_apply("add_block"):
            return Refused()
        if self.fresh == "preserve":
            shape = self.model[f"block_0_{self.last}"].weight.shape
            self._change.initial[f"block_{self.num_blocks}_{self.last}.weight"] = torch.zeros(shape)
        self.num_blocks += 1
        return {}

    @mutation(MutationType.LAYER)
    def remove_block(self) -> dict[str, int]:
        """Remove the last block; with probe inputs the output layer is refitted."""
        if not self.can_apply("remove_block"):
            return Refused()
        self._change.target = self.output_target()
        self.num_blocks -= 1
        return {}

    def widen(self, what: str, amount: int | None) -> int:
        """Add units (`what` in the ranges) to the trunk and to every block; returns their number, see `drawn`."""
        count = self.drawn(what, amount)
        if count:
            attribute, times = self.ranges[what].attribute, {self.trunk: 1}
            times |= {f"inner_{k}": self.expansion for k in range(self.num_blocks)}
            width = getattr(self, attribute)
            self._change.groups = {group: grown(width * factor, count * factor) for group, factor in times.items()}
            setattr(self, attribute, width + count)
        return count

    def narrow(self, what: str, amount: int | None) -> int:
        """Remove the least important units from the trunk and every block; returns their number, as given by `drawn`.
        The output layer is refitted.

        Importance of a unit (or channel) is its mean size over the probe inputs (and pixels) times the norm of its
        outgoing weights; without probe inputs only the norm.
        """
        count = self.drawn(what, amount, -1)
        if not count:
            return 0
        self._change.target = self.output_target()
        trunk, *inner = self.importance()
        self._change.groups[self.trunk] = self.remaining(trunk, count)
        for k, scores in enumerate(inner):
            self._change.groups[f"inner_{k}"] = self.remaining(scores, count * self.expansion)
        attribute = self.ranges[what].attribute
        setattr(self, attribute, getattr(self, attribute) - count)
        return count

    def importance(self) -> list[Tensor]:
        """Return scores of the units of the trunk, then of each block's."""
        raise NotImplementedError


def check_limits(limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError unless every (min, max) is positive and in order."""
    for what, (low, high) in limits.items():
        if not 0 < low <= high:
            raise ConfigError(f"limits of {what} must be positive with min <= max; got {low}..{high}. fix: 16..64.")
