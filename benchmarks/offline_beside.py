"""d3rlpy beside our tables of continuous data: the same files, the same number of updates of one agent, its defaults.

    python benchmarks/offline_beside.py --python /path/to/other/python --tasks Pendulum-v1

One JSON line per seed in results/offline-d3rlpy-<env>-<algo>-<data>.jsonl. Both sides choose by episodes in the
environment, at the same numbers of updates: theirs the policy of its best evaluation, ours the agent. "last" is their
last policy, ours the mean of the last generation. On Pendulum our runs have a population, with four times the updates;
theirs are 256 units wide.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from offline import ALL, SETS, TABLES, chosen, jobs_for, make_data, normalised
from runner import RESULTS, read_lines, run_jobs, seed_range

OPPONENT = Path(__file__).parent / "opponent_d3rlpy.py"
TEST_EPISODES = 100


def path_of(name: str) -> Path:
    env_id, algo, quality = name.split(":")
    return RESULTS / f"offline-d3rlpy-{env_id}-{algo.lower()}-{quality}.jsonl"


def jobs(name: str, seeds: list[int]) -> list[dict[str, Any]]:
    """One a seed, with as many updates as a member of ours makes."""
    from agilerl.data.dataset import read_dataset

    env_id, algo, _ = name.split(":")
    data = ALL[name].data
    file = make_data(env_id, data, 0)
    known = read_dataset(file)
    training = jobs_for(name, [0], evolution=True, sets=[])[0]["config"]["training"]
    scheme = {
        "updates": training["max_steps"],
        "every": training["evo_steps"],
        "eval_episodes": training["eval_episodes"],
    }
    key = {"task": name, "arm": "d3rlpy", **scheme, "data": known.source["sha256"], "scores": known.about["scores"]}
    more = {"file": str(file), "env": env_id, "algo": algo, "test_episodes": TEST_EPISODES, **scheme}
    return [{"key": {**key, "seed": seed}, "seed": seed, **more} for seed in seeds if seed < ALL[name].seeds]


def summary(name: str) -> None:
    """Mean and deviation of the normalised scores."""
    lines = sorted(read_lines(path_of(name)), key=lambda line: line["key"]["seed"])
    if not lines:
        return
    found: dict[str, Any] = {"task": name, "arm": "d3rlpy", "seeds": [line["key"]["seed"] for line in lines]}
    for which in ("score", "last"):
        values = [normalised(line[which], line["key"]["scores"]) for line in lines]
        found[which] = {"mean": round(mean(values), 1), "sd": round(stdev(values), 1) if len(values) > 1 else None}
    print(json.dumps({**found, "cpu_seconds": [line["cpu_seconds"] for line in lines]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of the opponent's environment")
    parser.add_argument("--tasks", nargs="+", default=list(SETS), metavar="ENV[:ALGO[:DATA]]")
    parser.add_argument("--seeds", type=seed_range, default=seed_range("0-4"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    if not args.summary and args.python is None:
        raise SystemExit("d3rlpy runs in an environment of its own: --python /path/to/its/python")
    for name in [name for name in chosen(args.tasks) if name in TABLES]:
        if not args.summary:
            run_jobs(str(OPPONENT), path_of(name), jobs(name, args.seeds), args.workers, args.python)
        summary(name)


if __name__ == "__main__":
    main()
