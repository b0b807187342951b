"""OptimizerWrapper: names found on assignment, torch's own steps, moments that follow a mutation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import NetworkGroup
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import Transfer

CLASSES: list[Any] = [
    (optim.Adam, {}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {"weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (optim.SGD, {}),
    (optim.RMSprop, {"momentum": 0.5}),
    (optim.Adagrad, {}),
    (optim.NAdam, {}),
]


class Algorithm(EvolvableAlgorithm):
    def __init__(self, cls: Any = optim.Adam, options: dict[str, Any] | None = None, **names: Any) -> None:
        super().__init__()
        self.lr = 1e-2
        self.actor = EvolvableMLP(3, 2, [8], random_seed=1)
        self.critic = EvolvableMLP(3, 1, [8], random_seed=2)
        self.optimizer = OptimizerWrapper(cls, [self.actor, self.critic], self.lr, options, **names)
        self.register_network_group(NetworkGroup(self.actor, policy=True))
        self.register_network_group(NetworkGroup(self.critic))


def step(agent: Algorithm, optimizer: Any = None, seed: int = 0) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    optimizer = agent.optimizer if optimizer is None else optimizer
    optimizer.zero_grad()
    (agent.actor(x).pow(2).sum() + agent.critic(x).sum()).backward()
    optimizer.step()


def weights(agent: Algorithm) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for m in (agent.actor, agent.critic) for p in m.parameters()])


@pytest.mark.parametrize(("cls", "options"), CLASSES, ids=str)
def test_steps_are_those_of_the_torch_optimiser(cls: Any, options: dict[str, Any]) -> None:
    agent = Algorithm(cls, options)
    twin = copy.deepcopy(agent)
    groups = [{"params": list(m.parameters())} for m in (twin.actor, twin.critic)]
    plain = cls(groups, lr=1e-2, **options)
    for i in range(10):
        step(agent, seed=i)
        step(twin, plain, seed=i)
    torch.testing.assert_close(weights(agent), weights(twin), rtol=1e-5, atol=1e-6)
    assert isinstance(agent.optimizer.optimizer, cls)


def test_names_of_networks_and_learning_rate_are_found_on_assignment() -> None:
    agent = Algorithm()
    assert (agent.optimizer.network_names, agent.optimizer.lr_name) == (["actor", "critic"], "lr")
    (entry,) = agent.registry.optimizers
    assert (entry.name, entry.networks, entry.lr) == ("optimizer", ["actor", "critic"], "lr")


def test_a_learning_rate_that_cannot_be_told_apart_is_an_error_with_the_candidates() -> None:
    class Two(EvolvableAlgorithm):
        def __init__(self, **names: Any) -> None:
            super().__init__()
            self.lr_actor, self.lr_critic = 0.5, float("0.5")
            self.actor = EvolvableMLP(3, 2, [8])
            self.optimizer = OptimizerWrapper(optim.Adam, self.actor, lr=float("5e-1"), **names)

    with pytest.raises(AttributeError, match=r"candidates: \['lr_actor', 'lr_critic'\]. fix: .*lr_name='lr'"):
        Two()
    agent = Two(lr_name="lr_critic")
    agent.lr_actor = 0.1
    assert agent.optimizer.param_groups[0]["lr"] == 0.5
    agent.lr_critic = 0.2
    assert agent.optimizer.param_groups[0]["lr"] == 0.2


def test_a_network_that_is_no_attribute_is_named_with_the_fix() -> None:
    class Lost(EvolvableAlgorithm):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.1
            self.optimizer = OptimizerWrapper(optim.Adam, EvolvableMLP(3, 2, [8]), self.lr)

    with pytest.raises(AttributeError, match=r"is not an attribute of Lost. fix: assign it first"):
        Lost()


@pytest.mark.parametrize("given", [[], "actor", [nn.Linear(1, 1), None]])
def test_what_is_no_network_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a network or a list of networks.* fix: OptimizerWrapper"):
        OptimizerWrapper(optim.Adam, given, 0.1)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), 1])
def test_setting_the_attribute_reaches_every_group_and_keeps_the_moments(value: Any) -> None:
    agent = Algorithm()
    step(agent)
    before = agent.optimizer.state_dict()["state"]
    agent.lr = value
    assert [g["lr"] for g in agent.optimizer.param_groups] == [value, value]
    after = agent.optimizer.state_dict()["state"]
    assert all(torch.equal(after[k]["exp_avg"], before[k]["exp_avg"]) for k in before)


def test_state_dicts_share_nothing_in_either_direction() -> None:
    agent, other = Algorithm(), Algorithm()
    step(agent)
    state = agent.optimizer.state_dict()
    other.optimizer.load_state_dict(state)
    held = copy.deepcopy(state)
    step(agent)
    step(other, seed=3)
    for key, entry in state["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, held["state"][key][name]), (key, name)
    for entry in state["state"].values():
        entry["exp_avg"].fill_(1e6)
    before = weights(agent)
    step(agent)
    assert (weights(agent) - before).abs().max() < 1, "the live moments were reached from outside"


@pytest.mark.parametrize(("cls", "options"), CLASSES, ids=str)
def test_a_changed_network_keeps_moments_step_count_and_options(cls: Any, options: dict[str, Any]) -> None:
    agent = Algorithm(cls, options)
    for i in range(3):
        step(agent, seed=i)
    agent.optimizer.param_groups[0]["weight_decay"] = 0.25
    before = {n: dict(agent.optimizer.state[p]) for n, p in agent.actor.named_parameters()}
    critic = {n: dict(agent.optimizer.state[p]) for n, p in agent.critic.named_parameters()}
    wider = agent.actor.clone()
    wider.apply_mutation("add_node", numb_new_nodes=16)
    agent.optimizer.rebuild({"actor": wider}, {"actor": wider.last_transfer})
    agent.actor = wider
    assert agent.optimizer.param_groups[0]["weight_decay"] == 0.25
    assert agent.optimizer.param_groups[1]["weight_decay"] == options.get("weight_decay", 0)
    for network, known in ((wider, before), (agent.critic, critic)):
        for name, parameter in network.named_parameters():
            after = agent.optimizer.state[parameter]
            assert after.keys() == known[name].keys(), name
            for key, old in known[name].items():
                if not isinstance(old, torch.Tensor):
                    assert after[key] == old
                elif old.dim() == 0:
                    assert float(after[key]) == float(old), (name, key)
                else:
                    block = tuple(slice(0, n) for n in old.shape)
                    assert torch.equal(after[key][block], old), (name, key)
                    assert after[key].shape == parameter.shape
    step(agent, seed=9)  # and it goes on


def test_a_network_of_its_own_starts_afresh_and_leaves_the_others_alone() -> None:
    alone = Algorithm()
    alone.optimizer = OptimizerWrapper(optim.Adam, alone.actor, alone.lr)
    for i in range(5):
        step(alone, seed=i)
    alone.actor = EvolvableMLP(3, 2, [8], random_seed=5)
    assert alone.optimizer.state_dict()["state"] == {}
    before = weights(alone)[: sum(p.numel() for p in alone.actor.parameters())]
    step(alone)
    after = weights(alone)[: len(before)]
    # Adam's first step is lr for every weight that has a gradient; without bias correction it would be 3.2 lr.
    assert (after - before).abs().max() == pytest.approx(alone.lr, rel=1e-3)
    both = Algorithm()
    step(both)
    kept = [both.optimizer.state[p]["exp_avg"].clone() for p in both.critic.parameters()]
    both.actor = EvolvableMLP(3, 2, [8], random_seed=5)
    for p, moment in zip(both.critic.parameters(), kept, strict=True):
        assert torch.equal(both.optimizer.state[p]["exp_avg"], moment)


def test_rebuild_uses_the_transfer_that_it_is_given() -> None:
    agent = Algorithm()
    step(agent)
    old = agent.optimizer.state[agent.actor.model.linear_0.bias]["exp_avg"].clone()
    shuffled = agent.actor.clone()
    order = np.arange(8)[::-1].copy()
    agent.optimizer.rebuild({"actor": shuffled}, {"actor": {"model.linear_0.bias": Transfer((order,))}})
    new = agent.optimizer.state[shuffled.model.linear_0.bias]["exp_avg"]
    assert torch.equal(new, old.flip(0))


def test_unknown_attributes_are_those_of_the_torch_optimiser() -> None:
    agent = Algorithm()
    assert agent.optimizer.defaults["betas"] == (0.9, 0.999)
    with pytest.raises(AttributeError):
        _ = agent.optimizer.nonsense
    scheduler = optim.lr_scheduler.StepLR(agent.optimizer.optimizer, 1, gamma=0.5)
    step(agent)
    scheduler.step()
    agent.follow_optimizers()
    assert agent.lr == 0.5e-2, "a scheduler's learning rate becomes the agent's"
