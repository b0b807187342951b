"""PQN: λ-returns by hand, updates over rows and member by member against a plain loop of torch, and exploration."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import PQN
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rollouts import learn_rollout, plan_epoch
from agilerl.errors import AlgorithmError

OBS, THREE = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64), gym.spaces.Discrete(3)
STEPS, LANES, ROLLOUTS = 8, 6, 6
WIDTHS = [(16, 24), (24, 8), (16, 24)]
HYPER: list[dict[str, Any]] = [  # of 48 rows: minibatches of 16, 7 and 20
    {"lr": 3e-3, "batch_size": 16, "update_epochs": 3, "gamma": 0.99, "gae_lambda": 0.65},
    {"lr": 1e-3, "batch_size": 7, "update_epochs": 2, "gamma": 0.9, "gae_lambda": 0.0},
    {"lr": 5e-3, "batch_size": 20, "update_epochs": 3, "gamma": 0.95, "gae_lambda": 1.0, "max_grad_norm": None},
]


def make(member: int, **more: Any) -> PQN:
    hidden, head = WIDTHS[member]
    layers: dict[str, Any] = {"encoder_config": {"hidden_size": [hidden], "layer_norm": True}}
    config = layers | {"head_config": {"hidden_size": [head], "layer_norm": True}, "latent_dim": 12}
    agent = PQN(OBS, THREE, member, net_config=config, seed=member, **{**HYPER[member], **more})
    agent.actor.double()
    return agent


def rollout(rng: np.random.Generator, lanes: int = LANES * len(HYPER)) -> RolloutStore:
    """Random transitions with ends and time limits."""
    buffer = RolloutStore(STEPS, lanes, OBS, THREE)
    obs = rng.standard_normal((lanes, 5))
    for _ in range(STEPS):
        is_end = rng.random(lanes) < 0.3
        truncated = is_end & (rng.random(lanes) < 0.5)
        buffer.add(
            obs, rng.integers(3, size=lanes), rng.standard_normal(lanes), is_end & ~truncated, truncated,
            np.zeros(lanes), final_obs=rng.standard_normal((lanes, 5)),
        )  # fmt: skip
        obs = rng.standard_normal((lanes, 5))
    buffer.last_obs = obs
    return buffer


def streams(number: int) -> list[np.random.Generator]:
    return [np.random.default_rng([number, i]) for i in range(len(HYPER))]


def plain(agent: PQN, buffers: list[RolloutStore], member: int) -> None:
    """Algorithm 1 of the paper for one member, a row at a time."""
    adam = torch.optim.Adam(agent.actor.parameters(), lr=agent.lr, eps=1e-5)
    lanes = slice(member * LANES, (member + 1) * LANES)
    best = lambda obs: agent.actor(obs).amax(-1).detach()  # noqa: E731
    for number, buffer in enumerate(buffers):
        field = {name: np.array(buffer.fields[name])[:, lanes] for name in ("obs", "action", "reward")}
        ends, cuts = (np.array(buffer.fields[name])[:, lanes] for name in ("terminated", "truncated"))
        finals = {part.step: dict(zip(part.lanes.tolist(), part.obs, strict=True)) for part in buffer.truncations}
        returns = torch.zeros(STEPS, LANES, dtype=torch.float64)
        for lane in range(LANES):
            for t in reversed(range(STEPS)):
                after = buffer.last_obs[lanes][lane] if t == STEPS - 1 else field["obs"][t + 1, lane]
                if cuts[t, lane]:
                    after = finals[t][member * LANES + lane]
                value = best(torch.as_tensor(after)[None])[0]
                is_last = t == STEPS - 1 or cuts[t, lane]
                later = value if is_last else agent.gae_lambda * returns[t + 1, lane] + (1 - agent.gae_lambda) * value
                returns[t, lane] = field["reward"][t, lane] + (0 if ends[t, lane] else agent.gamma * later)
        rows = {name: torch.from_numpy(values).flatten(0, 1) for name, values in field.items()}
        rng = streams(number)[member]
        for _ in range(agent.update_epochs):
            plan = plan_epoch([rng], [np.arange(STEPS * LANES)], [agent.batch_size], [True])
            for chosen, weight in zip(plan.rows[:, 0], plan.weight[:, 0], strict=True):
                index = torch.from_numpy(chosen[weight > 0])
                q = agent.actor(rows["obs"][index]).gather(-1, rows["action"][index, None]).squeeze(-1)
                loss = (q - returns.flatten()[index]).square().mean()
                adam.zero_grad()
                loss.backward()
                if agent.max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(agent.actor.parameters(), agent.max_grad_norm)
                adam.step()


@pytest.mark.parametrize("engine", ["fused", "sequential"])
def test_members_learn_as_a_plain_loop_does(engine: str) -> None:
    agents, references = ([make(i) for i in range(len(HYPER))] for _ in range(2))
    rng = np.random.default_rng(0)
    buffers = [rollout(rng) for _ in range(ROLLOUTS)]
    learner = Learner(agents, choose(agents, engine))
    for number, buffer in enumerate(buffers):
        for group in learner.groups:
            members = [agents[i] for i in group.members]
            lanes = np.concatenate([np.arange(i * LANES, (i + 1) * LANES) for i in group.members])
            part = part_of(buffer, lanes)
            made = members[0].rollout(learner, learner.groups.index(group), members, part)
            draws = streams(number)
            learn_rollout(learner, learner.groups.index(group), members, made, [draws[i] for i in group.members])
    learner.release()
    for member, reference in enumerate(references):
        plain(reference, buffers, member)
        for ours, theirs in zip(agents[member].actor.parameters(), reference.actor.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def part_of(buffer: RolloutStore, lanes: np.ndarray) -> RolloutStore:
    """The rollout of some lanes, as if it had been stored alone."""
    part = RolloutStore(STEPS, len(lanes), OBS, THREE)
    finals = {cut.step: dict(zip(cut.lanes.tolist(), cut.obs, strict=True)) for cut in buffer.truncations}
    for t in range(STEPS):
        names = ("obs", "action", "reward", "terminated", "truncated", "log_prob")
        final = np.stack([finals.get(t, {}).get(lane, np.zeros(5)) for lane in lanes.tolist()])
        part.add(**{name: np.array(buffer.fields[name][t, lanes]) for name in names}, final_obs=final)
    part.last_obs = buffer.last_obs[lanes]
    return part


def test_returns_by_hand() -> None:
    """Values of 4 everywhere, γ = λ = ½ and rewards 1, 2, 3: R₂ = 3 + ½·4, R₁ = 2 + ½(½·5 + ½·4), R₀ likewise."""
    agent = make(0, gamma=0.5, gae_lambda=0.5)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.zero_()
        *_, bias = agent.actor.parameters()
        bias.copy_(torch.tensor([4.0, 1.0, -2.0]))
    buffer = RolloutStore(3, 2, OBS, THREE)
    for t in range(3):
        ends = np.array([False, t == 1])  # the second lane ends with the reward of 2
        buffer.add(np.zeros((2, 5)), np.zeros(2, int), np.full(2, t + 1.0), ends, np.zeros(2, bool), np.zeros(2))
    buffer.last_obs = np.zeros((2, 5))
    learner = Learner([agent], choose([agent], "fused"))
    returns = agent.rollout(learner, 0, [agent], buffer).numbers[0, :, 3].view(3, 2)
    torch.testing.assert_close(returns[:, 0], torch.tensor([3.0625, 4.25, 5.0], dtype=torch.float64))
    torch.testing.assert_close(returns[:, 1], torch.tensor([2.5, 2.0, 5.0], dtype=torch.float64))


def test_random_actions_become_fewer_over_a_share_of_the_budget() -> None:
    agent = make(0, eps_end=0.1, eps_fraction=0.5)
    by_progress = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        agent.progress = progress
        by_progress.append(agent.epsilon)
    assert by_progress == pytest.approx([1.0, 0.55, 0.1, 0.1])
    outputs = torch.tensor([[0.0, 3.0, 1.0]]).expand(10_000, 3)
    agent.progress = 0.25
    actions, log_prob = agent.sample(outputs, agent.draw_exploration(np.random.default_rng(0), (10_000,)))
    assert np.mean(actions != 1) == pytest.approx(0.55 * 2 / 3, abs=0.02)
    assert not log_prob.any()
    assert set(agent.get_action(np.zeros((4, 5)), training=False)[0].tolist()) <= {0, 1, 2}


def test_action_masks_are_refused() -> None:
    agent, outputs = make(0), torch.zeros(2, 3)
    draws = agent.draw_exploration(np.random.default_rng(0), (2,))
    with pytest.raises(AlgorithmError, match=r"PQN takes no action masks\. fix: DQN or PPO"):
        agent.sample(outputs, draws, np.ones((2, 3), bool))
