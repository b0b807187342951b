"""Claim: a run uses the cores that it may use, with the same bits and hardly more CPU seconds.

    python benchmarks/cores.py [--rounds 3] [--tasks dqn ppo ...] [--cores 0,1] [--before FOLDER]
    python benchmarks/cores.py --kernels

Trains each task for a fixed number of steps, by the command line, in turn on one core and on all of `--cores`
(`taskset`; Linux alone). `--before` adds the source tree of another commit on one core, with the same interpreter.
Wall and CPU seconds are those of the command and its processes. The records of all arms of a commit must be equal but
for their seconds. Prints a JSON line per run and a table of ratios: of medians, and the range over rounds. `--kernels`
times 8 updates of 4 DQN members on one thread and on two instead: medians in milliseconds.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from runner import facts, package_commit

ROOT = Path(__file__).resolve().parents[1]
TASKS = {  # name -> arguments of `agilerl train`; steps are those of a member
    "dqn": ["LunarLander-v3", "--steps", "60000"],
    "ppo": ["LunarLander-v3", "--algo", "PPO", "--steps", "300000"],
    "sac": ["LunarLanderContinuous-v3", "--algo", "SAC", "--steps", "10000"],
    "hopper": ["Hopper-v5", "--steps", "100000"],
    "breakout": ["MinAtar/Breakout-v1", "--steps", "50000"],
    "spread": ["mpe2.simple_spread_v3", "--steps", "50000"],
}


def run(arguments: list[str], tree: Path, cores: str) -> dict[str, Any]:
    """Train by the command line of a source tree: wall and CPU seconds, and a digest of the records."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = ["taskset", "-c", cores, sys.executable, "-m", "agilerl", "train", *arguments, "--seed", "0"]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [*command, "--out", folder, "--quiet"], check=True, cwd=folder, stdout=subprocess.DEVNULL,
            env={**variables, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        (path,) = Path(folder).glob("*/*/metrics.csv")
        with open(path, encoding="utf-8", newline="") as file:
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:12]
    return {"wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2), "digest": digest}


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Format the ratio of medians and the range of the rounds' ratios."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{median(ours) / median(theirs):.2f} ({min(each):.2f} to {max(each):.2f})"


def time_kernels() -> None:
    """Print a JSON line for each width of hidden layers."""
    import gymnasium as gym
    import torch

    from agilerl.algorithms import DQN
    from agilerl.engine.learner import Learner
    from agilerl.engine.protocol import TransitionBatches
    from agilerl.engine.rows.kernels import NATIVE
    from agilerl.native.threads import kernel_threads

    torch.set_num_threads(1)
    shape = updates, members, rows = 8, 4, 64
    draws = torch.Generator().manual_seed(0)
    fields = {name: torch.rand(*shape, 8, generator=draws) for name in ("obs", "next_obs")}
    fields |= {"action": torch.randint(0, 4, shape, generator=draws), "reward": torch.rand(shape, generator=draws)}
    fields |= {"done": torch.zeros(shape), "discount": torch.full(shape, 0.99)}
    batches = TransitionBatches(fields, torch.full(shape, 1 / rows), {}, updates, 0, True)
    space, actions = gym.spaces.Box(-1, 1, (8,)), gym.spaces.Discrete(4)
    square, spent = torch.rand(1024, 1024), []
    for _ in range(24):
        begin = time.perf_counter()
        square @ square
        spent.append(time.perf_counter() - begin)
    rate = 2 * 1024**3 / median(spent)
    for units in (32, 64, 256):
        hidden = {"hidden_size": [units]}
        network = {"latent_dim": units, "encoder_config": hidden, "head_config": hidden}
        milliseconds = {}
        for threads in (1, 2):
            agents = [DQN(space, actions, index=i, seed=i, double=True, net_config=network) for i in range(members)]
            (group,), seconds = Learner(agents, kernels=NATIVE).groups, []
            with kernel_threads(threads):
                for _ in range(96):
                    begin = time.perf_counter()
                    group.learn_whole(batches, None)
                    seconds.append(time.perf_counter() - begin)
            milliseconds[threads] = round(1e3 * median(seconds), 3)
        gain = round(milliseconds[1] / milliseconds[2], 2)
        weights = sum(p.numel() for p in agents[0].actor.parameters() if p.dim() == 2)
        bound = round(1e3 * updates * members * 5 * 2 * rows * weights / rate, 3)
        line = {"units": units, "milliseconds": milliseconds, "times_as_fast": gain, "products_ms": bound}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=list(TASKS))
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    if options.kernels:
        time_kernels()
        return
    one = options.cores.split(",")[0]
    arms = {"one": (ROOT, one), "all": (ROOT, options.cores)}
    arms |= {} if options.before is None else {"before": (options.before.resolve(), one)}
    about, table = {**facts(), "commit": package_commit(), "cores": options.cores}, []
    for task in options.tasks:
        lines: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for number in range(options.rounds):
            for arm, (tree, cores) in arms.items():
                lines[arm].append(run(TASKS[task], tree, cores))
                key = {"task": task, "arm": arm, "round": number}
                print(json.dumps({"key": key, **lines[arm][-1], **about}), flush=True)
        digests = {line["digest"] for arm in ("one", "all") for line in lines[arm]}
        seconds = {arm: ([x["wall_seconds"] for x in of], [x["cpu_seconds"] for x in of]) for arm, of in lines.items()}
        before = "" if options.before is None else ratio(seconds["one"][1], seconds["before"][1])
        table.append(
            f"| {task} | {ratio(seconds['one'][0], seconds['all'][0])} | {ratio(seconds['all'][1], seconds['one'][1])} "
            f"| {before} | {'yes' if len(digests) == 1 else 'NO'} |"
        )
    print("\n| task | times faster on all cores | CPU seconds, all cores / one | one core / before | equal bits |")
    print("|---|---|---|---|---|", *table, sep="\n")


if __name__ == "__main__":
    main()
