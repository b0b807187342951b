"""Recurrent PPO: sequences against step-by-step unrolling, and every path against a loop of plain torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from agilerl.algorithms.ppo import PPO
from agilerl.components.rollout_store import RolloutStore as RolloutBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import HiddenStates, Learner, learner_of
from agilerl.engine.rollouts import SequenceRollout, learn_rollout, make_rollout

OBS = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
MEMBERS, STEPS, LANES, ROLLOUTS = 3, 10, 4, 6
HYPER = [
    {"lr": 3e-3, "batch_size": 4, "update_epochs": 3},
    {"lr": 1e-3, "batch_size": 3, "update_epochs": 2, "clip_coef": 0.1},
    {"lr": 5e-3, "batch_size": 8, "update_epochs": 4, "target_kl": 0.02},
]


def make(member: int, cell: str, **more: Any) -> PPO:
    config = {
        "encoder_config": {"hidden_state_size": 8, "num_layers": 2, "cell": cell, "min_hidden_state_size": 4},
        "head_config": {"hidden_size": [6 + 2 * member], "activation": "Tanh"},
        "latent_dim": 8,
    }
    arguments = {**HYPER[member], "net_config": config, "recurrent": True, "max_seq_len": 4, "seed": member, **more}
    agent = PPO(OBS, gym.spaces.Discrete(2), member, num_envs=LANES, learn_step=STEPS * LANES, **arguments)
    for name in agent.networks:
        getattr(agent, name).double()
    return agent


def collect(learner: Any, agents: list[PPO], rng: np.random.Generator) -> RolloutBuffer:
    """A rollout acted by the members' own networks, with episodes that end and lanes that begin at zero."""
    buffer = agents[0].make_buffer(STEPS, MEMBERS * LANES)
    memory = HiddenStates(learner)
    obs = rng.standard_normal((MEMBERS, LANES, 3))
    for _ in range(STEPS):
        raws, values, hidden = [], [], []
        for g in range(len(learner.groups)):
            own = obs[learner.groups[g].members]
            hidden.append(memory.of(g, own))
            raw, value = memory.step(g, own)
            raws.append(raw)
            values.append(value)
        before = {key: torch.cat([part[key] for part in hidden]) for key in hidden[0]}
        draws = agents[0].draw_exploration(rng, (MEMBERS, LANES))
        action, log_prob = agents[0].sample(torch.cat(raws), draws)
        ended = rng.random(MEMBERS * LANES) < 0.2
        cut = ended & (rng.random(MEMBERS * LANES) < 0.5)
        final = rng.standard_normal((MEMBERS * LANES, 3))
        buffer.add(
            obs.reshape(-1, 3), action.ravel(), rng.standard_normal(MEMBERS * LANES), ended & ~cut, cut,
            log_prob.ravel(), torch.cat(values).numpy().ravel(), final_obs=final,
            final_value=rng.standard_normal(MEMBERS * LANES),
            hidden={key: part.transpose(0, 1).flatten(1, 2).numpy() for key, part in before.items()},
        )  # fmt: skip
        for g in range(len(learner.groups)):
            rows = torch.from_numpy(ended.reshape(MEMBERS, 1, LANES, 1)[learner.groups[g].members])
            memory.hidden[g] = {key: part.masked_fill(rows, 0) for key, part in memory.hidden[g].items()}
        obs = rng.standard_normal((MEMBERS, LANES, 3))
    buffer.last_obs, buffer.last_value = obs.reshape(-1, 3), rng.standard_normal(MEMBERS * LANES)
    return buffer


def of_member(buffer: RolloutBuffer, i: int) -> RolloutBuffer:
    own = slice(i * LANES, (i + 1) * LANES)
    alone = RolloutBuffer(STEPS, LANES, buffer.observation_space, buffer.action_space, buffer.hidden_state_architecture)
    finals = {part.step: part for part in buffer.truncations}
    for t in range(STEPS):
        names = ("obs", "action", "reward", "terminated", "truncated", "log_prob", "value")
        row = {name: buffer.fields[name][t, own] for name in names}
        known = np.zeros(MEMBERS * LANES)
        if t in finals:
            known[finals[t].lanes] = finals[t].value
        hidden = {key: np.moveaxis(x[t, own], 1, 0) for key, x in buffer.fields["hidden"].items()}
        alone.add(**row, final_obs=row["obs"], final_value=known[own], hidden=hidden)
    alone.last_obs, alone.last_value = buffer.last_obs[own], buffer.last_value[own]
    return alone


def streams(number: int) -> list[np.random.Generator]:
    return [np.random.default_rng([number, i]) for i in range(MEMBERS)]


def unrolled(network: Any, obs: torch.Tensor, hidden: dict[str, torch.Tensor], length: int) -> torch.Tensor:
    """Outputs of one sequence, one step at a time."""
    outputs = []
    for t in range(length):
        features, hidden = network.features_with_state(obs[t : t + 1], hidden)
        heads = [network.head_net, *([network.value_net] if "value_net" in network._modules else [])]
        out = torch.cat([head(features) for head in heads], -1)
        outputs.append(out)
    return torch.cat(outputs)


def plain(agent: PPO, buffers: list[RolloutBuffer], member: int) -> None:
    """Sequence by sequence, step by step, with torch's own optimiser; advantages are those of the feed-forward test."""
    nets = {name: getattr(agent, name) for name in agent.networks}
    adam = torch.optim.Adam([p for net in nets.values() for p in net.parameters()], lr=agent.lr, eps=1e-5)
    like = next(agent.actor.parameters())
    for number, buffer in enumerate(buffers):
        rollout = make_rollout(Learner([agent], choose([agent], "sequential")), 0, [agent], buffer, like)
        assert isinstance(rollout, SequenceRollout)
        rng, cuts = streams(number)[member], rollout.sequences[0]
        for _ in range(agent.update_epochs):
            order, divergences = rng.permutation(len(cuts)), []
            for start in range(0, len(order), agent.batch_size):
                terms: list[list[torch.Tensor]] = [[], [], [], []]
                for lane, first, length in cuts[order[start : start + agent.batch_size]]:
                    rows = (first + np.arange(length)) * LANES + lane
                    obs, action = rollout.obs[0, rows], rollout.action[0, rows]
                    old, before, advantage, target = rollout.numbers[0, rows].unbind(-1)
                    hidden = {
                        name: {
                            key.partition("_")[2]: x[0, rows[0]].unsqueeze(1)
                            for key, x in rollout.hidden.items()
                            if key.startswith((name, "shared"))
                        }
                        for name in nets
                    }
                    outputs = [unrolled(net, obs, hidden[name], length) for name, net in nets.items()]
                    policy, value = Categorical(logits=agent._raw(outputs[0])), outputs[-1][:, -1]
                    log_prob, c = policy.log_prob(action), agent.clip_coef
                    ratio = (log_prob - old).exp()
                    near = before + (value - before).clamp(-c, c)
                    terms[0].append(-torch.min(ratio * advantage, ratio.clamp(1 - c, 1 + c) * advantage))
                    terms[1].append(0.5 * torch.max((value - target) ** 2, (near - target) ** 2))
                    terms[2].append(policy.entropy())
                    terms[3].append((ratio - 1 - ratio.log()).detach())
                surrogate, error, entropy, divergence = (torch.cat(part).mean() for part in terms)
                adam.zero_grad()
                (surrogate + agent.vf_coef * error - agent.ent_coef * entropy).backward()
                for net in nets.values():
                    nn.utils.clip_grad_norm_(net.parameters(), agent.max_grad_norm)
                adam.step()
                divergences.append(float(divergence))
            if agent.target_kl is not None and np.mean(divergences) > agent.target_kl:
                break


def parameters(agents: list[PPO]) -> list[torch.Tensor]:
    found = []
    for agent in agents:
        nets = [getattr(agent, name) for name in agent.networks]
        found.append(torch.cat([p.detach().flatten() for net in nets for p in net.parameters()]))
    return found


@pytest.mark.parametrize(
    ("cell", "share"),
    [
        pytest.param("LSTM", False, marks=pytest.mark.slow),
        pytest.param("GRU", False, marks=pytest.mark.slow),
        ("LSTM", True),
    ],
)
def test_recurrent_ppo_is_the_same_on_every_path(cell: str, share: bool) -> None:
    agents = [make(i, cell, share_encoders=share) for i in range(MEMBERS)]
    rng = np.random.default_rng(3)
    buffers = [collect(Learner(agents, choose(agents, "sequential")), agents, rng) for _ in range(ROLLOUTS)]
    sequential, alone, textbook = ([a.clone() for a in agents] for _ in range(3))
    before = parameters(agents)
    fused = Learner(agents, choose(agents, "fused"))
    assert len(fused.groups) == 1, "heads of different widths, batch sizes and epochs share rows"
    like = next(agents[0].actor.parameters())
    for number, buffer in enumerate(buffers):
        rollout = make_rollout(fused, 0, agents, buffer, like)
        learn_rollout(fused, 0, agents, rollout, streams(number))
    fused.release()
    learner = Learner(sequential, choose(sequential, "sequential"))
    for i, agent in enumerate(sequential):
        for number, buffer in enumerate(buffers):
            rollout = make_rollout(learner, i, [agent], of_member(buffer, i), like)
            learn_rollout(learner, i, [agent], rollout, [streams(number)[i]])
    for i, agent in enumerate(alone):
        assert learner_of(agent).name == "fused"
        for number, buffer in enumerate(buffers):
            agent._minibatches = streams(number)[i]
            agent.learn_buffer(of_member(buffer, i))
        plain(textbook[i], [of_member(b, i) for b in buffers], i)
    for i, moved in enumerate(parameters(agents)):
        assert (moved - before[i]).abs().max() > 1e-3
        for name, other in (("sequential", sequential), ("alone", alone), ("plain torch", textbook)):
            torch.testing.assert_close(
                moved, parameters(other)[i], rtol=1e-10, atol=1e-10, msg=lambda m, n=name, k=i: f"member {k}, {n}: {m}"
            )


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_rows_act_step_by_step_as_the_modules_do(cell: str) -> None:
    agents = [make(i, cell) for i in range(MEMBERS)]
    rng = np.random.default_rng(0)
    sequence = rng.standard_normal((7, MEMBERS, LANES, 3))
    expected = []
    for i, agent in enumerate(agents):
        hidden: Any = None
        for obs in sequence[:, i]:
            hidden = agent.get_action(obs, hidden_state=hidden)[4]
        expected.append(hidden)
    fused = Learner(agents, choose(agents, "fused"))
    memory = HiddenStates(fused)
    for obs in sequence:
        memory.step(0, obs)
    found = memory.hidden[0]
    assert found is not None
    for i, hidden in enumerate(expected):
        for key, part in hidden.items():
            torch.testing.assert_close(found[key][i], part, rtol=1e-12, atol=1e-12)
    fused.release()


def test_members_of_another_hidden_width_have_rows_of_their_own() -> None:
    agents = [make(i, "LSTM") for i in range(MEMBERS)]
    agents[1].actor.apply_mutation("encoder.add_node", numb_new_nodes=4)
    agents[1].reinit_optimizers()
    fused = Learner(agents, choose(agents, "fused"))
    assert [group.members for group in fused.groups] == [[0, 2], [1]]
    fused.release()
