"""What two ranks do: each algorithm that learns from transitions, on halves of its batches and on the whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from merged import Merged
from torch import Tensor

from agilerl.algorithms import find_algorithm
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.engine.rollouts import SequenceRollout, learn_rollout, make_rollout
from agilerl.envs.simulators.wordle import Wordle, wordle_data
from agilerl.ranks import ONE, Ranks, joined

MEMBERS, ROWS, UPDATES = 2, 12, 5
OBS, CHOICE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
GPT = {"n_layer": 1, "n_embd": 8, "n_head": 2, "dim_feedfwd": 12}
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "DQN": ("DQN", CHOICE, {"double": True}),
    "QRDQN": ("QRDQN", CHOICE, {"num_quantiles": 5}),
    "Rainbow": ("RainbowDQN", CHOICE, {}),
    "DDPG": ("DDPG", BOX, {}),
    "TD3": ("TD3", BOX, {}),
    "SAC": ("SAC", BOX, {}),
    "SAC of choices": ("SAC", CHOICE, {}),
    "TQC": ("TQC", BOX, {"num_quantiles": 5}),
    "CQN": ("CQN", CHOICE, {}),
    "CQL": ("CQL", BOX, {"threshold": 0.5}),
    "IQL": ("IQL", BOX, {}),
    "TD3BC": ("TD3BC", BOX, {}),
    "BC": ("BC", CHOICE, {}),
    "BC of a box": ("BC", BOX, {}),
}
TEXTS = ("ILQL", "BC_LM")

ROLLOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "PPO": (CHOICE, {}),
    "PPO of a box": (BOX, {}),
    "PPO recurrent": (CHOICE, {"recurrent": True, "max_seq_len": 3, "batch_size": 5}),
}
STEPS, LANES = 6, 4
MEMORY = {**NET, "encoder_config": {"hidden_state_size": 6}}


def agents_of(algo: str, space: Any, options: dict[str, Any]) -> list[Any]:
    kind = find_algorithm(algo)
    found: list[Any] = [kind(OBS, space, index=i, net_config=NET, seed=i, **options) for i in range(MEMBERS)]
    return doubled(found)


def doubled(agents: list[Any]) -> list[Any]:
    for agent in agents:
        for name in agent.registry.all_registered():
            getattr(agent, name).double()
    return agents


def batches(agents: list[Any], space: Any) -> Iterator[TransitionBatch]:
    """The same on every rank, of weight 1/B."""
    rng = np.random.default_rng(7)
    shape = (MEMBERS, ROWS)
    for number in range(1, UPDATES + 1):
        action = rng.uniform(-1, 1, (*shape, 2)) if space is BOX else rng.integers(0, 3, shape)
        noise = [agents[0].draw_noise(rng, (1, ROWS)) for _ in agents]
        fields = (
            rng.standard_normal((*shape, 3)),
            action,
            rng.standard_normal(shape),
            rng.standard_normal((*shape, 3)),
        )
        obs, chosen, reward, later = (torch.from_numpy(np.asarray(x)) for x in fields)
        done = torch.from_numpy((rng.random(shape) < 0.2).astype(float))
        yield TransitionBatch(
            obs, chosen, reward, later, done, torch.full(shape, 1 / ROWS, dtype=torch.float64), number=number,
            noise={name: torch.from_numpy(np.concatenate([own[name] for own in noise])).double() for name in noise[0]},
        )  # fmt: skip


def text_agents(algo: str) -> list[Any]:
    env, kind = Wordle(words=5, tries=3), find_algorithm(algo)
    made: list[Any] = [kind(env.observation_space, env.action_space, i, net_config=GPT, seed=i) for i in range(MEMBERS)]
    return doubled(made)


def text_batches(agents: list[Any]) -> Iterator[TransitionBatch]:
    """Games of one to three guesses, and so of unequally many tokens."""
    memory, rng = ReplayBuffer(max_size=10, dtype=torch.float64), np.random.default_rng(2)
    fill(memory, read_dataset(wordle_data(60, 5, 3, seed=2)), agents[0], OfflineOptions(max_steps=1, evo_steps=1))
    for number in range(1, UPDATES + 1):
        rows = [agents[0].make_batch(memory.sample_from_indices(rng.integers(0, 60, ROWS))) for _ in agents]
        stacked = {
            name: torch.stack([getattr(own, name) for own in rows])
            for name in ("obs", "action", "reward", "next_obs", "done", "weight")
        }
        yield TransitionBatch(**stacked, number=number)


def learned(agents: list[Any], how: str, made: Iterator[TransitionBatch], ranks: Ranks) -> list[Tensor]:
    """All weights after learning from this rank's part of every batch."""
    learner = Learner(agents, choose(agents, how), ranks=ranks)
    own = slice(ranks.rank * ROWS // ranks.size, (ranks.rank + 1) * ROWS // ranks.size)
    for batch in made:
        cut = batch.map(lambda x: x[:, own] if x.shape[1] == ROWS else x)
        part = replace(cut, weight=cut.weight * ranks.size)
        for number, group in enumerate(learner.groups):
            learner.learn(number, part.map(lambda x, rows=group.members: x[rows]))
    learner.release()
    names = agents[0].registry.all_registered()
    return [p.detach().clone() for agent in agents for name in names for p in getattr(agent, name).parameters()]


def compare(ranks: Ranks, make: Callable[[], list[Any]], given: Any, ways: tuple[str, ...]) -> dict[str, float]:
    """How far halves end from the whole, and how far the whole has moved."""
    before = learned(make(), ways[0], iter(()), ONE)
    whole = learned(make(), ways[0], given(make()), ONE)
    found = {how: difference(whole, learned(make(), how, given(make()), ranks)) for how in ways}
    return {**found, "moved": difference(whole, before)}


def rollout_agents(space: Any, options: dict[str, Any]) -> list[Any]:
    kind, net = find_algorithm("PPO"), MEMORY if options.get("recurrent") else NET
    more: dict[str, Any] = {"batch_size": 12, "update_epochs": 3, "clip_coef": 0.05, "max_grad_norm": 0.3, **options}
    return doubled([kind(OBS, space, index=i, net_config=net, seed=i, lr=1e-2, **more) for i in range(MEMBERS)])


def rolled(agents: list[Any], how: str, space: Any, ranks: Ranks) -> list[Tensor]:
    """All weights after two rollouts of this rank's lanes, each in three epochs of two minibatches.

    With a memory the lanes have 3, 3, 2 and 2 sequences of one to three steps.
    """
    recurrent = agents[0].is_recurrent
    learner, rng = Learner(agents, choose(agents, how), ranks=ranks), np.random.default_rng(3)
    like, lanes = next(agents[0].actor.parameters()), LANES // ranks.size
    own = slice(ranks.rank * lanes, (ranks.rank + 1) * lanes)
    for number in range(2):
        shape = (STEPS, MEMBERS, LANES)
        obs, last = rng.standard_normal((*shape, 3)), rng.standard_normal((MEMBERS, LANES, 3))
        action = rng.uniform(-1, 1, (*shape, 2)) if space is BOX else rng.integers(0, 3, shape)
        reward, over, cut = rng.standard_normal(shape), rng.random(shape) < 0.2, rng.random(shape) < 0.1
        log_prob = np.log(rng.uniform(0.3, 0.7, shape))
        hidden, known = {}, {"value": rng.standard_normal(shape), "final_value": rng.standard_normal(shape)}
        if recurrent:
            over = np.zeros(shape, bool)
            over[0, :, 0] = over[[1, 2], :, 1] = over[2, :, 2] = True
            cut = over & (rng.random(shape) < 0.5)
            sizes = agents[0].hidden_state_architecture.items()
            hidden = {key: rng.uniform(-0.5, 0.5, (*shape, *size)) for key, size in sizes}
        for place, group in enumerate(learner.groups):
            members = [agents[i] for i in group.members]
            flat = lambda x, rows=group.members: x[rows][:, own].reshape(-1, *x.shape[2:])  # noqa: E731
            buffer = members[0].make_buffer(STEPS, len(members) * lanes)
            for t in range(STEPS):
                step = (obs[t], action[t], reward[t], over[t] & ~cut[t], cut[t], log_prob[t])
                more: dict[str, Any] = {}
                if recurrent:
                    more = {name: flat(x[t]) for name, x in known.items()}
                    more["hidden"] = {key: np.moveaxis(flat(x[t]), 0, 1) for key, x in hidden.items()}
                buffer.add(*map(flat, step), final_obs=flat(obs[t] + 0.1), **more)
            buffer.last_obs = flat(last)
            buffer.last_value = flat(last)[:, 0] if recurrent else None
            rollout = make_rollout(learner, place, members, buffer, like)
            rngs: list[Any] = []
            for k, i in enumerate(group.members):
                if ranks.size > 1:
                    rngs.append(np.random.default_rng((10 * number + i, ranks.rank)))
                    continue
                is_sequences = isinstance(rollout, SequenceRollout)
                lane = rollout.sequences[k][:, 0] if is_sequences else np.arange(STEPS * LANES) % LANES
                rngs.append(Merged(10 * number + i, members[k].batch_size, lane * 2 // LANES))
            learn_rollout(learner, place, members, rollout, rngs)
    learner.release()
    names = agents[0].registry.all_registered()
    return [p.detach().clone() for agent in agents for name in names for p in getattr(agent, name).parameters()]


def compare_rollouts(ranks: Ranks, space: Any, options: dict[str, Any]) -> dict[str, float]:
    make = lambda: rollout_agents(space, options)  # noqa: E731
    before = learned(make(), "fused", iter(()), ONE)
    whole = rolled(make(), "fused", space, ONE)
    found = {how: difference(whole, rolled(make(), how, space, ranks)) for how in ("fused", "sequential")}
    return {**found, "moved": difference(whole, before)}


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True) if a.numel())


def main(folder: Path) -> None:
    from accelerate import Accelerator  # here, so that tests can read this file without it

    accelerator, found = Accelerator(), {}
    torch.set_num_threads(1)
    with joined(accelerator) as ranks:
        for name, (algo, space, options) in CASES.items():
            make = lambda a=algo, s=space, o=options: agents_of(a, s, o)  # noqa: E731
            found[name] = compare(ranks, make, lambda agents, s=space: batches(agents, s), ("fused", "sequential"))
        for algo in TEXTS:
            make = lambda a=algo: text_agents(a)  # noqa: E731
            found[algo] = compare(ranks, make, text_batches, ("sequential",))
        for name, (space, options) in ROLLOUTS.items():
            found[name] = compare_rollouts(ranks, space, options)
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))
