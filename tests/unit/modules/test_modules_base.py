"""The evolvable base: surface of methods, sampling, limits, records, records of user modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agilerl.errors import ConfigError
from agilerl.modules import (
    DummyEvolvable,
    EvolvableMLP,
    EvolvableModule,
    EvolvableWrapper,
    ModuleDict,
    MutationType,
    mutation,
)
from agilerl.modules.activations import ACTIVATIONS, activation
from agilerl.modules.layers import dense, noisy_dense


class Widening(EvolvableModule):
    """A user's module: one linear layer whose width doubles."""

    def __init__(self, width: int, device: str = "cpu") -> None:
        super().__init__(device, random_seed=0)
        self.width, self.calls = width, []
        self.line = nn.Linear(2, width)

    @mutation(MutationType.NODE, shrink=True)
    def double(self) -> dict[str, int]:
        self.width *= 2
        return {"numb_new_nodes": self.width // 2}

    @mutation(MutationType.LAYER)
    def fall_back(self) -> dict[str, int]:
        return self.double()

    def recreate_network(self, **kwargs: Any) -> None:
        self.calls.append(kwargs)
        self.line = nn.Linear(2, self.width)


class ListChoice:
    """All that a replaced generator must have: `choice` that returns a list of one element."""

    def __init__(self, index: int = 1) -> None:
        self.index = index

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> list[Any]:
        return [a[self.index]]


def test_user_module_is_recreated_once_with_the_given_arguments_and_its_dict_is_returned() -> None:
    module = Widening(4)
    assert module.double() == {"numb_new_nodes": 4}
    assert module.calls == [{"shrink": True}]
    assert module.last_mutation_attr == "double"
    transfer = module.last_transfer["line.weight"]
    assert [i.tolist() for i in transfer.index] == [[0, 1, 2, 3, -1, -1, -1, -1], [0, 1]]
    assert module.init_dict == {"width": 8, "device": "cpu", "random_seed": 0}


def test_fall_back_reports_the_mutation_that_was_applied() -> None:
    module = Widening(4)
    module.fall_back()
    assert module.last_mutation_attr == "double"
    assert len(module.calls) == 1


def test_names_of_nested_modules_are_dotted_and_their_records_prefixed() -> None:
    both = ModuleDict()
    both["a"], both["b"] = EvolvableMLP(3, 2, [64], random_seed=1), Widening(4)
    assert both.layer_mutation_methods == ["a.add_layer", "a.remove_layer", "b.fall_back"]
    assert both.node_mutation_methods == ["a.add_node", "a.remove_node", "b.double"]
    assert both.modules() == {"a": both["a"], "b": both["b"]}
    result = both.get_mutation_methods()["a.add_node"](numb_new_nodes=16)
    assert result == {"hidden_layer": 0, "numb_new_nodes": 16}
    assert both.last_mutation_attr == "a.add_node"
    assert "a.model.linear_0.weight" in both.last_transfer
    with pytest.raises(ConfigError, match=r"Did you mean 'a\.add_node'"):
        both.apply_mutation("a.ad_node")


def test_overriding_modules_does_not_break_torch() -> None:
    both = ModuleDict()
    both["a"] = EvolvableMLP(3, 2, [8], random_seed=1)
    both.eval()
    assert not both["a"].model.training
    assert len(list(both.parameters())) == 4
    twin = both.clone()
    twin.load_state_dict(both.state_dict())
    both.double().apply(lambda m: None).requires_grad_(False)
    assert {p.dtype for p in both.parameters()} == {torch.float64}


def test_sampling_probabilities_and_a_generator_with_choice_only() -> None:
    net = EvolvableMLP(3, 2, [64, 64], random_seed=1)
    assert net.get_mutation_probs(0.2) == [0.1, 0.1, 0.4, 0.4]
    assert net.sample_mutation_method(0.2, ListChoice(1)) == "remove_layer"
    drawn = [net.sample_mutation_method(0.5, np.random.default_rng(s)) for s in range(400)]
    assert 150 < sum(d in net.layer_mutation_methods for d in drawn) < 250


def test_methods_at_their_limit_are_not_offered_and_change_nothing_when_called() -> None:
    net = EvolvableMLP(3, 2, [40], max_hidden_layers=1, max_mlp_nodes=50, random_seed=1)
    assert not any(net.can_apply(m) for m in net.mutation_methods)
    assert net.sample_mutation_method(0.5) is None
    before = {k: v.clone() for k, v in net.state_dict().items()}
    assert net.add_node() == {"hidden_layer": 0, "numb_new_nodes": 0}
    assert net.remove_node(0, 32)["numb_new_nodes"] == 0
    net.add_layer()
    net.remove_layer()
    assert net.last_mutation_attr is None
    assert net.last_transfer == {}
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_disabled_kinds_disappear_and_none_left_is_an_error() -> None:
    net = EvolvableMLP(3, 2, [64], random_seed=1)
    net.disable_mutations(MutationType.LAYER)
    assert net.mutation_methods == ["add_node", "remove_node"]
    net.disable_mutations()
    with pytest.raises(ValueError, match="No mutation methods available"):
        net.sample_mutation_method(0.5)
    with pytest.raises(ValueError, match="Invalid mutation type"):
        net.disable_mutations("layer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="No mutation methods available"):
        DummyEvolvable(nn.Linear(2, 2)).sample_mutation_method(0.5)


def test_rng_reaches_sub_modules_and_survives_clone() -> None:
    both = ModuleDict()
    both["a"] = EvolvableMLP(3, 2, [64], random_seed=1)
    both.rng = stub = ListChoice()
    assert both["a"].rng is stub
    assert isinstance(both.clone()["a"].rng, ListChoice)


def test_clone_draws_the_same_but_shares_nothing() -> None:
    net = EvolvableMLP(3, 2, [64, 64], random_seed=1)
    net.probe(torch.randn(8, 3))
    twin = net.clone()
    assert twin.probe_inputs is None
    mine, theirs = ({p.data_ptr() for p in n.parameters()} for n in (net, twin))
    assert not mine & theirs
    assert net.add_node() == twin.add_node()


def test_wrapper_offers_the_names_of_what_it_wraps() -> None:
    wrapper = EvolvableWrapper(EvolvableMLP(3, 2, [64], random_seed=1))
    assert wrapper.mutation_methods == wrapper.wrapped.mutation_methods
    wrapper.apply_mutation("add_node", numb_new_nodes=16)
    assert wrapper.last_mutation_attr == "add_node"
    assert "wrapped.model.linear_0.weight" in wrapper.last_transfer
    assert wrapper(torch.zeros(1, 3)).shape == (1, 2)


def test_unknown_activation_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ReLU'"):
        activation("Relu")
    with pytest.raises(
        ConfigError, match=r"^'Softmax' is for outputs; hidden layers take ReLU, ELU, .*, Identity\. fix: ReLU\.$"
    ):
        EvolvableMLP(2, 2, [4], activation="Softmax")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_function_module_backward_and_zero_agree(name: str) -> None:
    entry = ACTIVATIONS[name]
    x = torch.linspace(-3, 3, 41, dtype=torch.float64).reshape(1, 41).requires_grad_()
    y = entry.function(x)
    torch.testing.assert_close(entry.module()(x), y)
    assert entry.zero_at_zero == bool((entry.function(torch.zeros(1, 3)) == 0).all())
    torch.testing.assert_close(entry.in_place(x.detach().clone()), y.detach())
    if entry.pointwise:
        weight = torch.linspace(-1, 2, 41, dtype=torch.float64).reshape(1, 41)
        (slope,) = torch.autograd.grad(y, x, weight)
        saved = x if entry.needs_input else y
        torch.testing.assert_close(entry.backward(weight, saved.detach()), slope)


def test_stacked_layers_equal_each_member_alone() -> None:
    g = torch.Generator().manual_seed(0)
    shapes = ((3, 5, 4), (3, 2, 4), (3, 2), (3, 2))
    x, w, b, n = (torch.randn(*s, generator=g, dtype=torch.float64) for s in shapes)
    sigma, bias_sigma = w.abs(), b.abs()
    e_in, e_out = x[:, 0], n
    stacked = dense(x, w, b)
    noisy = noisy_dense(x, w, b, sigma, bias_sigma, e_in, e_out)
    for i in range(3):
        torch.testing.assert_close(dense(x[i], w[i], b[i]), stacked[i])
        alone = noisy_dense(x[i], w[i], b[i], sigma[i], bias_sigma[i], e_in[i], e_out[i])
        torch.testing.assert_close(alone, noisy[i])
    torch.testing.assert_close(dense(x, w, None)[1], x[1] @ w[1].T)
