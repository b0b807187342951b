"""QRDQN and TQC: fused == sequential == alone == the algorithms by the equations and autograd, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from off_policy_case import (
    BOX,
    CHOICE,
    OBS,
    SIZES,
    assert_all_paths_agree,
    batches,
    critic_of,
    net_config,
    population,
)
from test_sac import sample
from torch import Tensor

from agilerl.algorithms import QRDQN, TQC
from agilerl.engine.choose import choose
from agilerl.engine.protocol import TransitionBatch


def make_qrdqn(i: int, **options: Any) -> QRDQN:
    return QRDQN(
        OBS, CHOICE, index=i, net_config=net_config(i), batch_size=SIZES[i], lr=1e-3 * (1 + i), gamma=0.9 + 0.02 * i,
        tau=0.01 * (1 + i), num_quantiles=5, seed=i, **options,
    )  # fmt: skip


def make_tqc(i: int, **options: Any) -> TQC:
    return TQC(
        OBS, BOX, index=i, net_config=net_config(i), batch_size=SIZES[i], lr_actor=1e-3 * (1 + i),
        lr_critic=2e-3 / (1 + i), lr_alpha=5e-3 * (1 + i), gamma=0.9 + 0.02 * i, tau=0.01 * (1 + i), num_quantiles=6,
        init_temperature=0.2 + 0.3 * i, target_entropy=-1.0 - 0.5 * i, seed=i, **options,
    )  # fmt: skip


def quantile_loss(values: Tensor, target: Tensor) -> Tensor:
    """ρ of arXiv:1710.10044, eq. 10, pair by pair: [K] and [J] give [K, J]."""
    pairs = []
    for i, theta in enumerate(values):
        level = (2 * (i + 1) - 1) / (2 * len(values))
        for y in target:
            huber = torch.nn.functional.huber_loss(theta, y)
            pairs.append((1 - level if y < theta else level) * huber)
    return torch.stack(pairs).view(len(values), len(target))


def track(agent: Any, *names: str) -> None:
    with torch.no_grad():
        for name in names:
            pairs = zip(getattr(agent, name).parameters(), getattr(agent, target_of(name)).parameters(), strict=True)
            for p, q in pairs:
                q.copy_(agent.tau * p + (1 - agent.tau) * q)


def target_of(name: str) -> str:
    return "actor_target" if name == "actor" else name.replace("critic", "critic_target")


def plain_qrdqn(agent: QRDQN, made: list[TransitionBatch]) -> None:
    adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr)
    for b in made:
        discount = b.discount if b.discount is not None else agent.gamma * (1 - b.done)
        losses = []
        for row in range(len(b.reward)):
            obs, next_obs = b.obs[[row]], b.next_obs[[row]]
            with torch.no_grad():
                after = agent.actor_target.output(next_obs).view(3, 5)
                chooser = agent.actor.output(next_obs).view(3, 5) if agent.double else after
                target = b.reward[row] + discount[row] * after[int(chooser.mean(-1).argmax())]
            values = agent.actor.output(obs).view(3, 5)[int(b.action[row])]
            losses.append(quantile_loss(values, target).mean(-1).sum())
        adam.zero_grad()
        torch.stack(losses).mean().backward()
        adam.step()
        track(agent, "actor")


def plain_tqc(agent: TQC, made: list[TransitionBatch]) -> None:
    names = ("critic_1", "critic_2")
    critics = [critic_of(agent, name) for name in names]
    targets = [critic_of(agent, target_of(name)) for name in names]
    adams = [torch.optim.Adam(getattr(agent, name).parameters(), lr=agent.lr_critic) for name in names]
    actor_adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr_actor)
    log_alpha: Any = agent.temperature.bias
    alpha_adam = torch.optim.Adam([log_alpha], lr=agent.lr_alpha)
    for b in made:
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            a, log_prob = sample(agent.actor.output(b.next_obs), b.noise["next_action"])
            every = torch.cat([t(b.next_obs, a) for t in targets], -1)  # [B, 2K]
            smallest = every.sort(-1).values[:, : 2 * (agent.num_quantiles - agent.dropped)]
            y = b.reward[:, None] + agent.gamma * (1 - b.done)[:, None] * (smallest - alpha * log_prob[:, None])
        for critic, adam in zip(critics, adams, strict=True):
            adam.zero_grad()
            values = critic(b.obs, b.action)
            torch.stack([quantile_loss(*row).mean() for row in zip(values, y, strict=True)]).mean().backward()
            adam.step()
        actor_adam.zero_grad()
        a, log_prob = sample(agent.actor.output(b.obs), b.noise["action"])
        mean = torch.cat([c(b.obs, a) for c in critics], -1).mean(-1)
        (alpha * log_prob - mean).mean().backward()
        actor_adam.step()
        alpha_adam.zero_grad()
        (log_alpha.exp() * (-log_prob.detach() - agent.target_entropy)).mean().backward()
        alpha_adam.step()
        track(agent, *names)


@pytest.mark.parametrize("double", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_qrdqn_is_the_same_on_every_path(double: bool) -> None:
    agents = population(lambda i: make_qrdqn(i, double=double))
    assert choose(agents).name == "fused"
    results = assert_all_paths_agree(agents, batches(CHOICE)[:12], plain_qrdqn, groups=1)
    for member, result in results[-1].items():
        torch.testing.assert_close(result.priorities[: SIZES[member]].mean(), result.loss, rtol=1e-9, atol=1e-9)


def test_stored_discounts_of_several_steps_count_row_by_row() -> None:
    assert_all_paths_agree(population(make_qrdqn), batches(CHOICE, discount=True)[:12], plain_qrdqn, groups=1)


@pytest.mark.parametrize("share", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tqc_is_the_same_on_every_path(share: bool) -> None:
    agents = population(lambda i: make_tqc(i, share_encoders=share, dropped=2))
    assert_all_paths_agree(agents, batches(BOX, ("action", "next_action"))[:12], plain_tqc, groups=1)


def test_members_that_drop_other_numbers_learn_side_by_side() -> None:
    agents = population(lambda i: make_tqc(i, dropped=i))
    assert_all_paths_agree(agents, batches(BOX, ("action", "next_action"))[:4], plain_tqc, groups=4)
