"""Claim: what evolution adds. One JSON line per run in results/evolution-<pair>-<start>.jsonl.

    python benchmarks/evolution.py --pairs LunarLander-v3:PPO --starts good lr_low --arms fixed ours --seeds 1000-1002
    python benchmarks/evolution.py --pairs LunarLander-v3:PPO --arms sb3 --python /path/to/other/python
    python benchmarks/evolution.py --summary --against fixed

No environment's preset is read.
A *pair* is an environment and an algorithm, with the general preset of that algorithm as its good start. A *start* is
what is wrong with it. An *arm* is a way to train: a configuration of `agilerl.train`, or an opponent in a Python
environment of its own (`opponent_peers.py`, `opponent_original_evolution.py`).

A run ends when it has used its budget of CPU seconds and its budget of environment steps (training and evaluation, all
members together); at each `--checkpoints`-th part of either one, what the arm would return plays 100 fresh greedy
episodes, which count for neither; nor do imports, as of the opponents. It ends before that where such a test reaches
the target and a second, independent one does too: "reached". Scores are reported as shares of the way from random play
to the target, 1 at most.
Seeds from 1000 up are for development; claims are made on seeds 0 to 9.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evolution_arms import ARMS, CHECKPOINTS, PAIRS, STARTS, Arm, lines_of, path_of, range_of, settings
from evolution_tables import compare, summarise
from peers_clock import FINAL, SECOND, CheckpointClock, test_seeds
from runner import job_parser, package_commit, run_jobs

TEST_EPISODES = 100


class Measurer:
    """Hears of a run's generations, and tests its best agent where a checkpoint is due."""

    def __init__(self, job: dict[str, Any], clock: CheckpointClock) -> None:
        self.job, self.clock, self.best, self.tested = job, clock, None, None
        self.curve: list[dict[str, Any]] = []
        self.reached: dict[str, Any] | None = None
        self.not_counted = 0.0
        self.begun = time.process_time()

    @property
    def cpu_seconds(self) -> float:
        return time.process_time() - self.begun - self.not_counted

    def on_best(self, agent: Any) -> None:
        self.best = agent

    def on_generation(self, record: Any) -> bool | None:
        training, evaluation = record.population_env_steps, record.evaluation_env_steps
        used = {"cpu_seconds": round(self.cpu_seconds, 2), "env_steps": training + evaluation}
        used |= {"training_env_steps": training, "evaluation_env_steps": evaluation}
        for place, by in enumerate(self.clock.due(used["cpu_seconds"], used["env_steps"])):
            members = {} if place else {"members": members_of(record)}  # once, where both budgets are due
            self.curve.append({**used, "score": self.test(len(self.curve)), "by": by, **members})
            score, target = self.curve[-1]["score"], self.job["target"]
            if score >= target and (second := self.play(SECOND + len(self.curve))) >= target:
                self.reached = {**used, "score": score, "second_score": second}
                return False
        return False if self.clock.is_over(used["cpu_seconds"], used["env_steps"]) else None

    def test(self, number: int) -> float:
        """Of an agent that has been tested, what it got then."""
        if self.tested is None or self.tested[0] is not self.best:
            self.tested = (self.best, self.play(number))
        return float(self.tested[1])

    def play(self, number: int) -> float:
        begun = time.process_time()
        episodes = self.job["test_episodes"]
        seed = test_seeds(self.job["key"]["seed"], number, episodes)[0]
        score = float(self.best.evaluate(episodes=episodes, seed=seed).mean)
        self.not_counted += time.process_time() - begun
        return round(score, 2)


def members_of(record: Any) -> list[dict[str, Any]]:
    shown = ("lr", "lr_actor", "gamma", "batch_size")
    return [
        {"id": m.id, "fitness": round(m.fitness, 1), "score": None if m.score is None else round(m.score, 1),
         **{k: float(f"{v:.3g}") for k, v in m.hyperparameters.items() if k in shown}}
        for m in record.members
    ]  # fmt: skip


def load_everything(package: Any) -> None:
    """The clocks of opponents begin after their imports too."""
    import agilerl.errors

    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, agilerl.errors.ConfigError):  # of extras that are not installed
                importlib.import_module(module.name)


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed of one of our arms."""
    import agilerl

    load_everything(agilerl)
    clock = CheckpointClock(job["cpu_budget"], job["step_budget"], job["checkpoints"])
    measurer = Measurer(job, clock)
    run = agilerl.train(
        job["env"], config=job["config"], seed=job["key"]["seed"], evolution=job["evolution"], out=None, verbose=False,
        callbacks=[measurer],
    )  # fmt: skip
    final = {"cpu_seconds": round(measurer.cpu_seconds, 2),
             "env_steps": run.result["env_steps_population"] + run.result["evaluation_env_steps"]}  # fmt: skip
    measurer.best = run.best
    score = measurer.reached["second_score"] if measurer.reached else measurer.play(FINAL)
    return {
        "key": job["key"],
        "curve": measurer.curve,
        "final": {"score": score, **final},
        "reached": measurer.reached,
        **final,
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "updates": run.result["updates"],
        "settings": {k: v for k, v in run.best.hyperparameters().items() if isinstance(v, int | float)},
        "births": len(run.lineage),
    }


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_of(pair: str, start: str, arm: str, seed: int, checkpoints: int = CHECKPOINTS) -> dict[str, Any]:
    about, begin, way = PAIRS[pair], STARTS[start], ARMS[arm]
    key: dict[str, Any] = {"pair": pair, "start": start, "arm": arm, "seed": seed}
    key |= {"cpu_budget": about.cpu_seconds, "step_budget": about.env_steps}
    key |= {} if checkpoints == CHECKPOINTS else {"checkpoints": checkpoints}
    job: dict[str, Any] = {
        "env": about.env, "algo": about.algo, "seed": seed, "arm": arm, "target": about.target,
        "cpu_budget": about.cpu_seconds, "step_budget": about.env_steps, "checkpoints": checkpoints,
        "test_episodes": TEST_EPISODES,
    }  # fmt: skip
    if (
        way.opponent is not None
    ):  # by CPU seconds alone: a search whose trials are sized by steps would end in its first
        key["step_budget"] = job["step_budget"] = None
        job |= {"trial_steps": about.env_steps // 20, "perturbation_interval": about.env_steps // 80}
        low, high = range_of(begin, "lr", {"lr": 1e-3}, (1e-4, 1e-2))
        job["start"] = {**asdict(begin), "lr_range": [low, high], "gamma_range": [0.9, 0.999]}
        return {**job, "key": key}
    manifest = settings(about, begin, way)
    key |= {"commit": package_commit(), "settings": manifest.hash()}
    return {**job, "key": key, "config": manifest.as_dict(), "evolution": way.evolution}


def main() -> None:
    parser = job_parser(__doc__, seeds="0-9", workers=1)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS), metavar="ENV:ALGO")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--arms", nargs="+", default=["fixed", "random", "published"], choices=list(ARMS))
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS, help=f"parts of a budget; {CHECKPOINTS}")
    parser.add_argument("--python", help="interpreter of the opponent's environment")
    parser.add_argument("--against", choices=list(ARMS), metavar="ARM", help="compare the other arms with this one")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for pair in args.pairs:
        for arm in args.arms if not args.summary else ():
            for start in args.starts:
                jobs = [job_of(pair, start, arm, seed, args.checkpoints) for seed in args.seeds]
                run_arm(ARMS[arm], path_of(pair, start), jobs, args)
        summarise(pair, PAIRS[pair].random, PAIRS[pair].target, lines_of(pair))
    if args.against:
        lines = {pair: lines_of(pair) for pair in args.pairs}
        ends = {pair: (PAIRS[pair].random, PAIRS[pair].target) for pair in args.pairs}
        compare(lines, ends, args.against)


def run_arm(arm: Arm, path: Path, jobs: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """In this interpreter, or in that of the opponent."""
    run: Callable[..., None] = run_jobs
    if arm.opponent is None:
        run(sys.argv[0], path, jobs, args.workers)
        return
    if args.python is None:
        raise SystemExit(f"{arm.opponent} runs in an environment of its own: --python /path/to/its/python")
    run(str(Path(__file__).parent / arm.opponent), path, jobs, args.workers, args.python)


if __name__ == "__main__":
    main()
