"""Claim: over rows small images train in less CPU time than with torch's modules; large ones take more without C.

    python benchmarks/image_updates.py [--members 4] [--rounds 20] [--print]

CPU milliseconds of one update of all DQN members (latent 128, head of 64 units, Adam, soft target), median over the
rounds, with preprocessing of uint8 images. One JSON line per shape and batch: modules (member by member), rows in torch
and rows in C, all of them also beyond `modules.cnn.MAX_PIXELS`.
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
from agilerl.modules import cnn

SHAPES: list[tuple[tuple[int, ...], dict[str, list[int]]]] = [
    ((4, 10, 10), {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}),
    ((10, 10, 10), {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}),
    ((4, 10, 10), {"channel_size": [32, 32], "kernel_size": [3, 3], "stride_size": [1, 1]}),
    ((3, 32, 32), {"channel_size": [32, 64], "kernel_size": [4, 3], "stride_size": [2, 2]}),
    ((4, 84, 84), {"channel_size": [32, 64, 64], "kernel_size": [8, 4, 3], "stride_size": [4, 2, 1]}),
]


def measured(
    shape: tuple[int, ...], encoder: dict[str, list[int]], batch: int, members: int, rounds: int, learner: str,
    kernels: Kernels,
) -> float:  # fmt: skip
    """CPU milliseconds of one update of all members."""
    space, lead = gym.spaces.Box(0, 255, shape, np.uint8), (1, members, batch)
    config = {"latent_dim": 128, "encoder_config": encoder, "head_config": {"hidden_size": [64]}}
    agents = [DQN(space, gym.spaces.Discrete(6), i, seed=i, net_config=config) for i in range(members)]
    engine = Learner(agents, choose(agents, learner), kernels)
    draws, times = torch.Generator().manual_seed(0), []
    images = [torch.randint(0, 256, (*lead, *shape), generator=draws, dtype=torch.uint8) for _ in range(2)]
    fields = {"reward": torch.randn(lead, generator=draws), "discount": torch.full(lead, 0.99)}
    fields |= {"action": torch.randint(0, 6, lead, generator=draws), "done": torch.zeros(lead)}
    for _ in range(rounds + 3):
        begin = time.process_time()
        for number, group in enumerate(engine.groups):
            member_fields = {name: x[:, group.members] for name, x in fields.items()}
            obs, following = (engine.prepare(number, x[:, group.members]) for x in images)
            weight = torch.full((1, len(group.members), batch), 1 / batch)
            group.learn_each(
                TransitionBatches({**member_fields, "obs": obs, "next_obs": following}, weight, {}, 1, 1, False)
            )
        times.append(1e3 * (time.process_time() - begin))
    engine.release()
    return round(median(times[3:]), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--print", action="store_true", help="print the lines and store none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cnn.MAX_PIXELS = 84 * 84
    paths = {"modules": ("sequential", TORCH), "torch": ("auto", TORCH), "C": ("auto", available_kernels())}
    for shape, encoder in SHAPES:
        for batch in (32, 64):
            times: dict[str, Any] = {
                name: measured(shape, encoder, batch, args.members, args.rounds, *path) for name, path in paths.items()
            }
            line = {"claim": "CPU milliseconds of one update of all members", "members": args.members, "image": shape}
            line |= {**encoder, "batch": batch, **times, "commit": package_commit(), **facts()}
            print(json.dumps(line), flush=True)
            if not args.print:
                append_line(RESULTS / "image_updates.jsonl", line)


if __name__ == "__main__":
    main()
