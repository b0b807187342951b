"""Claim: members that act in lockstep learn as well as members that train one after another.

    python benchmarks/lockstep.py            # what is missing of seeds 0-9 on CartPole-v1 and LunarLander-v3
    python benchmarks/lockstep.py --summary

Both ways share one replay buffer and make the same steps and updates per member; what differs is who has seen what
when within a generation. Shipped presets without evolution and without a stop. A point of a curve is the mean fitness
(8 greedy episodes) of the four members after a generation; the interval is a 95 % bootstrap over seeds.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

STEPS = {"CartPole-v1": 12_000, "LunarLander-v3": 40_000}  # per member
POINTS = (0.25, 0.5, 0.75, 1.0)
PATH = RESULTS / "lockstep.jsonl"


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed one way, to the end of its budget."""
    import agilerl

    key = job["key"]
    wall, cpu = time.perf_counter(), time.process_time()
    run = agilerl.train(key["env"], seed=key["seed"], out=None, verbose=False, evolution=False, config=job["config"])
    return {
        "key": key,
        "history": [[round(f, 1) for f in generation] for generation in run.history],
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
    }


def jobs_for(env_id: str, seeds: list[int]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    jobs = []
    for lockstep in (True, False):
        sets = [f"training.max_steps={STEPS[env_id]}", "training.target_score=null", f"training.lockstep={lockstep}"]
        manifest = apply_sets(preset_for(env_id), sets)
        base = {"env": env_id, "lockstep": lockstep, "preset": manifest.hash(), "commit": package_commit()}
        jobs += [{"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]
    return jobs


def interval(values: np.ndarray) -> list[float]:
    """95 % bootstrap interval of the mean over seeds."""
    draws = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    return [round(float(q), 1) for q in np.quantile(values[draws].mean(1), [0.025, 0.975])]


def summary(env_id: str) -> None:
    """Mean and interval at a quarter, half, three quarters and all of the budget, both ways and their difference."""
    curves: dict[bool, dict[int, np.ndarray]] = {True: {}, False: {}}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for line in read_lines(PATH):
        if line["key"]["env"] == env_id:
            way = line["key"]["lockstep"]
            curves[way][line["key"]["seed"]] = np.array(line["history"]).mean(1)
            cpu[way].append(line["cpu_seconds"])
    seeds = sorted(set(curves[True]) & set(curves[False]))
    if not seeds:
        return
    stacked = {way: np.stack([curves[way][seed] for seed in seeds]) for way in (True, False)}
    for point in POINTS:
        column = round(point * stacked[True].shape[1]) - 1
        together, alone = stacked[True][:, column], stacked[False][:, column]
        row = {
            "env": env_id,
            "member_steps": round(STEPS[env_id] * point),
            "seeds": len(seeds),
            "lockstep": [round(float(together.mean()), 1), *interval(together)],
            "one_after_another": [round(float(alone.mean()), 1), *interval(alone)],
            "difference": [round(float((together - alone).mean()), 1), *interval(together - alone)],
            "median_cpu_seconds": [float(np.median(cpu[True])), float(np.median(cpu[False]))],
        }
        print(json.dumps(row))


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=2)
    parser.add_argument("--envs", nargs="+", default=list(STEPS), choices=list(STEPS))
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for env_id in args.envs:
        if not args.summary:
            run_jobs(sys.argv[0], PATH, jobs_for(env_id, args.seeds), args.workers)
        summary(env_id)


if __name__ == "__main__":
    main()
