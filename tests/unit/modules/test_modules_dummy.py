"""Any torch module among evolvable ones: what is mutated, what is refused, what is copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from agilerl.algorithms import DQN
from agilerl.errors import AgileRLWarning, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.modules import DummyEvolvable, EvolvableModule
from agilerl.networks import QNetwork
from agilerl.wrappers.make_evolvable import MakeEvolvable


class Plain(nn.Module):
    """A network that knows nothing of evolution."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(torch.as_tensor(x, dtype=torch.float32).reshape(-1, 4))


def test_a_copy_shares_nothing_and_keeps_buffers() -> None:
    network = MakeEvolvable(Plain(), input_tensor=torch.zeros(3, 4))
    network.module(torch.randn(16, 4))  # moves the running statistics
    twin = network.clone()
    assert isinstance(twin, MakeEvolvable)
    mine, theirs = network.state_dict(), twin.state_dict()
    assert all(torch.equal(mine[k], theirs[k]) and mine[k].data_ptr() != theirs[k].data_ptr() for k in mine)
    assert network.module.training
    assert network.mutation_methods == []


def test_a_spec_names_the_class_and_needs_the_code() -> None:
    network = DummyEvolvable(Plain())
    assert network.spec() == {"class": "DummyEvolvable", "module": f"{__name__}.Plain"}
    with pytest.raises(ConfigError, match="a spec does not hold its code"):
        DummyEvolvable.from_spec(network.spec())
    with pytest.raises(ConfigError, match=r"got .*Linear"):
        DummyEvolvable.from_spec(network.spec(), module=nn.Linear(2, 2))
    made = DummyEvolvable.from_spec(network.spec(), module_fn=Plain, module_kwargs={"outputs": 3})
    assert made.module.body[3].out_features == 3
    again = network.rebuilt(network.spec(), "cpu")
    assert again.module is not network.module
    again.load_state_dict(network.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(again.eval()(x), network.eval()(x))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"wraps a torch\.nn\.Module; got str"):
        MakeEvolvable("net")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a network"):
        MakeEvolvable()
    with pytest.raises(ConfigError, match="either module or module_fn"):
        DummyEvolvable()
    with pytest.raises(ShapeError, match=r"does not run on inputs of shape \[\(2, 3\)\]"):
        MakeEvolvable(nn.Linear(4, 1), input_tensor=torch.zeros(2, 3))


def test_an_agent_with_it_mutates_weights_and_nothing_else() -> None:
    box, two = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)
    agent = DQN(box, two, actor_network=MakeEvolvable(Plain()), seed=0)
    before = {k: v.clone() for k, v in agent.actor.state_dict().items()}
    kinds = (dict.fromkeys(("no_mutation", "new_layer_prob", "parameters", "activation", "rl_hp"), 0.0),)
    with pytest.warns(AgileRLWarning, match="it has no activation"):
        Mutations(**{**kinds[0], "architecture": 0, "activation": 1}, rand_seed=0).mutation([agent])
    assert agent.mut == "None"
    assert all(torch.equal(v, before[k]) for k, v in agent.actor.state_dict().items())
    Mutations(**{**kinds[0], "architecture": 0, "parameters": 1}, rand_seed=0).mutation([agent])
    assert agent.mut == "param"
    after = agent.actor.state_dict()
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert changed == {"module.body.0.weight", "module.body.3.weight"}  # weights, not the normalisation
    with pytest.warns(AgileRLWarning, match="leaves Plain as it is"):
        agent.actor.change_activation("ELU")


class Encoder(EvolvableModule):
    """A user's encoder class."""

    def __init__(self, num_inputs: int, num_outputs: int, device: str = "cpu", random_seed: int | None = None) -> None:
        super().__init__(device, random_seed)
        self.line = nn.Linear(num_inputs, num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


def test_a_network_is_rebuilt_with_its_own_encoder_class() -> None:
    net = QNetwork(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), encoder_cls=Encoder, random_seed=0)
    again = net.rebuilt(net.spec(), "cpu")
    assert type(again.encoder) is Encoder
    assert again.spec() == net.spec()
