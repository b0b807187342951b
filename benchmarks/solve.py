"""Claim: the shipped presets solve their environments. One JSON line per seed in results/<env>-dqn.jsonl.

    python benchmarks/solve.py                                  # what is missing of seeds 0-9, all presets
    python benchmarks/solve.py --envs CartPole-v1 --no-evolution
    python benchmarks/solve.py --summary

A seed counts as solved if the returned best agent's mean over 100 fresh greedy episodes, which neither chose the agent
nor stopped the run, reaches the threshold. Steps, CPU seconds and wall seconds are those of the whole population,
evaluation and confirmations included, the final test excluded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import median
from typing import Any

from runner import RESULTS, package_commit, read_lines, run_jobs, seed_range

THRESHOLDS = {
    "CartPole-v1": (475.0, 10),
    "Acrobot-v1": (-100.0, 10),
    "LunarLander-v3": (200.0, 9),
    "MountainCar-v0": (-120.0, 8),
}


def path_of(env_id: str) -> Any:
    return RESULTS / f"{env_id}-dqn.jsonl"


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed from its preset and test the best agent."""
    import agilerl

    key = job["key"]
    wall, cpu = time.perf_counter(), time.process_time()
    run = agilerl.train(
        key["env"], seed=key["seed"], out=None, verbose=False, evolution=key["evolution"], config=job["config"]
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    test = run.best.evaluate(episodes=100, seed=key["seed"])
    return {
        "key": key,
        "score": test.mean,
        "ci95": test.ci95,
        "solved": test.mean >= THRESHOLDS[key["env"]][0],
        "stopped": run.result["stopped"],
        "confirmed": run.result["confirmed"],
        "population_env_steps": run.result["env_steps_population"],
        "member_env_steps": run.result["env_steps_member"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "births": len(run.lineage),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "history": [[round(f, 1) for f in generation] for generation in run.history],
    }


def jobs_for(env_id: str, seeds: list[int], evolution: bool, sets: list[str]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    manifest = apply_sets(preset_for(env_id), sets)
    base = {"env": env_id, "preset": manifest.hash(), "commit": package_commit(), "evolution": evolution}
    return [{"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]


def summary(env_id: str) -> None:
    """One line per (preset, commit, evolution) of an environment."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(path_of(env_id)):
        group = {k: v for k, v in line["key"].items() if k != "seed"}
        groups.setdefault(json.dumps(group), []).append(line)
    for group, lines in groups.items():
        lines.sort(key=lambda line: line["key"]["seed"])
        print(
            json.dumps(
                {
                    **json.loads(group),
                    "seeds": [line["key"]["seed"] for line in lines],
                    "solved": f"{sum(line['solved'] for line in lines)}/{len(lines)}",
                    "scores": [round(line["score"], 1) for line in lines],
                    "median_population_env_steps": median(line["population_env_steps"] for line in lines),
                    "median_cpu_seconds": median(line["cpu_seconds"] for line in lines),
                    "median_wall_seconds": median(line["wall_seconds"] for line in lines),
                    "max_wall_seconds": max(line["wall_seconds"] for line in lines),
                }
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job")
    parser.add_argument("--envs", nargs="+", default=list(THRESHOLDS), choices=list(THRESHOLDS))
    parser.add_argument("--seeds", type=seed_range, default=seed_range("0-9"))
    parser.add_argument("--no-evolution", action="store_true")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="change the preset: a.b=v (tuning)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for env_id in args.envs:
        if not args.summary:
            jobs = jobs_for(env_id, args.seeds, not args.no_evolution, args.sets)
            run_jobs(sys.argv[0], path_of(env_id), jobs, args.workers)
        summary(env_id)


if __name__ == "__main__":
    main()
