"""Recurrent layers: cells, for one member or for stacked members, and the evolvable recurrent network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from agilerl.core.signatures import also_takes
from agilerl.errors import ConfigError, ShapeError, unknown_choice
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, mutation
from agilerl.modules.layered import OUTPUT, LayeredModule, Range, check_limits
from agilerl.modules.layers import Axis, Layer, activation_layer, dense, linear, uniform, whole
from agilerl.modules.morph import Index, Transfer, fresh, grown, same

NODE_STEPS = (16, 32, 64)
CELLS = {"LSTM": 4, "GRU": 3}  # gates
OPEN, SMALL = 4.0, 0.25  # gate bias, and input scale, of a layer initialised near the identity
HiddenState = dict[str, Tensor]


class CellWeights(NamedTuple):
    """Weights of one recurrent layer, laid out as in `torch.nn.LSTM` and `torch.nn.GRU`.

    Attributes:
        input: [G·H, I] or [N, G·H, I]; hidden: [G·H, H] or [N, G·H, H]. G = 4 gates for an LSTM, 3 for a GRU.
        input_bias, hidden_bias: [G·H] or [N, G·H].
    """

    input: Tensor
    hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, weights: CellWeights) -> tuple[Tensor, Tensor]:
    """(h', c'), shaped as h, after one step of an LSTM (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000).

    i, f, g, o = W x + b + U h + d, in this order;  c' = σ(f)·c + σ(i)·tanh(g);  h' = σ(o)·tanh(c').

    Args:
        x: [B, I] or [N, B, I]; h, c: [B, H] or [N, B, H].
    """
    gates = dense(x, weights.input, weights.input_bias) + dense(h, weights.hidden, weights.hidden_bias)
    return lstm_gates(gates, c)


def lstm_gates(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """(h', c') of an LSTM from the sum of both products, gates [..., 4H] in the order i, f, g, o, and c [..., H]."""
    return cast("tuple[Tensor, Tensor]", _LSTMGates.apply(gates, c))  # type: ignore[no-untyped-call]


class _LSTMGates(torch.autograd.Function):
    """Elementwise part of an LSTM step, with a closed-form derivative: a third of autograd's calls."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        opened = torch.sigmoid(gates)
        i, f, _, o = opened.chunk(4, dim=-1)
        g = torch.tanh(gates.chunk(4, dim=-1)[2])
        new_c = torch.addcmul(f * c, i, g)
        squashed = torch.tanh(new_c)
        ctx.save_for_backward(opened, g, c, squashed)
        return o * squashed, new_c

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        of_h, of_c = grads
        opened, g, c, squashed = ctx.saved_tensors
        i, f, _, o = opened.chunk(4, dim=-1)
        of_c = torch.addcmul(of_c, of_h * o, 1 - squashed * squashed)
        into = torch.cat((of_c * g, of_c * c, of_c * i, of_h * squashed), -1)
        slope = opened - opened * opened
        slope.chunk(4, dim=-1)[2].copy_(1 - g * g)
        return into.mul_(slope), of_c * f


def gru_cell(x: Tensor, h: Tensor, weights: CellWeights) -> Tensor:
    """h', shaped as h, after one step of a GRU (Cho et al. 2014, arXiv:1406.1078; reset after the product, as cuDNN).

    r = σ(W_r x + b_r + U_r h + d_r);  z likewise;  n = tanh(W_n x + b_n + r·(U_n h + d_n));  h' = (1 − z)·n + z·h.

    Args:
        x: [B, I] or [N, B, I]; h: [B, H] or [N, B, H].
    """
    of_input = dense(x, weights.input, weights.input_bias)
    return gru_gates(of_input, dense(h, weights.hidden, weights.hidden_bias), h)


def gru_gates(of_input: Tensor, of_hidden: Tensor, h: Tensor) -> Tensor:
    """h' [..., H] of a GRU from both products [..., 3H], in the order r, z, n, and h."""
    r_x, z_x, n_x = of_input.chunk(3, dim=-1)
    r_h, z_h, n_h = of_hidden.chunk(3, dim=-1)
    z = torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h) + z * h


def unroll(
    steps: Iterable[Tensor], advance: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], h: Tensor,
    c: Tensor | None = None,
) -> tuple[list[Tensor], Any]:  # fmt: skip
    """Return (h after every step, c after the last one) of one layer.
    steps: inputs of `advance` for each step.
    advance: (step, h, c) -> (h', c'); c is None in a GRU."""
    outputs = []
    for step in steps:
        h, c = advance(step, h, c)
        outputs.append(h)
    return outputs, c


class Recurrence(nn.Module):
    """One recurrent layer, an LSTM (4 gates) or a GRU (3)."""

    def __init__(self, inputs: int, hidden: int, gates: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(gates * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(gates * hidden))
        self.bias_hh = nn.Parameter(torch.empty(gates * hidden))

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Perform one step; the cell state c is only used by an LSTM."""
        weights = CellWeights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return lstm_cell(x, h, c, weights) if c is not None else (gru_cell(x, h, weights), None)


class EvolvableLSTM(LayeredModule):
    """Recurrent layers (`lstm_0`, ...) and a dense output layer, with evolving depth and width.

    The hidden state is explicit: it is passed in and returned, and not stored by the module. Adding a unit is exact
    (other units do not read it; its state starts at 0), and `carry_hidden_state` converts the state of a running
    episode to the changed network. Adding a layer is approximate.

    Args:
        input_size: width of the input. hidden_state_size: units of every layer. num_outputs: width of the output.
        num_layers: stacked recurrent layers.
        output_activation: name, or None for the identity.
        cell: "LSTM" or "GRU".
        min_hidden_state_size, max_hidden_state_size, min_layers, max_layers: limits of the mutations, inclusive.
        max_seq_len: length to which training cuts sequences, stored for algorithms that read it.
    """

    ranges: ClassVar = {
        "layer": Range("num_layers", "layers"),
        "node": Range("hidden_state_size", "hidden_state_size", NODE_STEPS),
    }

    @also_takes(dropout=None)
    def __init__(
        self, input_size: int, hidden_state_size: int = 128, num_outputs: int = 64, num_layers: int = 1,
        output_activation: str | None = None, min_hidden_state_size: int = 32, max_hidden_state_size: int = 512,
        min_layers: int = 1, max_layers: int = 3, *, cell: str = "LSTM", max_seq_len: int | None = None,
        device: str | torch.device = "cpu", name: str = "lstm", random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.input_size, self.num_outputs = whole(input_size, "input_size"), whole(num_outputs, "num_outputs")
        self.hidden_state_size = whole(hidden_state_size, "hidden_state_size")
        self.num_layers = whole(num_layers, "num_layers")
        if cell not in CELLS:
            raise ConfigError(unknown_choice("cell", str(cell), CELLS))
        known_activation(output_activation)
        check_limits({
            "hidden_state_size": (min_hidden_state_size, max_hidden_state_size), "layers": (min_layers, max_layers)
        })  # fmt: skip
        self.cell, self.output_activation, self.name = cell, output_activation, name
        self.min_hidden_state_size, self.max_hidden_state_size = min_hidden_state_size, max_hidden_state_size
        self.min_layers, self.max_layers = min_layers, max_layers
        self.max_seq_len = None if max_seq_len is None else whole(max_seq_len, "max_seq_len")
        self.last_units: list[Index] = []  # per layer, origin of its units in the last mutation
        self._rescaled = False
        self.build()
        self.last_units = [same(self.hidden_state_size)] * self.num_layers

    def layers(self) -> dict[str, Layer]:
        """Return `lstm_0`, ..., `linear_output`."""
        hidden: Axis = (("hidden", self.hidden_state_size),)
        rows: Axis = (("gate", CELLS[self.cell]), *hidden)
        draw = uniform(self.hidden_state_size**-0.5)  # as in torch.nn.LSTM
        layers = {}
        for k in range(self.num_layers):
            columns: Axis = hidden if k else (("input", self.input_size),)
            sizes = self.hidden_state_size if k else self.input_size, self.hidden_state_size, CELLS[self.cell]
            layers[f"lstm_{k}"] = Layer(
                lambda sizes=sizes: Recurrence(*sizes),  # type: ignore[misc]
                (self.cell,),
                {"weight_ih": (rows, columns), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)},
                dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), draw),
            )
        layers[OUTPUT] = linear((("output", self.num_outputs),), hidden, draw, draw)
        layers["act_output"] = activation_layer(self.output_activation, hidden=False)
        return layers

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); the state has a batch axis between them."""
        parts = ("h", "c") if self.cell == "LSTM" else ("h",)
        return {f"{self.name}_{part}": (self.num_layers, self.hidden_state_size) for part in parts}

    def initial_hidden_state(self, batch_size: int = 1) -> HiddenState:
        """Return zeros [layers, B, H] under every key: the start of an episode."""
        like = self._like()
        return {
            key: torch.zeros(layers, batch_size, units, dtype=like.dtype, device=like.device)
            for key, (layers, units) in self.hidden_state_architecture.items()
        }

    def carry_hidden_state(self, hidden_state: Mapping[str, Tensor]) -> HiddenState:
        """Convert a hidden state from before the last mutation to the current network.

        Kept units keep their state; new units and new layers start at 0.

        hidden_state: [old layers, B, old H] under every key. Not modified."""
        state = {}
        for key, (layers, units) in self.hidden_state_architecture.items():
            old = hidden_state[key]
            new = old.new_zeros(layers, old.shape[1], units)
            for k in range(min(layers, old.shape[0])):
                new[k] = Transfer((same(old.shape[1]), self.last_units[k])).apply(old[k], new[k])
            state[key] = new
        return state

    def embed(self, x: Tensor) -> Tensor:
        """Return the input of the first recurrent layer: `x` itself."""
        return x

    def run(self, x: Tensor, hidden_state: Mapping[str, Tensor]) -> tuple[Tensor, HiddenState]:
        """Return the inputs of the output layer [B, H] or [B, T, H], and the hidden state after the last step."""
        x = self.embed(x)
        self._check(x, hidden_state)
        steps = [x] if x.dim() == 2 else list(x.unbind(1))
        state: dict[str, list[Tensor]] = {key: [] for key in self.hidden_state_architecture}
        for k in range(self.num_layers):
            start = [hidden_state[key][k] for key in state]
            steps, *cells = unroll(steps, self.model[f"lstm_{k}"], *start)
            for parts, after in zip(state.values(), (steps[-1], *cells), strict=False):
                parts.append(after)
        features = steps[0] if x.dim() == 2 else torch.stack(steps, dim=1)
        return features, {key: torch.stack(parts) for key, parts in state.items()}

    def output_features(self, x: Tensor) -> Tensor:
        """Return the first result of `run`, from the start of an episode."""
        x = self.as_input(x)
        return self.run(x, self.initial_hidden_state(x.shape[0]))[0]

    def forward(self, x: Tensor, hidden_state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, HiddenState]:
        """Map one step x [B, I] -> [B, O], or a sequence [B, T, I] -> [B, T, O], and return the next hidden state.

        Args:
            x: inputs.
            hidden_state: [layers, B, H] under "<name>_h" and, for an LSTM, "<name>_c"; see `initial_hidden_state`.

        Raises:
            ValueError: missing or invalid hidden state.
        """
        if hidden_state is None:
            raise ShapeError(f"{self.name} needs a hidden_state. fix: start with initial_hidden_state(batch_size).")
        features, state = self.run(self.as_input(x), hidden_state)
        return self.finish(features), state

    def _check(self, x: Tensor, hidden_state: Mapping[str, Tensor]) -> None:
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(f"{self.name} reads [B, (T,) {self.input_size}]; got {tuple(x.shape)}")
        for key, (layers, units) in self.hidden_state_architecture.items():
            shape = tuple(hidden_state[key].shape) if key in hidden_state else None
            if shape != (layers, x.shape[0], units):
                got = f"{shape}" if shape else f"only {sorted(hidden_state)}"
                raise ShapeError(f"hidden_state[{key!r}] must have shape {(layers, x.shape[0], units)}; got {got}")

    def short(self) -> str:
        return f"{self.cell.lower()} {self.hidden_state_size}x{self.num_layers}"

    @mutation(MutationType.LAYER)
    def add_layer(self) -> dict[str, int]:
        """Append a layer near the identity; at the limit, units are added instead."""
        if not self.can_apply("add_layer"):
            return self.add_node()
        self.last_units = [same(self.hidden_state_size)] * self.num_layers
        if self.fresh == "preserve":
            self._near_identity()
        self.last_units.append(fresh(self.hidden_state_size))
        self.num_layers += 1
        return {}

    @mutation(MutationType.LAYER)
    def remove_layer(self) -> dict[str, int]:
        """Remove the last layer; the output layer is refitted if the probe inputs are sequences [B, T, I]."""
        if not self.can_apply("remove_layer"):
            return Refused()
        self._change.target = self._sequence_target()
        self.num_layers -= 1
        self.last_units = [same(self.hidden_state_size)] * self.num_layers
        return {}

    @mutation(MutationType.NODE)
    def add_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen every layer (by 16, 32 or 64 if not given); exact, also in the middle of an episode.
        Returns {"numb_new_nodes": units added}; 0 if the limit left no room."""
        count = self.drawn("node", numb_new_nodes)
        if count:
            self._move_units(grown(self.hidden_state_size, count))
        return {"numb_new_nodes": count} if count else Refused(numb_new_nodes=0)

    @mutation(MutationType.NODE)
    def remove_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove the same units from every layer: those with the smallest outgoing weights.

        With sequences [B, T, I] as probe inputs the output layer is refitted; single steps would only represent the
        start of an episode. Argument and result as `add_node`.
        """
        count = self.drawn("node", numb_new_nodes, -1)
        if count == 0:
            return Refused(numb_new_nodes=0)
        self._change.target = self._sequence_target()
        self._move_units(self.remaining(self._importance(), count))
        return {"numb_new_nodes": count}

    def recreate_network(self, **kwargs: Any) -> None:
        rescaled, self._rescaled = self._rescaled, False
        super().recreate_network(**kwargs)
        self.last_refit = self.last_refit or rescaled

    def _move_units(self, index: Index) -> None:
        self._change.groups["hidden"] = index
        self.hidden_state_size = len(index)
        self.last_units = [index] * self.num_layers

    def _sequence_target(self) -> Tensor | None:
        is_sequence = self.probe_inputs is not None and self.embed(self.probe_inputs[:1]).dim() == 3
        return self.output_target() if is_sequence else None

    @torch.no_grad()
    def _importance(self) -> Tensor:
        """Return the norm of all outgoing weights of each unit [H]."""
        output: Any = self.model[OUTPUT]
        squares = output.weight.square().sum(0)
        for k in range(self.num_layers):
            layer: Any = self.model[f"lstm_{k}"]
            squares = squares + layer.weight_hh.square().sum(0)
            if k:
                squares = squares + layer.weight_ih.square().sum(0)
        return cast(Tensor, squares.sqrt())

    @torch.no_grad()
    def _near_identity(self) -> None:
        """Initialise the new layer near the identity, and compensate in the output layer.

        Gates are open (or shut) by a bias of ±4, the candidate is tanh of a quarter of the input, so that the output is
        `gain` times the input up to third order; the output layer is divided by `gain`.
        """
        size, gates, k = self.hidden_state_size, CELLS[self.cell], self.num_layers
        like = self._like().detach()
        inputs, bias = like.new_zeros(gates, size, size).cpu(), like.new_zeros(gates, size).cpu()
        passing = float(torch.sigmoid(torch.tensor(OPEN, dtype=torch.float64)))
        candidate = 2  # third gate, for both cells
        inputs[candidate] = SMALL * torch.eye(size)
        if self.cell == "LSTM":  # input, forget, candidate, output
            bias[0], bias[1], bias[3] = OPEN, -OPEN, OPEN
            gain = SMALL * passing**2
        else:  # reset, update, candidate
            bias[1] = -OPEN
            gain = SMALL * passing
        initial = self._change.initial
        initial[f"lstm_{k}.weight_ih"], initial[f"lstm_{k}.bias_ih"] = inputs.flatten(0, 1), bias.flatten()
        initial[f"lstm_{k}.weight_hh"] = like.new_zeros(gates * size, size)
        initial[f"lstm_{k}.bias_hh"] = like.new_zeros(gates * size)
        cast(Any, self.model[OUTPUT]).weight.div_(gain)
        self._rescaled = True
