"""Entries that an architecture mutation adds late in training: their first steps are no longer than usual ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms import DQN
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.modules.morph import Transfer

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
RATE, LATE = 1e-3, 2_000
MUTATIONS = ["head_net.add_node", "head_net.add_layer", "encoder.add_node", "add_latent_node"]


def batch(number: int, size: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {"obs": rng.uniform(-1, 1, (size, 4)).astype(np.float32), "action": rng.integers(0, 3, size),
            "reward": rng.normal(size=size), "next_obs": rng.uniform(-1, 1, (size, 4)).astype(np.float32),
            "done": np.zeros(size)}  # fmt: skip


def mutated(method: str) -> tuple[DQN, dict[str, Tensor]]:
    """A DQN that was mutated at step 2,000, and by name which entries of its parameters are new.

    It has had 200 updates; the count says 2,000, after which Adam's correction of the bias is 1.16 at most.
    """
    agent = DQN(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3), net_config=NET, lr=RATE, seed=1)
    for number in range(200):
        agent.learn_batch(agent.make_batch(batch(number)), plain=True)
    states = agent.optimizer.optimizer.state
    for state in states.values():
        state["step"].fill_(LATE)
    before = {name: {k: v.clone() for k, v in states[p].items()} for name, p in agent.actor.named_parameters()}
    wider = agent.actor.clone()
    wider.apply_mutation(method)
    transfers = wider.last_transfer
    agent.optimizer.rebuild({"actor": wider}, {"actor": transfers})
    agent.actor, agent.actor_target = wider, wider.clone()
    agent.actor_target.requires_grad_(False)
    new = {}
    for name, parameter in wider.named_parameters():
        after, old = agent.optimizer.optimizer.state[parameter], before.get(name)
        assert float(after["step"]) == LATE
        ones, zeros = (torch.full_like(parameter, x).detach() for x in (1.0, 0.0))
        transfer = transfers.get(name, Transfer(tuple(np.arange(n) for n in parameter.shape)))
        new[name] = ones if old is None else 1 - transfer.apply(torch.ones_like(old["exp_avg"]), zeros)
        for key in ("exp_avg", "exp_avg_sq"):
            if old is not None:
                moved = transfer.apply(old[key], zeros)
                assert torch.equal(after[key] * (1 - new[name]), moved), f"{name}: old entries keep their {key}"
        assert not (after["exp_avg"] * new[name]).any()
        assert (after["exp_avg_sq"] > 0).any()
    assert sum(float(x.sum()) for x in new.values()) > 8
    return agent, new


@pytest.mark.parametrize("path", ["modules", "rows"])
@pytest.mark.parametrize("method", MUTATIONS)
def test_new_entries_step_no_further_than_a_learning_rate(method: str, path: str) -> None:
    agent, new = mutated(method)
    learner = Learner([agent], choose([agent], "fused")) if path == "rows" else None
    found = []
    for number in range(20):
        before = {name: p.detach().clone() for name, p in agent.actor.named_parameters()}
        made = agent.make_batch(batch(1_000 + number))
        if learner is None:
            agent.learn_batch(made, plain=True)
        else:
            learner.learn(0, made.map(lambda x: x.unsqueeze(0)))
        now = dict(agent.actor.named_parameters())
        found.append(max(float(((now[k].detach() - before[k]).abs() * x).max()) / RATE for k, x in new.items()))
    # (1 − β₁)|g| / √(β₂ v) is below 1 while |g| < 10 √v. Then momentum gathers, of the 10 % of steps that a first one
    # has; an entry whose gradient stays far above the mean goes further. From zero all of these are above 4.9.
    assert 0 < found[0] < 1.0
    assert max(found) < 3.2


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 0.0930), (10.0, 0.888), (1e6, 2.943)])
def test_the_first_step_is_the_one_that_the_bound_says(ratio: float, expected: float) -> None:
    """In learning rates: (1 − β₁) r √(1 − β₂ᵗ) / √(β₂ + (1 − β₂) r²) for a gradient of r √v, t = 2,001."""
    layer = nn.Linear(1, 3, bias=False)
    wrapper = OptimizerWrapper(optim.Adam, layer, lr=RATE)
    layer.weight.grad = torch.ones(3, 1)
    wrapper.step()
    state = wrapper.optimizer.state[layer.weight]
    state["step"].fill_(LATE)
    state["exp_avg_sq"].copy_(torch.tensor([[1.0], [4.0], [7.0]]))
    wide = nn.Linear(1, 4, bias=False)
    wrapper.network_names = ["net"]
    wrapper.rebuild({"net": wide}, {"net": {"weight": Transfer((np.array([0, 1, 2, -1]), np.array([0])))}})
    assert wrapper.optimizer.state[wide.weight]["exp_avg_sq"].flatten().tolist() == [1, 4, 7, 4]
    before = wide.weight.detach().clone()
    wide.weight.grad = torch.full((4, 1), 2.0 * ratio)
    wrapper.step()
    assert float((wide.weight.detach() - before)[3].abs()) / RATE == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("cls", "key"), [(optim.RMSprop, "square_avg"), (optim.AdamW, "exp_avg_sq")])
def test_a_whole_new_parameter_starts_from_the_mean_of_its_network(cls: Any, key: str) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    wrapper = OptimizerWrapper(cls, [first, second], lr=RATE, network_names=["first", "second"])
    for p in (*first.parameters(), *second.parameters()):
        p.grad = torch.ones_like(p)
    wrapper.step()
    for network, value in ((first, 3.0), (second, 100.0)):
        for p in network.parameters():
            wrapper.optimizer.state[p][key].fill_(value)
    wrapper.optimizer.state[first.bias][key].fill_(9.0)
    deeper = nn.Sequential()
    deeper.weight, deeper.bias, deeper.extra = first.weight, first.bias, nn.Parameter(torch.zeros(3))
    wrapper.rebuild({"first": deeper})
    state = wrapper.optimizer.state[deeper.extra]
    assert state[key].tolist() == [5.0] * 3  # (4 · 3 + 2 · 9) / 6, of the first network alone
    assert all(not v.any() for k, v in state.items() if k not in (key, "step"))
