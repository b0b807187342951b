"""VDN and QMIX: fused == sequential == plain torch in float64, with groups, masks, absent and waiting agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from off_policy_case import assert_equal, state
from team_reference import Policy, copy_of, dense, head
from test_teams import BATCH, MEMBERS, OBS, observations, train
from torch import Tensor, nn

from agilerl.algorithms.qmix import QMIX, VDN
from agilerl.engine.choose import choose
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.protocol import LAST_ACTION, WAITING

CHOICES = {"speaker_0": 3, "agent_0": 2, "agent_1": 2, "mover_0": 4}
MASKS = {"speaker_0": slice(0, 3), "agent_0": slice(3, 5), "agent_1": slice(5, 7), "mover_0": slice(7, 11)}
GROUPS = {"speaker": 3, "agent": 4, "mover": 5}  # and how many numbers each sees
UNITS = 6  # of the mixing network


class SmallQMIX(QMIX):
    mixing_size = UNITS


def teams(cls: Any) -> list[Any]:
    """Three members; the last one has a further layer."""
    actions = {agent: spaces.Discrete(count, start=int(agent == "speaker_0")) for agent, count in CHOICES.items()}
    made = []
    for i in range(MEMBERS):
        hidden = {"hidden_size": [16 + 8 * (i == 1)]}
        config = {"encoder_config": {**hidden, "activation": "Tanh"}, "latent_dim": 8, "head_config": hidden}
        if i == 2:
            config["encoder_config"] = {"hidden_size": [16, 12], "activation": "Tanh"}
        team = cls(OBS, actions, index=i, seed=i, net_config=config, gamma=0.9 + 0.03 * i, tau=0.05, lr=1e-3 * (i + 1))
        for name in team.registry.all_registered():
            getattr(team, name).double()
        made.append(team)
    return made


def batches(seed: int = 0, updates: int = 20, n_step: bool = False) -> list[TransitionBatch]:
    draw, lead, made = np.random.default_rng(seed), (MEMBERS, BATCH), []
    for number in range(1, updates + 1):
        action, held = (np.stack([draw.integers(0, n, lead) for n in CHOICES.values()], -1) for _ in range(2))
        legal = draw.random((*lead, 11)) < 0.7
        legal[..., [0, 3, 5, 7]] = True  # one choice of each agent at least
        done = torch.from_numpy((draw.random((*lead, 4)) < 0.2).astype(np.float64))
        more: dict[str, Any] = {"weight": torch.full(lead, 1 / BATCH).double()}
        if n_step:
            steps = torch.from_numpy(draw.integers(1, 4, (*lead, 1)))
            more = {"discount": 0.9**steps * (1 - done), "weight": torch.from_numpy(draw.random(lead)) / BATCH}
        obs, later = observations(draw), observations(draw)
        for seen in (obs, later):  # of those that are not there every other one waits
            seen[WAITING] = (1 - seen["present"]) * torch.from_numpy(draw.integers(0, 2, (*lead, 4)))
        later[LAST_ACTION] = torch.from_numpy(held.astype(np.float64))
        made.append(
            TransitionBatch(
                obs, torch.from_numpy(action), torch.from_numpy(draw.normal(size=(*lead, 4))), later, done,
                next_mask=torch.from_numpy(legal), number=number, **more,
            )
        )  # fmt: skip
    return made


class Mover(nn.Module):
    """The values of the agent with two parts to see."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector, self.out = dense(5, width, 32, last=nn.ReLU()), nn.Linear(32, 8)
        self.head = head(8, width, 4, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.out(self.vector(x)).relu())
        return out


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mover, self.mover_out = dense(5, width, 32, last=nn.ReLU()), nn.Linear(32, 32)
        self.vector, self.out = dense(11, width, 32, last=nn.ReLU()), nn.Linear(64, 8)
        self.weights, self.bias = head(8, width, UNITS * 6, nn.Identity()), head(8, width, 1, nn.Identity())

    def forward(self, seen: dict[str, Tensor], values: list[Tensor]) -> Tensor:
        mover = self.mover_out(self.mover(seen["mover_0"])).relu()
        rest = self.vector(torch.cat([seen["agent_0"], seen["agent_1"], seen["speaker_0"]], -1))
        latent = self.out(torch.cat([mover, rest], -1)).relu()
        *first, bias, second = self.weights(latent).split(UNITS, -1)
        total: Tensor = self.bias(latent).squeeze(-1)
        for unit in range(UNITS):
            x = bias[:, unit]
            for value, weights in zip(values, first, strict=True):
                x = x + weights[:, unit].abs() * value
            total = total + second[:, unit].abs() * torch.where(x > 0, x, x.exp() - 1)
        return total


class Reference:
    """A team, agent by agent and with one optimiser."""

    def __init__(self, team: Any) -> None:
        self.gamma, self.tau = team.gamma, team.tau
        self.width = team.actors["speaker"].head_net.hidden_size[0]
        self.networks = {f"actors.{g}": self._policy(g, team.actors[g]) for g in GROUPS}
        self.targets = {f"actors.{g}": self._policy(g, team.actor_targets[g]) for g in GROUPS}
        if isinstance(team, QMIX):
            self.networks["mixer"] = copy_of(team.mixer, Mixer(self.width))
            self.targets["mixer"] = copy_of(team.mixer_target, Mixer(self.width))
        self.optim = torch.optim.Adam([p for network in self.networks.values() for p in network.parameters()], team.lr)

    def _policy(self, group: str, network: Any) -> nn.Module:
        count = CHOICES[f"{group}_0"]
        return copy_of(network, Mover(self.width) if group == "mover" else Policy(GROUPS[group], self.width, count))

    def update(self, batch: Any) -> None:
        seen, later = self._seen(batch.obs), self._seen(batch.next_obs)
        rewards, discounts = [], []
        taken, following = [], []
        for k, agent in enumerate(CHOICES):
            name = f"actors.{agent.rpartition('_')[0]}"
            here = (batch.obs["present"][:, k] + batch.obs[WAITING][:, k]).double()
            values = self.networks[name](seen[agent])
            taken.append(here * torch.stack([row[int(a)] for row, a in zip(values, batch.action[:, k], strict=True)]))
            there = (batch.next_obs["present"][:, k] + batch.next_obs[WAITING][:, k]).double()
            discount = self.gamma * (1 - batch.done[:, k]) if batch.discount is None else batch.discount[:, k]
            next_values = []
            for row in range(len(there)):
                scores = self.networks[name](later[agent][row])
                scores = scores.masked_fill(~batch.next_mask[row, MASKS[agent]], -1e9)
                choice = int(scores.argmax())
                if batch.next_obs[WAITING][row, k]:
                    choice = int(batch.next_obs[LAST_ACTION][row, k])
                goes_on = there[row] > 0 and discount[row] > 0
                next_values.append(self.targets[name](later[agent][row])[choice] * float(goes_on))
            following.append(torch.stack(next_values).detach())
            rewards.append(batch.reward[:, k])
            discounts.append(there * discount)
        after = self._total(self.targets, later, following).detach()
        target = sum(rewards) / 4 + torch.stack(discounts).max(0).values * after
        loss = (batch.weight * (self._total(self.networks, seen, taken) - target).square()).sum()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        for name, network in self.networks.items():
            for mine, theirs in zip(network.parameters(), self.targets[name].parameters(), strict=True):
                theirs.data = (1 - self.tau) * theirs.data + self.tau * mine.data

    @staticmethod
    def _total(networks: dict[str, nn.Module], seen: dict[str, Tensor], values: list[Tensor]) -> Tensor:
        total: Tensor = networks["mixer"](seen, values) if "mixer" in networks else torch.stack(values).sum(0)
        return total

    @staticmethod
    def _seen(obs: Any) -> dict[str, Tensor]:
        mover = obs["agents"]["mover_0"]
        card = torch.eye(3, dtype=torch.float64)[mover["card"]]
        return {**obs["agents"], "mover_0": torch.cat([mover["at"], card], -1)}


@pytest.mark.parametrize("cls", [VDN, SmallQMIX])
@pytest.mark.parametrize("n_step", [False, True])
def test_a_population_learns_over_rows_what_it_learns_with_modules(cls: Any, n_step: bool) -> None:
    fused = teams(cls)
    sequential, before = [team.clone() for team in fused], state(fused)
    assert choose(fused).name == "fused"
    assert train(fused, "fused", batches(n_step=n_step)) == [[0, 1], [2]]
    assert train(sequential, "sequential", batches(n_step=n_step)) == [[0], [1], [2]]
    after = state(fused)
    assert all((before[name] - after[name]).abs().max() > 1e-6 for name in before)
    assert_equal(fused, sequential)


@pytest.mark.parametrize(("cls", "n_step"), [(VDN, False), (SmallQMIX, False), (SmallQMIX, True)])
def test_fifty_updates_are_those_of_plain_torch(cls: Any, n_step: bool) -> None:
    members = teams(cls)[:2]
    references = [Reference(team) for team in members]
    made = batches(seed=1, updates=50, n_step=n_step)
    for batch in made:
        for number, reference in enumerate(references):
            reference.update(batch.of_member(number))
    train(members, "fused", made)
    for team, reference in zip(members, references, strict=True):
        for kind, networks in (("", reference.networks), ("target", reference.targets)):
            for name, network in networks.items():
                own = name if not kind else name.replace("actors", "actor_targets").replace("mixer", "mixer_target")
                for mine, theirs in zip(getattr(team, own).parameters(), network.parameters(), strict=True):
                    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10, msg=lambda m, n=own: f"{n}: {m}")
