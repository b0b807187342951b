"""Populations of teams that learn from rollouts, and random rollouts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rollouts import learn_rollout
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.envs.protocol import AGENTS, PRESENT

OBS = {
    "speaker_0": spaces.Box(-1, 1, (3,), np.float64),
    "agent_0": spaces.Box(-1, 1, (4,), np.float64),
    "agent_1": spaces.Box(-1, 1, (4,), np.float64),
    "mover_0": spaces.Box(-1, 1, (2,), np.float64),
}
ACTIONS = {
    "speaker_0": spaces.Discrete(3, start=1),
    "agent_0": spaces.MultiDiscrete([2, 3]),
    "agent_1": spaces.MultiDiscrete([2, 3]),
    "mover_0": spaces.Box(-2, 2, (2,)),
}
GROUPS = {"speaker": [0], "agent": [1, 2], "mover": [3]}
MEMBERS, STEPS, LANES, ROLLOUTS, MASKS = 3, 8, 5, 5, 13
HYPER = [
    {"batch_size": 16, "update_epochs": 4, "gamma": 0.99, "clip_coef": 0.2},
    {"batch_size": 7, "update_epochs": 4, "gamma": 0.9, "clip_coef": 0.1, "clip_value_loss": True},
    {"batch_size": 40, "update_epochs": 6, "gamma": 0.95, "target_kl": 0.02, "max_grad_norm": None},
]


def teams(cls: Any, squash: bool = False) -> list[Any]:
    made = []
    for i in range(MEMBERS):
        hidden = {"hidden_size": [16 + 8 * (i == 1)], "activation": "Tanh"}
        config = {"encoder_config": hidden, "latent_dim": 8, "head_config": hidden, "squash_output": squash}
        if i == 2:
            config["encoder_config"] = {"hidden_size": [16, 12], "activation": "Tanh"}
        team = cls(OBS, ACTIONS, index=i, seed=i, net_config=config, lr=1e-3 * (i + 1), num_envs=LANES, **HYPER[i])
        for name in team.registry.all_registered():
            getattr(team, name).double()
        made.append(team)
    return made


def observations(draw: np.random.Generator, lanes: int) -> dict[str, Any]:
    there = draw.random((lanes, 4)) < 0.8
    seen = {a: draw.uniform(-1, 1, (lanes, *OBS[a].shape)) * there[:, [k]] for k, a in enumerate(OBS)}
    return {AGENTS: seen, PRESENT: there.astype(np.int8)}


def collect(members: list[Any], draw: np.random.Generator) -> RolloutStore:
    """A rollout with ends of agents and teams, absence, masks, and steps that were not the agents' own decision."""
    lanes = MEMBERS * LANES
    buffer = members[0].make_buffer(STEPS, lanes, MASKS)
    obs = observations(draw, lanes)
    for _ in range(STEPS):
        legal = draw.random((lanes, MASKS)) < 0.7
        legal[:, [0, 3, 5, 8, 10]] = True
        parts = []
        for i, team in enumerate(members):
            own = slice(i * LANES, (i + 1) * LANES)
            shown = {AGENTS: {a: x[own] for a, x in obs[AGENTS].items()}, PRESENT: obs[PRESENT][own]}
            with torch.no_grad():
                raw = team.policy_output(shown)
            parts.append(team.sample(raw, team.draw_exploration(draw, (LANES,)), legal[own]))
        ended = draw.random((lanes, 4)) < 0.25
        cut = ended & (draw.random((lanes, 4)) < 0.5)
        acted = obs[PRESENT].astype(bool) & (draw.random((lanes, 4)) < 0.95)
        buffer.add(
            obs, np.concatenate([a for a, _ in parts]), draw.normal(size=(lanes, 4)), ended & ~cut & acted,
            cut & acted, np.concatenate([p for _, p in parts]), final_obs=observations(draw, lanes), valid=acted,
            legal=legal,
        )  # fmt: skip
        obs = observations(draw, lanes)
    buffer.last_obs = obs
    return buffer


def of_member(buffer: RolloutStore, i: int) -> RolloutStore:
    """The rollout of one member, as if it had been stored alone."""
    own = slice(i * LANES, (i + 1) * LANES)
    space = buffer.observation_space, buffer.action_space
    alone = RolloutStore(STEPS, LANES, *space, num_legal=MASKS, agents=4)
    finals = {part.step: part for part in buffer.truncations}
    for t in range(STEPS):
        take = lambda x, t=t: x[t, own]  # noqa: E731
        field = {
            name: take(buffer.fields[name]) for name in ("action", "reward", "terminated", "truncated", "log_prob")
        }
        obs = {AGENTS: {a: take(x) for a, x in buffer.fields["obs"][AGENTS].items()}}
        final = {AGENTS: {a: np.zeros((MEMBERS * LANES, *s.shape)) for a, s in OBS.items()}}
        final[PRESENT] = np.zeros((MEMBERS * LANES, 4), np.int8)
        if t in finals:
            for a in OBS:
                final[AGENTS][a][finals[t].lanes] = finals[t].obs[AGENTS][a]
        alone.add(
            {**obs, PRESENT: take(buffer.fields["obs"][PRESENT])}, **field, valid=take(buffer.fields["valid"]),
            legal=take(buffer.fields["legal"]),
            final_obs={AGENTS: {a: x[own] for a, x in final[AGENTS].items()}, PRESENT: final[PRESENT][own]},
        )  # fmt: skip
    last = buffer.last_obs
    alone.last_obs = {AGENTS: {a: x[own] for a, x in last[AGENTS].items()}, PRESENT: last[PRESENT][own]}
    return alone


def streams(number: int) -> list[np.random.Generator]:
    return [np.random.default_rng([number, i]) for i in range(MEMBERS)]


def train(members: list[Any], kind: str, buffers: list[RolloutStore]) -> list[int]:
    """Learn from every rollout, over rows or member by member; returns the updates of each member."""
    learner = Learner(members, choose(members, kind))
    like = next(iter(members[0].policy_module().parameters()))
    counts = [0] * MEMBERS
    for number, buffer in enumerate(buffers):
        rngs = streams(number)
        for g, group in enumerate(learner.groups):
            own = [of_member(buffer, i) for i in group.members]
            joined = own[0] if len(own) == 1 else side_by_side(own)
            rollout = make_team_rollout(learner, g, group.agents, joined, like)
            reports = learn_rollout(learner, g, group.agents, rollout, [rngs[i] for i in group.members])
            for i, report in zip(group.members, reports, strict=True):
                counts[i] += report.updates
    learner.release()
    return counts


def side_by_side(own: list[RolloutStore]) -> RolloutStore:
    """Rollouts of several members in one store, lane after lane."""
    joined = RolloutStore(STEPS, LANES * len(own), own[0].observation_space, own[0].action_space, None, MASKS, 4)
    for t in range(STEPS):
        row = lambda name, t=t: np.concatenate([b.fields[name][t] for b in own])  # noqa: E731
        obs = {a: np.concatenate([b.fields["obs"][AGENTS][a][t] for b in own]) for a in OBS}
        final = {a: np.zeros((LANES * len(own), *s.shape)) for a, s in OBS.items()}
        for k, b in enumerate(own):
            for part in b.truncations:
                if part.step == t:
                    for a in OBS:
                        final[a][k * LANES + part.lanes] = part.obs[AGENTS][a]
        names = ("action", "reward", "terminated", "truncated", "log_prob", "valid", "legal")
        there = np.concatenate([b.fields["obs"][PRESENT][t] for b in own])
        joined.add({AGENTS: obs, PRESENT: there}, **{name: row(name) for name in names},
                   final_obs={AGENTS: final, PRESENT: there})  # fmt: skip
    joined.last_obs = {
        AGENTS: {a: np.concatenate([b.last_obs[AGENTS][a] for b in own]) for a in OBS},
        PRESENT: np.concatenate([b.last_obs[PRESENT] for b in own]),
    }
    return joined
