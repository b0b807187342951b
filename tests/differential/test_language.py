"""ILQL and BC_LM in float64 against a transformer and losses written out in plain torch, from the data's
log to the weights after 50 updates."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from agilerl.algorithms import BC_LM, ILQL
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.envs.simulators.wordle import Wordle, wordle_data

NET = {"n_layer": 2, "n_embd": 8, "n_head": 2, "dim_feedfwd": 12}
WORDS, TRIES, BATCH = 5, 2, 4
LONGEST = 14
SEEN, SAID = gym.spaces.MultiDiscrete([6] * LONGEST), gym.spaces.MultiDiscrete([5] * 2)
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


Episode = tuple[list[int], list[tuple[int, float, bool]]]


def episodes_of(data: dict[str, np.ndarray]) -> list[Episode]:
    """Logged transitions as (text, the policy's own tokens as (place, reward, ended)): a reward is of the last token
    of what was said, and so is the end of an episode; one that was cut off does not end."""
    found, own = [], []
    cut = data.get("timeouts", np.zeros(len(data["rewards"]), bool))
    for k, said in enumerate(data["actions"]):
        start = int((data["observations"][k] > 0).sum())
        own += [(start + i, 0.0, False) for i in range(len(said) - 1)]
        own.append((start + len(said) - 1, float(data["rewards"][k]), bool(data["terminals"][k])))
        if data["terminals"][k] or cut[k]:
            found.append(([int(token) for token in data["next_observations"][k] if token], own))
            own = []
    return found


def plain_ilql(agent: ILQL, p: Weights, target: Weights, games: list[Episode]) -> Tensor:
    """The loss of one update, token by token."""
    losses, count, size = [], 0, int(agent.action_space.nvec[0])
    for text, own in games:
        outputs, judged = transformer(p, text), transformer(target, text).detach()
        for i, (place, reward, ended) in enumerate(own):
            state, token = outputs[place - 1], text[place]
            logits, q1, q2, v = state[:size], state[size : 2 * size], state[2 * size : 3 * size], state[3 * size]
            old = judged[place - 1]
            best = min(old[size + token], old[2 * size + token])
            after = own[i + 1][0] - 1 if i + 1 < len(own) else len(text) - 1
            y = reward + (0.0 if ended else agent.gamma * float(outputs[after, 3 * size].detach()))
            u = best - v
            value = (agent.expectile if u >= 0 else 1 - agent.expectile) * u**2
            td = (q1[token] - y) ** 2 + (q2[token] - y) ** 2
            conservative = sum(q.exp().sum().log() - q[token] for q in (q1, q2))
            cloning = logits.exp().sum().log() - logits[token]
            losses.append(value + td + agent.alpha * conservative + cloning)
            count += 1
    return torch.stack(losses).sum() / count


def plain_bc(agent: BC_LM, p: Weights, target: Weights, games: list[Episode]) -> Tensor:
    losses = []
    for text, own in games:
        outputs = transformer(p, text)
        losses += [outputs[place - 1].exp().sum().log() - outputs[place - 1, text[place]] for place, _, _ in own]
    return torch.stack(losses).mean()


def cut_texts() -> dict[str, np.ndarray]:
    """Episodes of one to three actions of two tokens, answered by none to two; every third one is cut off."""
    rng, rows = np.random.default_rng(5), []
    for number in range(50):
        text, count = [int(rng.integers(1, 5)) for _ in range(1 + number % 2)], int(rng.integers(1, 4))
        for action in range(count):
            said, before = [int(x) for x in rng.integers(1, 5, 2)], list(text)
            text += said + [int(x) for x in rng.integers(1, 6, int(rng.integers(0, 3)))]
            last = action == count - 1
            rows.append(
                (before, said, rng.integers(-8, 9) / 8, last and number % 3 > 0, last and number % 3 == 0, list(text))
            )
    before, said, reward, terminated, cut, after = zip(*rows, strict=True)
    texts = [np.array([[*text, *[0] * (LONGEST - len(text))] for text in part]) for part in (before, after)]
    return {
        "observations": texts[0], "next_observations": texts[1], "actions": np.array(said),
        "rewards": np.array(reward), "terminals": np.array(terminated), "timeouts": np.array(cut),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("made", "updates"), [("games", 12), ("cut texts", 50), pytest.param("games", 100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("cls", "plain", "outputs"), [(ILQL, plain_ilql, lambda v: 3 * v + 1), (BC_LM, plain_bc, lambda v: v)],
    ids=["ILQL", "BC_LM"],
)  # fmt: skip
def test_updates_are_those_of_plain_torch(cls: Any, plain: Any, outputs: Any, updates: int, made: str) -> None:
    env = Wordle(words=WORDS, tries=TRIES)
    data: Any = wordle_data(50, WORDS, TRIES, seed=2) if made == "games" else cut_texts()
    seen, said = (env.observation_space, env.action_space) if made == "games" else (SEEN, SAID)
    options = {"tau": 0.05, "gamma": 0.9, "expectile": 0.7, "alpha": 0.3} if cls is ILQL else {}
    agent = cls(seen, said, net_config=NET, batch_size=BATCH, lr=3e-3, seed=1, **options)
    for name in ("actor", "actor_target"):
        if hasattr(agent, name):
            getattr(agent, name).double()
    agent.reinit_optimizers()
    memory = ReplayBuffer(max_size=10, dtype=torch.float64)
    fill(memory, read_dataset(data), agent, OfflineOptions(max_steps=1, evo_steps=1))
    games = episodes_of(data)
    assert len(games) == len(memory) == 50
    p = {name: value.detach().clone().requires_grad_() for name, value in agent.actor.gpt.model.named_parameters()}
    assert p["linear_output.weight"].shape == (outputs(int(said.nvec[0])), 8)
    target = {name: value.detach().clone() for name, value in p.items()}
    optimizer = torch.optim.Adam(p.values(), lr=3e-3)
    draw = torch.Generator().manual_seed(4)
    for _ in range(updates):
        indices = torch.randint(0, 50, (BATCH,), generator=draw).numpy()
        agent.learn_batch(agent.make_batch(memory.sample_from_indices(indices)))
        loss = plain(agent, p, target, [games[k] for k in indices])
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
