"""Learning from data: fused == sequential == alone == the algorithms with torch.nn and torch.optim, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from off_policy_case import (
    BOX,
    CHOICE,
    OBS,
    SIZES,
    UPDATES,
    assert_all_paths_agree,
    batches,
    critic_of,
    net_config,
    population,
)  # fmt: skip
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from agilerl.algorithms import BC, CQL, CQN, IQL, TD3BC
from agilerl.engine.protocol import TransitionBatch

SAMPLES = 3  # of each kind, in CQL's conservative term


def common(i: int) -> dict[str, Any]:
    """Hyperparameters of member i: all of them differ from its neighbours'."""
    return {
        "index": i,
        "net_config": net_config(i),
        "batch_size": SIZES[i],
        "lr_actor": 1e-3 * (1 + i),
        "lr_critic": 2e-3 / (1 + i),
        "gamma": 0.9 + 0.02 * i,
        "tau": 0.01 * (1 + i),
        "seed": i,
    }


def adam(network: nn.Module, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), lr=lr)


def step(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def track(agent: Any, *names: tuple[str, str]) -> None:
    with torch.no_grad():
        for name, target in names:
            for p, q in zip(getattr(agent, name).parameters(), getattr(agent, target).parameters(), strict=True):
                q.copy_(agent.tau * p + (1 - agent.tau) * q)


TARGETS = (("critic_1", "critic_target_1"), ("critic_2", "critic_target_2"))


def critics_of(agent: Any) -> tuple[list[Any], list[Any], list[torch.optim.Adam]]:
    """Critics, their targets and their optimisers."""
    critics, targets = ([critic_of(agent, pair[k]) for pair in TARGETS] for k in (0, 1))
    return critics, targets, [adam(c, agent.lr_critic) for c in (agent.critic_1, agent.critic_2)]


# --- implicit Q-learning --------------------------------------------------------------------------------------------


def plain_iql(agent: IQL, made: list[TransitionBatch]) -> None:
    critics, targets, adams = critics_of(agent)
    value = critic_of(agent, "value")
    actor_adam, value_adam = adam(agent.actor, agent.lr_actor), adam(agent.value, agent.lr_critic)
    for b in made:
        with torch.no_grad():
            y = b.reward + agent.gamma * (1 - b.done) * value(b.next_obs)[:, 0]
            q = torch.min(*(t(b.obs, b.action)[:, 0] for t in targets))
        u = q - value(b.obs)[:, 0]
        weight = (agent.inverse_temperature * u.detach()).exp().clamp(max=agent.max_weight)
        step(value_adam, ((agent.expectile - (u < 0).double()).abs() * u**2).mean())
        for critic, optimizer in zip(critics, adams, strict=True):
            step(optimizer, nn.functional.mse_loss(critic(b.obs, b.action)[:, 0], y))
        mean, log_std = agent.actor.output(b.obs).chunk(2, -1)
        policy = Independent(Normal(mean.tanh(), log_std.clamp(-5, 2).exp()), 1)
        step(actor_adam, -(weight * policy.log_prob(b.action)).mean())
        track(agent, *TARGETS)


@pytest.mark.parametrize("share", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_iql_is_the_same_on_every_path(share: bool) -> None:
    def make(i: int) -> IQL:
        own = {"expectile": 0.6 + 0.1 * i, "inverse_temperature": 1.0 + i, "max_weight": 1.5 + i}
        return IQL(OBS, BOX, share_encoders=share, **own, **common(i))

    assert_all_paths_agree(population(make), batches(BOX), plain_iql, groups=1)


# --- TD3 with cloning -----------------------------------------------------------------------------------------------


def plain_td3bc(agent: TD3BC, made: list[TransitionBatch]) -> None:
    critics, targets, adams = critics_of(agent)
    actor_adam = adam(agent.actor, agent.lr_actor)
    for t, b in enumerate(made, start=1):
        with torch.no_grad():
            noise = (agent.policy_noise * b.noise["smoothing"]).clamp(-agent.noise_clip, agent.noise_clip)
            action = (agent.actor_target(b.next_obs) + noise).clamp(-1, 1)
            both = [c(b.next_obs, action)[:, 0] for c in targets]
            y = b.reward + agent.gamma * (1 - b.done) * torch.min(*both)
        for critic, optimizer in zip(critics, adams, strict=True):
            step(optimizer, nn.functional.mse_loss(critic(b.obs, b.action)[:, 0], y))
        if t % agent.policy_freq == 0:
            action = agent.actor(b.obs)
            q = critics[0](b.obs, action)
            scale = agent.alpha / q.abs().mean().item()
            step(actor_adam, -scale * q.mean() + nn.functional.mse_loss(action, b.action))
            track(agent, ("actor", "actor_target"), *TARGETS)


@pytest.mark.parametrize("share", [pytest.param(False, marks=pytest.mark.slow), True])
def test_td3bc_is_the_same_on_every_path(share: bool) -> None:
    def make(i: int) -> TD3BC:
        own = {"alpha": 0.5 + i, "policy_noise": 0.1 + 0.2 * i, "noise_clip": 0.3 + 0.1 * i}
        return TD3BC(OBS, BOX, share_encoders=share, **own, **common(i))

    assert_all_paths_agree(population(make), batches(BOX, ("smoothing",)), plain_td3bc, groups=1)


# --- behaviour cloning ----------------------------------------------------------------------------------------------


def plain_bc(agent: BC, made: list[TransitionBatch]) -> None:
    optimizer = adam(agent.actor, agent.lr)
    loss = nn.functional.cross_entropy if agent.discrete else nn.functional.mse_loss
    for b in made:
        step(optimizer, loss(agent.actor(b.obs), b.action))


@pytest.mark.parametrize(
    "space", [pytest.param(BOX, id="box"), pytest.param(CHOICE, id="discrete", marks=pytest.mark.slow)]
)
def test_bc_is_the_same_on_every_path(space: Any) -> None:
    def make(i: int) -> BC:
        own = {key: common(i)[key] for key in ("index", "net_config", "batch_size", "seed")}
        return BC(OBS, space, lr=1e-3 * (1 + i), **own)

    assert_all_paths_agree(population(make), batches(space), plain_bc, groups=1)


# --- conservative Q-learning of choices -----------------------------------------------------------------------------


def plain_cqn(agent: CQN, made: list[TransitionBatch]) -> None:
    optimizer = adam(agent.actor, agent.lr)
    for b in made:
        index = b.action.unsqueeze(-1)
        with torch.no_grad():
            later = agent.actor_target(b.next_obs)
            chosen = (agent.actor(b.next_obs) if agent.double else later).argmax(-1, keepdim=True)
            y = b.reward + agent.gamma * (1 - b.done) * later.gather(-1, chosen)[:, 0]
        values = agent.actor(b.obs)
        of_data = values.gather(-1, index)[:, 0]
        excess = (values.exp().sum(-1).log() - of_data).mean()
        step(optimizer, agent.alpha * excess + 0.5 * nn.functional.mse_loss(of_data, y))
        track(agent, ("actor", "actor_target"))


@pytest.mark.parametrize("double", [False, True])
def test_cqn_is_the_same_on_every_path(double: bool) -> None:
    def make(i: int) -> CQN:
        own = {key: common(i)[key] for key in ("index", "net_config", "batch_size", "gamma", "tau", "seed")}
        return CQN(OBS, CHOICE, double=double, alpha=0.3 + 0.4 * i, lr=1e-3 * (1 + i), **own)

    assert_all_paths_agree(population(make), batches(CHOICE), plain_cqn, groups=1)


# --- conservative Q-learning ----------------------------------------------------------------------------------------


def squashed(raw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = raw.chunk(2, -1)
    normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
    policy = TransformedDistribution(normal, TanhTransform(cache_size=1))
    action = policy.transforms[0](mean + log_std.clamp(-20, 2).exp() * numbers)
    return action, policy.log_prob(action)


def cql_batches() -> list[TransitionBatch]:
    draw, found = torch.Generator().manual_seed(3), []
    for b in batches(BOX, ("action", "next_action")):
        more = {k: torch.randn(*b.weight.shape, SAMPLES, 2, generator=draw).double() for k in ("current", "following")}
        more["uniform"] = 2 * torch.rand(*b.weight.shape, SAMPLES, 2, generator=draw).double() - 1
        found.append(replace(b, noise={**b.noise, **more}))
    return found


def plain_cql(agent: CQL, made: list[TransitionBatch]) -> None:
    critics, targets, adams = critics_of(agent)
    actor_adam = adam(agent.actor, agent.lr_actor)
    log_temperature = agent.temperature.bias
    temperature_adam = torch.optim.Adam([log_temperature], lr=agent.lr_alpha)
    learned = agent.threshold is not None
    log_alpha = agent.multiplier.bias if learned else None
    alpha_adam = torch.optim.Adam([log_alpha], lr=agent.lr_alpha) if learned else None
    for b in made:
        temperature = log_temperature.exp().item()
        alpha = log_alpha.exp().item() if learned else agent.alpha
        with torch.no_grad():
            raw, later = agent.actor.output(b.obs), agent.actor.output(b.next_obs)
            a, log_prob = squashed(later, b.noise["next_action"])
            v = torch.min(*(t(b.next_obs, a)[:, 0] for t in targets))
            v = v - temperature * log_prob if agent.backup_entropy else v
            y = b.reward + agent.gamma * (1 - b.done) * v
            sampled = [(b.noise["uniform"][:, k], torch.full_like(y, -2 * math.log(2))) for k in range(SAMPLES)]
            sampled += [squashed(raw, b.noise["current"][:, k]) for k in range(SAMPLES)]
            sampled += [squashed(later, b.noise["following"][:, k]) for k in range(SAMPLES)]
        gaps = []
        for critic, optimizer in zip(critics, adams, strict=True):
            q = critic(b.obs, b.action)[:, 0]
            ratios = [(critic(b.obs, a)[:, 0] - log_prob).exp() for a, log_prob in sampled]
            gap = (torch.stack(ratios).mean(0).log() - q).mean()
            step(optimizer, alpha * gap + 0.5 * nn.functional.mse_loss(q, y))
            gaps.append(gap.item())
        if alpha_adam is not None:
            step(alpha_adam, -(log_alpha.exp() * (sum(gaps) / 2 - agent.threshold)).sum())
        a, log_prob = squashed(agent.actor.output(b.obs), b.noise["action"])
        q = torch.min(*(c(b.obs, a)[:, 0] for c in critics))
        step(actor_adam, (temperature * log_prob - q).mean())
        step(temperature_adam, (log_temperature.exp() * (-log_prob.detach() - agent.target_entropy)).mean())
        track(agent, *TARGETS)


@pytest.mark.parametrize(
    ("updates", "share", "learned", "entropy"),
    [
        pytest.param(20, False, True, True, id="short"),
        pytest.param(UPDATES, False, True, False, id="learned-weight", marks=pytest.mark.slow),
        pytest.param(UPDATES, False, False, True, id="entropy", marks=pytest.mark.slow),
        pytest.param(UPDATES, True, False, False, id="shared", marks=pytest.mark.slow),
    ],
)
def test_cql_is_the_same_on_every_path(updates: int, share: bool, learned: bool, entropy: bool) -> None:
    def make(i: int) -> CQL:
        own: dict[str, Any] = {"alpha": 0.5 + i, "lr_alpha": 5e-3 * (1 + i), "init_temperature": 0.2 + 0.3 * i}
        own |= {"threshold": 0.5 * i} if learned else {}
        own |= {"num_samples": SAMPLES, "backup_entropy": entropy, "target_entropy": -1.0 - 0.5 * i}
        return CQL(OBS, BOX, share_encoders=share, **own, **common(i))

    assert_all_paths_agree(population(make), cql_batches()[:updates], plain_cql, groups=1)
