"""PPO in one file of plain torch: one agent after another, one loss by autograd, torch's own Adam (fused=True).

The opponent of the set-ups "ppo" and "ppo_recurrent" in `throughput.py`: same environment, networks, rollouts, epochs
and minibatches, 16 evaluation episodes per member, the best copied over the worst. No evolution library.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from throughput_setups import LANES, cpu_seconds
from torch import Tensor, nn
from torch.distributions import Categorical

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(fan_in, fan_out), *([nn.ReLU()] if i < len(sizes) - 2 else [])]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """LSTM of 64, then dense layers."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 64, batch_first=True), mlp([64, 64, 64, outputs])

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        features, state = self.lstm(x, state)
        return self.head(features), state


def gae(rewards: list, values: list, dones: list, last_value: np.ndarray) -> np.ndarray:
    """Advantages [T, E]; an end counts as termination."""
    advantage, running, after = np.zeros((len(rewards), LANES), np.float32), 0.0, last_value
    for t in reversed(range(len(rewards))):
        alive = 1 - dones[t]
        running = rewards[t] + GAMMA * alive * after - values[t] + GAMMA * LAMBDA * alive * running
        advantage[t], after = running, values[t]
    return advantage


def update(
    nets: list, adam: torch.optim.Optimizer, batch: tuple, outputs: tuple[Tensor, Tensor], weight: Tensor
) -> None:
    action, old, before, advantage, target = batch
    policy, value = Categorical(logits=outputs[0]), outputs[1].squeeze(-1)
    log_prob = policy.log_prob(action)
    ratio = (log_prob - old).exp()
    surrogate = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    near = before + (value - before).clamp(-CLIP, CLIP)
    error = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2)
    loss = (weight * (surrogate + VALUE * error - ENTROPY * policy.entropy())).sum() / weight.sum()
    adam.zero_grad()
    loss.backward()
    for net in nets:
        nn.utils.clip_grad_norm_(net.parameters(), NORM)
    adam.step()


def run(setup: dict[str, Any], seed: int) -> dict[str, Any]:
    """One generation of all members."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    is_recurrent, hp = setup.get("recurrent", False), setup["init_hp"]
    env = gym.vector.SyncVectorEnv([lambda: gym.make(setup["env"])] * LANES)
    make = Recurrent if is_recurrent else lambda outputs: mlp([8, 32, 32, 64, 32, outputs])
    members = [[make(4), make(1)] for _ in range(setup["members"])]
    adams = [
        torch.optim.Adam([p for net in nets for p in net.parameters()], lr=hp["LR"], eps=1e-5, fused=True)
        for nets in members
    ]
    steps, total, fitness, before = hp["LEARN_STEP"] // LANES, 0, [], cpu_seconds()
    for nets, adam in zip(members, adams, strict=True):
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        state: list[Any] = [None, None]
        for _ in range(-(-setup["generation"] // hp["LEARN_STEP"])):
            kept: list[list[Any]] = [[] for _ in range(6)]
            start = [None if s is None else tuple(x.clone() for x in s) for s in state]
            for _ in range(steps):
                with torch.no_grad():
                    logits, value, state = act(nets, torch.from_numpy(obs), state, is_recurrent)
                    policy = Categorical(logits=logits)
                    action = policy.sample()
                    log_prob = policy.log_prob(action)
                after, reward, terminated, truncated, _ = env.step(action.numpy())
                done = (terminated | truncated).astype(np.float32)
                for column, entry in zip(kept, (obs, action, log_prob, reward, value.numpy(), done), strict=True):
                    column.append(entry)
                if is_recurrent and done.any():
                    for part in (x for s in state for x in s):
                        part[:, torch.from_numpy(done > 0)] = 0
                obs, total = after, total + LANES
            with torch.no_grad():
                last = act(nets, torch.from_numpy(obs), state, is_recurrent)[1].numpy()
            learn(nets, adam, hp, kept, last, rng, start if is_recurrent else None)
        fitness.append(evaluate(nets, env, is_recurrent))
    best, worst = int(np.argmax(fitness)), int(np.argmin(fitness))
    for net, source in zip(members[worst], members[best], strict=True):
        net.load_state_dict(source.state_dict())
    adams[worst].load_state_dict(adams[best].state_dict())
    env.close()
    return {"env_steps": total, "cpu_seconds": cpu_seconds() - before}


def act(nets: list, x: Tensor, state: list, is_recurrent: bool) -> tuple[Tensor, Tensor, list]:
    if not is_recurrent:
        return nets[0](x), nets[1](x)[:, 0], state
    (logits, first), (value, second) = (net(x[:, None], s) for net, s in zip(nets, state, strict=True))
    return logits[:, 0], value[:, 0, 0], [first, second]


def learn(
    nets: list, adam: torch.optim.Optimizer, hp: dict, kept: list, last: np.ndarray, rng: Any, start: Any
) -> None:
    obs, action, log_prob, reward, value, done = kept
    advantage = torch.from_numpy(gae(reward, value, done, last))
    columns = [torch.stack(action), torch.stack(log_prob), torch.from_numpy(np.stack(value)), advantage]
    columns.append(columns[3] + columns[2])
    columns[3] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    x = torch.from_numpy(np.stack(obs))
    if start is None:
        flat = [x.flatten(0, 1), *(c.flatten() for c in columns)]
        for _ in range(hp["UPDATE_EPOCHS"]):
            for rows in torch.from_numpy(rng.permutation(len(flat[0]))).split(hp["BATCH_SIZE"]):
                one, *batch = (c[rows] for c in flat)
                update(nets, adam, tuple(batch), (nets[0](one), nets[1](one)), torch.ones(len(rows)))
        return
    # The rollout of each lane is one sequence; ends inside of it reset the state, so the cell runs step by step.
    ends = np.stack(done)
    for _ in range(hp["UPDATE_EPOCHS"]):
        outputs = []
        for net, begun in zip(nets, start, strict=True):
            state, steps = begun, []
            for t in range(len(x)):
                out, state = net(x[t][:, None], state)
                steps.append(out[:, 0])
                if ends[t].any():
                    alive = torch.from_numpy(1 - ends[t])[None, :, None]
                    state = tuple(part * alive for part in state)
            outputs.append(torch.stack(steps))
        update(nets, adam, tuple(columns), (outputs[0], outputs[1]), torch.ones_like(columns[3]))


def evaluate(nets: list, env: Any, is_recurrent: bool) -> float:
    """Mean return of one greedy episode in every lane."""
    obs, _ = env.reset(seed=1)
    alive, score, state = np.ones(LANES, bool), np.zeros(LANES), [None, None]
    while alive.any():
        with torch.no_grad():
            if is_recurrent:
                logits, first = nets[0](torch.from_numpy(obs)[:, None], state[0])
                state, logits = [first, None], logits[:, 0]
            else:
                logits = nets[0](torch.from_numpy(obs))
        obs, reward, terminated, truncated, _ = env.step(logits.argmax(1).numpy())
        score += reward * alive
        alive &= ~(terminated | truncated)
    return float(score.mean())
