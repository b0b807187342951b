"""RainbowDQN: fused == sequential == alone == the algorithm with a dense projection, for every set of its parts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_case import CHOICE, OBS, SIZES, assert_all_paths_agree, batches, net_config, population
from torch import Tensor, nn

from agilerl.algorithms import RainbowDQN
from agilerl.engine.choose import choose
from agilerl.engine.protocol import TransitionBatch
from agilerl.modules.layers import layer_noise, noise_size, set_noise


def make(i: int, **options: Any) -> RainbowDQN:
    return RainbowDQN(
        OBS, CHOICE, index=i, net_config=net_config(i), batch_size=SIZES[i], lr=1e-3 * (1 + i), gamma=0.9 + 0.02 * i,
        tau=0.01 * (1 + i), num_atoms=7, v_min=-2.0 - 0.5 * i, v_max=1.5 + i, prior_eps=0.01 * (1 + i), seed=i,
        **{"noisy": False, **options},
    )  # fmt: skip


def dense_projection(p: Tensor, reward: Tensor, discount: Tensor, z: Tensor) -> Tensor:
    """Equation 7 of arXiv:1707.06887 as it is written: every atom against every atom."""
    moved = (reward[:, None] + discount[:, None] * z).clamp(float(z[0]), float(z[-1]))
    share = (1 - (moved[:, None, :] - z[None, :, None]).abs() / (z[1] - z[0])).clamp(0, 1)
    return (share * p[:, None, :]).sum(-1)


def plain(agent: RainbowDQN, made: list[TransitionBatch], adam: torch.optim.Optimizer | None = None) -> None:
    adam = adam or torch.optim.Adam(agent.actor.parameters(), lr=agent.lr)
    z = torch.linspace(agent.v_min, agent.v_max, agent.num_atoms, dtype=torch.float64)
    for b in made:
        rows = torch.arange(len(b.reward))
        discount = b.discount if b.discount is not None else agent.gamma * (1 - b.done)
        with torch.no_grad():
            online, target = agent.actor.output(b.next_obs), agent.actor_target.output(b.next_obs)
            chooser = online if agent.double else target
            if agent.distributional:
                best = (chooser.softmax(-1) * z).sum(-1).argmax(-1)
                m = dense_projection(target.softmax(-1)[rows, best], b.reward, discount, z)
            else:
                y = b.reward + discount * target[rows, chooser.argmax(-1)]
        values = agent.actor.output(b.obs)[rows, b.action]
        if agent.distributional:
            loss = nn.functional.kl_div(values.log_softmax(-1), m, reduction="batchmean")
        else:
            loss = nn.functional.mse_loss(values, y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for p, q in zip(agent.actor.parameters(), agent.actor_target.parameters(), strict=True):
                q.copy_(agent.tau * p + (1 - agent.tau) * q)


@pytest.mark.parametrize(
    ("double", "dueling", "distributional"),
    [
        pytest.param(*each, marks=[] if sum(each) == 3 else [pytest.mark.slow])
        for each in itertools.product([True, False], repeat=3)
    ],
)
def test_rainbow_without_noise_is_the_same_on_every_path(double: bool, dueling: bool, distributional: bool) -> None:
    agents = population(lambda i: make(i, double=double, dueling=dueling, distributional=distributional))
    assert choose(agents).name == "fused"
    results = assert_all_paths_agree(agents, batches(CHOICE), plain, groups=1)
    for member, result in results[-1].items():
        priorities = result.priorities[: SIZES[member]] - agents[member].prior_eps
        assert (priorities > -1e-12).all()
        if distributional:
            torch.testing.assert_close(priorities.mean(), result.loss, rtol=1e-9, atol=1e-9)
        else:
            torch.testing.assert_close(priorities.square().mean(), result.loss, rtol=1e-9, atol=1e-9)


def test_stored_discounts_of_several_steps_count_row_by_row() -> None:
    assert_all_paths_agree(population(make), batches(CHOICE, discount=True), plain, groups=1)


def plain_noisy(agent: RainbowDQN, made: list[TransitionBatch]) -> None:
    """`plain`, with the noise of each batch put into both networks first."""
    adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr)
    for b in made:
        for network, name in ((agent.actor, "layers"), (agent.actor_target, "target_layers")):
            set_noise(network, b.noise[name][: noise_size(network)])
        plain(agent, [b], adam)


@pytest.mark.parametrize("dueling", [pytest.param(True, marks=pytest.mark.slow), False])
def test_noisy_layers_are_the_same_on_every_path(dueling: bool) -> None:
    agents = population(lambda i: make(i, noisy=True, dueling=dueling))
    rng = np.random.default_rng(3)
    widest = max(noise_size(agent.actor) for agent in agents)
    assert min(noise_size(agent.actor) for agent in agents) < widest, "widths must differ"
    noisy = []
    for batch in batches(CHOICE):
        drawn = np.zeros((2, len(agents), widest))
        for row, agent in enumerate(agents):
            for part in drawn:
                part[row, : noise_size(agent.actor)] = layer_noise(agent.actor, rng, 1)[0]
        layers, target_layers = torch.from_numpy(drawn)
        noisy.append(replace(batch, noise={"layers": layers, "target_layers": target_layers}))
    assert choose(agents).name == "fused"
    assert_all_paths_agree(agents, noisy, plain_noisy, groups=1)
