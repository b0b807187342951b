"""PPO over rows, member by member, alone, and against a plain loop of torch's own networks, optimisers and losses."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from agilerl.algorithms.ppo import PPO
from agilerl.components.rollout_store import RolloutStore as RolloutBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rollouts import learn_rollout, make_rollout, plan_epoch

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "box": gym.spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
    "squashed": gym.spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "hybrid": gym.spaces.Dict(
        {
            "gear": gym.spaces.Discrete(3, start=1),
            "lamps": gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.MultiDiscrete([2, 3]))),
            "steer": gym.spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
        }
    ),
}
MEMBERS, STEPS, LANES, ROLLOUTS = 4, 8, 6, 15
WIDTHS = [(16, 24), (24, 8), (20, 20), (16, 24)]
# Of 48 samples: minibatches of 16, 7, 48 and 20 rows; the second one leaves 6 for its last minibatch.
HYPER = [
    {"lr": 3e-3, "batch_size": 16, "update_epochs": 4, "clip_coef": 0.2, "target_kl": None, "gamma": 0.99},
    {"lr": 1e-3, "batch_size": 7, "update_epochs": 4, "clip_coef": 0.1, "target_kl": None, "gamma": 0.9},
    {"lr": 1e-2, "batch_size": 48, "update_epochs": 6, "clip_coef": 0.3, "target_kl": 0.01, "gamma": 0.95},
    {"lr": 5e-3, "batch_size": 20, "update_epochs": 3, "clip_coef": 0.2, "target_kl": 0.02, "max_grad_norm": None},
]


def make(member: int, space: gym.Space, squash: bool = False, **more: Any) -> PPO:
    hidden, head = WIDTHS[member]
    config = {
        "encoder_config": {"hidden_size": [hidden, hidden + 3 * member], "activation": "Tanh"},
        "head_config": {"hidden_size": [head], "activation": "Tanh"},
        "latent_dim": 12,
    } | ({"squash_output": True} if squash else {})
    agent = PPO(OBS, space, member, net_config=config, seed=member, **{**HYPER[member], **more})
    for name in agent.networks:
        getattr(agent, name).double()
    return agent


def collect(agents: list[PPO], rng: np.random.Generator) -> RolloutBuffer:
    """A rollout of random observations and rewards, acted in by the agents; ends, time limits, and two masked rows."""
    lanes = MEMBERS * LANES
    buffer = agents[0].make_buffer(STEPS, lanes)
    obs = rng.standard_normal((lanes, 5))
    for t in range(STEPS):
        actions, log_probs = [], []
        for i, agent in enumerate(agents):
            with torch.no_grad():
                raw = agent.policy_output(obs[i * LANES : (i + 1) * LANES])
            action, log_prob = agent.sample(raw, agent.draw_exploration(rng, (LANES,)))
            actions.append(action)
            log_probs.append(log_prob)
        ended = rng.random(lanes) < 0.3
        truncated = ended & (rng.random(lanes) < 0.5)
        valid = np.ones(lanes, bool)
        valid[[3, 20]] = t != 4
        after = rng.standard_normal((lanes, 5))
        reward = obs[:, 0] + rng.standard_normal(lanes)
        buffer.add(
            obs, np.concatenate(actions), reward, (ended & ~truncated) & valid, truncated & valid,
            np.concatenate(log_probs), final_obs=rng.standard_normal((lanes, 5)), valid=valid,
        )  # fmt: skip
        obs = after
    buffer.last_obs = obs
    return buffer


def of_member(buffer: RolloutBuffer, i: int) -> RolloutBuffer:
    """The rollout of one member, as if it had been stored alone."""
    own = slice(i * LANES, (i + 1) * LANES)
    alone = RolloutBuffer(STEPS, LANES, buffer.observation_space, buffer.action_space)
    finals = {part.step: part for part in buffer.truncations}
    for t in range(STEPS):
        row = {name: buffer.fields[name][t, own] for name in ("obs", "action", "reward", "terminated", "truncated")}
        final = np.zeros((MEMBERS * LANES, 5))
        if t in finals:
            final[finals[t].lanes] = finals[t].obs
        alone.add(
            **row, log_prob=buffer.fields["log_prob"][t, own], valid=buffer.fields["valid"][t, own],
            final_obs=final[own],
        )  # fmt: skip
    alone.last_obs = buffer.last_obs[own]
    return alone


def streams(number: int) -> list[np.random.Generator]:
    return [np.random.default_rng([number, i]) for i in range(MEMBERS)]


def plain(agent: PPO, buffers: list[RolloutBuffer], member: int) -> int:
    """A textbook loop; returns the number of minibatches."""
    count = 0
    nets = [getattr(agent, name) for name in agent.networks]
    adam = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=agent.lr, eps=1e-5)
    for number, buffer in enumerate(buffers):
        field = {k: torch.from_numpy(np.array(v)) for k, v in buffer.fields.items()}
        with torch.no_grad():
            values = agent.critic(field["obs"])[..., 0]
            last = agent.critic(buffer.last_obs)[:, 0]
            finals = {
                (part.step, int(lane)): float(agent.critic(part.obs[k : k + 1]))
                for part in buffer.truncations
                for k, lane in enumerate(part.lanes)
            }
        advantage = torch.zeros(STEPS, LANES, dtype=torch.float64)
        for lane in range(LANES):
            running = 0.0
            for t in reversed(range(STEPS)):
                following = values[t + 1, lane] if t + 1 < STEPS else last[lane]
                if field["truncated"][t, lane]:
                    following = finals[t, lane]
                if field["terminated"][t, lane]:
                    following = 0.0
                ended = field["terminated"][t, lane] or field["truncated"][t, lane] or not field["valid"][t, lane]
                ended = ended or (t + 1 < len(field["valid"]) and not field["valid"][t + 1, lane])
                delta = field["reward"][t, lane] + agent.gamma * following - values[t, lane]
                running = delta + (0.0 if ended else agent.gamma * agent.gae_lambda * running)
                advantage[t, lane] = running
        returns = (advantage + values).flatten()
        samples = np.flatnonzero(field["valid"].flatten())
        counted = advantage.flatten()[samples]
        advantage = (advantage.flatten() - counted.mean()) / (counted.std(unbiased=False) + 1e-8)
        obs, action, old = field["obs"].flatten(0, 1), field["action"].flatten(0, 1), field["log_prob"].flatten()
        values, rng = values.flatten(), streams(number)[member]
        for _ in range(agent.update_epochs):
            order = rng.permutation(samples)
            squashed = agent.distribution.kind == "squashed"
            noise = torch.from_numpy(rng.standard_normal((STEPS * LANES, 2))) if squashed else None
            divergences = []
            for start in range(0, len(order), agent.batch_size):
                rows = order[start : start + agent.batch_size]
                policy = torch_policy(agent, agent._raw(agent.actor.output(obs[rows])))
                log_prob = policy.log_prob(action[rows])
                ratio = (log_prob - old[rows]).exp()
                a, c = advantage[rows], agent.clip_coef
                surrogate = -torch.min(ratio * a, ratio.clamp(1 - c, 1 + c) * a).mean()
                value = agent.critic(obs[rows])[:, 0]
                near = values[rows] + (value - values[rows]).clamp(-c, c)
                squares = torch.max((value - returns[rows]) ** 2, (near - returns[rows]) ** 2)
                if noise is None:
                    entropy = policy.entropy()
                else:  # of new actions of the policy as it is now
                    normal = policy.base_dist
                    u = normal.mean + normal.stddev * noise[rows]
                    entropy = -(normal.log_prob(u) - (1 - u.tanh() ** 2).log().sum(-1))
                loss = surrogate + agent.vf_coef * 0.5 * squares.mean() - agent.ent_coef * entropy.mean()
                adam.zero_grad()
                loss.backward()
                if agent.max_grad_norm is not None:
                    for net in nets:
                        nn.utils.clip_grad_norm_(net.parameters(), agent.max_grad_norm)
                adam.step()
                count += 1
                divergences.append(float((ratio - 1 - ratio.log()).mean().detach()))
            if agent.target_kl is not None and np.mean(divergences) > agent.target_kl:
                break
    return count


def torch_policy(agent: PPO, raw: torch.Tensor) -> Any:
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(logits=raw)
    if isinstance(space, gym.spaces.Box):
        mean, log_std = raw.chunk(2, -1)
        normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
        squashed = agent.distribution.kind == "squashed"
        return TransformedDistribution(normal, [TanhTransform()]) if squashed else Scaled(normal, space)
    if isinstance(space, gym.spaces.MultiBinary):
        return Independent(Bernoulli(logits=raw), 1)
    if isinstance(space, gym.spaces.Dict):  # gear; bits, two choices; steer with its deviations
        gear, bits, first, second, steer = raw.split([3, 2, 2, 3, 4], -1)
        mean, log_std = steer.chunk(2, -1)
        normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
        choices = [Categorical(logits=first), Categorical(logits=second)]
        parts = [Categorical(logits=gear), Independent(Bernoulli(logits=bits), 1), *choices]
        return Several([*parts, Scaled(normal, space["steer"])], [slice(0, 1), slice(1, 3), 3, 4, slice(5, 7)])
    return Several([Categorical(logits=part) for part in raw.split(space.nvec.tolist(), -1)])


class Scaled:
    """A normal distribution in units of half of the range of a Box, around its centre."""

    def __init__(self, normal: Independent, space: gym.spaces.Box) -> None:
        self.normal, self.entropy = normal, normal.entropy
        self.low, self.high = torch.from_numpy(space.low), torch.from_numpy(space.high)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return self.normal.log_prob(2 * (action - self.low) / (self.high - self.low) - 1)


class Several:
    def __init__(self, parts: list[Any], places: list[Any] | None = None) -> None:
        self.parts, self.places = parts, list(range(len(parts))) if places is None else places

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        own = (action[..., place] for place in self.places)
        each = (a[..., 0] if a.dim() > 1 and a.shape[-1] == 1 else a for a in own)
        return torch.stack([p.log_prob(a) for p, a in zip(self.parts, each, strict=True)]).sum(0)

    def entropy(self) -> torch.Tensor:
        return torch.stack([p.entropy() for p in self.parts]).sum(0)


def train(learner: Any, agents: list[PPO], buffers: list[RolloutBuffer]) -> list[int]:
    updates = [0] * MEMBERS
    like = next(agents[0].actor.parameters())
    for number, buffer in enumerate(buffers):
        rngs = streams(number)
        for g, group in enumerate(learner.groups):
            own = [agents[i] for i in group.members]
            part = buffer if len(own) == MEMBERS else of_member(buffer, group.members[0])
            rollout = make_rollout(learner, g, own, part, like)
            reports = learn_rollout(learner, g, own, rollout, [rngs[i] for i in group.members])
            for i, report in zip(group.members, reports, strict=True):
                updates[i] += report.updates
    learner.release()
    return updates


def parameters(agents: list[PPO]) -> list[torch.Tensor]:
    found = []
    for agent in agents:
        nets = [getattr(agent, name) for name in agent.networks]
        found.append(torch.cat([p.detach().flatten() for net in nets for p in net.parameters()]))
    return found


FAST = (("discrete", False), ("box", True), ("hybrid", False))
CASES = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow)
    for case in [*((kind, False) for kind in SPACES), ("discrete", True), ("box", True)]
]


@pytest.mark.parametrize(("kind", "share"), CASES, ids=lambda x: x if isinstance(x, str) else "shared" * x)
def test_ppo_is_the_same_on_every_path(kind: str, share: bool) -> None:
    agents = [make(i, SPACES[kind], kind == "squashed", share_encoders=share) for i in range(MEMBERS)]
    rng = np.random.default_rng(5)
    buffers = [collect(agents, rng) for _ in range(ROLLOUTS if kind == "discrete" and not share else 3)]
    sequential, alone, textbook = ([a.clone() for a in agents] for _ in range(3))
    before = parameters(agents)
    fused = Learner(agents, choose(agents, "fused"))
    assert len(fused.groups) == 1, "one pass for all members, whatever their hyperparameters"
    updates = train(fused, agents, buffers)
    assert train(Learner(sequential, choose(sequential, "sequential")), sequential, buffers) == updates
    for i, agent in enumerate(alone):
        for number, buffer in enumerate(buffers):
            agent._minibatches = streams(number)[i]
            agent.learn_buffer(of_member(buffer, i))
        assert plain(textbook[i], [of_member(b, i) for b in buffers], i) == updates[i]
    if kind == "discrete" and not share:
        assert updates[1] >= 400
        # The third member's 6 epochs of one minibatch are cut short by its limit on the divergence.
        assert ROLLOUTS <= updates[2] < 6 * ROLLOUTS
    for i, moved in enumerate(parameters(agents)):
        assert (moved - before[i]).abs().max() > 1e-3
        for name, other in (("sequential", sequential), ("alone", alone), ("plain torch", textbook)):
            torch.testing.assert_close(
                moved, parameters(other)[i], rtol=1e-10, atol=1e-10, msg=lambda m, n=name, k=i: f"member {k}, {n}: {m}"
            )


def test_adam_keeps_the_step_counts_of_members_that_stopped() -> None:
    agents = [make(i, SPACES["discrete"]) for i in range(MEMBERS)]
    buffer = collect(agents, np.random.default_rng(1))
    updates = train(Learner(agents, choose(agents, "fused")), agents, [buffer])
    for agent, count in zip(agents, updates, strict=True):
        state = agent.optimizer.state_dict()["state"]
        assert {float(entry["step"]) for entry in state.values()} == {count}


def test_an_epoch_visits_every_sample_once_in_minibatches_of_the_members_own_size() -> None:
    samples = [np.arange(10), np.array([1, 3, 5])]
    plan = plan_epoch(streams(0)[:2], samples, [4, 8], [True, True])
    assert plan.rows.shape == (3, 2, 4)
    assert plan.live.tolist() == [[True, True], [True, False], [True, False]]
    for member, own in enumerate(samples):
        counted = plan.rows[:, member][plan.weight[:, member] > 0]
        assert sorted(counted.tolist()) == own.tolist()
    assert plan.weight[:, 0].sum(1).tolist() == [1, 1, 1]
    assert plan.weight[2, 0].tolist() == [0.5, 0.5, 0, 0]
    assert plan.weight[0, 1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
