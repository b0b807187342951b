"""Thousands of random mutations of every kind of module: limits, exact growth, where every entry goes, round trips."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.modules import (
    EvolvableBERT,
    EvolvableCNN,
    EvolvableGPT,
    EvolvableLSTM,
    EvolvableModule,
    EvolvableMultiInput,
    EvolvableResNet,
    EvolvableSimBa,
)
from agilerl.networks import QNetwork
from agilerl.networks.observations import sample_batch

FAST, SLOW, CHAIN = 300, 5_000, 25  # mutations in all; of one module, one after another
PARTS = spaces.Dict(
    image=spaces.Box(0, 1, (2, 8, 8)), speed=spaces.Box(-1, 1, (3,)),
    pair=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (4,)))),
)  # fmt: skip
Inputs = Callable[[np.random.Generator, int], Any]


def vectors(width: int) -> Inputs:
    return lambda rng, count: torch.as_tensor(rng.standard_normal((count, width)))


def images(*shape: int) -> Inputs:
    return lambda rng, count: torch.as_tensor(rng.random((count, *shape)))


def parts(rng: np.random.Generator, count: int) -> Any:
    return {
        "image": images(2, 8, 8)(rng, count),
        "speed": vectors(3)(rng, count),
        "pair": {"tuple_obs_0": vectors(2)(rng, count), "tuple_obs_1": vectors(4)(rng, count)},
    }


def sequences(rng: np.random.Generator, count: int) -> Any:
    return torch.as_tensor(rng.standard_normal((count, 3, 4)))


def cnn(kind: str, *shape: int, **options: Any) -> Callable[[int], EvolvableCNN]:
    limits = {"min_channel_size": 8, "max_channel_size": 40, "max_hidden_layers": 4}
    return lambda seed: EvolvableCNN(
        shape, 3, [16, 16], [3, 2], [2, 1], block_type=kind, random_seed=seed, **limits, **options
    )


def lstm(cell: str) -> Callable[[int], EvolvableLSTM]:
    return lambda seed: EvolvableLSTM(4, 32, 3, cell=cell, max_hidden_state_size=96, random_seed=seed)


def text(kind: Any) -> Callable[[int], Any]:
    return lambda seed: kind(1, 9, 16, 2, 32, 5, min_layers=1, max_layers=3, max_mlp_nodes=96, random_seed=seed)


def tokens(rng: np.random.Generator, count: int) -> Any:
    return torch.as_tensor(rng.integers(0, 9, (count, 5)))


def several(joined: bool) -> Callable[[int], EvolvableMultiInput]:
    small = {"cnn_config": {"channel_size": [16], "max_channel_size": 32}, "mlp_config": {"hidden_size": [32]}}
    return lambda seed: EvolvableMultiInput(
        PARTS,
        3,
        16,
        joined,
        max_latent_dim=64,
        random_seed=seed,
        **small,  # type: ignore[arg-type]
    )


KINDS: dict[str, tuple[Callable[[int], Any], Inputs]] = {
    "simba": (lambda seed: EvolvableSimBa(4, 3, 32, 1, max_mlp_nodes=96, random_seed=seed), vectors(4)),
    "cnn1": (cnn("Conv1d", 2, 24), images(2, 24)),
    "cnn2": (cnn("Conv2d", 2, 13, 12), images(2, 13, 12)),
    "cnn2 tanh": (cnn("Conv2d", 2, 13, 12, activation="Tanh"), images(2, 13, 12)),
    "cnn2 norm": (cnn("Conv2d", 2, 13, 12, layer_norm=True), images(2, 13, 12)),
    "cnn3": (cnn("Conv3d", 2, 9, 8, 9), images(2, 9, 8, 9)),
    "resnet": (
        lambda seed: EvolvableResNet((2, 11, 10), 3, 16, num_blocks=1, max_channel_size=40, random_seed=seed),
        images(2, 11, 10),
    ),
    "lstm": (lstm("LSTM"), sequences),
    "gru": (lstm("GRU"), sequences),
    "gpt": (text(EvolvableGPT), tokens),
    "bert": (text(EvolvableBERT), tokens),
    "parts": (several(False), parts),
    "parts joined": (several(True), parts),
}


def run(module: Any, x: Any) -> torch.Tensor:
    if isinstance(module, EvolvableLSTM):
        return module(x, module.initial_hidden_state(len(x)))[0].detach()
    return module(x).detach()


def owner(module: EvolvableModule, path: str) -> Any:
    for key in path.split(".")[:-1]:
        module = module.modules()[key]
    return module


def is_exact(module: Any, name: str, before: dict[str, Any]) -> bool:
    """What docs/mutations.md calls exact."""
    part, method = owner(module, name), name.rsplit(".", 1)[-1]
    if "remove" in method or getattr(part, "layer_norm", False):
        return False
    if method == "add_layer":
        is_residual = isinstance(part, EvolvableGPT | EvolvableBERT)
        return is_residual or (not isinstance(part, EvolvableLSTM) and part.activation == "ReLU")
    if method == "change_kernel":
        return all(np.max(n) >= np.max(o) for n, o in zip(part.kernel_size, before["kernel_size"], strict=True))
    return True


def check_limits(module: EvolvableModule) -> None:
    for part in module.evolvable_modules():
        state = vars(part)
        for size, low, high in (
            ("n_layer", "min_layers", "max_layers"), ("dim_feedfwd", "min_mlp_nodes", "max_mlp_nodes"),
            ("num_blocks", "min_blocks", "max_blocks"), ("num_layers", "min_layers", "max_layers"),
            ("channel_size", "min_channel_size", "max_channel_size"),
            ("latent_dim", "min_latent_dim", "max_latent_dim"),
            ("hidden_state_size", "min_hidden_state_size", "max_hidden_state_size"),
            ("hidden_size", "min_mlp_nodes", "max_mlp_nodes"),
        ):  # fmt: skip
            if size in state:
                values = state[size] if isinstance(state[size], list) else [state[size]]
                assert all(state[low] <= v <= state[high] for v in values), (size, values)
        if isinstance(part, EvolvableCNN):
            assert all(min(size) >= 1 for size in part.geometry.sizes)
            assert part.min_hidden_layers <= len(part.channel_size) <= part.max_hidden_layers


def check_entries(module: EvolvableModule, old: dict[str, torch.Tensor]) -> None:
    """Every entry came from where the transfer says; without a refit nothing that was kept has changed."""
    for name, parameter in module.named_parameters():
        transfer = module.last_transfer.get(name)
        if transfer is None:
            assert parameter.shape == old[name].shape, name
            assert module.last_refit or torch.equal(parameter, old[name]), name
            continue
        assert transfer.shape == tuple(parameter.shape)
        if name not in old:
            assert all((index < 0).any() or len(index) == 0 for index in transfer.index[:1]), name
            continue
        if not module.last_refit:
            expected = transfer.apply(old[name], parameter)
            assert torch.equal(expected, parameter), name


def one_chain(kind: str, chain: int) -> None:
    make, draw = KINDS[kind]
    rng = np.random.default_rng(chain)
    module = make(chain).double()
    for p in module.parameters():  # biases of a net that has learned something
        p.data += 0.05 * torch.as_tensor(rng.standard_normal(tuple(p.shape)))
    x = draw(rng, 6)
    for cycle in range(CHAIN):
        module.probe(draw(rng, 24) if cycle % 2 else None)
        name = module.sample_mutation_method(0.4, rng)
        old = {n: p.detach().clone() for n, p in module.named_parameters()}
        shapes = {n: p.shape for n, p in old.items()}
        part_before = {k: v for k, v in vars(owner(module, name)).items() if k == "kernel_size"}
        before = run(module, x)
        module.apply_mutation(name)
        assert module.last_mutation_attr == name  # what is offered can be done
        after = run(module, x)
        assert after.isfinite().all()
        assert {n: p.shape for n, p in module.named_parameters()} != shapes
        if is_exact(module, name, part_before):
            torch.testing.assert_close(after, before, atol=1e-10, rtol=1e-10)
        check_limits(module)
        check_entries(module, old)
        if cycle % 8 == 7:
            check_copies(module, x, after)


def check_copies(module: Any, x: Any, output: torch.Tensor) -> None:
    twin = module.clone()
    assert torch.equal(run(twin, x), output)
    mine, theirs = ({p.data_ptr() for p in m.parameters()} for m in (module, twin))
    assert not mine & theirs
    again = type(module).from_spec(module.spec(), random_seed=1).double()
    assert again.spec() == module.spec()
    assert json.dumps(again.net_config) == json.dumps(module.net_config)
    again.load_state_dict(module.state_dict())
    torch.testing.assert_close(run(again, x), output, atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_random_mutations_keep_every_promise(kind: str) -> None:
    for chain in range(FAST // CHAIN // len(KINDS) + 1):
        one_chain(kind, chain)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_random_mutations_keep_every_promise(kind: str) -> None:
    for chain in range(100, 100 + SLOW // CHAIN // len(KINDS) + 1):
        one_chain(kind, chain)


# -- networks over every space ---------------------------------------------------------------------------------------

SPACES: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "vector": (spaces.Box(-1, 1, (4,)), {}),
    "simba": (spaces.Box(-1, 1, (4,)), {"simba": True, "encoder_config": {"hidden_size": 32}}),
    "recurrent": (spaces.Box(-1, 1, (4,)), {"recurrent": True, "encoder_config": {"hidden_state_size": 48}}),
    "discrete": (spaces.Discrete(5), {}),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), {}),
    "image": (spaces.Box(0, 255, (10, 10, 3), np.uint8), {"encoder_config": {"channel_size": [16, 16]}}),
    "residual": (spaces.Box(0, 255, (10, 10, 3), np.uint8), {"encoder_config": {"channel_size": 16, "num_blocks": 1}}),
    "dict": (
        spaces.Dict(a=spaces.Box(0, 255, (3, 8, 8), np.uint8), b=spaces.Discrete(3), c=spaces.Box(-1, 1, (2,))),
        {"encoder_config": {"cnn_config": {"channel_size": [16]}}},
    ),
    "tuple": (spaces.Tuple((spaces.MultiBinary(3), spaces.Box(-1, 1, (2,)))), {}),
}


@pytest.mark.parametrize("kind", SPACES)
def test_a_network_over_every_space_evolves(kind: str) -> None:
    space, options = SPACES[kind]
    rng = np.random.default_rng(len(kind))
    net = QNetwork(space, spaces.Discrete(3), random_seed=0, **options).double()
    x = sample_batch(space, 5, rng)
    exact = 0
    for cycle in range(20):
        net.probe(sample_batch(space, 24, rng) if cycle % 2 else None)
        name = net.sample_mutation_method(0.2, rng)
        old, before = {n: p.detach().clone() for n, p in net.named_parameters()}, net(x).detach()
        net.apply_mutation(name)
        assert net.last_mutation_attr == name
        if "add" in name:
            torch.testing.assert_close(net(x).detach(), before, atol=1e-10, rtol=1e-10)
            exact += 1
        assert 8 < net.latent_dim < 128
        check_entries(net, old)
    assert exact > 4
    twin = net.clone()
    assert torch.equal(twin(x), net(x))
    assert not {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in twin.parameters()}
    again = QNetwork.from_spec(json.loads(json.dumps(net.spec())), random_seed=1).double()
    assert again.spec() == net.spec()
    again.load_state_dict(net.state_dict())
    torch.testing.assert_close(again(x), net(x), atol=0, rtol=0)
    net.change_activation("GELU")
    assert net(x).isfinite().all()


class IndexOne:
    """What a replaced generator must have: `choice` that gives its second option in a list, and seeded `integers`."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(0)

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> list[Any]:
        return [a[1]]

    def integers(self, low: int, high: int) -> int:
        return int(self.draws.integers(low, high))


@pytest.mark.parametrize("kind", SPACES)
def test_no_method_of_a_default_network_is_a_no_op(kind: str) -> None:
    space, options = SPACES[kind]
    switches = {k: v for k, v in options.items() if k in ("simba", "recurrent")}
    head = {"hidden_size": [64, 64]}
    net = QNetwork(space, spaces.Discrete(3), head_config=head, random_seed=0, **switches)
    for name in net.mutation_methods:
        twin = net.clone()
        twin.rng = IndexOne()
        twin.apply_mutation(name)
        assert twin.last_mutation_attr == name
        old, new = net.state_dict(), twin.state_dict()
        assert set(old) != set(new) or any(old[k].shape != new[k].shape for k in old)
