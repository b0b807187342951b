"""Claim: populations learn from data. One JSON line per seed in results/offline-<env>-<algo>-<data>.jsonl.

    python benchmarks/offline.py                                   # what is missing of the discrete tasks
    python benchmarks/offline.py --tasks CartPole-v1:CQN --seeds 0-9
    python benchmarks/offline.py --tasks Pendulum-v1               # a table: every task that begins so
    python benchmarks/offline.py --make                            # the data sets alone
    python benchmarks/offline.py --summary

Data sets are made by `agilerl data make`'s own functions, with stored seeds, where they are not there yet: in
benchmarks/data (AGILERL_DATA names another folder), which git ignores. Random rows have the seed of the run that learns
from them; what a trained policy has played is one set for all seeds.

Runs are those of the presets of (environment, algorithm), evolution included; fitness is the environment's. The score
is the mean over 100 fresh greedy episodes, which neither chose the agent nor stopped the run. "normalised" is
100 (score − random) / (expert − random), with the means of 100 episodes that the data set records. The tables of
continuous data also have "last": the mean over all members of the last generation.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs

DATA = Path(os.environ.get("AGILERL_DATA", Path(__file__).parent / "data"))


@dataclass(frozen=True)
class Data:
    """A data set: who plays, how many rows, with what exploration; `seed` None is that of the run."""

    policy: str
    rows: int
    seed: int | None
    noise: float = 0.0


@dataclass(frozen=True)
class Task:
    """What counts as reached: at least `at_least`, below `below`, or so much above the data's own mean return."""

    data: Data
    at_least: float | None = None
    below: float | None = None
    above_data: float | None = None
    needed: int = 0
    seeds: int = 10

    def reached(self, score: float, of_data: float) -> bool | None:
        if self.at_least is not None:
            return score >= self.at_least
        if self.below is not None:
            return score < self.below
        return None if self.above_data is None else score >= of_data + self.above_data


RANDOM = Data("random", 50_000, None)
TASKS = {
    "CartPole-v1:CQN:random": Task(RANDOM, at_least=475.0, needed=9),
    "CartPole-v1:BC:random": Task(RANDOM, below=100.0, needed=10),
    "Acrobot-v1:CQN:random": Task(RANDOM, at_least=-110.0, needed=9),
    "LunarLander-v3:CQN:medium": Task(Data("medium", 100_000, 0, noise=0.3), above_data=50.0, needed=9),
}
ROWS = {"Pendulum-v1": 20_000, "HalfCheetah-v5": 100_000}
CONTINUOUS = ("CQL", "IQL", "TD3BC", "BC")
QUALITIES = ("medium", "medium-replay", "expert")
TABLES = {
    f"{env_id}:{algo}:{quality}": Task(
        Data(quality, rows, 0, noise=0.0 if quality == "medium-replay" else 0.1), seeds=5
    )
    for env_id, rows in ROWS.items()
    for quality in QUALITIES
    for algo in CONTINUOUS
}
ALL = {**TASKS, **TABLES}
ALIKE = ("training.target_score=null", "training.train_max_episode_steps=null")  # of tables: the whole budget
WIDE = ("network.encoder_config.hidden_size=[256]", "network.head_config.hidden_size=[256]")
SETS = {
    "Pendulum-v1": (*ALIKE, "training.max_steps=3000", "training.evo_steps=500"),
    "HalfCheetah-v5": (*ALIKE, *WIDE, "training.max_steps=5000", "training.evo_steps=1000", "training.pop_size=1"),
}
# An update of CQL costs six to fifty times those of the others.
FEWER = {f"{env_id}:CQL": ("training.max_steps=1000", "training.evo_steps=250") for env_id in SETS}
ALONE = ("HalfCheetah-v5",)  # one member, no evolution: there four times the updates cost hours
# Of the training of medium and expert: generations so short that one of them lies between random and expert play, in
# whole episodes, so that the replay memory holds what comes after a swing up.
MADE_WITH = {
    "Pendulum-v1": ("training.evo_steps=500", "training.carry_envs=true", "training.train_max_episode_steps=null"),
    "HalfCheetah-v5": (
        "training.pop_size=1",
        "training.max_steps=50000",
        "training.evo_steps=2000",
        "training.carry_envs=true",
    ),
}


def path_of(task: str) -> Path:
    env_id, algo, quality = task.split(":")
    return RESULTS / f"offline-{env_id}-{algo.lower()}-{quality}.jsonl"


# -- data sets --------------------------------------------------------------------------------------------------------


def data_path(env_id: str, data: Data, seed: int) -> Path:
    number = seed if data.seed is None else data.seed
    noise = f"-noise{data.noise:g}" if data.noise else ""
    return DATA / f"{env_id}-{data.policy}-{data.rows}{noise}-seed{number}.h5"


def make_data(env_id: str, data: Data, seed: int) -> Path:
    """The data set, made where it is not there; of a trained policy also its siblings, which one training gives."""
    from agilerl.training.datasets import Maker

    wanted = data_path(env_id, data, seed)
    DATA.mkdir(parents=True, exist_ok=True)
    with locked(DATA / f".{env_id}.lock"):
        if wanted.exists():
            return wanted
        number, say = seed if data.seed is None else data.seed, lambda line: print(line, file=sys.stderr)
        maker = Maker(env_id, seed=number, settings=MADE_WITH.get(env_id, ()), say=say)
        siblings = {task.data for name, task in ALL.items() if name.startswith(env_id) and task.data.seed is not None}
        for each in siblings if data.seed is not None else {data}:
            path = data_path(env_id, each, seed)
            if not path.exists():
                maker.make(each.policy, each.rows, path, noise=each.noise)
    return wanted


@contextmanager
def locked(path: Path) -> Any:
    """Two workers make a set once."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- runs -------------------------------------------------------------------------------------------------------------


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed and test the best agent."""
    import agilerl
    from agilerl.data.dataset import read_dataset
    from agilerl.data.describe import episodes

    key = job["key"]
    task = ALL[key["task"]]
    path = make_data(key["env"], task.data, key["seed"])
    data = read_dataset(path)
    _, returns, ends = episodes(data)
    of_data = float(returns[ends != "open"].mean())
    wall, cpu = time.perf_counter(), time.process_time()
    run = agilerl.train(
        key["env"], seed=key["seed"], out=None, verbose=False, evolution=key["evolution"], config=job["config"],
        dataset=str(path),
    )  # fmt: skip
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    test = run.best.evaluate(episodes=100, seed=key["seed"])
    scores, last = data.about.get("scores"), None
    if key["task"] in TABLES:
        last = mean(agent.evaluate(episodes=100, seed=key["seed"]).mean for agent in run.population)
    return {
        "key": key,
        "score": test.mean,
        "ci95": test.ci95,
        "normalised": normalised(test.mean, scores),
        "last": last,
        "last_normalised": None if last is None else normalised(last, scores),
        "reached": task.reached(test.mean, of_data),
        "data": {
            "sha256": data.source["sha256"], "rows": len(data), "mean_return": of_data,
            "terminated": int((ends == "terminated").sum()), "scores": scores,
            "about": {k: data.about.get(k) for k in ("policy", "seed", "noise", "algo", "preset", "medium_share")},
        },
        "stopped": run.result["stopped"],
        "confirmed": run.result["confirmed"],
        "updates_member": run.result["env_steps_member"],
        "updates_population": run.result["env_steps_population"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "births": len(run.lineage),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "history": [[round(f, 1) for f in generation] for generation in run.history],
    }  # fmt: skip


def normalised(score: float, scores: Mapping[str, float] | None) -> float | None:
    """0 is random play, 100 the expert; None where the data set records neither."""
    return None if not scores else float(100 * (score - scores["random"]) / (scores["expert"] - scores["random"]))


def jobs_for(name: str, seeds: list[int], evolution: bool, sets: list[str]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    env_id, algo, _ = name.split(":")
    task = ALL[name]
    alike = (*SETS[env_id], *FEWER.get(f"{env_id}:{algo}", ())) if name in TABLES else ()
    manifest = apply_sets(preset_for(env_id, algo), [*alike, *sets])
    base = {"task": name, "env": env_id, "algo": algo, "preset": manifest.hash(), "commit": package_commit()}
    base |= {"evolution": evolution and not (name in TABLES and env_id in ALONE), "data": asdict(task.data)}
    return [
        {"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds if sets or seed < task.seeds
    ]


def can_be_made(env_id: str) -> str | None:
    """None, or why not."""
    from agilerl.core.env_ids import resolve_env_id
    from agilerl.errors import EnvError

    try:
        resolve_env_id(env_id)
    except EnvError as error:
        return str(error)
    return None


def summary(name: str) -> None:
    """One line per (preset, commit, evolution) of a task."""
    for group, lines in grouped(read_lines(path_of(name))):
        reached = [line["reached"] for line in lines if line["reached"] is not None]
        parts = [line["normalised"] for line in lines if line["normalised"] is not None]
        found = {
            **group,
            "seeds": [line["key"]["seed"] for line in lines],
            "scores": [round(line["score"], 1) for line in lines],
            "data_mean_return": [round(line["data"]["mean_return"], 1) for line in lines],
            "median_updates_member": median(line["updates_member"] for line in lines),
            "median_cpu_seconds": median(line["cpu_seconds"] for line in lines),
            "median_wall_seconds": median(line["wall_seconds"] for line in lines),
        }
        found |= {"reached": f"{sum(reached)}/{len(reached)}", "needed": ALL[name].needed} if reached else {}
        if parts:
            spread = stdev(parts) if len(parts) > 1 else None
            found["normalised"] = {"mean": round(mean(parts), 1), "sd": spread and round(spread, 1)}
        print(json.dumps(found))


def chosen(words: list[str]) -> list[str]:
    """The tasks that begin with one of these."""
    found = [name for name in ALL if any(name == word or name.startswith(f"{word}:") for word in words)]
    unknown = [word for word in words if not any(name == word or name.startswith(f"{word}:") for name in ALL)]
    if unknown:
        raise SystemExit(f"unknown tasks {', '.join(unknown)}; known: {', '.join(ALL)}")
    return found


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="ENV[:ALGO[:DATA]]")
    parser.add_argument("--no-evolution", action="store_true")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="change the preset: a.b=v (tuning)")
    parser.add_argument("--make", action="store_true", help="make the data sets and stop")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for name in chosen(args.tasks):
        env_id, task = name.partition(":")[0], ALL[name]
        if not args.summary and (obstacle := can_be_made(env_id)):
            print(f"{name}: not run: {obstacle}", file=sys.stderr)
            continue
        if args.make:
            for seed in sorted({seed if task.data.seed is None else task.data.seed for seed in args.seeds}):
                print(make_data(env_id, task.data, seed))
        elif not args.summary:
            jobs = jobs_for(name, args.seeds, not args.no_evolution, args.sets)
            run_jobs(sys.argv[0], path_of(name), jobs, args.workers)
        if not args.make:
            summary(name)


if __name__ == "__main__":
    main()
