"""Stacked == alone == plain torch, in float64, over hundreds of updates: every activation, mixed shapes, own values."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms.dqn import DQN
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
ACTIONS = gym.spaces.Discrete(3)


def population(
    activation: str = "ReLU", layer_norm: bool = False, mixed: bool = True, double: bool = True, device: str = "cpu"
) -> list[DQN]:
    """Four float64 members: widths, learning rates, discounts, taus and batch sizes of their own."""
    widths = [(16, 24, 8), (32, 16, 40), (20, 20, 20), (16, 24, 8)] if mixed else [(16, 24, 8)] * 4
    agents = []
    for i, (hidden, latent, head) in enumerate(widths):
        common = {"activation": activation, "layer_norm": layer_norm, "min_mlp_nodes": 4}
        agent = DQN(
            OBS,
            ACTIONS,
            index=i,
            net_config={
                "encoder_config": {"hidden_size": [hidden, hidden + 3 * mixed], **common},
                "head_config": {"hidden_size": [head], **common},
                "latent_dim": latent,
            },
            batch_size=(32, 16, 24, 8)[i],
            lr=1e-3 * (1 + i),
            gamma=0.9 + 0.02 * i,
            tau=0.01 * (1 + i),
            double=double,
            device=device,
            seed=i,
        )
        agent.actor.double()
        agent.actor_target.double()
        with torch.no_grad():
            for p in agent.actor_target.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).to(p))
        agents.append(agent)
    return agents


def batches(count: int, sizes: list[int], device: str = "cpu") -> list[TransitionBatch]:
    """Random batches [N, 32]; member i's rows beyond sizes[i] have weight 0."""
    g = torch.Generator().manual_seed(7)
    n, b = len(sizes), max(sizes)
    weight = torch.zeros(n, b, dtype=torch.float64)
    for i, size in enumerate(sizes):
        weight[i, :size] = 1 / size
    made = []
    for _ in range(count):
        draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).to(device)  # noqa: E731
        action = torch.randint(0, 3, (n, b), generator=g).to(device)
        done = (torch.rand(n, b, generator=g) < 0.1).double().to(device)
        made.append(TransitionBatch(draw(n, b, 5), action, draw(n, b), draw(n, b, 5), done, weight.to(device)))
    return made


def rows_of(batch: TransitionBatch, members: list[int]) -> TransitionBatch:
    return batch.map(lambda x: x[members])


def weights(agents: list[DQN]) -> list[Tensor]:
    nets = [net for a in agents for net in (a.actor, a.actor_target)]
    return [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets]


def plain_torch(agent: DQN, made: list[TransitionBatch], member: int) -> list[Tensor]:
    """Double DQN with torch.nn, torch.optim and autograd, written out: the ten-line reference."""
    net, target = copy.deepcopy(agent.actor), copy.deepcopy(agent.actor_target)
    optimizer = torch.optim.Adam(net.parameters(), lr=agent.lr)
    for batch in made:
        n = agent.batch_size
        obs, action, reward, next_obs, done = (
            getattr(batch, k)[member][:n] for k in ("obs", "action", "reward", "next_obs", "done")
        )
        with torch.no_grad():
            chooser = net(next_obs) if agent.double else target(next_obs)
            best = chooser.argmax(1, keepdim=True)
            y = reward + agent.gamma * (1 - done) * target(next_obs).gather(1, best).squeeze(1)
        loss = nn.functional.mse_loss(net(obs).gather(1, action[:, None]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), target.parameters(), strict=True):
                q.copy_(agent.tau * p + (1 - agent.tau) * q)
    return [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (net, target)]


def fused(agents: list[DQN], made: list[TransitionBatch]) -> Learner:
    learner = Learner(agents, choose(agents, "fused"))
    for batch in made:
        for g, group in enumerate(learner.groups):
            learner.learn(g, rows_of(batch, group.members))
    return learner


ACTIVATIONS = ("ReLU", "Tanh", "GELU", "Sigmoid", "ELU", "SiLU", "Mish", "Softplus", "Softsign", "LeakyReLU")
# Of the fast suite: in place, by value, by input, and without act(0) = 0; with LayerNorm and without.
FAST = {("ReLU", True), ("Tanh", False), ("GELU", False)}


@pytest.mark.parametrize(
    ("activation", "layer_norm"),
    [
        pytest.param(*case, marks=() if case in FAST else pytest.mark.slow)
        for case in itertools.product(ACTIVATIONS, (False, True))
    ],
)
def test_stacked_equals_alone_equals_plain_torch(activation: str, layer_norm: bool) -> None:
    agents = population(activation, layer_norm)
    alone = [a.clone() for a in agents]
    made = batches(120, [a.batch_size for a in agents])
    reference = [w for i, a in enumerate(agents) for w in plain_torch(a, made, i)]
    learner = fused(agents, made)
    (cohort,) = learner.groups[0].engine.cohorts
    assert len(learner.groups) == 1, "members that differ in widths only share one group"
    assert_padding_is_zero(learner)
    learner.release()
    for i, agent in enumerate(alone):
        for batch in made:
            size = agent.batch_size
            agent.learn_batch(batch.map(lambda x, i=i, size=size: x[i][:size]))
    for got, solo, expected in zip(weights(agents), weights(alone), reference, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(solo, expected, rtol=1e-12, atol=1e-12)
    assert cohort.step["optimizer"].flatten().tolist() == [120] * 4


def assert_padding_is_zero(learner: Learner) -> None:
    for group in learner.groups:
        (cohort,) = group.engine.cohorts
        for rows in (cohort.value, cohort.target, cohort.first, cohort.second):
            covered = rows.clone()
            for row in range(len(group.members)):
                for target in (False, True):
                    for _, view in cohort._pairs(row, covered, target):
                        view.zero_()
            assert not covered.any(), "padding is not exactly zero"


@pytest.mark.parametrize("double", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fused_and_sequential_paths_agree_after_500_updates(double: bool, device: str) -> None:
    one, other = population(double=double, device=device), population(double=double, device=device)
    made = batches(500, [a.batch_size for a in one], device)
    fused(one, made).release()
    sequential = Learner(other, choose(other, "sequential"))
    for batch in made:
        for g, group in enumerate(sequential.groups):
            sequential.learn(g, rows_of(batch, group.members))
    assert [a.learn_counter for a in one] == [a.learn_counter for a in other] == [500] * len(one)
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for a, b in zip(one, other, strict=True):
        first, second = a.optimizer.state_dict()["state"], b.optimizer.state_dict()["state"]
        for key, state in first.items():
            for name, value in state.items():
                torch.testing.assert_close(value, second[key][name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("path", ["fused", "sequential"])
def test_each_path_run_twice_gives_equal_bytes(path: Any) -> None:
    results = []
    for _ in range(2):
        agents = population()
        learner = Learner(agents, choose(agents, path))
        for batch in batches(50, [a.batch_size for a in agents]):
            for g, group in enumerate(learner.groups):
                learner.learn(g, rows_of(batch, group.members))
        learner.release()
        results.append(b"".join(w.numpy().tobytes() for w in weights(agents)))
    assert results[0] == results[1]


def test_different_depths_and_options_train_in_groups_of_their_own() -> None:
    agents = population(mixed=False)
    agents[1].double = False
    agents[2].actor.head_net.add_layer()
    agents[2].actor_target = agents[2].actor.clone().requires_grad_(False)
    agents[2].optimizer.rebuild({"actor": agents[2].actor})
    agents[3].learn_step = 9
    learner = Learner(agents, choose(agents, "fused"))
    assert sorted(g.members for g in learner.groups) == [[0], [1], [2], [3]]
    learner.release()


def test_autograd_over_the_rows_gives_the_gradient_of_the_closed_form() -> None:
    agents = population()
    learner = Learner(agents, choose(agents, "fused"))
    engine = learner.groups[0].engine
    (batch,) = batches(1, [a.batch_size for a in agents])
    values, ran = engine.forward("actor", batch.obs)
    weight = torch.randn(values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = engine.cohorts[0].value.clone()
    engine.descend("optimizer", ran, weight)
    closed = engine.cohorts[0].grad.clone()
    engine.cohorts[0].value.copy_(before)
    engine.minimise("optimizer", (engine.network("actor")(batch.obs) * weight).sum((1, 2)))
    torch.testing.assert_close(engine.cohorts[0].grad, closed, rtol=1e-12, atol=1e-12)
    learner.release()
