"""Modules made of named layers whose units come and go in groups: one rule carries the weights of all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import EvolvableModule, MutationType, Refused, mutation, single_draw
from agilerl.modules.layers import Axis, Layer, length
from agilerl.modules.morph import Index, Transfer, best_ridge, grown, leading, refit, without

OUTPUT = "linear_output"


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
    drawn = int(single_draw(rng.choice(list(steps))))
    return max((step for step in steps if step <= drawn and fits(step)), default=0)


def drawn_step(
    rng: Any, steps: Sequence[int], widths: Sequence[int], layer: int | None, amount: int | None,
    fits: Callable[[int, int], bool],
) -> tuple[int, int]:  # fmt: skip
    """A layer and the amount by which its width changes, each as given or drawn; see `drawn_amount`.
    layer: beyond the last means the last; None: one of those with room, else of all.
    fits: (width, amount) -> whether the limits allow it."""
    if layer is None:
        choices = [i for i, width in enumerate(widths) if fits(width, steps[0])] or list(range(len(widths)))
        layer = choices[int(single_draw(rng.integers(0, len(choices))))]
    number = min(int(layer), len(widths) - 1)
    return number, drawn_amount(rng, steps, amount, lambda n: fits(widths[number], n))


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


@torch.no_grad()
def refit_in_place(linear: Any, features: Tensor, target: Tensor, ridge: float = 1e-4) -> None:
    """Give a dense layer the weights with which it makes `target` [B, O] of `features` [B, I]; see `morph.refit`."""
    weight, bias = refit(features, target, linear.weight, linear.bias, ridge)
    linear.weight.copy_(weight)
    linear.bias.copy_(bias)


class Range(NamedTuple):
    """What mutations add and remove.

    Attributes:
        attribute: holds the present number. limits: suffix of the attributes min_... and max_..., both inclusive.
        steps: amounts to draw from.
    """

    attribute: str
    limits: str
    steps: tuple[int, ...] = (1,)


class LayeredModule(EvolvableModule):
    """A module whose layers are declared by `layers()` and rebuilt from that after every mutation.

    New units get random incoming weights, and the units that were there ignore them (zero weights): growth leaves the
    function as it was unless a normalisation sees the new units. The subclass sets its sizes, then calls `build()`.
    Every such module ends in `linear_output` and `act_output`; `output_features` is what those read.
    """

    num_outputs: int
    output_activation: str | None
    activation: str | None = None  # of the hidden layers; None where there is none to change
    ranges: ClassVar[Mapping[str, Range]] = {}  # by the noun in the names of the methods that add and remove it
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
        self._built = Built({n: own.axes for n, own in layers.items()}, {n: own.key for n, own in layers.items()})
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
        self.set_activation(activation)
        if output:
            self.output_activation = activation
        self._change = Change(target=target)
        self.recreate_network()
        self.last_mutation_attr = "change_activation"

    def set_activation(self, activation: str) -> None:
        """Change the hidden activation, where there is one, of what the next `recreate_network` builds."""
        if self.activation is not None:
            self.activation = activation

    def has_room(self, what: str, change: int) -> bool:
        """Whether the limits allow a change of the number of `what`."""
        attribute, limits, steps = self.ranges[what]
        now, low, high = getattr(self, attribute), getattr(self, f"min_{limits}"), getattr(self, f"max_{limits}")
        if steps == (1,):  # a number that starts outside of its limits may still move towards them
            return bool(now < high if change > 0 else now > low)
        return bool(low <= now + change <= high)

    def drawn(self, what: str, given: int | None, sign: int = 1) -> int:
        """How many of `what` to add, or with sign -1 to remove: the amount given, or one drawn; 0 without room."""
        return drawn_amount(self.rng, self.ranges[what].steps, given, lambda n: self.has_room(what, sign * n))

    def can_apply(self, name: str) -> bool:
        verb, _, what = name.partition("_")
        if what not in self.ranges:
            return super().can_apply(name)
        least = self.ranges[what].steps[0]
        return self.has_room(what, least if verb == "add" else -least)

    def remaining(self, scores: Tensor, count: int) -> Index:
        """The units that are left when `count` go: the least important, or the last as published (random freshness)."""
        size = len(scores)
        return without(size, range(size - count, size) if self.fresh == "random" else scores.argsort()[:count].tolist())

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
        refit_in_place(linear, features, target, best_ridge(features, target, linear.weight, linear.bias))
        self.last_refit = True

    def as_input(self, x: Any) -> Tensor:
        """A tensor of this module's dtype and device from a tensor or an array."""
        like = self._like()
        return torch.as_tensor(x).to(device=like.device, dtype=like.dtype)

    def _like(self) -> Tensor:
        """A tensor with this module's dtype, device and requires_grad."""
        parameter = next(self.parameters(), None)
        return nn.Parameter(torch.empty(0, device=self._device)) if parameter is None else parameter


class ResidualModule(LayeredModule):
    """A stem, residual blocks z ← z + block(z) one upon the other, and a dense layer; blocks come and go at the end.

    A subclass names its layers (`stem`, and `last` of a block) and the group of the trunk's units; those inside block k
    are the group `inner_k`, `expansion` times as many. It has the range "block".
    """

    num_blocks: int
    expansion = 1
    stem: ClassVar[str]
    last: ClassVar[str]
    trunk: ClassVar[str]

    def inside(self, block: int, z: Tensor) -> Tensor:
        """What the last layer of a block sees of the trunk."""
        raise NotImplementedError

    def after_blocks(self, x: Any) -> Tensor:
        """The trunk after the last block, for inputs of the module."""
        z: Tensor = self.model[self.stem](self.as_input(x))
        for k in range(self.num_blocks):
            z = z + self.model[f"block_{k}_{self.last}"](self.inside(k, z))
        return z

    @mutation(MutationType.LAYER)
    def add_block(self) -> dict[str, int]:
        """Put a block after the last one; exact, because its last layer starts at zero."""
        if not self.can_apply("add_block"):
            return Refused()
        if self.fresh == "preserve":
            shape = self.model[f"block_0_{self.last}"].weight.shape
            self._change.initial[f"block_{self.num_blocks}_{self.last}.weight"] = torch.zeros(shape)
        self.num_blocks += 1
        return {}

    @mutation(MutationType.LAYER)
    def remove_block(self) -> dict[str, int]:
        """Take the last block out; with probe inputs the output layer is refitted."""
        if not self.can_apply("remove_block"):
            return Refused()
        self._change.target = self.output_target()
        self.num_blocks -= 1
        return {}

    def widen(self, what: str, given: int | None) -> int:
        """Add units (`what` in the ranges) to the trunk and with it to every block: how many, as `drawn` gives them."""
        count = self.drawn(what, given)
        if count:
            attribute, times = self.ranges[what].attribute, {self.trunk: 1}
            times |= {f"inner_{k}": self.expansion for k in range(self.num_blocks)}
            width = getattr(self, attribute)
            self._change.groups = {group: grown(width * factor, count * factor) for group, factor in times.items()}
            setattr(self, attribute, width + count)
        return count

    def narrow(self, what: str, given: int | None) -> int:
        """Take the least important units out of the trunk and of every block, as many as `drawn` gives; returns that.
        The output layer is refitted.

        Importance of a unit (of a channel) is its mean size over the probe inputs (and pixels) times the norm of the
        weights that read it; without probe inputs the norm alone.
        """
        count = self.drawn(what, given, -1)
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
        """Scores of the units of the trunk, then of each block's."""
        raise NotImplementedError


def check_limits(limits: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError unless every (min, max) is positive and in order."""
    for what, (low, high) in limits.items():
        if not 0 < low <= high:
            raise ConfigError(f"limits of {what} must be positive with min <= max; got {low}..{high}.")
