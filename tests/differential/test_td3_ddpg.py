"""DDPG and TD3: fused == sequential == alone == the algorithm written out with torch.nn and torch.optim, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from off_policy_case import BOX, OBS, SIZES, assert_all_paths_agree, batches, critic_of, net_config, population
from torch import nn

from agilerl.algorithms import DDPG, TD3
from agilerl.engine.protocol import TransitionBatch


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


def track(tau: float, *pairs: tuple[nn.Module, nn.Module]) -> None:
    with torch.no_grad():
        for net, target in pairs:
            for p, q in zip(net.parameters(), target.parameters(), strict=True):
                q.copy_(tau * p + (1 - tau) * q)


def plain_ddpg(agent: DDPG, made: list[TransitionBatch]) -> None:
    actor_adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr_actor)
    critic_adam = torch.optim.Adam(agent.critic.parameters(), lr=agent.lr_critic)
    critic, critic_target = critic_of(agent, "critic"), critic_of(agent, "critic_target")
    for t, b in enumerate(made, start=1):
        with torch.no_grad():
            q = critic_target(b.next_obs, agent.actor_target(b.next_obs))[:, 0]
            y = b.reward + agent.gamma * (1 - b.done) * q
        loss = nn.functional.mse_loss(critic(b.obs, b.action)[:, 0], y)
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if t % agent.policy_freq == 0:
            actor_adam.zero_grad()
            (-critic(b.obs, agent.actor(b.obs)).mean()).backward()
            actor_adam.step()
            track(agent.tau, (agent.actor, agent.actor_target))
        track(agent.tau, (agent.critic, agent.critic_target))


def plain_td3(agent: TD3, made: list[TransitionBatch]) -> None:
    actor_adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr_actor)
    adams = [torch.optim.Adam(c.parameters(), lr=agent.lr_critic) for c in (agent.critic_1, agent.critic_2)]
    critics = [critic_of(agent, f"critic_{k}") for k in (1, 2)]
    targets = [critic_of(agent, f"critic_target_{k}") for k in (1, 2)]
    for t, b in enumerate(made, start=1):
        with torch.no_grad():
            noise = (agent.policy_noise * b.noise["smoothing"]).clamp(-agent.noise_clip, agent.noise_clip)
            action = (agent.actor_target(b.next_obs) + noise).clamp(-1, 1)
            both = [c(b.next_obs, action)[:, 0] for c in targets]
            y = b.reward + agent.gamma * (1 - b.done) * torch.min(*both)
        for critic, adam in zip(critics, adams, strict=True):
            adam.zero_grad()
            nn.functional.mse_loss(critic(b.obs, b.action)[:, 0], y).backward()
            adam.step()
        if t % agent.policy_freq == 0:
            actor_adam.zero_grad()
            (-critics[0](b.obs, agent.actor(b.obs)).mean()).backward()
            actor_adam.step()
            track(
                agent.tau,
                (agent.actor, agent.actor_target),
                (agent.critic_1, agent.critic_target_1),
                (agent.critic_2, agent.critic_target_2),
            )


def cases(*policy_freq: int, shared: bool) -> pytest.MarkDecorator:
    """Each frequency with separate and shared encoders; one of them in the fast suite, the others in the slow one."""
    made = [
        pytest.param(
            freq,
            share,
            id=f"{freq}-{'shared' if share else 'separate'}",
            marks=() if share == shared and number == shared else pytest.mark.slow,
        )
        for number, freq in enumerate(policy_freq)
        for share in (False, True)
    ]
    return pytest.mark.parametrize(("policy_freq", "share"), made)


@cases(1, 2, shared=False)
def test_ddpg_is_the_same_on_every_path(policy_freq: int, share: bool) -> None:
    agents = population(lambda i: DDPG(OBS, BOX, policy_freq=policy_freq, share_encoders=share, **common(i)))
    assert_all_paths_agree(agents, batches(BOX), plain_ddpg, groups=1)


@cases(1, 3, shared=True)
def test_td3_is_the_same_on_every_path(policy_freq: int, share: bool) -> None:
    def make(i: int) -> TD3:
        noise = {"policy_noise": 0.1 + 0.2 * i, "noise_clip": 0.3 + 0.1 * i}
        return TD3(OBS, BOX, policy_freq=policy_freq, share_encoders=share, **noise, **common(i))

    results = assert_all_paths_agree(population(make), batches(BOX, ("smoothing",)), plain_td3, groups=1)
    updated = [k + 1 for k, seen in enumerate(results) if seen[0].actor_loss is not None]
    assert updated == list(range(policy_freq, len(results) + 1, policy_freq))


@pytest.mark.slow
def test_members_of_other_policy_freq_or_latent_width_train_in_groups_of_their_own() -> None:
    def make(i: int) -> TD3:
        options = common(i) | {"net_config": net_config(i, latent=10 if i == 3 else 12)}
        return TD3(OBS, BOX, policy_freq=2 if i < 2 else 3, **options)

    assert_all_paths_agree(population(make), batches(BOX, ("smoothing",)), plain_td3, groups=3)


def test_members_whose_shared_encoders_end_at_another_depth_train_in_groups_of_their_own() -> None:
    def make(i: int) -> DDPG:
        deep = {"hidden_size": [16, 16], "activation": "Tanh"}
        flat = {"hidden_size": [16], "activation": "Tanh"}
        encoder, head = (deep, flat) if i % 2 else (flat, deep)
        options = common(i) | {"net_config": {"encoder_config": encoder, "head_config": head, "latent_dim": 16}}
        return DDPG(OBS, BOX, policy_freq=1, share_encoders=True, **options)

    assert_all_paths_agree(population(make), batches(BOX), plain_ddpg, groups=2)


@pytest.mark.slow
def test_a_stored_discount_replaces_the_one_of_a_single_step() -> None:
    agents = population(lambda i: DDPG(OBS, BOX, policy_freq=1, **common(i)))
    made = batches(BOX, discount=True)

    def plain(agent: DDPG, own: list[TransitionBatch]) -> None:
        agent.gamma = 1.0
        plain_ddpg(
            agent, [TransitionBatch(b.obs, b.action, b.reward, b.next_obs, 1 - b.discount, b.weight) for b in own]
        )

    assert_all_paths_agree(agents, made, plain, groups=1)
