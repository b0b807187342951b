"""Thousands of random mutations: limits, round trips, preserved functions, and where every entry goes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.modules import EvolvableMLP
from agilerl.modules.morph import Transfer, refit
from agilerl.networks import QNetwork

CYCLES = 2_000
CHAIN = 50  # mutations of one network, one after another
MLP_LIMITS = {"min_mlp_nodes": 16, "max_mlp_nodes": 128}
BOX = spaces.Box(-np.inf, np.inf, (5,))


def make(seed: int, activation: str, layer_norm: bool) -> QNetwork:
    rng = np.random.default_rng(seed)
    config = {"activation": activation, "layer_norm": layer_norm, **MLP_LIMITS}
    widths = [int(w) for w in rng.integers(8, 80, size=3)]
    net = QNetwork(
        BOX,
        spaces.Discrete(3),
        encoder_config={"hidden_size": widths[:2], **config},
        head_config={"hidden_size": widths[2:], "output_vanish": False, **config},
        latent_dim=int(rng.integers(9, 100)),
        random_seed=seed,
    )
    net = net.double()
    for p in net.parameters():  # biases of a net that has learned something
        p.data += 0.05 * torch.as_tensor(rng.standard_normal(tuple(p.shape)))
    return net


def is_exact(net: QNetwork, method: str) -> bool:
    """What docs/mutations.md calls exact."""
    if net.encoder.layer_norm or "remove" in method:
        return False
    return "node" in method or net.activation == "ReLU"


def check_limits(net: QNetwork, old: dict[str, Any]) -> None:
    assert 8 <= net.latent_dim <= 128
    assert net.encoder.num_outputs == net.latent_dim == net.head_net.num_inputs
    assert len(net.encoder.hidden_size) == 2  # encoder layers are not mutated
    assert 1 <= len(net.head_net.hidden_size) <= 3
    for part in (net.encoder, net.head_net):
        before = old[part.name if part.name == "head" else "encoder"]
        for i, width in enumerate(part.hidden_size):
            started = before[i] if i < len(before) else before[-1]
            assert 16 <= width <= 128 or width == started
        built = [m.out_features for n, m in part.model.named_children() if n.startswith("linear")]
        assert built == [*part.hidden_size, part.num_outputs]


def check_transfer(old: dict[str, torch.Tensor], net: QNetwork) -> None:
    """Every kept entry came from where the transfer says; all that changed is covered."""
    for name, parameter in net.named_parameters():
        transfer = net.last_transfer.get(name)
        if transfer is None:
            assert parameter.shape == old[name].shape, name
            if not net.last_refit:
                assert torch.equal(parameter, old[name]), name
            continue
        assert transfer.shape == tuple(parameter.shape)
        assert all(
            len(i) == 0 or i.max() < s for i, s in zip(transfer.index, old.get(name, parameter).shape, strict=True)
        )
        if name not in old or net.last_refit:
            continue
        grid = np.ix_(*transfer.index)
        kept = np.ones(transfer.shape, dtype=bool)
        for axis, index in enumerate(transfer.index):
            kept &= np.expand_dims(index >= 0, [d for d in range(len(transfer.index)) if d != axis])
        assert np.array_equal(parameter.detach().numpy()[kept], old[name].numpy()[grid][kept]), name


@pytest.mark.parametrize(
    "chain", [pytest.param(n, marks=() if n < 20 else pytest.mark.slow) for n in range(CYCLES // CHAIN)]
)
def test_random_mutations_keep_every_promise(chain: int) -> None:
    activation = ("ReLU", "ReLU", "Tanh", "GELU")[chain % 4]
    net = make(chain, activation, layer_norm=chain % 5 == 4)
    rng = np.random.default_rng(chain)
    x = torch.as_tensor(rng.standard_normal((16, 5)))
    for cycle in range(CHAIN):
        if cycle % 2:
            net.probe(torch.as_tensor(rng.standard_normal((48, 5))))
        else:
            net.probe(None)
        method = net.sample_mutation_method(0.3, rng)
        old = {n: p.detach().clone() for n, p in net.named_parameters()}
        widths = {"encoder": list(net.encoder.hidden_size), "head": list(net.head_net.hidden_size)}
        before = net(x).detach()
        net.apply_mutation(method)
        assert net.last_mutation_attr == method  # what is offered can be done
        assert {n: tuple(p.shape) for n, p in net.named_parameters()} != {n: tuple(p.shape) for n, p in old.items()}
        after = net(x).detach()
        assert after.isfinite().all()
        if is_exact(net, method):
            torch.testing.assert_close(after, before, atol=1e-10, rtol=1e-10)
        check_limits(net, widths)
        check_transfer(old, net)
        assert {p.dtype for p in net.parameters()} == {torch.float64}
        if cycle % 10 == 9:
            assert QNetwork.from_spec(json.loads(json.dumps(net.spec()))).spec() == net.spec()
            twin = net.clone()
            assert torch.equal(twin(x), after)
            mine, theirs = ({p.data_ptr() for p in n.parameters()} for n in (net, twin))
            assert not mine & theirs
            assert len(net.dense_stack().layers) == len(net.encoder.hidden_size) + len(net.head_net.hidden_size) + 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_transfer_equals_a_loop_over_entries(data: st.DataObject) -> None:
    old_shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    index = tuple(
        np.array(data.draw(st.lists(st.integers(-1, s - 1), min_size=1, max_size=5)), dtype=np.int64) for s in old_shape
    )
    transfer = Transfer(index)
    old = torch.arange(1.0, 1 + int(np.prod(old_shape))).reshape(old_shape)
    fresh = -torch.arange(1.0, 1 + int(np.prod(transfer.shape))).reshape(transfer.shape)
    kept_old, kept_fresh = old.clone(), fresh.clone()
    result = transfer.apply(old, fresh)
    for place in np.ndindex(*transfer.shape):
        source = tuple(int(i[p]) for i, p in zip(index, place, strict=True))
        assert result[place] == (fresh[place] if min(source) < 0 else old[source])
    assert torch.equal(old, kept_old)
    assert torch.equal(fresh, kept_fresh)
    assert torch.equal(transfer.apply(None, fresh), fresh)
    with pytest.raises(ValueError, match="must have shape"):
        transfer.apply(old, torch.zeros(9, 9, 9, 9))


def test_refit_recovers_a_linear_map_and_leaves_a_perfect_one_alone() -> None:
    g = torch.Generator().manual_seed(0)
    phi, w, b = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((64, 6), (3, 6), (3,)))
    target = phi @ w.T + b
    weight, bias = refit(phi, target, torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3), ridge=1e-10)
    torch.testing.assert_close(weight, w, atol=1e-8, rtol=0)
    torch.testing.assert_close(bias.double(), b, atol=1e-6, rtol=0)
    weight, bias = refit(phi, target, w, b, ridge=1.0)
    torch.testing.assert_close(weight, w, atol=1e-12, rtol=0)


def test_refit_beats_removal_without_it() -> None:
    """The reason for the refit: on inputs it has not seen, it undoes most of the damage."""
    ratios = []
    for seed in range(10):
        net = EvolvableMLP(5, 3, [64, 64], random_seed=seed, output_vanish=False).double()
        g = torch.Generator().manual_seed(seed)
        fit, x = (torch.randn(256, 5, generator=g, dtype=torch.float64) for _ in range(2))
        before = net(x)
        plain, refitted = net.clone(), net.clone()
        refitted.probe(fit)
        for twin in (plain, refitted):
            twin.remove_node(1, 16)
        errors = [float((t(x) - before).detach().norm()) for t in (refitted, plain)]
        ratios.append(errors[0] / errors[1])
    assert max(ratios) < 0.5
