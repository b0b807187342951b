"""ILQL and BC_LM in float64 against a transformer and losses written out in plain torch, over a hundred updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agilerl.algorithms import BC_LM, ILQL
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.wordle import START, Wordle, wordle_data
from agilerl.options import OfflineOptions
from agilerl.sources.dataset import read_dataset
from agilerl.sources.offline import fill

NET = {"n_layer": 2, "n_embd": 8, "n_head": 2, "dim_feedfwd": 12}
WORDS, TRIES, BATCH = 5, 2, 4
SAYABLE = 28
Weights = dict[str, Tensor]


def transformer(p: Weights, text: list[int]) -> Tensor:
    """Outputs [L, O] of one text, head by head."""

    def norm(name: str, z: Tensor) -> Tensor:
        centred = z - z.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def dense(name: str, z: Tensor) -> Tensor:
        return z @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    z = p["tokens.weight"][text] + p["positions.weight"][: len(text)]
    later = torch.ones(len(text), len(text)).triu(1).bool()
    for k in range(2):
        parts = dense(f"block_{k}_qkv", norm(f"block_{k}_norm_1", z)).split(8, -1)
        heads = []
        for h in (0, 4):
            query, key, value = (part[:, h : h + 4] for part in parts)
            heads.append((query @ key.T / 2).masked_fill(later, -math.inf).softmax(-1) @ value)
        z = z + dense(f"block_{k}_mix", torch.cat(heads, -1))
        z = z + dense(f"block_{k}_mlp_1", F.gelu(dense(f"block_{k}_mlp_0", norm(f"block_{k}_norm_2", z))))
    return dense("linear_output", norm("norm_output", z))


def episode(row: dict[str, Tensor], k: int) -> tuple[list[int], list[tuple[int, float, bool]]]:
    """A row of the memory as (text, its own tokens as (place, reward, ended))."""
    text = [int(token) for token in row["obs"][k] if token]
    own = [(p, float(row["reward"][k, p]), bool(row["done"][k, p])) for p in range(len(text)) if row["action"][k, p]]
    return text, own


def plain_ilql(agent: ILQL, p: Weights, target: Weights, rows: dict[str, Tensor]) -> Tensor:
    """The loss of one update, token by token."""
    losses, count = [], 0
    for k in range(BATCH):
        text, own = episode(rows, k)
        outputs, judged = transformer(p, text), transformer(target, text).detach()
        for i, (place, reward, ended) in enumerate(own):
            state, token = outputs[place - 1], text[place]
            logits, q1, q2, v = state[:28], state[28:56], state[56:84], state[84]
            old = judged[place - 1]
            best = min(old[28 + token], old[56 + token])
            after = own[i + 1][0] - 1 if i + 1 < len(own) else len(text) - 1
            y = reward + (0.0 if ended else agent.gamma * float(outputs[after, 84].detach()))
            u = best - v
            value = (agent.expectile if u >= 0 else 1 - agent.expectile) * u**2
            td = (q1[token] - y) ** 2 + (q2[token] - y) ** 2
            conservative = sum(q.exp().sum().log() - q[token] for q in (q1, q2))
            cloning = logits.exp().sum().log() - logits[token]
            losses.append(value + td + agent.alpha * conservative + cloning)
            count += 1
    return torch.stack(losses).sum() / count


def plain_bc(agent: BC_LM, p: Weights, target: Weights, rows: dict[str, Tensor]) -> Tensor:
    losses = []
    for k in range(BATCH):
        text, own = episode(rows, k)
        outputs = transformer(p, text)
        losses += [outputs[place - 1].exp().sum().log() - outputs[place - 1, text[place]] for place, _, _ in own]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("updates", [12, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("cls", "plain", "outputs"),
    [(ILQL, plain_ilql, 3 * SAYABLE + 1), (BC_LM, plain_bc, SAYABLE)],
    ids=["ILQL", "BC_LM"],
)
def test_updates_are_those_of_plain_torch(cls: Any, plain: Any, outputs: int, updates: int) -> None:
    env = Wordle(words=WORDS, tries=TRIES)
    options = {"tau": 0.05, "gamma": 0.9, "expectile": 0.7, "alpha": 0.3} if cls is ILQL else {}
    agent = cls(env.observation_space, env.action_space, net_config=NET, batch_size=BATCH, lr=3e-3, seed=1, **options)
    for name in ("actor", "actor_target"):
        if hasattr(agent, name):
            getattr(agent, name).double()
    agent.reinit_optimizers()
    memory = ReplayBuffer(max_size=10, dtype=torch.float64)
    fill(memory, read_dataset(wordle_data(50, WORDS, TRIES, seed=2)), agent, OfflineOptions(max_steps=1, evo_steps=1))
    p = {name: value.detach().clone().requires_grad_() for name, value in agent.actor.gpt.model.named_parameters()}
    assert p["linear_output.weight"].shape == (outputs, 8)
    assert memory.gather(torch.arange(2).numpy())["obs"][:, 0].tolist() == [START] * 2
    target = {name: value.detach().clone() for name, value in p.items()}
    optimizer = torch.optim.Adam(p.values(), lr=3e-3)
    draw = torch.Generator().manual_seed(4)
    for _ in range(updates):
        indices = torch.randint(0, 50, (BATCH,), generator=draw).numpy()
        agent.learn_batch(agent.make_batch(memory.sample_from_indices(indices)))
        loss = plain(agent, p, target, memory.gather(indices))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in target.items():
            value.lerp_(p[name].detach(), 0.05)
    for name, value in agent.actor.gpt.model.named_parameters():
        torch.testing.assert_close(value, p[name], atol=1e-10, rtol=1e-9)
    if cls is ILQL:
        for name, value in agent.actor_target.gpt.model.named_parameters():
            torch.testing.assert_close(value, target[name], atol=1e-10, rtol=1e-9)
