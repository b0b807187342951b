"""Layers of the evolvable MLP: building them, carrying weights over, and looking inside."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from agilerl.modules.activations import activation
from agilerl.modules.base import EvolvableModule
from agilerl.modules.layers import Linear, dense, init_linear
from agilerl.modules.morph import Index, Transfer, leading, refit
from agilerl.modules.noisy import NoisyLinear

# (scale, shift) of an inserted layer after any other activation, mildest first: a small scale or a shift keeps the
# units on the straight part of the curve, and the refit of the output layer takes scale and shift out again.
NEAR_IDENTITY = ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.25, 0.0), (1.0, 2.0), (1.0, 4.0))
GOOD_ENOUGH = 1e-3  # relative error of the refitted output at which the search stops


@dataclass
class Plan:
    """What the next `recreate_network` does: unit indices per layer label, and where to refit."""

    rows: dict[str, Index] = field(default_factory=dict)
    columns: dict[str, Index] = field(default_factory=dict)
    identity: str | None = None
    keep_leading: str | None = None  # label whose weights start from the leading block although their meaning is new
    refit: tuple[int, Tensor] | None = None  # (layer number after the change, its outputs before the change)


class MlpLayers(EvolvableModule):
    """What `EvolvableMLP` is below its mutations: named layers, rebuilt by a plan.

    The subclass sets the attributes below, an empty `model` and `_plan`, then calls `recreate_network`.
    """

    num_inputs: int
    num_outputs: int
    hidden_size: list[int]
    activation: str | None
    output_activation: str | None
    layer_norm: bool
    output_layernorm: bool
    output_vanish: bool
    init_layers: bool
    noisy: bool
    noise_std: float
    model: nn.Sequential
    _plan: Plan

    # -- what the network does, layer by layer, without hooks and without noise ------------------------------------

    @torch.no_grad()
    def features(self, number: int, x: Tensor) -> Tensor:
        """Inputs of the linear map `number` (0 = first, depth = output layer) for inputs x [B, I]."""
        x = x.to(self._like())
        for label in self._labels()[:number]:
            linear = self._linear(label)
            x = self._after_linear(label, dense(x, linear.weight, linear.bias))
        return x

    @torch.no_grad()
    def preactivation(self, number: int, x: Tensor) -> Tensor:
        """Output of the linear map `number`, before normalisation and activation, for inputs x [B, I]."""
        linear = self._linear(self._labels()[number])
        return dense(self.features(number, x), linear.weight, linear.bias)

    @torch.no_grad()
    def importance(self, layer: int) -> Tensor:
        """How much each unit of hidden layer `layer` matters to the layer above [H]."""
        below, above = (self._linear(label) for label in self._labels()[layer : layer + 2])
        if self.probe_inputs is None:
            strength = below.weight.norm(dim=1)
        else:
            strength = self.features(layer + 1, self.probe_inputs).abs().mean(0)
        return cast(Tensor, strength * above.weight.norm(dim=0))

    @torch.no_grad()
    def input_importance(self) -> Tensor:
        """How much each input matters to the first layer [I]; by the norm of its weights without probe inputs."""
        weight = self._linear(self._labels()[0]).weight.norm(dim=0)
        return cast(
            Tensor, weight if self.probe_inputs is None else weight * self.probe_inputs.to(weight).abs().mean(0)
        )

    @torch.no_grad()
    def refit_layer(self, number: int, features: Tensor, target: Tensor) -> None:
        """Refit the linear map `number`, in place, to give `target` [B, O] from `features` [B, I]."""
        linear = self._linear(self._labels()[number])
        weight, bias = refit(features, target, linear.weight, linear.bias)
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)

    def preactivations(self) -> list[Tensor]:
        """Outputs of every linear map for the probe inputs; none without probe inputs or with random freshness."""
        if self.probe_inputs is None or self.fresh == "random":
            return []
        return [self.preactivation(k, self.probe_inputs) for k in range(len(self._labels()))]

    def refit_all(self, targets: list[Tensor], start: int) -> None:
        """Refit the linear maps from `start` on, in turn, to what `preactivations` returned before a change."""
        for number in range(start, len(targets)):
            assert self.probe_inputs is not None
            self.refit_layer(number, self.features(number, self.probe_inputs), targets[number])

    # -- building ------------------------------------------------------------------------------------------------

    def recreate_network(self, **kwargs: Any) -> None:
        """Build the layers for the present sizes; layers that do not change keep their parameter objects."""
        plan, self._plan, old = self._plan, Plan(), self.model
        self.last_transfer, self.last_refit = {}, plan.refit is not None
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        widths = self._widths()
        for k, label in enumerate(self._labels()):
            is_output = label == "output"
            rows, columns = widths[k + 1], widths[k]
            parts[f"linear_{label}"] = self._build_linear(label, rows, columns, plan)
            if self.output_layernorm if is_output else self.layer_norm:
                parts[f"norm_{label}"] = self._build_norm(label, rows, plan)
            name = self.output_activation if is_output else self.activation
            parts[f"act_{label}"] = activation(name, hidden=not is_output).module()
        self.model = nn.Sequential(parts).train(self.training)
        del old
        self._settle(plan)

    def _build_linear(self, label: str, rows: int, columns: int, plan: Plan) -> nn.Module:
        old = self._part("linear", label)
        planned = label in plan.rows or label in plan.columns
        if old is not None and not planned and tuple(old.weight.shape) == (rows, columns):
            return cast(nn.Module, old)
        new = NoisyLinear(columns, rows, self.noise_std) if self.noisy else Linear(columns, rows)
        source = old.weight.shape if old is not None else (0, 0)
        row_index = plan.rows.get(label, leading(source[0], rows))
        column_index = plan.columns.get(label, leading(source[1], columns))
        planned = planned and self.fresh == "preserve"
        values = {"weight": self._fresh_weight(label, row_index, column_index, planned and old is not None, plan)}
        values["bias"] = torch.zeros(rows)
        if not self.init_layers and old is None:
            values["bias"] = (torch.rand(rows, generator=self.generator()) * 2 - 1) / columns**0.5
        for name, value in (("weight_sigma", 2), ("bias_sigma", 1)):
            if self.noisy:
                values[name] = self._fresh_sigma(new, name, value, row_index, column_index, planned)
        for name, parameter in list(new.named_parameters()):
            transfer = Transfer((row_index, column_index) if parameter.dim() == 2 else (row_index,))
            self._install(new, name, None if old is None else getattr(old, name), values[name], transfer)
            self.last_transfer[f"model.linear_{label}.{name}"] = transfer
        return new.to(self._like())

    def _fresh_weight(self, label: str, rows: Index, columns: Index, planned: bool, plan: Plan) -> Tensor:
        """Values for the fresh entries: random rows; zero where an old unit meets a new input (if `planned`)."""
        gain = 0.1 if label == "output" and self.output_vanish else 1.0
        if label == plan.identity:
            return torch.eye(len(rows), len(columns))
        if label == plan.keep_leading:
            old = self._linear(label).weight.detach().cpu()
            weight = torch.zeros(len(rows), len(columns))
            block = old[:, : len(columns)]
            weight[:, : block.shape[1]] = block
            return weight
        if not planned:
            return gain * init_linear(len(rows), len(columns), self.generator(), orthogonal=self.init_layers)
        weight = torch.zeros(len(rows), len(columns))
        new = torch.as_tensor(rows < 0)
        if new.any():
            weight[new] = gain * init_linear(
                int(new.sum()), len(columns), self.generator(), orthogonal=self.init_layers
            )
        return weight

    def _fresh_sigma(self, new: nn.Module, name: str, dims: int, rows: Index, columns: Index, planned: bool) -> Tensor:
        value = cast(Tensor, getattr(new, name)).detach().clone()
        if planned and dims == 2:
            value[:, torch.as_tensor(columns < 0)] = 0  # a new unit adds no noise to an old one
        return value

    def _build_norm(self, label: str, width: int, plan: Plan) -> nn.Module:
        old = self._part("norm", label)
        if old is not None and old.weight.shape[0] == width and label not in plan.rows:
            return cast(nn.Module, old)
        new = nn.LayerNorm(width)
        source = old.weight.shape[0] if old is not None else 0
        transfer = Transfer((plan.rows.get(label, leading(source, width)),))
        for name, value in (("weight", torch.ones(width)), ("bias", torch.zeros(width))):
            self._install(new, name, None if old is None else getattr(old, name), value, transfer)
            self.last_transfer[f"model.norm_{label}.{name}"] = transfer
        return new.to(self._like())

    def _install(self, module: nn.Module, name: str, old: Tensor | None, fresh: Tensor, transfer: Transfer) -> None:
        like = self._like()
        value = transfer.apply(old, fresh.to(device=like.device, dtype=like.dtype))
        setattr(module, name, nn.Parameter(value, requires_grad=like.requires_grad))

    @torch.no_grad()
    def _settle(self, plan: Plan) -> None:
        """Refit what the plan asks for; with an inserted layer, find the mildest near-identity first."""
        if plan.refit is None or self.probe_inputs is None:
            return
        number, target = plan.refit
        if plan.identity is None:
            self.refit_layer(number, self.features(number, self.probe_inputs), target)
            return
        inserted, output = self._linear(plan.identity), self._linear("output")
        below = self.features(number - 1, self.probe_inputs)
        norm = self._part("norm", plan.identity)
        if norm is not None:
            norm.weight.fill_(below.std(-1, correction=0).mean())
            norm.bias.fill_(below.mean())
        start = output.weight.clone(), output.bias.clone()
        best: tuple[float, Tensor, float, float, Tensor, Tensor] | None = None
        for scale, shift in NEAR_IDENTITY:
            features = self._after_linear(plan.identity, below * scale + shift)
            weight, bias = refit(features, target, start[0] / scale, start[1], ridge=1e-6)
            error = float((dense(features, weight, bias) - target).norm() / target.norm().clamp_min(1e-12))
            if best is None or error < best[0]:
                best = (error, features, scale, shift, weight, bias)
            if error < GOOD_ENOUGH:
                break
        assert best is not None
        inserted.weight.mul_(best[2])
        inserted.bias.fill_(best[3])
        output.weight.copy_(best[4])
        output.bias.copy_(best[5])

    # -- small facts ---------------------------------------------------------------------------------------------

    def _labels(self) -> list[str]:
        return [*map(str, range(len(self.hidden_size))), "output"]

    def _widths(self) -> list[int]:
        return [self.num_inputs, *self.hidden_size, self.num_outputs]

    def _part(self, kind: str, label: str) -> Any:
        return self.model._modules.get(f"{kind}_{label}")

    def _linear(self, label: str) -> Any:
        return self.model._modules[f"linear_{label}"]

    def _after_linear(self, label: str, x: Tensor) -> Tensor:
        norm, act = self._part("norm", label), self._part("act", label)
        return cast(Tensor, act(x if norm is None else norm(x)))

    def _like(self) -> Tensor:
        """A tensor with this module's dtype, device and requires_grad."""
        parameter = next(self.model.parameters(), None)
        return nn.Parameter(torch.empty(0, device=self._device)) if parameter is None else parameter
