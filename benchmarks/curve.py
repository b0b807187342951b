"""Claim: a learning curve on an environment that takes long, ours against Stable-Baselines3's SAC at equal steps.

    python benchmarks/curve.py --env HalfCheetah-v5 --folder FOLDER [--minutes 30] [--sb3 /path/to/other/python]
    python benchmarks/curve.py --env BipedalWalker-v3 --folder FOLDER

Trains the shipped preset on one seed in a run directory below FOLDER. A second start goes on from there; --minutes ends
the run early, and what was reached by then is reported. Appends one JSON line to results/curves.jsonl: the fitness of
the best member and the mean of all, by environment steps of the population, and the best agent's mean over 100 fresh
episodes. With --sb3, the other side runs first, see `opponent_sb3.py`; its steps are those of its one agent.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import runner


def ours(env_id: str, algo: str | None, seed: int, folder: Path, minutes: float | None) -> dict[str, Any]:
    """Train, or go on, until the end or for some minutes; the curve so far and the test of the best agent."""
    import agilerl
    from agilerl.config import preset_for

    manifest = preset_for(env_id, algo)
    if minutes is not None:  # like Ctrl-C: the run stays as it was saved last, and can go on
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    begun = time.process_time()
    found = sorted(folder.glob("*/*/run.json"))
    if found:
        run = agilerl.resume(found[-1].parent, verbose=False)
    else:
        run = agilerl.train(env_id, config=manifest.as_dict(), seed=seed, out=folder, verbose=False)
    signal.setitimer(signal.ITIMER_REAL, 0)
    spent = time.process_time() - begun
    assert run.path is not None
    test = run.best.evaluate(episodes=100, seed=seed)
    return {
        "key": {"env": env_id, "algo": manifest.algorithm.name, "preset": manifest.hash(), "seed": seed},
        "commit": runner.package_commit(),
        "curve": curve_of(run.path / "metrics.csv"),
        "score": test.mean,
        "ci95": test.ci95,
        "stopped": run.result["stopped"],
        "population_env_steps": run.result["env_steps_population"],
        "cpu_seconds": round(run.result["cpu_seconds"], 1),
        "cpu_seconds_of_this_start": round(spent, 1),
    }


def curve_of(metrics: Path) -> list[tuple[int, float, float]]:
    """(environment steps of the population, best fitness, mean fitness) of every generation."""
    found: dict[int, list[float]] = {}
    with open(metrics, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["population_env_steps"]), []).append(float(row["fitness"]))
    return [(steps, round(max(f), 1), round(sum(f) / len(f), 1)) for steps, f in sorted(found.items())]


def sb3(python: str, env_id: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """The line that `opponent_sb3.py` ends with."""
    script = Path(__file__).with_name("opponent_sb3.py")
    command = [
        python,
        str(script),
        "--env",
        env_id,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
        "--folder",
        str(folder),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="end our side after so many minutes")
    parser.add_argument("--sb3", metavar="PYTHON", help="a Python interpreter that has stable-baselines3")
    parser.add_argument("--steps", type=int, default=300_000, help="environment steps of the other side")
    args = parser.parse_args()
    other = sb3(args.sb3, args.env, args.seed, args.steps, args.folder / "sb3") if args.sb3 else None
    line = ours(args.env, args.algo, args.seed, args.folder / "ours", args.minutes)
    line |= {"stable_baselines3": other, **runner.facts()}
    runner.append_line(runner.RESULTS / "curves.jsonl", line)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
