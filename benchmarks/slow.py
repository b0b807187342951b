"""Claim: where a step costs 10 or 50 ms, `agilerl train ENV` is at the target sooner. Lines in results/slow.jsonl.

    python benchmarks/slow.py --who ours --env cartpole --cost-ms 10 --seeds 0-4 --minutes 10
    python benchmarks/slow.py --who sb3 --env cartpole --seeds 0-4 --python /path/to/sb3/bin/python
    PYTHONPATH=/path/to/e27f2e8 python benchmarks/slow.py --who e27 --env cartpole --seeds 0-4
    python benchmarks/slow.py --score --who ours --env highway-fast-v0 --seeds 0-2 --minutes 10
    python benchmarks/slow.py --summary

**Seconds until the target.** Until the policy that would be handed over reaches the target of `slow_envs.py`, as the
referee there sees it: greedy episodes without step cost, the same seeds for everybody. The referee's time is excluded,
imports too. The first policy that reaches the target ends the run; a run without one is censored.

* ours: the bare command of the package that PYTHONPATH names, at the real cost, in a process of its own per seed. The
  referee meets the best agent after every generation that has a new one. Wall seconds are measured.
* e27: `agilerl train ENV` of e27f2e8, which steps one lane after another in one process. Without minutes its choices do
  not depend on time, so it runs without step cost, and its wall seconds at a cost of c are derived, as those of
  Stable-Baselines3 are: env_steps * c + CPU seconds, with all its environment steps (training and evaluation of all
  members, confirmations). That leaves out the trial by which the command measures its speed (at least 1,024 steps), and
  its budget of ten minutes, which ends it earlier: both in its favour. `--real` runs it at the real cost.
* sb3: `opponent_slow_sb3.py`, in an environment of its own.

**Score.** `--score` trains for `--minutes` of wall time at the environment's own cost; then the policy that is handed
over plays 100 greedy episodes. `--imports` names modules that register environments.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from peers_clock import TreeCpu
from runner import RESULTS, grouped, job_parser, read_lines, run_jobs
from slow_envs import COSTS_MS, FAMILIES, FINAL_EPISODES, referee_seeds, returns_in_turn

LINES = RESULTS / "slow.jsonl"
EVERY = {"cartpole": 500, "pendulum": 250}  # env_steps between the policies that the referee meets, of sb3
MAX_ENV_STEPS = {"cartpole": 150_000, "pendulum": 20_000}  # of sb3
MAX_CPU_SECONDS = 600.0  # of e27 without step cost


def measured_commit() -> str:
    """The last commit of the package that is imported, with "+" where files differ from it."""
    import agilerl

    git = ["git", "-C", str(Path(agilerl.__file__).parent)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h", "--", "."], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True)
    return (commit.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def process_times() -> dict[tuple[int, float], tuple[float, float]]:
    """CPU seconds of this process and of all below it, as `TreeCpu` reads them."""
    import psutil

    here, found = psutil.Process(), {}
    for process in [here, *here.children(recursive=True)]:
        try:
            times, key = process.cpu_times(), (process.pid, process.create_time())
        except psutil.NoSuchProcess:
            continue
        found[key] = (times.user + times.system, times.children_user + times.children_system)
    return found


def greedy_policy(who: str, agent: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Maps observations [E, ...] to greedy actions [E, ...]. e27f2e8 has no public method for it."""
    if who == "e27":
        agent.set_training_mode(False)
        return lambda obs: np.asarray(agent._greedy(obs))
    return lambda obs: np.asarray(agent.act(obs))


class ToTarget:
    """A callback of a run: tests each new best agent, excludes the tests' time, and stops the run at the target."""

    def __init__(self, key: dict[str, Any]) -> None:
        self.key, self.family = key, FAMILIES[key["env"]]
        self.newest: Any = None
        self.curve: list[list[float]] = []  # env_steps, score, CPU seconds, wall seconds
        self.reached: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self.meter = TreeCpu(process_times)
        self.cpu, self.wall = self.meter(), time.perf_counter()

    def used(self, record: Any) -> dict[str, Any]:
        return {
            "env_steps": record.population_env_steps + record.evaluation_env_steps,
            "training_env_steps": record.population_env_steps,
            "evaluation_env_steps": record.evaluation_env_steps,
            "cpu_seconds": round(self.meter() - self.cpu, 2),
            "wall_seconds": round(time.perf_counter() - self.wall, 2),
        }

    def on_best(self, agent: Any) -> None:
        self.newest = agent

    def on_generation(self, record: Any) -> bool | None:
        used, begun = self.used(record), time.perf_counter()
        self.last = used
        if self.newest is not None:
            cpu = time.process_time()
            score = round(self.family.referee(greedy_policy(self.key["who"], self.newest)), 2)
            self.newest = None
            self.curve.append([used["env_steps"], score, used["cpu_seconds"], used["wall_seconds"]])
            if score >= self.family.target:
                self.reached = {**used, "score": score}
            self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - begun
        is_over = "minutes" not in self.key and used["cpu_seconds"] >= MAX_CPU_SECONDS
        return False if self.reached or is_over else None


def as_the_command(env_id: str, key: dict[str, Any], callbacks: list[Any]) -> Any:
    """Train as `agilerl train ENV --minutes M --set NAME=VALUE...` does: with other cores, unlike `agilerl.train`."""
    from agilerl.api import run_training, starting_manifest
    from agilerl.config import apply_overrides, apply_sets

    manifest, _ = starting_manifest(env_id, None, None, minutes=key["minutes"])
    manifest = apply_overrides(manifest, {"training.seed": key["seed"]})
    manifest = apply_sets(manifest, [f"{name}={value}" for name, value in key.get("sets", {}).items()])
    options: dict[str, Any] = {"minutes": key["minutes"], "uses_spare_cores": True}
    return run_training(manifest, out=None, verbose=False, callbacks=callbacks, **options)


def run_to_target(job: dict[str, Any]) -> dict[str, Any]:
    """The bare command until its best agent reaches the target."""
    import agilerl

    key = job["key"]
    watch = ToTarget(key)
    env_id = FAMILIES[key["env"]].env_id(key["cost_ms"])
    if key["who"] == "ours":
        run = as_the_command(env_id, key, [watch])
    else:
        run = agilerl.train(env_id, seed=key["seed"], out=None, verbose=False, callbacks=[watch])
    return {
        "key": key,
        "algo": run.manifest.algorithm.name,
        "reached": watch.reached,
        **(watch.reached or watch.last),
        "stopped": run.result["stopped"],
        "run_seconds": round(run.result["seconds"], 1),
        "curve": watch.curve,
    }


def run_for_minutes(job: dict[str, Any]) -> dict[str, Any]:
    """The score of the bare command with so many minutes."""
    import agilerl

    key = job["key"]
    for module in job["imports"]:
        importlib.import_module(module)
    meter, begun = TreeCpu(process_times), time.perf_counter()
    cpu = meter()
    run = agilerl.train(key["env"], seed=key["seed"], minutes=key["minutes"], out=None, verbose=False)
    wall, cpu = time.perf_counter() - begun, meter() - cpu
    returns = returns_in_turn(greedy_policy(key["who"], run.best), key["env"], referee_seeds(FINAL_EPISODES))
    return {
        "key": key,
        "algo": run.manifest.algorithm.name,
        "score": round(mean(returns), 3),
        "returns": [round(value, 3) for value in returns],
        "stopped": run.result["stopped"],
        "env_steps": run.result["env_steps_population"] + run.result["evaluation_env_steps"],
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
    }


def jobs_for(args: Any) -> list[dict[str, Any]]:
    """One job per seed; its key names everything that the result depends on."""
    base: dict[str, Any] = {"who": args.who, "env": args.env}
    job: dict[str, Any] = {}
    if args.score:
        job |= {"imports": args.imports, "distributions": args.distributions}
        base["minutes"] = args.minutes
    elif args.env not in FAMILIES:
        raise SystemExit(f"--env {args.env} has no target; expected one of {', '.join(FAMILIES)}, or --score.")
    elif args.who == "sb3":
        job["every"], job["max_env_steps"] = EVERY[args.env], args.max_env_steps or MAX_ENV_STEPS[args.env]
        base |= {"cost_ms": args.cost_ms if args.real else 0, "max_env_steps": job["max_env_steps"]}
    elif args.who == "e27" and not args.real:
        base["cost_ms"] = 0
    else:
        base |= {"cost_ms": args.cost_ms, "minutes": args.minutes}
        base |= {"sets": dict(text.split("=", 1) for text in args.set)} if args.set else {}
    if args.who != "sb3":
        base["commit"] = measured_commit()
    return [{**job, "key": {**base, "seed": seed}} for seed in args.seeds]


def wall_seconds(line: dict[str, Any], cost_ms: int) -> float | None:
    """Until the target, derived where the run had no step cost; None where it is not known, or not reached."""
    if line["reached"] is None or line["key"]["cost_ms"] not in (0, cost_ms):
        return None
    if line["key"]["cost_ms"] == cost_ms:
        return float(line["reached"]["wall_seconds"])
    return float(line["reached"]["env_steps"]) * cost_ms / 1000 + float(line["reached"]["cpu_seconds"])


def rounded(values: list[float | None]) -> list[int | None]:
    return [None if value is None else round(value) for value in values]


def summary() -> None:
    """One line per group of seeds. Medians count runs that are censored as later than all others."""
    for group, lines in grouped(read_lines(LINES)):
        if "cost_ms" not in group:
            scores = [line["score"] for line in lines]
            print(json.dumps({**group, "scores": scores, "mean": round(mean(scores), 2)}))
            continue
        reached = [line["reached"] is not None for line in lines]
        shown = {**group, "reached": f"{sum(reached)}/{len(reached)}", "seeds": [line["key"]["seed"] for line in lines]}
        shown |= {name: [line[name] for line in lines] for name in ("env_steps", "cpu_seconds")}
        for cost_ms in [cost for cost in COSTS_MS if cost and group["cost_ms"] in (0, cost)]:
            seconds = [wall_seconds(line, cost_ms) for line in lines]
            middle = median(float("inf") if value is None else value for value in seconds)
            shown[f"wall_seconds_at_{cost_ms}ms"] = rounded(seconds)
            shown[f"median_at_{cost_ms}ms"] = None if middle == float("inf") else round(middle)
        print(json.dumps(shown))


def main() -> None:
    parser = job_parser(__doc__, seeds="0-4", workers=1)
    parser.add_argument("--who", choices=["ours", "e27", "sb3"], default="ours")
    parser.add_argument("--env", default="cartpole", help="cartpole or pendulum; with --score an id")
    parser.add_argument("--cost-ms", type=int, choices=COSTS_MS, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--real", action="store_true", help="e27 and sb3 at the real cost instead of without one")
    parser.add_argument("--max-env-steps", type=int, help="of sb3; epsilon falls over the first tenth")
    parser.add_argument("--score", action="store_true", help="train for --minutes, then score 100 episodes")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of ours, beside its choices"
    )
    parser.add_argument("--imports", nargs="*", default=[], help="modules that register environments")
    parser.add_argument("--distributions", nargs="*", default=[], help="packages whose versions sb3 records")
    parser.add_argument("--python", help="interpreter of the environment of sb3")
    args = parser.parse_args()
    if args.job:
        job = json.loads(args.job)
        print(json.dumps(run_for_minutes(job) if "cost_ms" not in job["key"] else run_to_target(job)))
    elif args.summary:
        summary()
    elif args.who == "sb3":
        if args.python is None:
            raise SystemExit("Stable-Baselines3 runs in an environment of its own: --python /path/to/its/python")
        script = str(Path(__file__).parent / "opponent_slow_sb3.py")
        run_jobs(script, LINES, jobs_for(args), args.workers, args.python)
    else:
        run_jobs(sys.argv[0], LINES, jobs_for(args), args.workers)


if __name__ == "__main__":
    main()
