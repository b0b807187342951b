"""Recurrent modules: the cells against torch, hidden states, growth in the middle of an episode."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.errors import ConfigError, ShapeError
from agilerl.modules import EvolvableLSTM, LstmNetConfig
from agilerl.modules.lstm import CellWeights, gru_cell, lstm_cell
from agilerl.networks import QNetwork

BOX, TWO = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)
CELLS = ("LSTM", "GRU")


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lstm_cell_on_numbers_worked_by_hand() -> None:
    """One unit, x = 1, h = 2, c = 3; all gates see 0.5·x + 0.25·h − 1 = 0 but the candidate, which sees 1.

    σ(0) = 0.5: c' = 0.5·3 + 0.5·tanh(1) = 1.880797;  h' = 0.5·tanh(1.880797) = 0.477281.
    """
    weights = CellWeights(
        torch.full((4, 1), 0.5), torch.full((4, 1), 0.25), torch.tensor([-1.0, -1.0, 0.0, -1.0]), torch.zeros(4)
    )
    h, c = lstm_cell(torch.ones(1, 1), torch.full((1, 1), 2.0), torch.full((1, 1), 3.0), weights)
    assert float(c) == pytest.approx(1.8807971, abs=1e-6)
    assert float(h) == pytest.approx(0.4772815, abs=1e-6)


def test_gru_cell_on_numbers_worked_by_hand() -> None:
    """One unit, x = 1, h = 2: r = z = σ(0) = 0.5; n = tanh(1 + 0.5·(0.5·2)) = tanh(1.5); h' = 0.5·n + 0.5·2."""
    weights = CellWeights(
        torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[0.0], [0.0], [0.5]]), torch.zeros(3), torch.zeros(3)
    )
    h = gru_cell(torch.ones(1, 1), torch.full((1, 1), 2.0), weights)
    assert float(h) == pytest.approx(0.5 * np.tanh(1.5) + 1.0, abs=1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 3])
def test_sequences_equal_torchs_own_layers(cell: str, layers: int) -> None:
    net = EvolvableLSTM(5, 7, 3, layers, cell=cell, random_seed=0).double()
    theirs = getattr(torch.nn, cell)(5, 7, layers, batch_first=True).double()
    for k in range(layers):
        for name, parameter in net.model[f"lstm_{k}"].named_parameters():
            getattr(theirs, f"{name}_l{k}").data = parameter.data
    x, state = (
        draws(6, 9, 5),
        {key: draws(layers, 6, 7, seed=1 + i) for i, key in enumerate(net.hidden_state_architecture)},
    )
    output, after = net(x, state)
    given = tuple(state.values()) if cell == "LSTM" else state["lstm_h"]
    features, expected = theirs(x, given)
    linear = net.model["linear_output"]
    torch.testing.assert_close(output, features @ linear.weight.T + linear.bias, atol=1e-12, rtol=1e-12)
    for mine, other in zip(after.values(), expected if cell == "LSTM" else (expected,), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-12)
    stepped = dict(state)
    for t in range(9):
        last, stepped = net(x[:, t], stepped)
    torch.testing.assert_close(last, output[:, -1], atol=1e-12, rtol=1e-12)


def test_stacked_cells_equal_each_member_alone_with_gradients() -> None:
    n, b, i, h = 3, 4, 5, 6
    for gates, cell in ((4, "LSTM"), (3, "GRU")):
        sizes = ((n, gates * h, i), (n, gates * h, h), (n, gates * h), (n, gates * h))
        stacked = CellWeights(*(draws(*s, seed=k).requires_grad_() for k, s in enumerate(sizes)))
        x, state, c = draws(n, b, i, seed=7), draws(n, b, h, seed=8), draws(n, b, h, seed=9)
        together = lstm_cell(x, state, c, stacked)[0] if cell == "LSTM" else gru_cell(x, state, stacked)
        grads = torch.autograd.grad(together.square().sum(), stacked)
        for m in range(n):
            own = CellWeights(*(w.detach()[m].requires_grad_() for w in stacked))
            alone = lstm_cell(x[m], state[m], c[m], own)[0] if cell == "LSTM" else gru_cell(x[m], state[m], own)
            torch.testing.assert_close(together[m], alone, atol=1e-12, rtol=1e-12)
            for g, mine in zip(torch.autograd.grad(alone.square().sum(), own), grads, strict=True):
                torch.testing.assert_close(mine[m], g, atol=1e-12, rtol=1e-12)


def test_keys_shapes_and_errors() -> None:
    net = EvolvableLSTM(4, 32, 3, 2, name="actor_encoder", random_seed=0)
    assert net.hidden_state_architecture == {"actor_encoder_h": (2, 32), "actor_encoder_c": (2, 32)}
    state = net.initial_hidden_state(5)
    assert {k: tuple(v.shape) for k, v in state.items()} == {
        "actor_encoder_h": (2, 5, 32),
        "actor_encoder_c": (2, 5, 32),
    }
    assert net.activation is None
    output, after = net(torch.zeros(5, 4), state)
    assert output.shape == (5, 3)
    assert net(torch.zeros(5, 6, 4), after)[0].shape == (5, 6, 3)
    assert list(EvolvableLSTM(4, 32, 3, cell="GRU", name="x").hidden_state_architecture) == ["x_h"]
    for x, hidden, sentence in (
        (torch.zeros(5, 4), None, "needs a hidden_state"),
        (torch.zeros(4), state, r"^actor_encoder reads \[B, \(T,\) 4\]; got \(4,\)$"),
        (torch.zeros(5, 1, 1, 4), state, "reads"),
        (torch.zeros(6, 4), state, r"must have shape \(2, 6, 32\)"),
        (torch.zeros(5, 4), {"actor_encoder_h": state["actor_encoder_h"]}, r"got only \['actor_encoder_h'\]"),
    ):
        with pytest.raises(ShapeError, match=sentence):
            net(x, hidden)
    for arguments in ((0, 8, 2), (4, 0, 2), (4, 8, 0), (4, 8, 2, 0)):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            EvolvableLSTM(*arguments)
    with pytest.raises(ConfigError, match="Did you mean 'GRU'"):
        EvolvableLSTM(4, 8, 2, cell="gru")


@pytest.mark.parametrize("cell", CELLS)
def test_new_units_are_exact_in_the_middle_of_an_episode(cell: str) -> None:
    net = EvolvableLSTM(5, 32, 3, 2, cell=cell, random_seed=0).double()
    first, rest = draws(6, 4, 5), draws(6, 7, 5, seed=1)
    _, middle = net(first, net.initial_hidden_state(6))
    expected = net(rest, middle)[0].detach()
    kept = {k: v.clone() for k, v in middle.items()}
    net.add_node(16)
    carried = net.carry_hidden_state(middle)
    assert all(v.shape == (2, 6, 48) and not v[..., 32:].any() for v in carried.values())
    assert all(torch.equal(v, kept[k]) for k, v in middle.items())
    torch.testing.assert_close(net(rest, carried)[0], expected, atol=1e-12, rtol=1e-12)
    net(rest, carried)[0].square().sum().backward()
    assert net.model["linear_output"].weight.grad[:, 32:].any()


@pytest.mark.parametrize("cell", CELLS)
def test_removed_units_take_their_state_with_them(cell: str) -> None:
    net = EvolvableLSTM(5, 48, 3, 2, cell=cell, random_seed=0).double()
    gates, dead = (4 if cell == "LSTM" else 3), [3, 17, 20, 21, 30, 31, 32, 33, 34, 35, 36, 40, 41, 45, 46, 47]
    with torch.no_grad():  # units that nothing reads
        net.model["linear_output"].weight[:, dead] = 0
        for k in range(2):
            net.model[f"lstm_{k}"].weight_hh[:, dead] = 0
        net.model["lstm_1"].weight_ih[:, dead] = 0
    _, middle = net(draws(6, 4, 5), net.initial_hidden_state(6))
    rest = draws(6, 7, 5, seed=1)
    expected = net(rest, middle)[0].detach()
    old = net.model["lstm_0"].weight_hh.detach().clone()
    net.remove_node(16)
    left = [i for i in range(48) if i not in dead]
    assert net.last_units[0].tolist() == left
    rows = [g * 48 + i for g in range(gates) for i in left]
    assert torch.equal(net.model["lstm_0"].weight_hh, old[rows][:, left])
    torch.testing.assert_close(net(rest, net.carry_hidden_state(middle))[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_a_new_layer_starts_near_the_identity(cell: str) -> None:
    for seed in range(5):
        net = EvolvableLSTM(5, 64, 3, cell=cell, random_seed=seed).double()
        x = draws(16, 12, 5, seed=seed)
        before = net(x, net.initial_hidden_state(16))[0].detach()
        with_preserve, published = net.clone(), net.clone()
        published.fresh = "random"
        errors = []
        for twin in (with_preserve, published):
            twin.add_layer()
            after = twin(x, twin.initial_hidden_state(16))[0].detach()
            errors.append(float((after - before).norm() / before.norm()))
        assert errors[0] < 0.05 < errors[1]
        assert with_preserve.last_refit
        state = {k: torch.ones(1, 16, 64).double() for k in net.hidden_state_architecture}
        carried = with_preserve.carry_hidden_state(state)
        assert all(v[0].all() and not v[1].any() for v in carried.values())


def test_removal_is_refitted_on_sequences_only() -> None:
    net = EvolvableLSTM(5, 64, 3, random_seed=0).double()
    x = draws(32, 10, 5)
    before = net(x, net.initial_hidden_state(32))[0].detach()
    errors = []
    for probe in (draws(32, 10, 5, seed=2), draws(256, 5, seed=2)):
        twin = net.clone()
        twin.probe(probe)
        twin.remove_node(16)
        errors.append(float((twin(x, twin.initial_hidden_state(32))[0] - before).detach().norm()))
        assert twin.last_refit == (probe.dim() == 3)
    assert errors[0] < 0.7 * errors[1]


def test_limits_and_the_fallback_of_add_layer() -> None:
    net = EvolvableLSTM(4, 40, 2, max_layers=1, max_hidden_state_size=60, random_seed=0)
    assert not net.can_apply("add_layer")
    assert net.add_layer() == {"numb_new_nodes": 16}
    assert net.last_mutation_attr == "add_node"
    assert (net.hidden_state_size, net.num_layers) == (56, 1)
    assert not any(net.can_apply(m) for m in ("add_layer", "remove_layer", "add_node"))
    assert net.remove_node(32) == {"numb_new_nodes": 0}
    assert net.remove_node(24) == {"numb_new_nodes": 24}


def test_recurrent_network() -> None:
    net = QNetwork(BOX, TWO, recurrent=True, random_seed=0).double()
    assert (net.encoder.hidden_state_size, net.encoder.num_layers, net.recurrent) == (128, 2, True)
    assert net.describe() == "lstm 128x2 64 [64]"
    state = net.initialize_hidden_state(3)
    assert {k: tuple(v.shape) for k, v in state.items()} == {"encoder_h": (2, 3, 128), "encoder_c": (2, 3, 128)}
    x = draws(3, 6, 4)
    outputs, after = net.output_with_state(x, state)
    assert outputs.shape == (3, 6, 2)
    torch.testing.assert_close(net(x), outputs)
    torch.testing.assert_close(net(x[:, 0]), outputs[:, 0])
    assert net(x[0, 0].numpy()).shape == (1, 2)
    _, middle = net.output_with_state(x[:, :3], state)
    net.apply_mutation("encoder.add_node", 16)
    net.add_latent_node(8)
    later, again = net.output_with_state(x[:, 3:], net.carry_hidden_state(middle))
    torch.testing.assert_close(later, outputs[:, 3:], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(again["encoder_h"][..., :128], after["encoder_h"], atol=1e-12, rtol=1e-12)
    net.probe(x[:, 0])
    net.apply_mutation("remove_latent_node", 8)
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec()))).double()
    assert twin.spec() == net.spec()
    twin.load_state_dict(net.state_dict())
    torch.testing.assert_close(twin(x), net(x))


def test_recurrent_configurations() -> None:
    config: dict[str, Any] = {"hidden_state_size": 64, "num_layers": 1, "max_seq_len": 512}
    net = QNetwork(BOX, TWO, encoder_config=config, recurrent=True, random_seed=0)
    assert net.encoder.max_seq_len == 512
    assert QNetwork(BOX, TWO, encoder_config={"hidden_state_size": 64}, recurrent=True).encoder.num_layers == 1
    typed = QNetwork(BOX, TWO, encoder_config=LstmNetConfig(48, cell="GRU"), random_seed=0)
    assert typed.recurrent
    assert list(typed.initialize_hidden_state()) == ["encoder_h"]
    with pytest.raises(ValueError, match=r"^QNetwork is feed-forward and has no hidden state\. fix: recurrent=True\.$"):
        QNetwork(BOX, TWO).initialize_hidden_state()
    with pytest.raises(ConfigError, match="EvolvableLSTM reads vectors"):
        QNetwork(spaces.Box(0, 1, (3, 4, 8, 8)), TWO, recurrent=True)
    with pytest.raises(ConfigError, match="Did you mean 'hidden_state_size'"):
        QNetwork(BOX, TWO, encoder_config={"hidden_size": 64}, recurrent=True)
