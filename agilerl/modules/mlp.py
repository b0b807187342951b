"""Evolvable multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from agilerl.core.signatures import also_takes
from agilerl.modules import layers
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, is_untouched, mutation
from agilerl.modules.layered import OUTPUT, Change, LayeredModule, check_limits, drawn_step, refit_in_place
from agilerl.modules.layers import Axis, DenseLayer, DenseStack, Initial, Layer, Linear, NoisyLinear, dense
from agilerl.modules.morph import Index, Transfer, fresh, grown, leading, leading_block, refit

NODE_STEPS = (16, 32, 64)
FEATURES = "features"  # units of the last hidden layer, as read by the output layer
# (scale, shift) of a layer inserted after other activations, mildest first: a small scale or a shift keeps the units on
# the linear part of the curve, and the refit of the output layer compensates scale and shift.
NEAR_IDENTITY = ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.25, 0.0), (1.0, 2.0), (1.0, 4.0))
GOOD_ENOUGH = 1e-3  # relative error of the refitted output at which the search stops
IDEMPOTENT = ("ReLU", "Identity")  # act(act(x)) = act(x): an identity layer after them is exact


class EvolvableMLP(LayeredModule):
    """A multi-layer perceptron with evolving depth and widths.

    Hidden layer i is `model.linear_i`, `model.norm_i` (with `layer_norm`), `model.act_i`; the output layer is always
    `model.linear_output`, so that names are stable. Growth preserves the function where possible (`docs/mutations.md`);
    removal drops the least important units and refits the following layer on the inputs given to `probe`.

    Args:
        num_inputs, num_outputs: widths of input and output.
        hidden_size: widths of the hidden layers; the limits below apply only to mutations, not to the initial sizes.
        activation, output_activation: names in `modules.activations.ACTIVATIONS`; None is the identity.
        min_hidden_layers, max_hidden_layers, min_mlp_nodes, max_mlp_nodes: limits of the mutations, inclusive except
            for `min_mlp_nodes`, which is exclusive.
        layer_norm: LayerNorm after every hidden linear map; growth is then approximate.
        output_layernorm: LayerNorm before the output activation.
        output_vanish: scale the output layer's initial weights by 0.1; also if None, or omitted in a configuration.
        init_layers: orthogonal weights with gain sqrt(2) and zero biases, else torch's default for `nn.Linear`.
        noisy, noise_std: noisy linear layers (`modules.layers.NoisyLinear`).
        random_seed: seed of the initial weights and of this module's mutations.
    """

    container = nn.Sequential

    @also_takes(new_gelu=None)
    def __init__(
        self, num_inputs: int, num_outputs: int, hidden_size: Sequence[int],
        activation: str | None = "ReLU", output_activation: str | None = None,
        min_hidden_layers: int = 1, max_hidden_layers: int = 3, min_mlp_nodes: int = 32, max_mlp_nodes: int = 500,
        layer_norm: bool = False, output_layernorm: bool = False, output_vanish: bool | None = True,
        init_layers: bool = True, noisy: bool = False, noise_std: float = 0.5, *,
        device: str | torch.device = "cpu", name: str = "mlp", random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.num_inputs, self.num_outputs = layers.as_widths([num_inputs, num_outputs], "num_inputs and num_outputs")
        self.hidden_size = layers.as_widths(hidden_size, "hidden_size")
        check_limits({"layers": (min_hidden_layers, max_hidden_layers), "nodes": (min_mlp_nodes, max_mlp_nodes)})
        self.activation, self.output_activation = activation, output_activation
        self.min_hidden_layers, self.max_hidden_layers = min_hidden_layers, max_hidden_layers
        self.min_mlp_nodes, self.max_mlp_nodes = min_mlp_nodes, max_mlp_nodes
        self.layer_norm, self.output_layernorm = layer_norm, output_layernorm
        self.output_vanish, self.init_layers = output_vanish is None or bool(output_vanish), init_layers
        self.noisy, self.noise_std, self.name = noisy, noise_std, name
        self.build()

    def layers(self) -> dict[str, Layer]:
        """Return per layer `linear`, `norm` (if used), `act`, ending with the output layer's."""
        specs: dict[str, Layer] = {}
        columns: Axis = (("input", self.num_inputs),)
        widths = [*self.hidden_size, self.num_outputs]
        for k, (label, width) in enumerate(zip(self._labels(), widths, strict=True)):
            is_output = label == "output"
            rows: Axis = ((label, width),)
            specs[f"linear_{label}"] = self._linear_layer(rows, columns, 0.1 if is_output and self.output_vanish else 1)
            if self.output_layernorm if is_output else self.layer_norm:
                specs[f"norm_{label}"] = layers.layer_norm(rows)
            name = self.output_activation if is_output else self.activation
            specs[f"act_{label}"] = layers.activation_layer(name, hidden=not is_output)
            columns = ((FEATURES, width),) if k == len(self.hidden_size) - 1 else rows
        return specs

    def _linear_layer(self, rows: Axis, columns: Axis, gain: float) -> Layer:
        (_, inputs), (_, outputs) = columns[0], rows[0]

        def weight(shape: Sequence[int], generator: torch.Generator) -> Tensor:
            return gain * layers.init_linear(shape[0], shape[1], generator, orthogonal=self.init_layers)

        def bias(shape: Sequence[int], generator: torch.Generator) -> Tensor:
            return (torch.rand(tuple(shape), generator=generator) * 2 - 1) / float(inputs**0.5)

        def sigma(shape: Sequence[int], generator: torch.Generator) -> Tensor:
            return torch.full(tuple(shape), self.noise_std / math.sqrt(inputs))

        axes: dict[str, tuple[Axis, ...]] = {"weight": (rows, columns), "bias": (rows,)}
        initial: dict[str, Initial] = {"weight": weight, "bias": bias}
        if not self.noisy:
            return Layer(lambda: Linear(inputs, outputs), ("linear",), axes, initial)
        axes |= {"weight_sigma": (rows, columns), "bias_sigma": (rows,)}
        initial |= {"weight_sigma": sigma, "bias_sigma": sigma}
        return Layer(lambda: NoisyLinear(inputs, outputs, self.noise_std), ("noisy",), axes, initial)

    def first_values(self, name: str, layer: Layer, parameter: str, transfer: Transfer) -> Tensor:
        """Return initial weights; a new unit adds no noise to an old one, and its bias is 0 unless all are sampled."""
        if parameter == "weight" and len(transfer.index) == 2:
            return super().first_values(name, layer, parameter, transfer)
        if parameter == "bias" and name.startswith("linear") and name not in self._built.axes and not self.init_layers:
            return layer.initial["bias"](transfer.shape, self.generator())
        if parameter == "bias":
            return torch.zeros(transfer.shape)
        values = layer.initial[parameter](transfer.shape, torch.Generator())  # uses no random numbers
        if parameter == "weight_sigma" and self.fresh == "preserve" and self._built.axes:
            values[:, torch.as_tensor(transfer.index[1] < 0)] = 0
        return values

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., I] -> [..., O], one input [I] -> [1, O]; a numpy array is converted."""
        if not isinstance(x, Tensor):
            x = torch.as_tensor(x, dtype=self._like().dtype, device=self._like().device)
        return cast(Tensor, self.model(x if x.dim() > 1 else x.unsqueeze(0)))

    # -- mutations -----------------------------------------------------------------------------------------------

    def can_apply(self, name: str) -> bool:
        depth = len(self.hidden_size)
        room = {
            "add_layer": depth < self.max_hidden_layers,
            "remove_layer": depth > self.min_hidden_layers,
            "add_node": any(self._can_add(w, NODE_STEPS[0]) for w in self.hidden_size),
            "remove_node": any(self._can_remove(w, NODE_STEPS[0]) for w in self.hidden_size),
        }
        return room.get(name, True)

    @mutation(MutationType.LAYER)
    def add_layer(self) -> dict[str, int]:
        """Insert a hidden layer of the last width before the output layer; exact after ReLU without LayerNorm."""
        if not self.can_apply("add_layer"):
            return Refused()
        depth, width = len(self.hidden_size), self.hidden_size[-1]
        if self.fresh == "preserve":
            self._change.inserted = str(depth)
            self._change.initial[f"linear_{depth}.weight"] = torch.eye(width)
            if (self.layer_norm or (self.activation or "Identity") not in IDEMPOTENT) and self.probe_inputs is not None:
                self._change.target = self.preactivation(depth, self.probe_inputs)
        self.hidden_size = [*self.hidden_size, width]
        return {}

    @mutation(MutationType.LAYER)
    def remove_layer(self) -> dict[str, int]:
        """Remove the last hidden layer; the output layer is refitted to the features below it."""
        if not self.can_apply("remove_layer"):
            return Refused()
        depth = len(self.hidden_size)
        old, new = self.hidden_size[-1], self.hidden_size[-2] if depth > 1 else self.num_inputs
        self._change.groups[FEATURES] = leading(old, new)
        if self.fresh == "preserve":  # the features differ, but the weights start from the leading ones
            before = self._linear("output").weight.detach()
            block = leading_block(before.shape, (self.num_outputs, new))
            start = block.apply(before, before.new_zeros(block.shape))
            self._change.groups[FEATURES], self._change.initial[f"{OUTPUT}.weight"] = fresh(new), start
            if self.probe_inputs is not None:
                self._change.target = self.preactivation(depth, self.probe_inputs)
        self.hidden_size = self.hidden_size[:-1]
        return {}

    @mutation(MutationType.NODE)
    def add_node(self, hidden_layer: int | None = None, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen one hidden layer; exact without LayerNorm (new units feed zero weights).

        Args:
            hidden_layer: number of the layer, sampled if None; beyond the last means the last.
            numb_new_nodes: sampled from 16, 32, 64 if None.

        Returns:
            {"hidden_layer": number, "numb_new_nodes": units added}; 0 if the limit left no room.
        """
        layer, count = drawn_step(self.rng, NODE_STEPS, self.hidden_size, hidden_layer, numb_new_nodes, self._can_add)
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_nodes=0)
        self._move_units(layer, grown(self.hidden_size[layer], count))
        self.hidden_size[layer] += count
        return {"hidden_layer": layer, "numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_node(self, hidden_layer: int | None = None, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove the least important units of one hidden layer and refit the following layer.

        Importance of a unit is its mean |activation| over the probe inputs times the norm of its outgoing weights;
        without probe inputs the norm of its incoming weights replaces the activation and nothing is refitted.
        Arguments and result as `add_node`.
        """
        layer, count = drawn_step(
            self.rng, NODE_STEPS, self.hidden_size, hidden_layer, numb_new_nodes, self._can_remove
        )
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_nodes=0)
        self._move_units(layer, self.remaining(self.importance(layer), count))
        self.hidden_size[layer] -= count
        return {"hidden_layer": layer, "numb_new_nodes": count}

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Change the activation. With probe inputs every layer after a changed activation is refitted to its previous
        output; otherwise the weights are unchanged."""
        known_activation(activation, hidden=True)
        targets = self.preactivations()
        self.activation = activation
        if output:
            self.output_activation = activation
        self.recreate_network()
        self.refit_all(targets, 1)
        self.last_mutation_attr = "change_activation"

    def resize_inputs(self, index: Index) -> None:
        """Change the input width: `index` maps new input positions to old ones (-1: new, with zero weights)."""
        self._change = Change(groups={"input": index})
        self.num_inputs = len(index)
        self.recreate_network()

    def short(self) -> list[int]:
        return list(self.hidden_size)

    def reset_noise(self) -> None:
        """Resample the noise of noisy layers."""
        for layer in layers.noisy_layers(self):
            layer.reset_noise(self.generator())

    def dense_stack(self) -> DenseStack | None:
        """Return layers and parameters, or None if a hook or a subclass adds to them."""
        if type(self).forward is not EvolvableMLP.forward or not is_untouched(self):
            return None
        dense_layers, parameters, noise = [], [], []
        widths = [self.num_inputs, *self.hidden_size, self.num_outputs]
        for k, label in enumerate(self._labels()):
            linear, norm = self._part("linear", label), self._part("norm", label)
            name = self.output_activation if label == "output" else self.activation
            is_noisy = type(linear) is NoisyLinear
            if not is_noisy and (type(linear) is not Linear or (norm is not None and type(norm) is not nn.LayerNorm)):
                return None
            if not known_activation(name).pointwise:
                return None
            kind = None if name == "Identity" else name
            dense_layers.append(DenseLayer(widths[k], widths[k + 1], kind, norm is not None, is_noisy))
            tensors = [linear.weight, linear.bias, *((norm.weight, norm.bias) if norm is not None else ())]
            parameters.append((*tensors, *((linear.weight_sigma, linear.bias_sigma) if is_noisy else ())))
            noise.append((linear.noise_in, linear.noise_out) if is_noisy else ())
        flat = [p for group in parameters for p in group]
        if {id(p) for p in flat} != {id(p) for p in self.parameters()} or len({id(p) for p in flat}) != len(flat):
            return None
        if {id(b) for b in self.buffers()} != {id(b) for pair in noise for b in pair}:
            return None
        if len({(p.dtype, p.device, p.requires_grad) for p in flat}) != 1:
            return None
        return DenseStack(tuple(dense_layers), tuple(parameters), tuple(noise))

    # -- forward computation layer by layer, without hooks and noise -----------------------------------------------

    @torch.no_grad()
    def features(self, number: int, x: Tensor) -> Tensor:
        """Return the inputs of the linear map `number` (0 = first, depth = output layer) for inputs x [B, I]."""
        x = x.to(self._like())
        for label in self._labels()[:number]:
            linear = self._linear(label)
            x = self._after_linear(label, dense(x, linear.weight, linear.bias))
        return x

    @torch.no_grad()
    def preactivation(self, number: int, x: Tensor) -> Tensor:
        """Return the output of the linear map `number`, before normalisation and activation, for inputs x [B, I]."""
        linear = self._linear(self._labels()[number])
        return dense(self.features(number, x), linear.weight, linear.bias)

    @torch.no_grad()
    def importance(self, layer: int) -> Tensor:
        """Return the importance of each unit of hidden layer `layer` for the following layer [H]."""
        below, above = (self._linear(label) for label in self._labels()[layer : layer + 2])
        if self.probe_inputs is None:
            strength = below.weight.norm(dim=1)
        else:
            strength = self.features(layer + 1, self.probe_inputs).abs().mean(0)
        return cast(Tensor, strength * above.weight.norm(dim=0))

    @torch.no_grad()
    def input_importance(self) -> Tensor:
        """Return the importance of each input for the first layer [I]; the norm of its weights without probe inputs."""
        weight: Tensor = self._linear(self._labels()[0]).weight.norm(dim=0)
        return weight if self.probe_inputs is None else weight * self.probe_inputs.to(weight).abs().mean(0)

    @torch.no_grad()
    def refit_layer(self, number: int, features: Tensor, target: Tensor) -> None:
        """Refit the linear map `number`, in place, to produce `target` [B, O] from `features` [B, I]."""
        refit_in_place(self._linear(self._labels()[number]), features, target)

    def preactivations(self) -> list[Tensor]:
        """Return outputs of every linear map for the probe inputs; empty without them or with random freshness."""
        if self.probe_inputs is None or self.fresh == "random":
            return []
        return [self.preactivation(k, self.probe_inputs) for k in range(len(self._labels()))]

    def refit_all(self, targets: list[Tensor], start: int) -> None:
        """Refit the linear maps from `start` on, in turn, to the `preactivations` before a change."""
        for number in range(start, len(targets)):
            assert self.probe_inputs is not None
            self.refit_layer(number, self.features(number, self.probe_inputs), targets[number])

    @torch.no_grad()
    def settle(self, change: Change) -> None:
        """Refit the layer of the change; with an inserted one, find the mildest near-identity first."""
        target, self.last_refit = change.target, True
        if target is None or self.probe_inputs is None:
            return
        if change.inserted is None:
            number = self._labels().index(change.fitted.removeprefix("linear_"))
            self.refit_layer(number, self.features(number, self.probe_inputs), target)
            return
        inserted, output = self._linear(change.inserted), self._linear("output")
        below = self.features(int(change.inserted), self.probe_inputs)
        norm = self._part("norm", change.inserted)
        if norm is not None:
            norm.weight.fill_(below.std(-1, correction=0).mean())
            norm.bias.fill_(below.mean())
        start = output.weight.clone(), output.bias.clone()
        best: tuple[float, Tensor, float, float, Tensor, Tensor] | None = None
        for scale, shift in NEAR_IDENTITY:
            features = self._after_linear(change.inserted, below * scale + shift)
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

    def _labels(self) -> list[str]:
        return [*map(str, range(len(self.hidden_size))), "output"]

    def _part(self, kind: str, label: str) -> Any:
        return self.model._modules.get(f"{kind}_{label}")

    def _linear(self, label: str) -> Any:
        return self._part("linear", label)

    def _after_linear(self, label: str, x: Tensor) -> Tensor:
        norm, act = self._part("norm", label), self._part("act", label)
        return cast(Tensor, act(x if norm is None else norm(x)))

    def _move_units(self, layer: int, index: Index) -> None:
        """Change the units of a hidden layer, and the matching inputs of the following layer."""
        is_last = layer == len(self.hidden_size) - 1
        self._change.groups |= {str(layer): index} | ({FEATURES: index} if is_last else {})
        exact = bool((index >= 0).sum() == self.hidden_size[layer]) and not self.layer_norm
        if self.fresh == "preserve" and self.probe_inputs is not None and not exact:
            self._change.fitted = f"linear_{self._labels()[layer + 1]}"
            self._change.target = self.preactivation(layer + 1, self.probe_inputs)

    def _can_add(self, width: int, count: int) -> bool:
        return width + count <= self.max_mlp_nodes

    def _can_remove(self, width: int, count: int) -> bool:
        return width - count > self.min_mlp_nodes
