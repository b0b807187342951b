"""GPT and BERT: the formula, who sees whom, exact growth, what removal costs, and texts that are written on."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.modules import EvolvableBERT, EvolvableGPT
from agilerl.modules.gpt import write_on

KINDS = pytest.mark.parametrize("kind", [EvolvableGPT, EvolvableBERT])
SIZES: dict[str, Any] = {
    "n_layer": 2, "vocab_size": 11, "n_embd": 16, "n_head": 2, "dim_feedfwd": 32, "block_size": 12, "min_layers": 1,
    "max_layers": 4, "max_mlp_nodes": 128,
}  # fmt: skip


def random_net(kind: Any = EvolvableGPT, seed: int = 0, **arguments: Any) -> Any:
    """With biases and scales as of a net that has learned something, in float64."""
    net = kind(**{**SIZES, **arguments}, random_seed=seed).double()
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.data += 0.2 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return net


def texts(count: int = 5, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(0, 11, (count, length), generator=torch.Generator().manual_seed(seed))


@KINDS
def test_forward_is_the_formula_written_out_head_by_head(kind: Any) -> None:
    net, x = random_net(kind), texts(3, 7)
    p = {name: parameter.detach() for name, parameter in net.model.named_parameters()}

    def norm(name: str, z: Tensor) -> Tensor:
        return F.layer_norm(z, (16,), p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    for text, got in zip(x, net(x).detach(), strict=True):
        z = p["tokens.weight"][text] + p["positions.weight"][:7]
        for k in range(2):
            made = norm(f"block_{k}_norm_1", z) @ p[f"block_{k}_qkv.weight"].T + p[f"block_{k}_qkv.bias"]
            heads = []
            for h in range(2):
                q, key, value = (made[:, 16 * part + 8 * h : 16 * part + 8 * (h + 1)] for part in range(3))
                scores = q @ key.T / math.sqrt(8)
                if kind is EvolvableGPT:
                    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
                heads.append(scores.softmax(-1) @ value)
            z = z + torch.cat(heads, -1) @ p[f"block_{k}_mix.weight"].T + p[f"block_{k}_mix.bias"]
            y = norm(f"block_{k}_norm_2", z) @ p[f"block_{k}_mlp_0.weight"].T + p[f"block_{k}_mlp_0.bias"]
            z = z + F.gelu(y) @ p[f"block_{k}_mlp_1.weight"].T + p[f"block_{k}_mlp_1.bias"]
        expected = norm("norm_output", z) @ p["linear_output.weight"].T + p["linear_output.bias"]
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


def test_what_comes_later_changes_nothing_before_it_in_a_decoder_and_everything_in_an_encoder() -> None:
    x = texts()
    other = x.clone()
    other[:, 5] = (other[:, 5] + 1) % 11
    decoder, encoder = random_net(EvolvableGPT), random_net(EvolvableBERT)
    assert torch.equal(decoder(x)[:, :5], decoder(other)[:, :5])
    assert ((decoder(x) - decoder(other)).abs().amax(-1)[:, 5:] > 1e-6).all()
    assert ((encoder(x) - encoder(other)).abs().amax(-1) > 1e-6).all()


@KINDS
def test_what_is_not_present_is_not_seen(kind: Any) -> None:
    net, x = random_net(kind), texts()
    present = torch.ones(x.shape, dtype=torch.bool)
    present[:, 6:] = False
    torch.testing.assert_close(net(x, present)[:, :6], net(x[:, :6]), atol=1e-12, rtol=1e-12)


@KINDS
@pytest.mark.parametrize("tied", [False, True])
def test_growth_is_exact_and_the_new_parts_learn(kind: Any, tied: bool) -> None:
    net, x = random_net(kind, tied=tied), texts(20)
    for method, arguments in (("add_node", (16,)), ("add_layer", ()), ("add_node", (64,)), ("add_layer", ())):
        before = net(x).detach()
        getattr(net, method)(*arguments)
        assert net.last_mutation_attr == method
        torch.testing.assert_close(net(x), before, atol=1e-12, rtol=1e-12)
    assert (net.n_layer, net.dim_feedfwd) == (4, 112)
    net(x).pow(2).sum().backward()
    assert net.model["block_0_mlp_1"].weight.grad[:, -1].any(), "of new hidden units"
    assert net.model["block_3_mix"].weight.grad.any(), "of the new block"


def test_published_freshness_changes_the_function() -> None:
    net, x = random_net(), texts(20)
    net.fresh = "random"
    before = net(x).detach()
    net.add_layer()
    assert (net(x) - before).norm() > 1e-3 * before.norm()


@KINDS
def test_removal_takes_the_least_important_units_and_refits(kind: Any) -> None:
    for seed in range(3):
        net, x = random_net(kind, seed), texts(60, seed=seed)
        net.add_node(64)  # units that nothing reads yet
        twin, before = net.clone(), net(x).detach()
        twin.remove_node(64)
        torch.testing.assert_close(twin(x), before, atol=1e-12, rtol=1e-12)
        assert twin.dim_feedfwd == 32
        errors = []
        for probed in (True, False):
            twin = net.clone()
            if probed:
                twin.probe(texts(60, seed=100 + seed))
            twin.remove_layer()
            errors.append(float((twin(x) - before).detach().norm() / before.norm()))
            assert (twin.n_layer, twin.last_refit) == (1, probed)
        assert errors[0] < 0.8 * errors[1]


def test_limits_hold_and_are_reported() -> None:
    net = EvolvableGPT(**{**SIZES, "n_layer": 1, "max_layers": 1, "min_mlp_nodes": 32, "max_mlp_nodes": 32})
    for method in ("add_layer", "remove_layer", "add_node", "remove_node"):
        assert not net.can_apply(method)
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        getattr(net, method)()
        assert net.last_mutation_attr is None
        assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert net.sample_mutation_method(0.5) is None
    roomy = EvolvableGPT(**SIZES)
    assert roomy.add_node(200) == {"numb_new_nodes": 0}
    assert roomy.add_node(96) == {"numb_new_nodes": 96}
    assert not roomy.can_apply("add_node")


@KINDS
def test_copies_and_weights_go_round(kind: Any) -> None:
    net, x = random_net(kind), texts()
    net.add_node(16)
    twin = net.clone()
    assert torch.equal(twin(x), net(x))
    assert not {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in twin.parameters()}
    again = kind.from_spec(json.loads(json.dumps(net.spec()))).double()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), net(x))
    assert again.spec() == net.spec()


def test_the_seed_alone_decides_the_first_weights() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (EvolvableGPT(**SIZES, random_seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator is not touched"
    assert torch.equal(one(texts()), same(texts()))
    assert not torch.equal(one(texts()), other(texts()))
    assert float(one.model["tokens"].weight.detach().std()) == pytest.approx(0.02, rel=0.15)


def test_writing_on_with_a_cache_is_writing_on_without_one_also_for_texts_of_unequal_length() -> None:
    net, x = random_net(), texts(6)
    lengths = torch.tensor([9, 4, 1, 7, 2, 9])

    def choose(outputs: Any) -> Tensor:
        return outputs[0].argmax(-1)  # type: ignore[no-any-return]

    written = write_on([net], x, lengths, 3, choose)
    for text, length, got in zip(x, lengths.tolist(), written, strict=True):
        known = text[None, :length]
        for _ in range(3):
            known = torch.cat((known, net(known)[:, -1].argmax(-1, keepdim=True)), 1)
        assert known[0, length:].tolist() == got.tolist()


def test_outputs_with_a_cache_are_those_of_one_pass() -> None:
    net, x = random_net(), texts(4, 10)
    cache = net.new_cache(4, 12)
    place = torch.arange(10).expand(4, -1)
    parts = [net.finish(net.read_on(x[:, a:b], place[:, a:b], cache)) for a, b in ((0, 4), (4, 5), (5, 10))]
    torch.testing.assert_close(torch.cat(parts, 1), net(x), atol=1e-12, rtol=1e-12)


def test_generate_draws_as_often_as_the_probabilities_say_and_from_the_most_probable_alone() -> None:
    net = random_net()
    start = texts(1, 4).expand(4000, -1)
    share = net(start[:1])[0, -1].softmax(-1)
    drawn = net.generate(start, 1, generator=torch.Generator().manual_seed(2))[:, -1]
    counts = torch.bincount(drawn, minlength=11) / 4000
    assert float((counts - share).abs().max()) < 4 * 0.5 / math.sqrt(4000)  # four standard errors at most
    best = set(share.topk(2).indices.tolist())
    few = net.generate(start, 1, top_k=2, generator=torch.Generator().manual_seed(3))[:, -1]
    assert set(few.tolist()) == best
    assert net.generate(start[:1], 1, temperature=0.0)[0, -1] == share.argmax()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_head": 3}, ConfigError, "n_embd .* must be a multiple of n_head .* got 16 and 3. fix: n_embd=18"),
        ({"dropout": 0.1}, NotAvailableYetError, "dropout=0.1 draws from no named stream"),
        ({"bias": False}, NotAvailableYetError, "fix: bias=True"),
        ({"tied": True, "num_outputs": 5}, ConfigError, "fix: tied=False"),
        ({"activation": "Gelu"}, ConfigError, "GELU"),
        ({"min_layers": 5}, ConfigError, "limits of layers"),
    ],
)
def test_what_cannot_be_built_is_named(arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        EvolvableGPT(**{**SIZES, **arguments})


def test_texts_that_are_too_long_are_named() -> None:
    net = random_net()
    with pytest.raises(ConfigError, match=r"at most block_size=12; got \[2, 13\]"):
        net(texts(2, 13))
    with pytest.raises(ConfigError, match=r"a text of 9 tokens cannot go on for 5 more: block_size is 12"):
        net.generate(texts(), 5, temperature=0.0)
    with pytest.raises(ConfigError, match="fix: generator="):
        net.generate(texts(), 1)
