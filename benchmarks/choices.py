"""Claim: how often the best member is found, by how many evaluations. A line per run in results/choices-<task>.jsonl.

    python benchmarks/choices.py --tasks LunarLander-v3:DQN --seeds 0-2
    python benchmarks/choices.py --summary
    python benchmarks/choices.py --confirmations 100    # replays of stops: see confirmations.py

Presets, with evaluation of all members, are trained to the end of their budgets; in every generation, before selection,
each member plays `TRUTH` fresh greedy episodes, the same for all, which nothing else sees. `MOST` of them, one block
after another, stand for an evaluation, the others for the truth. What a `Way` of evaluating chooses by the first
is right where the others' mean is the best, or below it by at most a standard error of the difference.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import confirmations
import numpy as np
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

from agilerl.rollouts.evaluate import contested

TRUTH, MOST = 64, 16
TASKS = ("LunarLander-v3:DQN", "LunarLander-v3:PPO", "CartPole-v1:DQN")


def path_of(task: str) -> Any:
    return RESULTS / f"choices-{task.replace(':', '-').lower()}.jsonl"


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    import agilerl
    from agilerl.hpo import evolution
    from agilerl.hpo.screening import recent_returns

    found: list[dict[str, Any]] = []

    class Observed(evolution.TournamentEvolution):
        """Selection that looks at the members first."""

        def next(self, population: Sequence[Any], records: Sequence[Any], generation: int) -> Any:
            tests = [agent.evaluate(episodes=TRUTH, seed=10_000_019 + generation) for agent in population]
            found.append({
                "fitness": [round(record.fitness, 2) for record in records],
                "training": [round(mean(own), 2) if (own := recent_returns(agent)) else None for agent in population],
                "truth": [[round(value, 2) for value in test.returns] for test in tests],
            })  # fmt: skip
            return super().next(population, records, generation)

    evolution.TournamentEvolution = Observed  # type: ignore[misc]  # in a process of its own
    key = job["key"]
    run = agilerl.train(key["env"], config=job["config"], seed=key["seed"], out=None, verbose=False)
    steps = {name: run.result[name] for name in ("env_steps_population", "evaluation_env_steps")}
    return {"key": key, "generations": found, **steps}


# -- what would have been chosen --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """To evaluate: the `members` with the best training returns (None: all) by `episodes` of a block, `stage` at a time
    (0: all at once), which those play whom `contested` names by then, while they are several. 0 members: by training
    returns alone.
    """

    name: str
    members: int | None = None
    stage: int = 0
    episodes: int = 8

    def __call__(self, returns: np.ndarray, training: Sequence[float | None]) -> tuple[int, int]:
        """(the slot that is chosen, episodes played), of [N, at least `episodes`] returns."""
        known = np.array([math.inf if value is None else value for value in training])
        order = np.argsort(-known, kind="stable")
        if self.members == 0:
            return int(order[0]), 0
        kept, end, played = sorted(order[: self.members].tolist()), 0, 0
        while end < self.episodes and (len(kept) > 1 or not end):
            begin, end = end, min(self.episodes, end + (self.stage or self.episodes))
            played += (end - begin) * len(kept)
            if end < self.episodes:
                kept = [kept[place] for place in contested(returns[kept, :end])]
        return max(kept, key=lambda slot: returns[slot, :end].mean()), played


WAYS = (
    Way("all by 8 episodes"),
    Way("4 episodes at a time, 16 at most", stage=4, episodes=16),
    Way("4 episodes at a time, 8 at most", stage=4),
    Way("2 episodes at a time, 8 at most", stage=2),
    Way("the two best by training returns by 8", members=2),
    Way("the best by training returns by 8", members=1),
    Way("none: training returns alone", members=0),
)


def judged(generation: Mapping[str, Any], way: Way) -> list[tuple[bool, float, int]]:
    """(is it right, return lost, episodes) of each block of episodes of a generation."""
    truth, found = np.array(generation["truth"]), []
    for begin in range(0, truth.shape[1], MOST):
        rest = np.delete(truth, range(begin, begin + MOST), axis=1)
        slot, played = way(truth[:, begin : begin + MOST], generation["training"])
        gaps = rest[rest.mean(1).argmax()] - rest[slot]  # equal episodes: they are paired
        right = bool(gaps.mean() <= gaps.std(ddof=1) / math.sqrt(len(gaps)))
        found.append((right, float(gaps.mean()), played))
    return found


def rows(task: str, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One per way of evaluating: right choices, what wrong ones cost, and how many episodes are played."""
    generations = [generation for line in lines for generation in line["generations"]]
    if not generations:
        return []
    table, first = [], None
    for way in WAYS:
        each = np.array([np.mean(judged(generation, way), 0) for generation in generations])
        first = each if first is None else first
        right, lost, episodes = each.mean(0).tolist()
        gaps = each[:, 0] - first[:, 0]  # of the same generations
        error = float(gaps.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        table.append({
            "task": task, "runs": len(lines), "generations": len(generations), "evaluated": way.name,
            "right": round(right, 3), "gain": round(float(gaps.mean()), 3), "gain_error": round(error, 3),
            "lost": round(lost, 2), "episodes": round(episodes, 1),
        })  # fmt: skip
    return table


def jobs_for(task: str, seeds: list[int]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    env_id, algo = task.split(":")
    manifest = apply_sets(
        preset_for(env_id, algo), ["training.target_score=null", "training.eval_members=null", "training.eval_screen=0"]
    )
    key = {"task": task, "env": env_id, "preset": manifest.hash(), "commit": package_commit()}
    return [{"key": {**key, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]


def main() -> None:
    parser = job_parser(__doc__, seeds="0-2", workers=1)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS[:2]), choices=TASKS, metavar="ENV:ALGO")
    parser.add_argument("--confirmations", type=int, metavar="REPEATS", help="replay the stops of recorded runs")
    args = parser.parse_args()
    if args.confirmations:
        confirmations.write_table(args.confirmations)
        return
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for task in args.tasks:
        if not args.summary:
            run_jobs(sys.argv[0], path_of(task), jobs_for(task, args.seeds), args.workers)
        for row in rows(task, read_lines(path_of(task))):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
