"""MADDPG (Lowe et al. 2017) and MATD3 (Ackermann et al. 2019) from an environment's log: torch's autograd and Adam.

Nothing of the package computes here. It is given the numbers of the untrained networks, which rows each update sampled
and the random numbers of the update; everything else comes from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from mixed_team import Step
from plain_networks import Parameters, copied, encoded, nothing, one_hot, output, take
from torch import Tensor

LOGIT_DECAY = 1e-3  # of the authors' released code


def sizes(space: Any) -> list[int]:
    """Choices of each component; none of a Box."""
    return [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in getattr(space, "nvec", ())]


def width(space: Any) -> int:
    """Features of an action."""
    return sum(sizes(space)) or int(np.prod(space.shape))


@dataclass
class Row:
    """One transition of a team. By agent: what it saw and what it did (raw, as its policy gave it), whether it was
    there or waited for its next turn, which choices were legal; the same of what followed; its reward and its end."""

    seen: dict[str, Any]
    action: dict[str, np.ndarray]
    there: dict[str, float]
    waits: dict[str, float]
    legal: dict[str, np.ndarray]
    reward: dict[str, float]
    done: dict[str, float]
    next_seen: dict[str, Any]
    next_there: dict[str, float]
    next_waits: dict[str, float]
    next_held: dict[str, np.ndarray]
    next_legal: dict[str, np.ndarray]


def raw(space: Any, action: Any) -> np.ndarray:
    """An action as its policy gave it: choices from 0, components in [-1, 1]."""
    if not sizes(space):
        return 2 * (np.asarray(action, np.float64) - space.low) / (space.high - space.low) - 1
    return np.ravel(action).astype(np.float64) - np.ravel(space.start)


def rows_of(env: Any, steps: list[Step]) -> list[Row]:
    """The transitions of one environment.

    An agent that has ended is gone: from what its last step led to where it terminated, and from the next step on where
    it was cut, whose last observation its value is asked for. One that has acted, goes on and is not observed waits for
    its next turn: it holds what it did last.
    """
    agents, found = env.possible_agents, []
    held: dict[str, np.ndarray] = {}
    for step in steps:
        if step.is_first:
            held = {}
        own = {a: raw(env.action_space(a), x) for a, x in step.actions.items()}
        waits = {a: float(a in held and a not in step.seen) for a in agents}
        action = {**held, **own}
        cut_all = step.is_last and any(step.cuts.values())
        over = step.is_last and not cut_all
        held = {a: x for a, x in action.items() if not step.ends.get(a)}
        there = {a: float(a in step.next_seen and not step.ends.get(a)) for a in agents}
        space = {a: env.action_space(a) for a in agents}
        legal = {a: np.ones(width(space[a]), bool) for a in agents if sizes(space[a])}
        found.append(
            Row(
                {a: step.seen.get(a, nothing(env.observation_space(a))) for a in agents},
                {a: action.get(a, np.zeros(len(sizes(space[a])) or width(space[a]))) for a in agents},
                {a: float(a in step.seen) for a in agents}, waits,
                {a: step.masks.get(a, x).astype(bool) for a, x in legal.items()},
                {a: step.rewards.get(a, 0.0) for a in agents},
                {a: float(step.ends.get(a, False) or (over and not step.cuts.get(a))) for a in agents},
                {a: step.next_seen[a] if there[a] else nothing(env.observation_space(a)) for a in agents},
                there, {a: float(a in held and not there[a]) for a in agents},
                {a: held.get(a, np.zeros(len(sizes(space[a])) or width(space[a]))) for a in agents},
                {a: (step.next_masks.get(a, x) if there[a] else x).astype(bool) for a, x in legal.items()},
            )
        )  # fmt: skip
        held = {a: x for a, x in held.items() if not step.cuts.get(a)}
    return found


def n_step_rows(rows: list[Row], steps: list[Step], n: int, gamma: float) -> list[Row]:
    """The rows of one environment as n-step ones.

    A window ends where an agent is cut or the episode is over. Each agent has its own sum of rewards, up to its end;
    `done` is such that γ(1 − done) is γᵏ, and 0 for an agent that the window has ended.
    """
    found = []
    for t, first in enumerate(rows):
        total, going_on, last = dict.fromkeys(first.reward, 0.0), dict.fromkeys(first.reward, 1.0), t
        for k, row in enumerate(rows[t : t + n]):
            last = t + k
            for a in total:
                total[a] += gamma**k * going_on[a] * row.reward[a]
                going_on[a] *= 1 - row.done[a]
            if any(steps[last].cuts.values()) or steps[last].is_last:
                break
        done = {a: 1 - gamma ** (last - t) * x for a, x in going_on.items()}
        following = {k: v for k, v in vars(rows[last]).items() if k.startswith("next_")}
        found.append(replace(first, reward=total, done=done, **following))
    return found


@dataclass
class Settings:
    """Hyperparameters, as the paper names them."""

    gamma: float
    tau: float
    lr_actor: float
    lr_critic: float
    policy_freq: int = 1
    policy_noise: float = 0.2
    noise_clip: float = 0.5


class ReplayReference:
    """A team that learns from sampled rows: one policy and one critic (two of MATD3) for each group.

    Args:
        env: has the spaces. team: gives the numbers of the untrained networks. rows: of the log, as they were stored.
        twins: MATD3 in place of MADDPG.
    """

    def __init__(self, env: Any, team: Any, rows: list[Row], settings: Settings, twins: bool) -> None:
        self.env, self.agents, self.settings, self.twins = env, list(env.possible_agents), settings, twins
        self.groups: dict[str, list[str]] = {}
        for agent in self.agents:
            self.groups.setdefault(agent.split("_")[0], []).append(agent)
        self.seen_space = {a: env.observation_space(a) for a in self.agents}
        self.acted = {a: env.action_space(a) for a in self.agents}
        self.joint = spaces.Dict({a: self.seen_space[a] for a in sorted(self.agents)})
        kinds = ["critics_1", "critics_2"] if twins else ["critics"]
        names = [f"{kind}.{g}" for kind in ("actors", *kinds) for g in self.groups]
        self.networks: dict[str, Parameters] = {name: copied(getattr(team, name)) for name in names}
        self.targets: dict[str, Parameters] = {name: copied(getattr(team, name)) for name in names}
        rate = {name: settings.lr_actor if name.startswith("actors") else settings.lr_critic for name in names}
        self.adam = {name: torch.optim.Adam(list(p.values()), rate[name]) for name, p in self.networks.items()}
        self.critics = {g: [f"{kind}.{g}" for kind in kinds] for g in self.groups}
        self.data = self._tensors(rows)
        self.updates = 0

    def _tensors(self, rows: list[Row]) -> dict[str, dict[str, Any]]:
        numbers = ("action", "there", "waits", "reward", "done", "next_there", "next_waits", "next_held")
        found: dict[str, dict[str, Any]] = {
            name: {
                a: torch.from_numpy(np.stack([np.asarray(getattr(r, name)[a], np.float64) for r in rows]))
                for a in self.agents
            }
            for name in numbers
        }
        for name in ("seen", "next_seen"):
            found[name] = {a: encoded(self.seen_space[a], [getattr(r, name)[a] for r in rows]) for a in self.agents}
        for name in ("legal", "next_legal"):
            found[name] = {
                a: torch.from_numpy(np.stack([getattr(r, name)[a] for r in rows]))
                for a in self.agents if sizes(self.acted[a])
            }  # fmt: skip
        return found

    def features(self, agent: str, action: Tensor) -> Tensor:
        each = sizes(self.acted[agent])
        return torch.cat([one_hot(action[:, k], n) for k, n in enumerate(each)], -1) if each else action

    def value(self, p: Parameters, agent: str, seen: dict[str, Any], actions: dict[str, Tensor]) -> Tensor:
        group = self.groups[agent.split("_")[0]]
        beside = [actions[a] for a in self.agents]
        if len(group) > 1:
            beside.append(one_hot(torch.full((len(beside[0]),), group.index(agent)), len(group)))
        return output(p, self.joint, seen, *beside)[:, 0]

    def policy(self, p: Parameters, agent: str, seen: dict[str, Any]) -> Tensor:
        out = output(p, self.seen_space[agent], seen[agent])
        return out if sizes(self.acted[agent]) else out.tanh()

    def following(self, rows: dict[str, dict[str, Any]], noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """What all do next: the target policies' actions, smoothed where they are raw (MATD3)."""
        found, start = {}, 0
        for agent in self.agents:
            out = self.policy(self.targets[f"actors.{agent.split('_')[0]}"], agent, rows["next_seen"])
            each = sizes(self.acted[agent])
            if each:
                out = out.masked_fill(~rows["next_legal"][agent], -torch.inf)
                out = torch.cat([one_hot(x.argmax(-1), x.shape[-1]) for x in out.split(each, -1)], -1)
            elif self.twins:
                s = self.settings
                smoothing = noise["smoothing"][:, start : start + out.shape[-1]] * s.policy_noise
                out = (out + smoothing.clamp(-s.noise_clip, s.noise_clip)).clamp(-1, 1)
            start += out.shape[-1]
            held = self.features(agent, rows["next_held"][agent])
            found[agent] = out * rows["next_there"][agent][:, None] + held * rows["next_waits"][agent][:, None]
        return found

    def update(self, indices: np.ndarray, noise: dict[str, np.ndarray], weight: np.ndarray | None = None) -> np.ndarray:
        """One update from the rows `indices` [B], with Gumbel numbers (and those of smoothing) [B, F].

        Returns:
            [B] mean |TD error| of the agents that were there or waited, the larger one of two critics.
        """
        self.updates += 1
        rows = {name: {a: take(x, indices) for a, x in values.items()} for name, values in self.data.items()}
        drawn = {name: torch.from_numpy(x) for name, x in noise.items()}
        size = len(indices)
        weights = torch.full((size,), 1 / size).double() if weight is None else torch.from_numpy(weight) / size
        shown = {a: rows["there"][a] + rows["waits"][a] for a in self.agents}
        taken = {a: self.features(a, rows["action"][a]) * shown[a][:, None] for a in self.agents}
        with torch.no_grad():
            following = self.following(rows, drawn)
        is_policy_step, sizes_of_errors = self.updates % self.settings.policy_freq == 0, []
        for group, agents in self.groups.items():
            goals = {a: self.goal(group, a, rows, following) for a in agents}
            for name in self.critics[group]:
                errors = {a: self.value(self.networks[name], a, rows["seen"], taken) - goals[a] for a in agents}
                loss = sum((weights * shown[a] * errors[a].square()).sum() for a in agents) / len(agents)
                self.step(name, loss)
                sizes_of_errors.append({a: e.detach().abs() for a, e in errors.items()})
            if is_policy_step:
                self.step(f"actors.{group}", self.policy_loss(group, rows, taken, weights, drawn["gumbel"]))
        for name in self.networks if is_policy_step else ():
            for key, target in self.targets[name].items():
                target.data = (1 - self.settings.tau) * target.data + self.settings.tau * self.networks[name][key].data
        larger = {a: torch.stack([e[a] for e in sizes_of_errors if a in e]).amax(0) for a in self.agents}
        total = sum(larger[a] * shown[a] for a in self.agents)
        mean: Tensor = total / sum(shown.values()).clamp(min=1)  # type: ignore[union-attr]
        return mean.numpy()

    def goal(self, group: str, agent: str, rows: Any, following: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            each = [self.value(self.targets[n], agent, rows["next_seen"], following) for n in self.critics[group]]
        discount = self.settings.gamma * (1 - rows["done"][agent])
        return rows["reward"][agent] + discount * torch.stack(each).amin(0)

    def policy_loss(self, group: str, rows: Any, taken: dict[str, Tensor], weights: Tensor, gumbel: Tensor) -> Any:
        total, agents = torch.zeros(()).double(), self.groups[group]
        for agent in agents:
            out = self.policy(self.networks[f"actors.{group}"], agent, rows["seen"])
            each, own, decay = sizes(self.acted[agent]), out, torch.zeros(()).double()
            if each:
                start = sum(width(self.acted[a]) for a in self.agents[: self.agents.index(agent)])
                scores = (out + gumbel[:, start : start + out.shape[-1]]).masked_fill(~rows["legal"][agent], -torch.inf)
                soft = [x.softmax(-1) for x in scores.split(each, -1)]
                own = torch.cat([one_hot(x.argmax(-1), x.shape[-1]) + x - x.detach() for x in soft], -1)
                decay = LOGIT_DECAY * out.square().mean(-1)
            value = self.value(self.networks[self.critics[group][0]], agent, rows["seen"], {**taken, agent: own})
            total = total - (weights * rows["there"][agent] * (value - decay)).sum()
        return total / len(agents)

    def step(self, name: str, loss: Any) -> None:
        p = self.networks[name]
        for leaf, slope in zip(p.values(), torch.autograd.grad(loss, list(p.values())), strict=True):
            leaf.grad = slope
        self.adam[name].step()
