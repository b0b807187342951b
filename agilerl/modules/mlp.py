"""The evolvable multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError
from agilerl.modules.activations import activation
from agilerl.modules.base import MutationType, Refused, as_widths, first, is_untouched, mutation
from agilerl.modules.layers import Linear
from agilerl.modules.mlp_layers import MlpLayers, Plan
from agilerl.modules.morph import Index, fresh, grown, leading, without
from agilerl.modules.noisy import NoisyLinear
from agilerl.modules.spec import DenseLayer, DenseStack

NODE_STEPS = (16, 32, 64)
IDEMPOTENT = ("ReLU", "Identity")  # act(act(x)) = act(x): an identity layer after them is exact


class EvolvableMLP(MlpLayers):
    """A multi-layer perceptron whose depth and widths evolve.

    Hidden layer i is `model.linear_i`, `model.norm_i` (with `layer_norm`), `model.act_i`; the output layer is
    `model.linear_output`, whatever the depth, so that names are stable. Growth leaves the function as it was where
    that is possible (`docs/mutations.md`); removal takes the least important units and refits the layer above on
    the inputs given to `probe`.

    Args:
        num_inputs, num_outputs: widths of input and output.
        hidden_size: widths of the hidden layers; the limits below bind mutations only, not the start.
        activation, output_activation: names in `modules.activations.ACTIVATIONS`; None is the identity.
        min_hidden_layers, max_hidden_layers, min_mlp_nodes, max_mlp_nodes: limits of the mutations, inclusive but
            for `min_mlp_nodes`, which a removal stays above.
        layer_norm: LayerNorm after every hidden linear map; growth is then approximate.
        output_layernorm: LayerNorm before the output activation.
        output_vanish: scale the output layer's first weights by 0.1.
        init_layers: orthogonal weights with gain sqrt(2) and zero biases, else torch's default for `nn.Linear`.
        noisy, noise_std: noisy linear layers (`modules.noisy`).
        random_seed: of the first weights and of this module's mutations.
    """

    resizes_outputs = True

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden_size: Sequence[int],
        activation: str | None = "ReLU",
        output_activation: str | None = None,
        min_hidden_layers: int = 1,
        max_hidden_layers: int = 3,
        min_mlp_nodes: int = 32,
        max_mlp_nodes: int = 500,
        layer_norm: bool = False,
        output_layernorm: bool = False,
        output_vanish: bool = True,
        init_layers: bool = True,
        noisy: bool = False,
        noise_std: float = 0.5,
        device: str | torch.device = "cpu",
        name: str = "mlp",
        random_seed: int | None = None,
    ) -> None:
        super().__init__(device, random_seed)
        self.num_inputs, self.num_outputs = as_widths([num_inputs, num_outputs], "num_inputs and num_outputs")
        self.hidden_size = as_widths(hidden_size, "hidden_size")
        if not 0 < min_hidden_layers <= max_hidden_layers or not 0 < min_mlp_nodes <= max_mlp_nodes:
            raise ConfigError(
                "limits must be positive with min <= max; got "
                f"{min_hidden_layers}..{max_hidden_layers} layers, {min_mlp_nodes}..{max_mlp_nodes} nodes."
            )
        self.activation, self.output_activation = activation, output_activation
        self.min_hidden_layers, self.max_hidden_layers = min_hidden_layers, max_hidden_layers
        self.min_mlp_nodes, self.max_mlp_nodes = min_mlp_nodes, max_mlp_nodes
        self.layer_norm, self.output_layernorm = layer_norm, output_layernorm
        self.output_vanish, self.init_layers = output_vanish, init_layers
        self.noisy, self.noise_std, self.name = noisy, noise_std, name
        self._plan = Plan()
        self.model = nn.Sequential()
        self.recreate_network()
        self.last_transfer = {}

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]; a numpy array is converted."""
        if not isinstance(x, Tensor):
            x = torch.as_tensor(x, dtype=self._like().dtype, device=self._like().device)
        return cast(Tensor, self.model(x))

    # -- mutations -----------------------------------------------------------------------------------------------

    def can_apply(self, name: str) -> bool:
        """Whether the limits leave room for the method."""
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
        """Put a hidden layer of the last width before the output layer; exact after ReLU without LayerNorm."""
        if not self.can_apply("add_layer"):
            return Refused()
        depth, width = len(self.hidden_size), self.hidden_size[-1]
        plan = Plan(rows={str(depth): fresh(width)}, columns={str(depth): fresh(width)})
        if self.fresh == "preserve":
            plan.identity = str(depth)
            if not self._identity_is_exact and self.probe_inputs is not None:
                plan.refit = (depth + 1, self.preactivation(depth, self.probe_inputs))
        self.hidden_size = [*self.hidden_size, width]
        self._plan = plan
        return {}

    @mutation(MutationType.LAYER)
    def remove_layer(self) -> dict[str, int]:
        """Take the last hidden layer out; the output layer is refitted to the features below it."""
        if not self.can_apply("remove_layer"):
            return Refused()
        depth = len(self.hidden_size)
        old, new = self.hidden_size[-1], self.hidden_size[-2] if depth > 1 else self.num_inputs
        if self.fresh == "random":
            plan = Plan(columns={"output": leading(old, new)})
        else:
            plan = Plan(columns={"output": fresh(new)}, keep_leading="output")
            if self.probe_inputs is not None:
                plan.refit = (depth - 1, self.preactivation(depth, self.probe_inputs))
        self.hidden_size = self.hidden_size[:-1]
        self._plan = plan
        return {}

    @mutation(MutationType.NODE)
    def add_node(self, hidden_layer: int | None = None, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen one hidden layer; exact without LayerNorm (new units feed zero weights).

        Args:
            hidden_layer: number of the layer, drawn if None; beyond the last means the last.
            numb_new_nodes: drawn from 16, 32, 64 if None.

        Returns:
            {"hidden_layer": number, "numb_new_nodes": units added}; 0 if the limit left no room.
        """
        layer = self._pick_layer(hidden_layer, self._can_add)
        width = self.hidden_size[layer]
        count = self._pick_count(numb_new_nodes, lambda n: self._can_add(width, n))
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_nodes=0)
        self._plan = self._unit_plan(layer + 1, grown(width, count))
        self.hidden_size[layer] += count
        return {"hidden_layer": layer, "numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_node(self, hidden_layer: int | None = None, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Take the least important units out of one hidden layer and refit the layer above.

        Importance of a unit is its mean |activation| over the probe inputs times the norm of its outgoing weights;
        without probe inputs the norm of its incoming weights stands for the activation and nothing is refitted.
        Arguments and result as `add_node`.
        """
        layer = self._pick_layer(hidden_layer, self._can_remove)
        width = self.hidden_size[layer]
        count = self._pick_count(numb_new_nodes, lambda n: self._can_remove(width, n))
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_nodes=0)
        if self.fresh == "random":
            removed = list(range(width - count, width))  # the published choice: the last ones
        else:
            removed = self.importance(layer).argsort()[:count].tolist()
        self._plan = self._unit_plan(layer + 1, without(width, removed))
        self.hidden_size[layer] -= count
        return {"hidden_layer": layer, "numb_new_nodes": count}

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Change the hidden activation, with `output` also the output's.

        With probe inputs every layer above a changed activation is refitted to give what it gave before; without
        them the weights stay.
        """
        _check_activation(activation, hidden=True)
        targets = self.preactivations()
        self.activation = activation
        if output:
            self.output_activation = activation
        self.recreate_network()
        self.refit_all(targets, 1)
        self.last_mutation_attr = "change_activation"

    def resize_inputs(self, index: Index) -> None:
        """Change the input width: `index` maps new input positions to old ones (-1: new, with zero weights)."""
        self._plan = Plan(columns={self._labels()[0]: index})
        self.num_inputs = len(index)
        self.recreate_network()

    def resize_outputs(self, index: Index) -> None:
        """Change the output width: `index` maps new outputs to old ones (-1: new, with random weights)."""
        self._plan = Plan(rows={"output": index})
        self.num_outputs = len(index)
        self.recreate_network()

    def short(self) -> list[int]:
        """Widths of the hidden layers."""
        return list(self.hidden_size)

    def reset_noise(self) -> None:
        """Draw the noise of noisy layers anew."""
        for _, module in self.named_modules():
            if isinstance(module, NoisyLinear):
                module.reset_noise(self.generator())

    def dense_stack(self) -> DenseStack | None:
        """Layers and live parameters, or None if a hook or a subclass adds to them."""
        if type(self).forward is not EvolvableMLP.forward or not is_untouched(self):
            return None
        layers, parameters, noise = [], [], []
        widths = self._widths()
        for k, label in enumerate(self._labels()):
            linear, norm = self._part("linear", label), self._part("norm", label)
            name = self.output_activation if label == "output" else self.activation
            is_noisy = type(linear) is NoisyLinear
            if not is_noisy and (type(linear) is not Linear or (norm is not None and type(norm) is not nn.LayerNorm)):
                return None
            if not activation(name).pointwise:
                return None
            kind = None if name == "Identity" else name
            layers.append(DenseLayer(widths[k], widths[k + 1], kind, norm is not None, is_noisy))
            own = [linear.weight, linear.bias, *((norm.weight, norm.bias) if norm is not None else ())]
            parameters.append((*own, *((linear.weight_sigma, linear.bias_sigma) if is_noisy else ())))
            noise.append((linear.noise_in, linear.noise_out) if is_noisy else ())
        flat = [p for group in parameters for p in group]
        if {id(p) for p in flat} != {id(p) for p in self.parameters()} or len({id(p) for p in flat}) != len(flat):
            return None
        if {id(b) for b in self.buffers()} != {id(b) for pair in noise for b in pair}:
            return None
        if len({(p.dtype, p.device, p.requires_grad) for p in flat}) != 1:
            return None
        return DenseStack(tuple(layers), tuple(parameters), tuple(noise))

    # -- small facts ---------------------------------------------------------------------------------------------

    @property
    def _identity_is_exact(self) -> bool:
        return not self.layer_norm and (self.activation or "Identity") in IDEMPOTENT

    def _unit_plan(self, axis: int, index: Index) -> Plan:
        """Plan for a change of the units that hidden layer `axis - 1` gives to layer `axis`."""
        below, above = self._labels()[axis - 1], self._labels()[axis]
        plan = Plan(rows={below: index}, columns={above: index})
        exact = bool((index >= 0).sum() == self._widths()[axis]) and not self.layer_norm
        if self.fresh == "preserve" and self.probe_inputs is not None and not exact:
            plan.refit = (axis, self.preactivation(axis, self.probe_inputs))
        return plan

    def _pick_layer(self, given: int | None, fits: Any) -> int:
        if given is not None:
            return min(int(given), len(self.hidden_size) - 1)
        open_layers = [i for i, width in enumerate(self.hidden_size) if fits(width, NODE_STEPS[0])]
        open_layers = open_layers or list(range(len(self.hidden_size)))
        return open_layers[int(first(self.rng.integers(0, len(open_layers))))]

    def _pick_count(self, given: int | None, fits: Any) -> int:
        """The amount given or drawn; a drawn one falls to the largest that fits; 0 if none does."""
        if given is not None:
            return int(given) if given > 0 and fits(int(given)) else 0
        drawn = int(first(self.rng.choice(list(NODE_STEPS))))
        return max((step for step in NODE_STEPS if step <= drawn and fits(step)), default=0)

    def _can_add(self, width: int, count: int) -> bool:
        return width + count <= self.max_mlp_nodes

    def _can_remove(self, width: int, count: int) -> bool:
        return width - count > self.min_mlp_nodes


def _check_activation(name: str | None, hidden: bool) -> None:
    activation(name, hidden=hidden)
