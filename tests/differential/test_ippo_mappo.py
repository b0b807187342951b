"""IPPO and MAPPO: fused == sequential == alone == a plain loop of torch, in float64, with absent agents and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from off_policy_case import assert_equal, state
from team_rollout_case import GROUPS, LANES, OBS, ROLLOUTS, STEPS, collect, of_member, teams, train
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.choose import choose
from agilerl.engine.rollouts import plan_epoch
from agilerl.envs.protocol import AGENTS, PRESENT

# --- a textbook loop -------------------------------------------------------------------------------------------------


def value_of(team: Any, group: str, k: int, seen: dict[str, torch.Tensor]) -> torch.Tensor:
    """V [...] of agent number k, by the group's own critic."""
    agents, critic = team.grouped_agents[group], getattr(team, f"critics.{group}")
    name = list(OBS)[k]
    if isinstance(team, IPPO):
        return critic(seen[name])[..., 0]
    if len(agents) == 1:
        return critic(seen)[..., 0]
    who = torch.zeros(*seen[name].shape[:-1], len(agents)).double()
    who[..., agents.index(name)] = 1
    return critic(seen, who)[..., 0]


def distribution(team: Any, group: str, raw: torch.Tensor, legal: torch.Tensor, squash: bool) -> list[Any]:
    if group == "mover":
        mean, log_std = raw.chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        made: Any = TransformedDistribution(normal, TanhTransform(cache_size=1)) if squash else normal
        return [Independent(made, 1)]
    sizes = {"speaker": [3], "agent": [2, 3]}[group]
    logits = torch.where(legal, raw, torch.full_like(raw, -1e9))
    return [Categorical(logits=part) for part in torch.split(logits, sizes, -1)]


def flat(x: Any) -> Any:
    """[T, E, ...] -> [T·E, ...]"""
    return x.reshape(STEPS * LANES, *x.shape[2:])


def plain(team: Any, buffers: list[RolloutStore], member: int) -> int:
    """Rollouts learned from with torch's own optimisers and distributions, agent by agent; returns the updates."""
    count, masks, columns = 0, team.actions.masks, team.actions.columns
    adam = {
        g: torch.optim.Adam(
            [p for kind in ("actors", "critics") for p in getattr(team, f"{kind}.{g}").parameters()],
            lr=team.lr,
            eps=1e-5,
        )
        for g in GROUPS
    }
    mean, deviation, seen_returns = dict.fromkeys(GROUPS, 0.0), dict.fromkeys(GROUPS, 1.0), {g: [] for g in GROUPS}
    for number, buffer in enumerate(buffers):
        field = {k: torch.from_numpy(np.array(v)) for k, v in buffer.fields.items() if k != "obs"}
        obs = {a: torch.from_numpy(np.array(x)) for a, x in buffer.fields["obs"][AGENTS].items()}
        there, acted = buffer.fields["obs"][PRESENT].astype(bool), buffer.fields["valid"]
        last = {a: torch.from_numpy(x) for a, x in buffer.last_obs[AGENTS].items()}
        raw_value, advantage = torch.zeros(STEPS, LANES, 4).double(), torch.zeros(STEPS, LANES, 4).double()
        counts = np.array(acted)
        scaled = torch.zeros_like(advantage)
        returns = torch.zeros_like(advantage)
        for g, own in GROUPS.items():
            for k in own:
                with torch.no_grad():
                    raw_value[..., k] = value_of(team, g, k, obs)
                    after_last = value_of(team, g, k, last) * deviation[g] + mean[g]
                value = raw_value[..., k] * deviation[g] + mean[g]
                for lane in range(LANES):
                    # What one decision leads to: the rewards until the agent is there again, and what follows then.
                    decided = [t for t in range(STEPS) if acted[t, lane, k]]
                    known_after: dict[int, float] = {}
                    for t in reversed(decided):
                        total, factor, follows, trace = 0.0, 1.0, None, 0.0
                        for s in range(t, STEPS):
                            if s > t and there[s, lane, k]:
                                follows = float(value[s, lane])
                                trace = known_after.get(s, 0.0)
                                break
                            total += factor * float(field["reward"][s, lane, k])
                            factor *= team.gamma
                            if s == t and buffer.fields["terminated"][s, lane, k]:
                                follows, factor = 0.0, 0.0
                                break
                            if s == t and buffer.fields["truncated"][s, lane, k]:
                                part = next(p for p in buffer.truncations if p.step == s)
                                row = list(part.lanes).index(lane)
                                final = {a: torch.from_numpy(x[row]) for a, x in part.obs[AGENTS].items()}
                                with torch.no_grad():
                                    follows = float(value_of(team, g, k, final) * deviation[g] + mean[g])
                                break
                        if follows is None:
                            if not buffer.last_obs[PRESENT][lane, k]:
                                counts[t, lane, k] = False
                                continue
                            follows = float(after_last[lane])
                        delta = total + factor * follows - float(value[t, lane])
                        found = delta + factor * team.gae_lambda * trace
                        advantage[t, lane, k] = known_after[t] = found
                returns[..., k] = advantage[..., k] + value
            rows = torch.from_numpy(counts[..., own])
            chosen = advantage[..., own][rows]
            scaled[..., own] = (advantage[..., own] - chosen.mean()) / (chosen.std(correction=0) + 1e-8)
            if isinstance(team, MAPPO):
                seen_returns[g].append(returns[..., own][rows])
                every = torch.cat(seen_returns[g])
                mean[g], deviation[g] = float(every.mean()), max(1e-2, float(every.std(correction=0)))
        rng, size = np.random.default_rng([number, member]), STEPS * LANES
        samples = np.flatnonzero(counts.reshape(size, 4).any(1))
        for _ in range(team.update_epochs):
            plan = plan_epoch([rng], [samples], [team.batch_size], [True])
            noise = team.draw_entropy_noise(rng, size)
            divergence = 0.0
            for rows, weight in zip(plan.rows[:, 0], plan.weight[:, 0], strict=True):
                picked = rows[weight > 0]
                count += 1
                worst = 0.0
                for g, own in GROUPS.items():
                    terms = []
                    for k in own:
                        name = list(OBS)[k]
                        keep = picked[flat(counts)[picked, k]]
                        if not len(keep):
                            continue
                        legal = flat(field["legal"])[keep][:, masks[name]]
                        raw = getattr(team, f"actors.{g}").output(flat(obs[name])[keep])
                        squash = g == "mover" and getattr(team, f"actors.{g}").squash_output
                        parts = distribution(team, g, raw, legal, squash)
                        action = flat(field["action"])[keep][:, columns[name]]
                        if g == "mover":
                            # A squashed action is in (-1, 1); another one counts in halves of the range of Box(-2, 2).
                            logp = parts[0].log_prob(action if squash else action / 2)
                            if squash:
                                m, s = raw.chunk(2, -1)
                                fresh = (m + s.clamp(-20, 2).exp() * torch.from_numpy(noise[keep])).tanh()
                                entropy = -parts[0].log_prob(fresh)
                            else:
                                entropy = parts[0].entropy()
                        else:
                            logp = sum(d.log_prob(action[:, j]) for j, d in enumerate(parts))
                            entropy = sum(d.entropy() for d in parts)
                        old, adv = flat(field["log_prob"])[keep, k], flat(scaled)[keep, k]
                        ratio = (logp - old).exp()
                        gain = torch.min(ratio * adv, ratio.clamp(1 - team.clip_coef, 1 + team.clip_coef) * adv)
                        everything = {a: flat(x)[keep] for a, x in obs.items()}
                        v, before = value_of(team, g, k, everything), flat(raw_value)[keep, k]
                        goal = (flat(returns)[keep, k] - mean[g]) / deviation[g]
                        moved = before + (v - before).clamp(-team.clip_coef, team.clip_coef)
                        error = 0.5 * torch.max((v - goal) ** 2, (moved - goal) ** 2)
                        terms.append(
                            (-gain + team.vf_coef * error - team.ent_coef * entropy, (ratio - 1) - (logp - old))
                        )
                    if not terms:
                        continue
                    loss = torch.cat([x for x, _ in terms]).mean()
                    worst = max(worst, float(torch.cat([x for _, x in terms]).detach().mean()))
                    adam[g].zero_grad()
                    loss.backward()
                    if team.max_grad_norm is not None:
                        for kind in ("actors", "critics"):
                            nn.utils.clip_grad_norm_(getattr(team, f"{kind}.{g}").parameters(), team.max_grad_norm)
                    adam[g].step()
                divergence += worst
            if team.target_kl is not None and divergence / len(plan.rows) > team.target_kl:
                break
    return count


@pytest.mark.parametrize(("cls", "squash"), [(IPPO, False), (MAPPO, True)])
def test_teams_learn_over_rows_what_they_learn_alone_and_what_a_plain_loop_learns(cls: Any, squash: bool) -> None:
    fused = teams(cls, squash)
    sequential, alone = [team.clone() for team in fused], [team.clone() for team in fused]
    before, draw = state(fused), np.random.default_rng(3)
    buffers = [collect(fused, draw) for _ in range(ROLLOUTS)]
    assert choose(fused).name == "fused"
    assert not all(buffer.fields["valid"].all() for buffer in buffers)
    counts = train(fused, "fused", buffers)
    assert min(counts) >= 15
    assert max(counts) >= 100
    assert sum(counts) >= 190
    assert train(sequential, "sequential", buffers) == counts
    after = state(fused)
    assert all((before[name] - after[name]).abs().max() > 1e-6 for name in before)
    assert_equal(fused, sequential)
    for i, team in enumerate(alone):
        assert plain(team, [of_member(buffer, i) for buffer in buffers], i) == counts[i]
        for name in team.registry.all_registered():
            mine, theirs = (torch.cat([p.detach().flatten() for p in getattr(t, name).parameters()])
                            for t in (fused[i], team))  # fmt: skip
            torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8, msg=lambda m, n=f"{i} {name}": f"{n}: {m}")
