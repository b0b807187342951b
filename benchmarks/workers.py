"""Claim: what a second worker saves, and what it costs: seconds of generations and evaluations, one and two processes.

    python benchmarks/workers.py [--rounds 3] [--setups ppo dqn] [--generations 5]

Presets of LunarLander-v3 with a population of 4, without a target. Sides, each in a process of its own, in turn:

* "1 shard, 1 process": what a run does without workers;
* "2 shards, 1 process": the same result as the next one;
* "2 shards, 2 processes";
* "1 shard, 2 processes": training in one process, evaluation in two.

Counted are generations after the first two, when the worker has started. Seconds are of wall; CPU seconds are of both
processes. The digests of both sides with two shards are compared, and those of both with one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from runner import facts, package_commit

SIDES = {
    "1 shard, 1 process": (1, 1), "2 shards, 1 process": (2, 1), "2 shards, 2 processes": (2, 2),
    "1 shard, 2 processes": (1, 2),
}  # fmt: skip
SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "PPO", "evo_steps": 24_000},
    "dqn": {"algo": "DQN", "evo_steps": 10_000},
}
FIXED = {
    "population": 4, "target_score": None, "confirm_episodes": 0, "eval_members": None, "eval_screen": 0,
    "eval_episodes": 32, "evo_first": None, "eval_share": None, "patience": None, "evolution.scheme": "tournament",
}  # fmt: skip
SKIPPED = 2  # generations until the workers have started


def run(setup: str, side: str, seed: int, generations: int) -> dict[str, Any]:
    """One side, in this process."""
    import agilerl
    from agilerl.core.checkpoint import encode_tree
    from agilerl.training.loop import TrainingLoop

    spent: dict[str, list[float]] = {"generation_seconds": [], "evaluation_seconds": [], "cpu_seconds": []}
    loops: list[Any] = []

    def clocked(name: str, method: Any) -> Any:
        def call(loop: Any, *arguments: Any) -> Any:
            begun = time.perf_counter()
            result = method(loop, *arguments)
            spent[name].append(time.perf_counter() - begun)
            loops[:] = [loop]
            return result

        return call

    TrainingLoop._collect = clocked("generation_seconds", TrainingLoop._collect)  # type: ignore[method-assign]
    TrainingLoop._evaluate = clocked("evaluation_seconds", TrainingLoop._evaluate)  # type: ignore[method-assign]

    def after(record: Any) -> bool:
        spent["cpu_seconds"].append(time.process_time() + loops[0].scheduler.cpu_seconds)
        return len(spent["cpu_seconds"]) < generations + SKIPPED

    shards, workers = SIDES[side]
    arguments = {**FIXED, **SETUPS[setup], "steps": 10**9, "seed": seed, "shards": shards, "workers": workers}
    trained = agilerl.train("LunarLander-v3", out=None, verbose=False, callbacks=[after], **arguments)
    digest = hashlib.sha256(repr(trained.history).encode())
    for agent in trained.population:
        digest.update(encode_tree(agent.run_state()))
    cpu = spent.pop("cpu_seconds")
    means = {name: sum(values[SKIPPED:]) / generations for name, values in spent.items()}
    return {**means, "cpu_seconds": (cpu[-1] - cpu[SKIPPED - 1]) / generations, "digest": digest.hexdigest()[:16]}


def compare(setup: str, rounds: int, generations: int) -> dict[str, Any]:
    """All sides, round by round, every other round in the opposite order."""
    raw = []
    for seed in range(rounds):
        results = {}
        for side in list(SIDES)[:: -1 if seed % 2 else 1]:
            command = [sys.executable, __file__, "--setup", setup, "--side", side, "--seed", str(seed)]
            command += ["--generations", str(generations)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[side] = json.loads(done.stdout.splitlines()[-1])
        raw.append(results)
    alone, apart, both, helped = SIDES

    def ratios(name: str, over: str, under: str) -> list[float]:
        return sorted(round(one[over][name] / one[under][name], 2) for one in raw)

    table = {
        "training, 2 shards: one process / two": ratios("generation_seconds", apart, both),
        "training: 1 shard in one process / 2 shards in two": ratios("generation_seconds", alone, both),
        "evaluation: one process / two": ratios("evaluation_seconds", alone, helped),
        "CPU seconds, 2 shards: two processes / one": ratios("cpu_seconds", both, apart),
    }
    return {
        "claim": "what a second process saves and costs",
        "setup": setup,
        "median_ratio": {name: median(values) for name, values in table.items()},
        "ratios": table,
        "equal_digests": [
            one[apart]["digest"] == one[both]["digest"] and one[alone]["digest"] == one[helped]["digest"] for one in raw
        ],
        "raw": raw,
        "commit": package_commit(),
        **facts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS))
    parser.add_argument("--setup", choices=list(SETUPS), default="ppo")
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(run(args.setup, args.side, args.seed, args.generations)))
        return
    for setup in args.setups:
        print(json.dumps(compare(setup, args.rounds, args.generations)), flush=True)


if __name__ == "__main__":
    main()
