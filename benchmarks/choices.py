"""Claim: how often the best member is found, by how many evaluations. A line per run in results/choices-<task>.jsonl.

    python benchmarks/choices.py --tasks LunarLander-v3:DQN --seeds 0-2
    python benchmarks/choices.py --summary

Presets, with evaluation of all members, are trained to the end of their budgets; in every generation, before selection,
each member plays `TRUTH` fresh greedy episodes, the same for all, which nothing else sees. What would have been chosen
by evaluating all members, or only the most promising ones by their last training returns (`training.eval_members`), or
by these returns alone, is right where it is the best of these means, or not below it by more than a standard error of
the difference.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

TRUTH = 64  # episodes
TASKS = ("LunarLander-v3:DQN", "LunarLander-v3:PPO", "CartPole-v1:DQN")


def path_of(task: str) -> Any:
    return RESULTS / f"choices-{task.replace(':', '-').lower()}.jsonl"


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    import agilerl
    from agilerl.training import build
    from agilerl.training.evolution import TournamentEvolution
    from agilerl.training.screening import recent_returns

    found: list[dict[str, Any]] = []

    class Observed(TournamentEvolution):
        """Selection that looks at the members first."""

        def next(self, population: Sequence[Any], records: Sequence[Any], generation: int) -> Any:
            tests = [agent.evaluate(episodes=TRUTH, seed=10_000_019 + generation) for agent in population]
            found.append({
                "fitness": [round(record.fitness, 2) for record in records],
                "training": [round(mean(own), 2) if (own := recent_returns(agent)) else None for agent in population],
                "truth": [[round(value, 2) for value in test.returns] for test in tests],
            })  # fmt: skip
            return super().next(population, records, generation)

    build.TournamentEvolution = Observed  # type: ignore[misc]  # in a process of its own
    key = job["key"]
    run = agilerl.train(key["env"], config=job["config"], seed=key["seed"], out=None, verbose=False)
    steps = {name: run.result[name] for name in ("env_steps_population", "evaluation_env_steps")}
    return {"key": key, "generations": found, **steps}


def choice(generation: Mapping[str, Any], members: int | None) -> int:
    """The slot that is chosen by evaluating the `members` with the best training returns; None: by these alone."""
    training = [math.inf if value is None else value for value in generation["training"]]
    order = sorted(range(len(training)), key=lambda slot: -training[slot])
    if members is None:
        return order[0]
    return max(order[:members], key=lambda slot: generation["fitness"][slot])


def is_right(generation: Mapping[str, Any], slot: int) -> bool:
    """Whether the chosen member's true mean is the best, or below it by at most a standard error of the difference."""
    truth = generation["truth"]
    best = max(range(len(truth)), key=lambda other: mean(truth[other]))
    gaps = [a - b for a, b in zip(truth[best], truth[slot], strict=True)]  # equal episodes: they are paired
    return mean(gaps) <= stdev(gaps) / math.sqrt(len(gaps))


def rows(task: str, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One per number of evaluated members: right choices, and what a wrong one costs."""
    generations = [generation for line in lines for generation in line["generations"]]
    if not generations:
        return []
    table = []
    size = len(generations[0]["truth"])
    for members in (*range(size, 0, -1), None):
        chosen = [choice(generation, members) for generation in generations]
        lost = [
            max(map(mean, generation["truth"])) - mean(generation["truth"][slot])
            for generation, slot in zip(generations, chosen, strict=True)
        ]
        right = [is_right(generation, slot) for generation, slot in zip(generations, chosen, strict=True)]
        share = mean(right)
        table.append({
            "task": task, "runs": len(lines), "generations": len(generations),
            "evaluated": members or 0, "of": size, "right": round(share, 3),
            "error": round(math.sqrt(share * (1 - share) / len(right)), 3), "lost": round(mean(lost), 2),
        })  # fmt: skip
    return table


def jobs_for(task: str, seeds: list[int]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    env_id, algo = task.split(":")
    manifest = apply_sets(preset_for(env_id, algo), ["training.target_score=null", "training.eval_members=null"])
    key = {"task": task, "env": env_id, "preset": manifest.hash(), "commit": package_commit()}
    return [{"key": {**key, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]


def main() -> None:
    parser = job_parser(__doc__, seeds="0-2", workers=1)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS[:2]), choices=TASKS, metavar="ENV:ALGO")
    args = parser.parse_args()
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
