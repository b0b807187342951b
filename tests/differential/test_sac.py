"""SAC: fused == sequential == alone == the algorithm with torch.distributions and torch.optim, in float64."""

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
    train_fused,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from agilerl.algorithms import SAC
from agilerl.engine.protocol import TransitionBatch


def make(i: int, **options: Any) -> SAC:
    space = options.pop("space", BOX)
    return SAC(
        OBS, space, index=i, net_config=net_config(i), batch_size=SIZES[i], lr_actor=1e-3 * (1 + i),
        lr_critic=2e-3 / (1 + i), lr_alpha=5e-3 * (1 + i), gamma=0.9 + 0.02 * i, tau=0.01 * (1 + i),
        init_temperature=0.2 + 0.3 * i, target_entropy=-1.0 - 0.5 * i if space is BOX else 0.5 + 0.1 * i, seed=i,
        **options,
    )  # fmt: skip


def policy(raw: Tensor) -> TransformedDistribution:
    mean, log_std = raw.chunk(2, -1)
    normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
    return TransformedDistribution(normal, TanhTransform(cache_size=1))


def sample(raw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = raw.chunk(2, -1)
    dist = policy(raw)
    action = dist.transforms[0](mean + log_std.clamp(-20, 2).exp() * numbers)
    return action, dist.log_prob(action)


def plain(agent: SAC, made: list[TransitionBatch]) -> None:
    networks, shadows = (agent.critic_1, agent.critic_2), (agent.critic_target_1, agent.critic_target_2)
    critics = [critic_of(agent, f"critic_{k}") for k in (1, 2)]
    targets = [critic_of(agent, f"critic_target_{k}") for k in (1, 2)]
    adams = [torch.optim.Adam(c.parameters(), lr=agent.lr_critic) for c in networks]
    actor_adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr_actor)
    log_alpha = agent.temperature.bias
    alpha_adam = torch.optim.Adam([log_alpha], lr=agent.lr_alpha)
    for b in made:
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            raw = agent.actor.output(b.next_obs)
            if agent.discrete:
                dist = Categorical(logits=raw)
                q = torch.min(*(t(b.next_obs) for t in targets))
                v = (dist.probs * q).sum(-1) + alpha * dist.entropy()
            else:
                a, log_prob = sample(raw, b.noise["next_action"])
                v = torch.min(*(t(b.next_obs, a)[:, 0] for t in targets)) - alpha * log_prob
            y = b.reward + agent.gamma * (1 - b.done) * v
        for critic, adam in zip(critics, adams, strict=True):
            adam.zero_grad()
            q = critic(b.obs).gather(1, b.action[:, None]) if agent.discrete else critic(b.obs, b.action)
            nn.functional.mse_loss(q[:, 0], y).backward()
            adam.step()
        actor_adam.zero_grad()
        raw = agent.actor.output(b.obs)
        if agent.discrete:
            dist = Categorical(logits=raw)
            q = torch.min(*(c(b.obs).detach() for c in critics))
            entropy = dist.entropy()
            loss = -((dist.probs * q).sum(-1) + alpha * entropy).mean()
        else:
            a, log_prob = sample(raw, b.noise["action"])
            entropy = -log_prob
            loss = (alpha * log_prob - torch.min(*(c(b.obs, a)[:, 0] for c in critics))).mean()
        loss.backward()
        actor_adam.step()
        if agent.learn_temperature:
            alpha_adam.zero_grad()
            (log_alpha.exp() * (entropy.detach() - agent.target_entropy)).mean().backward()
            alpha_adam.step()
        with torch.no_grad():
            for critic, target in zip(networks, shadows, strict=True):
                for p, q in zip(critic.parameters(), target.parameters(), strict=True):
                    q.copy_(agent.tau * p + (1 - agent.tau) * q)


@pytest.mark.parametrize(
    ("space", "share"),
    [
        pytest.param(BOX, False, id="continuous-separate"),
        pytest.param(BOX, True, id="continuous-shared", marks=pytest.mark.slow),
        pytest.param(CHOICE, False, id="discrete-separate", marks=pytest.mark.slow),
        pytest.param(CHOICE, True, id="discrete-shared", marks=pytest.mark.slow),
    ],
)
def test_sac_is_the_same_on_every_path(space: Any, share: bool) -> None:
    agents = population(lambda i: make(i, space=space, share_encoders=share))
    noise = ("action", "next_action") if space is BOX else ()
    assert_all_paths_agree(agents, batches(space, noise), plain, groups=1)
    temperatures = [a.alpha for a in agents]
    assert len({round(t, 3) for t in temperatures}) == len(agents), "each member has a temperature of its own"


def test_a_fixed_temperature_stays_where_it_is() -> None:
    agents = population(lambda i: make(i, learn_temperature=i < 2))
    before = [a.alpha for a in agents]
    train_fused(agents, batches(BOX, ("action", "next_action"))[:20])
    moved = [abs(a.alpha - x) > 1e-6 for a, x in zip(agents, before, strict=True)]
    assert moved == [True, True, False, False]
