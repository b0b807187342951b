"""Recurrent IPPO and MAPPO: memories of agents that end, wait and come back, and every path against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from off_policy_case import assert_equal, state
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.choose import choose
from agilerl.engine.learner import HiddenStates, Learner
from agilerl.engine.rollouts import learn_rollout, plan_epoch
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.engine.team_sequences import TeamSequenceRollout
from agilerl.envs.protocol import AGENTS, PRESENT

OBS = {
    "walker_0": spaces.Box(-1, 1, (3,), np.float64),
    "caller_0": spaces.Box(-1, 1, (2,), np.float64),
    "walker_1": spaces.Box(-1, 1, (3,), np.float64),
}
ACTIONS = {"walker_0": spaces.Discrete(3), "caller_0": spaces.Box(-2, 2, (2,)), "walker_1": spaces.Discrete(3)}
NAMES, GROUPS = list(OBS), {"walker": [0, 2], "caller": [1]}
MEMBERS, STEPS, LANES, LONGEST = 3, 11, 4, 4
HYPER = [
    {"lr": 3e-3, "batch_size": 4, "update_epochs": 3},
    {"lr": 1e-3, "batch_size": 3, "update_epochs": 2, "clip_coef": 0.1, "max_grad_norm": None},
    {"lr": 5e-3, "batch_size": 8, "update_epochs": 4, "target_kl": 0.02},
]


def teams(cls: Any, cell: str, kind: str = "chunked", **options: Any) -> list[Any]:
    made = []
    for i in range(MEMBERS):
        memory = {"hidden_state_size": 6, "num_layers": 2, "cell": cell, "min_hidden_state_size": 4}
        head = {"hidden_size": [6 + 2 * (i == 1)], "activation": "Tanh"}
        team = cls(
            OBS, ACTIONS, index=i, seed=i, num_envs=LANES, recurrent=True, max_seq_len=LONGEST, bptt_sequence_type=kind,
            net_config={"encoder_config": memory, "head_config": head, "latent_dim": 8}, **HYPER[i], **options,
        )  # fmt: skip
        for name in team.registry.all_registered():
            getattr(team, name).double()
        made.append(team)
    return made


def observations(draw: np.random.Generator, lanes: int) -> dict[str, Any]:
    there = draw.random((lanes, 3)) < 0.8
    seen = {a: draw.uniform(-1, 1, (lanes, *OBS[a].shape)) * there[:, [k]] for k, a in enumerate(NAMES)}
    return {AGENTS: seen, PRESENT: there.astype(np.int8)}


def of_members(x: Any) -> Any:
    """[N·E, ...] -> [N, E, ...]"""
    return x.reshape(MEMBERS, LANES, *x.shape[1:])


def collect(members: list[Any], draw: np.random.Generator) -> list[RolloutStore]:
    """A rollout for each member, acted with its memory: agents end, their teams end, agents are away, lanes fail."""
    learner = Learner(members, choose(members, "sequential"))
    memory, width = HiddenStates(learner), MEMBERS * LANES
    buffers = [team.make_buffer(STEPS, LANES) for team in members]
    obs = observations(draw, width)
    for _ in range(STEPS):
        ended = draw.random((width, 3)) < 0.15
        ended |= draw.random((width, 1)) < 0.1  # a whole team at once
        cut = ended & (draw.random((width, 3)) < 0.5)
        acted = obs[PRESENT].astype(bool) & (draw.random((width, 3)) < 0.95) & (draw.random((width, 1)) < 0.95)
        reward, final, last = draw.normal(size=(width, 3)), observations(draw, width), draw.normal(size=(width, 3))
        for i, (team, buffer) in enumerate(zip(members, buffers, strict=True)):
            shown = {
                AGENTS: {a: of_members(x)[[i]] for a, x in obs[AGENTS].items()},
                PRESENT: of_members(obs[PRESENT])[[i]],
            }
            before = memory.of(i, shown)
            raw, value = memory.step(i, shown)
            action, log_prob = team.sample(raw[0], team.draw_exploration(draw, (LANES,)))
            own = [of_members(x)[i] for x in (reward, ended & ~cut, cut, last, acted)]
            there = {AGENTS: {a: x[0] for a, x in shown[AGENTS].items()}, PRESENT: shown[PRESENT][0]}
            buffer.add(
                there, action, own[0], own[1], own[2], log_prob, value[0].numpy(), final_value=own[3], valid=own[4],
                final_obs={AGENTS: {a: of_members(x)[i] for a, x in final[AGENTS].items()}, PRESENT: there[PRESENT]},
                hidden={key: part[0].numpy() for key, part in before.items()},
            )  # fmt: skip
            over = own[1] | own[2] | ~own[4].any(1, keepdims=True)
            memory.forget(i, over[None])
        obs = observations(draw, width)
    for i, buffer in enumerate(buffers):
        there = of_members(obs[PRESENT])[i]
        buffer.last_obs = {AGENTS: {a: of_members(x)[i] for a, x in obs[AGENTS].items()}, PRESENT: there}
        buffer.last_value = draw.normal(size=(LANES, 3))
    return buffers


def side_by_side(own: list[RolloutStore]) -> RolloutStore:
    """Rollouts of several members in one store, lane after lane."""
    lead = own[0]
    joined = RolloutStore(STEPS, LANES * len(own), lead.observation_space, lead.action_space,
                          lead.hidden_state_architecture, 0, 3)  # fmt: skip
    for t in range(STEPS):
        rows = {
            name: np.concatenate([b.fields[name][t] for b in own])
            for name in lead.fields
            if name not in ("obs", "hidden")
        }
        there = np.concatenate([b.fields["obs"][PRESENT][t] for b in own])
        obs = {AGENTS: {a: np.concatenate([b.fields["obs"][AGENTS][a][t] for b in own]) for a in OBS}, PRESENT: there}
        hidden = {
            key: np.concatenate([np.moveaxis(b.fields["hidden"][key][t], 1, 0) for b in own], 1)
            for key in lead.hidden_state_architecture
        }
        finals = np.zeros((LANES * len(own), 3))
        for k, b in enumerate(own):
            for part in b.truncations:
                if part.step == t:
                    finals[k * LANES + part.lanes] = part.value
        joined.add(obs, **rows, final_obs=obs, final_value=finals, hidden=hidden)
    joined.last_obs = {
        AGENTS: {a: np.concatenate([b.last_obs[AGENTS][a] for b in own]) for a in OBS},
        PRESENT: np.concatenate([b.last_obs[PRESENT] for b in own]),
    }
    joined.last_value = np.concatenate([b.last_value for b in own])
    return joined


def train(members: list[Any], kind: str, buffers: list[list[RolloutStore]]) -> list[int]:
    """Learn from every rollout, over rows or member by member; returns the updates of each member."""
    learner = Learner(members, choose(members, kind))
    like, counts = next(iter(members[0].policy_module().parameters())), [0] * MEMBERS
    for number, each in enumerate(buffers):
        for g, group in enumerate(learner.groups):
            rollout = make_team_rollout(learner, g, group.agents, side_by_side([each[i] for i in group.members]), like)
            rngs = [np.random.default_rng([number, i]) for i in group.members]
            for i, report in zip(group.members, learn_rollout(learner, g, group.agents, rollout, rngs), strict=True):
                counts[i] += report.updates
    learner.release()
    return counts


# --- a textbook loop -------------------------------------------------------------------------------------------------


def one_step(network: Any, obs: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
    features, hidden = network.features_with_state(obs, hidden)
    return network.head_net(features), hidden


def kept(buffer: RolloutStore, t: int, lane: int, start: str) -> dict[str, torch.Tensor]:
    """What one agent remembered before a step, as one network takes it."""
    each = {key.removeprefix(start): x[t, lane] for key, x in buffer.fields["hidden"].items() if key.startswith(start)}
    return {key: torch.from_numpy(np.array(x)).unsqueeze(1) for key, x in each.items()}


def plain(team: Any, buffers: list[RolloutStore], member: int) -> int:
    """Window by window, agent by agent and step by step, with torch's own optimisers and distributions.

    Advantages and windows are those of `make_team_rollout`; the feed-forward test has them by hand.
    """
    count = 0
    adam = {
        g: torch.optim.Adam(
            [p for k in ("actors", "critics") for p in getattr(team, f"{k}.{g}").parameters()], team.lr, eps=1e-5
        )
        for g in GROUPS
    }
    like = next(iter(team.policy_module().parameters()))
    for number, buffer in enumerate(buffers):
        alone = Learner([team], choose([team], "sequential"))
        rollout = make_team_rollout(alone, 0, [team], buffer, like)
        assert isinstance(rollout, TeamSequenceRollout)
        field = {k: torch.from_numpy(np.array(v)) for k, v in buffer.fields.items() if k not in ("obs", "hidden")}
        obs = {a: torch.from_numpy(np.array(x)) for a, x in buffer.fields["obs"][AGENTS].items()}
        there, numbers = buffer.fields["obs"][PRESENT], rollout.numbers[0].view(STEPS, LANES, 3, 4)
        decided = torch.ones(STEPS, LANES, 3) if rollout.acted is None else rollout.acted[0].view(STEPS, LANES, 3)
        over = buffer.fields["terminated"] | buffer.fields["truncated"] | ~buffer.fields["valid"].any(-1, keepdims=True)
        rng = np.random.default_rng([number, member])
        for _ in range(team.update_epochs):
            plan, divergence = plan_epoch([rng], rollout.samples, [team.batch_size], [True]), 0.0
            for chosen, weight in zip(plan.rows[:, 0], plan.weight[:, 0], strict=True):
                count, worst = count + 1, 0.0
                for g, own in GROUPS.items():
                    terms = []
                    for lane, first, length in rollout.windows[0][chosen[weight > 0]].tolist():
                        for k in own:
                            hidden: Any = None
                            for t in range(first, first + length):
                                if hidden is None or (t > first and over[t - 1, lane, k]):
                                    hidden = [
                                        kept(buffer, t, lane, f"{NAMES[k]}:{kind}_") for kind in ("actors", "critics")
                                    ]
                                if not there[t, lane, k]:
                                    continue
                                x = obs[NAMES[k]][t, lane].unsqueeze(0)
                                raw, hidden[0] = one_step(getattr(team, f"actors.{g}"), x, hidden[0])
                                critic = getattr(team, f"critics.{g}")
                                if isinstance(team, IPPO):
                                    v, hidden[1] = one_step(critic, x, hidden[1])
                                else:
                                    seen = {a: x[t, lane].unsqueeze(0) for a, x in obs.items()}
                                    who = torch.eye(len(own)).double()[[own.index(k)]]
                                    v = critic(seen, who) if len(own) > 1 else critic(seen)
                                if not decided[t, lane, k]:
                                    continue
                                old, before, advantage, goal = numbers[t, lane, k]
                                columns = team.actions.columns[NAMES[k]]
                                action = field["action"][t, lane, columns]
                                if g == "caller":
                                    mean, log_std = raw[0].chunk(2)
                                    policy: Any = Independent(Normal(mean, log_std.clamp(-20, 2).exp()), 1)
                                    action = action / 2  # in units of half of the range of Box(-2, 2)
                                else:
                                    policy, action = Categorical(logits=raw[0]), action[0]
                                ratio, c = (policy.log_prob(action) - old).exp(), team.clip_coef
                                near = before + (v[0, 0] - before).clamp(-c, c)
                                error = 0.5 * torch.max((v[0, 0] - goal) ** 2, (near - goal) ** 2)
                                gain = torch.min(ratio * advantage, ratio.clamp(1 - c, 1 + c) * advantage)
                                loss = -gain + team.vf_coef * error - team.ent_coef * policy.entropy()
                                terms.append((loss, (ratio - 1 - ratio.log()).detach()))
                    if not terms:
                        continue
                    adam[g].zero_grad()
                    torch.stack([loss for loss, _ in terms]).mean().backward()
                    worst = max(worst, float(torch.stack([kl for _, kl in terms]).mean()))
                    if team.max_grad_norm is not None:
                        for kind in ("actors", "critics"):
                            nn.utils.clip_grad_norm_(getattr(team, f"{kind}.{g}").parameters(), team.max_grad_norm)
                    adam[g].step()
                divergence += worst
            if team.target_kl is not None and divergence / len(plan.rows) > team.target_kl:
                break
    return count


@pytest.mark.parametrize(
    ("cls", "cell", "kind", "rollouts"),
    [
        (IPPO, "LSTM", "chunked", 1),
        pytest.param(IPPO, "LSTM", "chunked", 4, marks=pytest.mark.slow),
        pytest.param(MAPPO, "GRU", "chunked", 4, marks=pytest.mark.slow),
        pytest.param(MAPPO, "LSTM", "fifty_percent_overlap", 4, marks=pytest.mark.slow),
        pytest.param(IPPO, "GRU", "maximum", 6, marks=pytest.mark.slow),
    ],
)
def test_recurrent_teams_learn_over_rows_what_they_learn_alone_and_step_by_step(
    cls: Any, cell: str, kind: str, rollouts: int
) -> None:
    fused = teams(cls, cell, kind)
    sequential, textbook = [team.clone() for team in fused], [team.clone() for team in fused]
    before, draw = state(fused), np.random.default_rng(3)
    buffers = [collect(fused, draw) for _ in range(rollouts)]
    assert choose(fused).name == "fused"
    counts = train(fused, "fused", buffers)
    assert sum(counts) >= (100 if rollouts > 1 else 25)
    assert train(sequential, "sequential", buffers) == counts
    after = state(fused)
    assert all((before[name] - after[name]).abs().max() > 1e-6 for name in before)
    assert_equal(fused, sequential)
    for i, team in enumerate(textbook):
        assert plain(team, [each[i] for each in buffers], i) == counts[i]
        for name in team.registry.all_registered():
            mine, theirs = (torch.cat([p.detach().flatten() for p in getattr(t, name).parameters()])
                            for t in (fused[i], team))  # fmt: skip
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9, msg=lambda m, n=f"{i} {name}": f"{n}: {m}")


def test_teams_with_shared_encoders_learn_over_rows_what_they_learn_alone() -> None:
    fused = teams(IPPO, "LSTM", share_encoders=True)
    sequential, before = [team.clone() for team in fused], state(fused)
    buffers = [collect(fused, np.random.default_rng(3))]
    assert choose(fused).name == "fused"
    assert train(fused, "fused", buffers) == train(sequential, "sequential", buffers)
    after = state(fused)
    assert all((x - after[name]).abs().max() > 1e-6 for name, x in before.items())
    assert_equal(fused, sequential)


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_memory_moves_where_an_agent_is_there_waits_where_it_is_not_and_ends_with_its_own_episode(learner: str) -> None:
    members, draw = teams(IPPO, "LSTM"), np.random.default_rng(0)
    expected = {(i, e, k): None for i in range(MEMBERS) for e in range(LANES) for k in range(3)}
    run = Learner(members, choose(members, learner))
    memory = HiddenStates(run)
    for _ in range(9):
        obs = observations(draw, MEMBERS * LANES)
        shown = {AGENTS: {a: of_members(x) for a, x in obs[AGENTS].items()}, PRESENT: of_members(obs[PRESENT])}
        over = draw.random((MEMBERS, LANES, 3)) < 0.25
        for g, group in enumerate(run.groups):
            own = {
                AGENTS: {a: x[group.members] for a, x in shown[AGENTS].items()},
                PRESENT: shown[PRESENT][group.members],
            }
            raw, value = memory.step(g, own)
            for row, i in enumerate(group.members):
                for e, k in np.ndindex(LANES, 3):
                    name, column = NAMES[k], members[i].policies.outputs[NAMES[k]]
                    kept: Any = expected[i, e, k] or [None, None]
                    x = torch.from_numpy(shown[AGENTS][name][i, e]).unsqueeze(0)
                    for j, kind in enumerate(("actors", "critics")):
                        network = getattr(members[i].clone(), f"{kind}.{name[:-2]}") if learner == "fused" else getattr(
                            members[i], f"{kind}.{name[:-2]}")  # fmt: skip
                        start = kept[j] or network.initialize_hidden_state(1)
                        out, after = one_step(network, x, start)
                        got = raw[row, e, column] if j == 0 else value[row, e, [k]]
                        torch.testing.assert_close(got, out[0].detach(), rtol=1e-10, atol=1e-10)
                        kept[j] = after if shown[PRESENT][i, e, k] else start
                    expected[i, e, k] = None if over[i, e, k] else kept
            memory.forget(g, over[group.members])
    run.release()
