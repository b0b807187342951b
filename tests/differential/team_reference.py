"""MADDPG and MATD3 written out agent by agent with `torch.nn` and `torch.optim`, for the teams of `test_teams`.

Nothing of the package computes here: the networks are copies of the team's numbers in layers of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

AGENTS = ("speaker_0", "agent_0", "agent_1", "mover_0")
GROUPS = {"speaker": ("speaker_0",), "agent": ("agent_0", "agent_1"), "mover": ("mover_0",)}
SIZES = {"speaker_0": (3,), "agent_0": (2, 3), "agent_1": (2, 3), "mover_0": ()}  # choices of each component
SPANS = {"speaker_0": slice(0, 3), "agent_0": slice(3, 8), "agent_1": slice(8, 13), "mover_0": slice(13, 15)}
MASKS = {"speaker_0": slice(0, 3), "agent_0": slice(3, 8), "agent_1": slice(8, 13), "mover_0": slice(13, 13)}
COLUMNS = {"speaker_0": slice(0, 1), "agent_0": slice(1, 3), "agent_1": slice(3, 5), "mover_0": slice(5, 7)}


def dense(*widths: int, last: nn.Module) -> nn.Sequential:
    """Two layers, tanh between them."""
    return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2]), last)


def head(inputs: int, width: int, outputs: int, last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs), last)


class Policy(nn.Module):
    """Of agents that see one vector."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = dense(inputs, width, 8, last=nn.Tanh()), head(8, width, outputs, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Mover(nn.Module):
    """Of the agent with two parts to see."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector, self.out = dense(5, width, 32, last=nn.ReLU()), nn.Linear(32, 8)
        self.head = head(8, width, 2, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.out(self.vector(x)).relu())
        return out


class Critic(nn.Module):
    """Of all observations and actions; `members` > 1 are told whose value is asked."""

    def __init__(self, width: int, members: int) -> None:
        super().__init__()
        self.mover, self.mover_out = dense(5, width, 32, last=nn.ReLU()), nn.Linear(32, 32)
        self.vector, self.out = dense(11, width, 32, last=nn.ReLU()), nn.Linear(64, 8)
        self.head = head(8 + 15 + (members if members > 1 else 0), width, 1, nn.Identity())

    def forward(self, seen: dict[str, Tensor], action: Tensor) -> Tensor:
        mover = self.mover_out(self.mover(seen["mover_0"])).relu()
        rest = self.vector(torch.cat([seen["agent_0"], seen["agent_1"], seen["speaker_0"]], -1))
        latent = self.out(torch.cat([mover, rest], -1)).relu()
        value: Tensor = self.head(torch.cat([latent, action], -1))
        return value.squeeze(-1)


def copy_of(network: Any, made: nn.Module) -> nn.Module:
    given = list(network.parameters())
    for mine, theirs in zip(made.double().parameters(), given, strict=True):
        assert mine.shape == theirs.shape
        mine.data = theirs.detach().clone()
    return made


def legal(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, float("-inf"))


def one_hot(number: Tensor, count: int) -> Tensor:
    return torch.eye(count, dtype=torch.float64)[number.long()]


class Reference:
    """A team: one network for each group, one loss at a time."""

    def __init__(self, team: Any, twins: bool) -> None:
        self.twins, self.gamma, self.tau = twins, team.gamma, team.tau
        self.width = getattr(team, "actors.speaker").head_net.hidden_size[0]
        kinds = ("critics_1", "critics_2") if twins else ("critics",)
        self.policies = {g: self._policy(team, f"actors.{g}", g) for g in GROUPS}
        self.policy_targets = {g: self._policy(team, f"actor_targets.{g}", g) for g in GROUPS}
        self.critics = {g: [self._critic(team, f"{kind}.{g}", g) for kind in kinds] for g in GROUPS}
        targets = [kind.replace("critics", "critic_targets") for kind in kinds]
        self.critic_targets = {g: [self._critic(team, f"{kind}.{g}", g) for kind in targets] for g in GROUPS}
        self.policy_optims = {g: torch.optim.Adam(p.parameters(), team.lr_actor) for g, p in self.policies.items()}
        self.critic_optims = {
            g: [torch.optim.Adam(c.parameters(), team.lr_critic) for c in both] for g, both in self.critics.items()
        }

    def _policy(self, team: Any, name: str, group: str) -> nn.Module:
        made = Mover(self.width) if group == "mover" else None
        sizes = {"speaker": (3, 3), "agent": (4, 5)}
        network = made or Policy(sizes[group][0], self.width, sizes[group][1])
        return copy_of(getattr(team, name), network)

    def _critic(self, team: Any, name: str, group: str) -> nn.Module:
        return copy_of(getattr(team, name), Critic(self.width, len(GROUPS[group])))

    def update(self, batch: Any) -> None:
        seen, there = self._seen(batch.obs)
        later, there_later = self._seen(batch.next_obs)
        taken = torch.zeros(len(batch.reward), 15, dtype=torch.float64)
        for agent in AGENTS:
            stored = batch.action[:, COLUMNS[agent]]
            parts = [one_hot(stored[:, k], n) for k, n in enumerate(SIZES[agent])]
            taken[:, SPANS[agent]] = (torch.cat(parts, -1) if parts else stored) * there[agent][:, None]
        with torch.no_grad():
            following = self._following(later, there_later, batch)
        for group, agents in GROUPS.items():
            pairs = zip(self.critics[group], self.critic_optims[group], strict=True)
            with torch.no_grad():
                goals = [self._goal(group, agent, later, following, batch) for agent in agents]
            for critic, optim in pairs:
                loss = torch.zeros((), dtype=torch.float64)
                for agent, goal in zip(agents, goals, strict=True):
                    error = self._judge(critic, group, agent, seen, taken) - goal
                    loss = loss + (batch.weight * there[agent] * error.square()).sum() / len(agents)
                self._step(optim, loss)
            if not self.twins or batch.number % 2 == 0:
                self._step(self.policy_optims[group], self._policy_loss(group, agents, seen, there, taken, batch))
        if not self.twins or batch.number % 2 == 0:
            for group in GROUPS:
                self._track(self.policies[group], self.policy_targets[group])
                for critic, target in zip(self.critics[group], self.critic_targets[group], strict=True):
                    self._track(critic, target)

    def _seen(self, obs: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        seen = dict(obs["agents"])
        seen["mover_0"] = torch.cat([seen["mover_0"]["at"], one_hot(seen["mover_0"]["card"], 3)], -1)
        return seen, {agent: obs["present"][:, k].double() for k, agent in enumerate(AGENTS)}

    def _following(self, later: dict[str, Tensor], there: dict[str, Tensor], batch: Any) -> Tensor:
        found = []
        for agent in AGENTS:
            out = self.policy_targets[agent[:-2]](later[agent])
            if SIZES[agent]:
                scores = legal(out, batch.next_mask[:, MASKS[agent]])
                parts = torch.split(scores, list(SIZES[agent]), -1)
                out = torch.cat([one_hot(part.argmax(-1), part.shape[-1]) for part in parts], -1)
            elif self.twins:
                noise = (0.2 * batch.noise["smoothing"][:, SPANS[agent]]).clamp(-0.5, 0.5)
                out = (out + noise).clamp(-1, 1)
            found.append(out * there[agent][:, None])
        return torch.cat(found, -1)

    def _judge(self, critic: nn.Module, group: str, agent: str, seen: dict[str, Tensor], action: Tensor) -> Tensor:
        agents = GROUPS[group]
        if len(agents) > 1:
            who = one_hot(torch.full((len(action),), agents.index(agent)), len(agents))
            action = torch.cat([action, who], -1)
        value: Tensor = critic(seen, action)
        return value

    def _goal(self, group: str, agent: str, later: dict[str, Tensor], following: Tensor, batch: Any) -> Tensor:
        k = AGENTS.index(agent)
        values = [self._judge(target, group, agent, later, following) for target in self.critic_targets[group]]
        value = torch.stack(values).amin(0)
        discount = self.gamma * (1 - batch.done[:, k]) if batch.discount is None else batch.discount[:, k]
        goal: Tensor = batch.reward[:, k] + discount * value
        return goal

    def _policy_loss(
        self, group: str, agents: tuple[str, ...], seen: dict[str, Tensor], there: dict[str, Tensor], taken: Tensor,
        batch: Any,
    ) -> Tensor:  # fmt: skip
        loss = torch.zeros((), dtype=torch.float64)
        for agent in agents:
            out = self.policies[group](seen[agent])
            own, decay = out, torch.zeros(len(out), dtype=torch.float64)
            if SIZES[agent]:
                scores = legal(out + batch.noise["gumbel"][:, SPANS[agent]], batch.obs_mask[:, MASKS[agent]])
                parts = []
                for part in torch.split(scores, list(SIZES[agent]), -1):
                    soft = part.softmax(-1)
                    parts.append(one_hot(soft.argmax(-1), soft.shape[-1]) + soft - soft.detach())
                own, decay = torch.cat(parts, -1), 1e-3 * out.square().mean(-1)
            action = taken.clone()
            action[:, SPANS[agent]] = own
            value = self._judge(self.critics[group][0], group, agent, seen, action) - decay
            loss = loss - (batch.weight * there[agent] * value).sum() / len(agents)
        return loss

    @staticmethod
    def _step(optim: torch.optim.Optimizer, loss: Tensor) -> None:
        optim.zero_grad()
        loss.backward()
        optim.step()

    def _track(self, network: nn.Module, target: nn.Module) -> None:
        for mine, theirs in zip(network.parameters(), target.parameters(), strict=True):
            theirs.data = (1 - self.tau) * theirs.data + self.tau * mine.data

    def networks(self) -> dict[str, nn.Module]:
        """By their names in the team."""
        found = {f"actors.{g}": p for g, p in self.policies.items()}
        found |= {f"actor_targets.{g}": p for g, p in self.policy_targets.items()}
        for name, kept in (("critics", self.critics), ("critic_targets", self.critic_targets)):
            for group, both in kept.items():
                for k, critic in enumerate(both, 1):
                    found[f"{name}_{k}.{group}" if self.twins else f"{name}.{group}"] = critic
        return found
