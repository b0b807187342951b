"""Updates of 1, 8, 64 and 256 members on a device beside the CPU. One JSON line per number of members.

    python benchmarks/device.py                          # the CPU, and CUDA where there is one
    python benchmarks/device.py --device cpu --members 1 8 --updates 3 --rounds 2 --print

Updates as in `scaling.py`: double DQN, observation 8 -> 32 -> 32 -> latent 64 -> head 32 -> 4 actions, batch 128, Adam,
soft target, batches resident on the device, `--width` units in place of 32 for wider networks. Milliseconds are wall
time of one update of all members, median over the rounds; the device is waited for before and after the `--updates` of
a round. The CPU has one thread and two kernels: "torch", and "native" where they were built; the device has "torch".
There is no path with CUDA graphs: none could be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch
from runner import RESULTS, append_line, facts, package_commit

from agilerl.algorithms.dqn import DQN
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.rows.kernels import TORCH, Kernels
from agilerl.engine.rows.native import available_kernels

BATCH, POOL = 128, 8
OBS, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (8,)), gym.spaces.Discrete(4)


def learner_on(device: str, members: int, width: int, kernels: Kernels) -> Learner:
    """Adopt `members` agents of one architecture as rows on a device."""
    config = {"encoder_config": {"hidden_size": [width, width]}, "head_config": {"hidden_size": [width]}}
    options = {"net_config": {**config, "latent_dim": 2 * width, "max_latent_dim": 2 * width}, "batch_size": BATCH}
    agents = [
        DQN(OBS, ACTIONS, i, **options, lr=1e-3, tau=1e-3, double=True, seed=i, device=device) for i in range(members)
    ]
    learner = Learner(agents, choose(agents, "fused"), kernels)
    assert len(learner.groups) == 1
    return learner


def batches_on(device: str, members: int) -> TransitionBatches:
    """POOL batches of random transitions [POOL, members, BATCH], so that no loss is ever fitted away."""
    generator, shape = torch.Generator().manual_seed(0), (POOL, members, BATCH)
    fields = {
        "obs": torch.randn(*shape, 8, generator=generator),
        "action": torch.randint(0, 4, shape, generator=generator),
        "reward": torch.randn(shape, generator=generator),
        "next_obs": torch.randn(*shape, 8, generator=generator),
        "done": (torch.rand(shape, generator=generator) < 0.05).float(),
    }
    fields["discount"] = 0.99 * (1 - fields["done"])
    weight = torch.full(shape, 1 / BATCH)
    moved = {name: value.to(device) for name, value in fields.items()}
    return TransitionBatches(moved, weight.to(device), {}, POOL, 1, False)


def wait_for(device: str) -> None:
    """Wait until a device has done what was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measured(device: str, members: int, width: int, kernels: Kernels, updates: int, rounds: int) -> float:
    """Milliseconds of one update of all members, median over the rounds; the first round warms up and is left out."""
    learner, batches = learner_on(device, members, width, kernels), batches_on(device, members)
    calls = -(-updates // POOL)
    times = []
    for _ in range(rounds + 1):
        wait_for(device)
        begun = time.perf_counter()
        for _ in range(calls):
            learner.groups[0].learn_each(batches)
        wait_for(device)
        times.append((time.perf_counter() - begun) / (calls * POOL) * 1e3)
    learner.release()
    return median(times[1:])


def compare(device: str, members: int, args: argparse.Namespace) -> dict[str, Any]:
    """The result line for one number of members."""

    def timed(where: str, kernels: Kernels) -> float:
        return round(measured(where, members, args.width, kernels, args.updates, args.rounds), 4)

    native = available_kernels()
    each = [TORCH] if native.name == TORCH.name else [TORCH, native]
    cpu = {kernels.name: timed("cpu", kernels) for kernels in each}
    line = {"claim": "milliseconds of one update of all members", "members": members, "width": args.width, "cpu": cpu}
    if device == "cpu":
        return line
    there = timed(device, TORCH)
    name = torch.cuda.get_device_name(device)
    return {**line, device: {"torch": there}, "gpu": name, "cpu/device": round(min(cpu.values()) / there, 2)}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="auto", help="cpu, cuda or cuda:0; auto is CUDA where there is one")
    made.add_argument("--members", type=int, nargs="+", default=[1, 8, 64, 256])
    made.add_argument("--width", type=int, default=32, help="units of the hidden layers")
    made.add_argument("--updates", type=int, default=40, help="updates of one round, in calls of 8")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--print", action="store_true", help="print the lines and store none")
    return made


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(1)
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    for members in args.members:
        line = {**compare(device, members, args), "commit": package_commit(), **facts()}
        print(json.dumps(line), flush=True)
        if not args.print:
            append_line(RESULTS / "device.jsonl", line)


if __name__ == "__main__":
    main()
