"""IPPO (de Witt et al. 2020) and MAPPO (Yu et al. 2022) from an environment's log: torch's distributions and Adam.

Nothing of the package computes here. It is given the numbers of the untrained networks, which rows of a rollout each
minibatch holds, and the actions in full precision; everything else comes from the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from mixed_team import Step
from plain_networks import Parameters, copied, encoded, nothing, one_hot, output, take
from replay_reference import sizes
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal

ADAM_EPSILON = 1e-5
LEAST_DEVIATION = 1e-2


@dataclass
class PPOSettings:
    """Hyperparameters, as the papers name them."""

    gamma: float
    gae_lambda: float
    lr: float
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class RolloutReference:
    """A team that learns from rollouts: one policy and one value for each group.

    Args:
        env: has the spaces. team: gives the numbers of the untrained networks. central: MAPPO in place of IPPO.
    """

    def __init__(self, env: Any, team: Any, settings: PPOSettings, central: bool) -> None:
        self.env, self.agents, self.settings, self.central = env, list(env.possible_agents), settings, central
        self.groups: dict[str, list[str]] = {}
        for agent in self.agents:
            self.groups.setdefault(agent.split("_")[0], []).append(agent)
        self.seen_space = {a: env.observation_space(a) for a in self.agents}
        self.acted = {a: env.action_space(a) for a in self.agents}
        self.joint = spaces.Dict({a: self.seen_space[a] for a in sorted(self.agents)})
        self.actors: dict[str, Parameters] = {g: copied(getattr(team, f"actors.{g}")) for g in self.groups}
        self.critics: dict[str, Parameters] = {g: copied(getattr(team, f"critics.{g}")) for g in self.groups}
        self.adam = {
            g: torch.optim.Adam([*self.actors[g].values(), *self.critics[g].values()], settings.lr, eps=ADAM_EPSILON)
            for g in self.groups
        }
        self.returns: dict[str, list[Tensor]] = {g: [] for g in self.groups}
        self.scale = dict.fromkeys(self.groups, (0.0, 1.0))

    # --- what networks say --------------------------------------------------------------------------------------------

    def value(self, agent: str, seen: dict[str, Any]) -> Tensor:
        """What the critic gives, in its own scale."""
        group = agent.split("_")[0]
        p, members = self.critics[group], self.groups[group]
        if not self.central:
            return output(p, self.seen_space[agent], seen[agent])[:, 0]
        if len(members) == 1:
            return output(p, self.joint, seen)[:, 0]
        count = len(next(iter(seen[agent].values())) if isinstance(seen[agent], dict) else seen[agent])
        return output(p, self.joint, seen, one_hot(torch.full((count,), members.index(agent)), len(members)))[:, 0]

    def judged(self, agent: str, seen: dict[str, Any], action: Tensor, legal: Any) -> tuple[Tensor, Tensor]:
        """(log probabilities, entropies) of actions [B, A]."""
        space, raw = self.acted[agent], output(self.actors[agent.split("_")[0]], self.seen_space[agent], seen[agent])
        each = sizes(space)
        if each:
            logits = raw.masked_fill(~legal[agent], -1e9)
            parts = [Categorical(logits=x) for x in logits.split(each, -1)]
            return (
                sum(d.log_prob(action[:, k]) for k, d in enumerate(parts)), sum(d.entropy() for d in parts)
            )  # type: ignore[return-value]  # fmt: skip
        if isinstance(space, spaces.MultiBinary):
            bits = Bernoulli(logits=raw)
            return bits.log_prob(action).sum(-1), bits.entropy().sum(-1)
        mean, log_std = raw.chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        return normal.log_prob(action).sum(-1), normal.entropy().sum(-1)

    # --- one rollout --------------------------------------------------------------------------------------------------

    def learn(
        self, lanes: list[list[Step]], after: list[dict[str, Any]], stored: np.ndarray, plans: list[list[Any]]
    ) -> int:
        """All minibatches of one rollout; returns how many.

        Args:
            lanes: the steps of each environment. after: what agents of each see then. stored: [T, E, A] actions.
            plans: epoch by epoch, minibatch by minibatch the rows t * E + lane.
        """
        rows = [lane[t] for t in range(len(lanes[0])) for lane in lanes]
        flat = stored.reshape(len(rows), -1)
        seen = {a: self._encoded(a, [r.seen for r in rows]) for a in self.agents}
        legal = {a: self._legal(a, [r.masks for r in rows]) for a in self.agents if sizes(self.acted[a])}
        actions, start = {}, 0
        for a in self.agents:
            count = len(sizes(self.acted[a])) or int(np.prod(self.acted[a].shape))
            actions[a], start = torch.from_numpy(flat[:, start : start + count]).double(), start + count
        with torch.no_grad():
            old = {a: self.judged(a, seen, actions[a], legal)[0] for a in self.agents}
            before = {a: self.value(a, seen) for a in self.agents}
            final = {a: self.value(a, self._all([self._left(r) for r in rows])) for a in self.agents}
            last = {a: self.value(a, self._all(after)) for a in self.agents}
        advantages, counts, goals = self._outcomes(lanes, after, before, final, last)
        updates = 0
        for epoch in plans:
            for chosen in epoch:
                updates += 1
                for group in self.groups:
                    self._minibatch(group, chosen, seen, actions, legal, old, before, advantages, counts, goals)
        return updates

    def _encoded(self, agent: str, seen: list[dict[str, Any]]) -> Any:
        empty = nothing(self.seen_space[agent])
        return encoded(self.seen_space[agent], [row.get(agent, empty) for row in seen])

    def _all(self, seen: list[dict[str, Any]]) -> dict[str, Any]:
        return {a: self._encoded(a, seen) for a in self.agents}

    def _legal(self, agent: str, masks: list[dict[str, np.ndarray]]) -> Tensor:
        usual = np.ones(sum(sizes(self.acted[agent])), bool)
        return torch.from_numpy(np.stack([row.get(agent, usual) for row in masks]).astype(bool))

    @staticmethod
    def _left(step: Step) -> dict[str, Any]:
        """What agents saw last, of those that did not terminate."""
        return {a: x for a, x in step.next_seen.items() if not step.ends.get(a)}

    def _outcomes(self, lanes: Any, after: Any, before: Any, final: Any, last: Any) -> tuple[Any, Any, Any]:
        """(advantages standardised by group, which rows count, what values learn) by agent [T * E]."""
        steps, width = len(lanes[0]), len(lanes)
        found = {a: torch.zeros(steps * width).double() for a in self.agents}
        counts = {a: np.zeros(steps * width, bool) for a in self.agents}
        for agent in self.agents:
            mean, deviation = self.scale[agent.split("_")[0]]
            for e, lane in enumerate(lanes):
                known: dict[int, float] = {}
                for t in reversed(range(steps)):
                    if agent not in lane[t].seen:
                        continue
                    v = [float(x) * deviation + mean for x in before[agent][e::width]]
                    outcome = self._outcome(agent, lane, t, v, known)
                    if outcome is None:  # away until the rollout's end
                        if agent not in after[e]:
                            continue
                        gained, factor = self._gained(agent, lane, t)
                        outcome = gained + factor * (float(last[agent][e]) * deviation + mean), 0.0
                    elif isinstance(outcome, int):  # cut at that step
                        gained, factor = self._gained(agent, lane, t, outcome)
                        value = float(final[agent][outcome * width + e]) * deviation + mean
                        outcome = gained + factor * value, 0.0
                    known[t] = outcome[0] - v[t] + self.settings.gae_lambda * outcome[1]
                    found[agent][t * width + e] = known[t]
                    counts[agent][t * width + e] = True
        goals = {}
        for group, members in self.groups.items():
            mean, deviation = self.scale[group]
            returns = {a: found[a] + before[a] * deviation + mean for a in members}
            if self.central:
                self.returns[group] += [returns[a][torch.from_numpy(counts[a])] for a in members]
                every = torch.cat(self.returns[group])
                self.scale[group] = float(every.mean()), max(LEAST_DEVIATION, float(every.std(correction=0)))
            mean, deviation = self.scale[group]
            goals |= {a: (returns[a] - mean) / deviation for a in members}
            chosen = torch.cat([found[a][torch.from_numpy(counts[a])] for a in members])
            for a in members:
                found[a] = (found[a] - chosen.mean()) / (chosen.std(correction=0) + 1e-8)
        return found, counts, goals

    def _outcome(self, agent: str, lane: list[Step], t: int, v: list[float], known: dict[int, float]) -> Any:
        """What a decision led to: (return with the next value, γᵏ times the trace); the step at which it was cut; None
        where the rollout does not show it."""
        for s in range(t, len(lane)):
            if s > t and agent in lane[s].seen:
                gained, factor = self._gained(agent, lane, t, s - 1)
                return gained + factor * v[s], factor * known.get(s, 0.0)
            step = lane[s]
            is_seen = agent in step.next_seen
            if step.ends.get(agent) or (step.is_last and not is_seen) or (step.cuts.get(agent) and not is_seen):
                return self._gained(agent, lane, t, s)[0], 0.0
            if step.cuts.get(agent):
                return s
        return None

    def _gained(self, agent: str, lane: list[Step], t: int, last: int | None = None) -> tuple[float, float]:
        """(discounted rewards of the steps t .. last, γ to the power of their number)."""
        total, factor = 0.0, 1.0
        for step in lane[t : len(lane) if last is None else last + 1]:
            total, factor = total + factor * step.rewards.get(agent, 0.0), factor * self.settings.gamma
        return total, factor

    def _minibatch(
        self, group: str, chosen: Any, seen: Any, actions: Any, legal: Any, old: Any, before: Any, advantages: Any,
        counts: Any, goals: Any,
    ) -> None:  # fmt: skip
        s, losses = self.settings, []
        for agent in self.groups[group]:
            rows = chosen[counts[agent][chosen]]
            if not len(rows):
                continue
            own = {a: take(x, rows) for a, x in seen.items()}
            allowed = {a: take(x, rows) for a, x in legal.items()}
            log_prob, entropy = self.judged(agent, own, actions[agent][rows], allowed)
            ratio, gain = (log_prob - old[agent][rows]).exp(), advantages[agent][rows]
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - s.clip_coef, 1 + s.clip_coef) * gain)
            value, was = self.value(agent, own), before[agent][rows]
            moved = was + (value - was).clamp(-s.clip_coef, s.clip_coef)
            goal = goals[agent][rows]
            error = 0.5 * torch.max((value - goal).square(), (moved - goal).square())
            losses.append(-surrogate + s.vf_coef * error - s.ent_coef * entropy)
        if not losses:
            return
        optim = self.adam[group]
        optim.zero_grad()
        torch.cat(losses).mean().backward()
        for p in (self.actors[group], self.critics[group]):
            nn.utils.clip_grad_norm_(list(p.values()), s.max_grad_norm)
        optim.step()
