"""Claim: what a population update and the whole loop cost as the population grows. One JSON line per measurement.

    python benchmarks/scaling.py [--rounds 7]

Updates: double DQN, observation 8 -> U -> U -> latent U -> head U -> 4 actions with U = 64 and 256 units, batch 128,
Adam, soft target; 16 updates a call, as after a vector step of 16 environments. Compared: the kernels in C, the same
group in torch, and plain torch agents updated one after another with Adam(fused=True). All sides are interleaved in one
process, in CPU seconds; sampling is left out on all, batches change from update to update. "Mixed" members differ in
every width. The whole loop is a generation of 2,000 steps per member on CartPole-v1 with 16 environments and one update
per environment step. Also timed: select + mutate for six members, and `import agilerl`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch
from runner import facts, package_commit
from torch import nn

from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch, TransitionBatches
from agilerl.engine.rows.kernels import TORCH, Kernels
from agilerl.engine.rows.native import available_kernels
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

BATCH, UPDATES, UNITS = 128, 16, (64, 256)
OBS, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (8,)), gym.spaces.Discrete(4)


def members(count: int, mixed: bool, units: int = 32) -> list[DQN]:
    """`count` agents; mixed ones have widths of their own."""
    agents = []
    for i in range(count):
        width = units - 4 * (i % 4) if mixed else units
        config = {
            "encoder_config": {"hidden_size": [width, width]},
            "head_config": {"hidden_size": [width]},
            "latent_dim": width,
        }
        agents.append(DQN(OBS, ACTIONS, i, net_config=config, batch_size=BATCH, lr=1e-3, tau=1e-3, double=True, seed=i))
    return agents


def pool(count: int) -> TransitionBatches:
    """Batches of random transitions, so that no loss is ever fitted away."""
    g = torch.Generator().manual_seed(0)
    shape = (UPDATES, count, BATCH)
    done = (torch.rand(shape, generator=g) < 0.05).float()
    fields = {
        "obs": torch.randn(*shape, 8, generator=g),
        "action": torch.randint(0, 4, shape, generator=g),
        "reward": torch.randn(shape, generator=g),
        "next_obs": torch.randn(*shape, 8, generator=g),
        "done": done,
        "discount": 0.99 * (1 - done),
    }
    return TransitionBatches(fields, torch.full(shape, 1 / BATCH), {}, UPDATES, 0, False)


def together(count: int, mixed: bool, units: int, kernels: Kernels) -> Callable[[], None]:
    agents = members(count, mixed, units)
    learner = Learner(agents, choose(agents, "fused"), kernels)
    batches = [pool(len(group.members)) for group in learner.groups]
    return lambda: void([group.learn_each(own) for group, own in zip(learner.groups, batches, strict=True)])


def void(_: Any) -> None:
    """A call for its effect."""


def one_after_another(count: int, mixed: bool, units: int) -> Callable[[], None]:
    """Plain torch.nn and torch.optim on the same networks: the reference."""
    agents, batches = members(count, mixed, units), pool(count).each()
    nets = [nn.Sequential(*_layers(agent)) for agent in agents]
    targets = [copy.deepcopy(net) for net in nets]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, fused=True) for net in nets]

    def update(batch: TransitionBatch) -> None:
        for n, (net, target, optimizer) in enumerate(zip(nets, targets, optimizers, strict=True)):
            with torch.no_grad():
                best = net(batch.next_obs[n]).argmax(1, keepdim=True)
                value = target(batch.next_obs[n]).gather(1, best).squeeze(1)
                y = batch.reward[n] + 0.99 * (1 - batch.done[n]) * value
            loss = nn.functional.mse_loss(net(batch.obs[n]).gather(1, batch.action[n, :, None]).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for p, q in zip(net.parameters(), target.parameters(), strict=True):
                    q.lerp_(p, 1e-3)

    return lambda: void([update(batch) for batch in batches])


def _layers(agent: DQN) -> list[nn.Module]:
    stack = agent.actor.dense_stack()
    assert stack is not None
    layers: list[nn.Module] = []
    for layer in stack.layers:
        layers.append(nn.Linear(layer.in_features, layer.out_features))
        layers += [nn.ReLU()] if layer.activation else []
    return layers


def cpu_per_update(function: Callable[[], None], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - start) / (calls * UPDATES)


def updates(rounds: int) -> None:
    for units, mixed in itertools.product(UNITS, (False, True)):
        sides: dict[str, Callable[[], None]] = {}
        for count in (1, 2, 4, 8, 16):
            sides[f"c {count}"] = together(count, mixed, units, available_kernels())
        for count in (1, 8):
            sides[f"torch {count}"] = together(count, mixed, units, TORCH)
            sides[f"plain {count}"] = one_after_another(count, mixed, units)
        raw: dict[str, list[float]] = {name: [] for name in sides}
        for function in sides.values():
            cpu_per_update(function, 2)
        for _ in range(rounds):
            for name, function in sides.items():
                raw[name].append(cpu_per_update(function, 4))
        pairs = ("c 8", "plain 8"), ("c 1", "plain 1"), ("c 8", "torch 8"), ("c 1", "torch 1"), ("c 8", "c 1")
        ratio = {f"{a} / {b}": round(median(x / y for x, y in zip(raw[a], raw[b], strict=True)), 3) for a, b in pairs}
        micro = {name: round(median(values) * 1e6, 1) for name, values in raw.items()}
        setup = {"units": units, "mixed": mixed}
        emit("population update, CPU microseconds", **setup, median=micro, ratio=ratio, raw=raw)


def loops(rounds: int) -> None:
    raw: dict[int, list[float]] = {n: [] for n in (1, 2, 4, 8, 16)}
    for r in range(rounds):
        for count, values in raw.items():
            env = make_vect_envs("CartPole-v1", num_envs=16)
            population = create_population(
                "DQN",
                {"encoder_config": {"hidden_size": [32, 32]}, "head_config": {"hidden_size": [32]}},
                {"BATCH_SIZE": BATCH, "LEARN_STEP": 1, "DOUBLE": True},
                env.single_observation_space,
                env.single_action_space,
                population_size=count,
                seed=r,
            )
            start = time.process_time()
            train_off_policy(
                env,
                "CartPole-v1",
                pop=population,
                memory=ReplayBuffer(max_size=10_000),
                max_steps=2_000,
                evo_steps=2_000,
                eval_steps=100,
                learning_delay=200,
                tournament=TournamentSelection(2, True, count, seed=r),
                mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, rand_seed=r),
                verbose=False,
                seed=r,
            )
            values.append(time.process_time() - start)
            env.close()
    per_step = {n: round(median(v) / (2_000 * n) * 1e6, 1) for n, v in raw.items()}
    emit("whole loop, CPU microseconds per environment step", median=per_step, raw=raw)


def evolution(rounds: int) -> None:
    """Selection and mutation of six members of the size above, with probe observations from a batch."""
    agents, times = members(6, mixed=False), []
    batch = pool(6).each()[0]
    for i, agent in enumerate(agents):
        agent.fitness = [float(i)]
        agent.learn_batch(batch.map(lambda x, i=i: x[i]))
    tournament = TournamentSelection(2, True, 6, seed=0)
    mutations = Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, rand_seed=0)
    for _ in range(10 * rounds):
        start = time.process_time()
        _, chosen = tournament.select(agents)
        mutations.mutation(chosen)
        times.append(time.process_time() - start)
    milliseconds = sorted(round(t * 1e3, 2) for t in times)
    emit("select + mutate, 6 members, CPU milliseconds", median=median(milliseconds), raw=milliseconds)


def imports(rounds: int) -> None:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import agilerl"], check=True)
        times.append(round(time.perf_counter() - start, 3))
    emit("import agilerl in a new process, wall seconds", median=median(times), raw=times)


def emit(claim: str, **values: Any) -> None:
    print(json.dumps({"claim": claim, **values, "commit": package_commit(), **facts()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    updates(args.rounds)
    evolution(args.rounds)
    imports(args.rounds)
    loops(max(1, args.rounds // 2))


if __name__ == "__main__":
    main()
