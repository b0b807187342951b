"""Claim: one agent with the winner's hyperparameters keeps its gain over random search. results/long_replays.jsonl

    python benchmarks/long_replays.py --tasks MinAtar/Breakout-v1:PPO --arms race --seeds 0-7
    python benchmarks/long_replays.py --summary

For each line of `long.py` with this arm and seed one agent trains, with fresh weights and a fresh seed, for as many
environment steps as a member that lived through the whole run: with the winner's schedule (each change at its step),
and with its final values from the start, where these differ. An arm that stops members and changes none has constants
alone. What a replay keeps is (replay - random search) / (winner - random search), of interquartile means of shares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import long
from evolution_tables import interquartile_mean, rounded, share
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

FRESH = 500  # added to the seed of the winner's run
PATH = RESULTS / "long_replays.jsonl"
WAYS = ("constants", "schedule")


def replay_settings(line: dict[str, Any], way: str) -> Any:
    """The manifest of one agent that has the winner's hyperparameters, from the start or by schedule."""
    from agilerl.config import apply_overrides

    key, winner = line["key"], line["winner"]
    task, arm = long.TASKS[key["task"]], long.ARMS[key["arm"]]
    manifest = long.settings(task, replace(arm, sets=long.ALONE, evolution=False), key["seed"], 1)
    values, changes = dict(winner["hyperparameters"]), []
    if way == "schedule":
        for change in reversed(winner["changes"]):
            values |= change["before"]
            changes.insert(0, {"kind": "rl_hp", "path": ", ".join(change["after"]), **change})
    searched = {*long.SPACES[task.algo], *manifest.mutation.rl_hp_selection, *manifest.evolution.restart_ranges}
    named = [name for name in values if name in searched]
    sets = {f"algorithm.{name}": values[name] for name in named}
    sets |= {"training.max_steps": winner["env_steps"], "evolution.scheme": "tournament", "evolution.restarts": False}
    if changes:
        sets |= {"evolution.schedule": changes}
    return apply_overrides(manifest, sets, "replay")


def job_of(line: dict[str, Any], way: str) -> dict[str, Any]:
    key, task = line["key"], long.TASKS[line["key"]["task"]]
    manifest = replay_settings(line, way)
    return {
        "key": {**key, "way": way, "seed": key["seed"] + FRESH, "commit": package_commit()},
        "env": task.env, "config": manifest.as_dict(), "evolution": way == "schedule", "target": long.NO_TARGET,
        "cpu_budget": 10 * key["cpu_budget"], "test_episodes": long.CHECKPOINT_EPISODES, "player": task.player,
    }  # fmt: skip


def ways_of(line: dict[str, Any]) -> Sequence[str]:
    return WAYS if line["winner"]["changes"] else WAYS[:1]


def summary() -> list[dict[str, Any]]:
    """A row for each task, arm and way: shares of the replays, of the winners and of random search by seed."""
    rows: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for line in read_lines(PATH):
        key = line["key"]
        group = (key["task"], key["arm"], key["members"], key["cpu_budget"], key["way"])
        rows.setdefault(group, {})[key["seed"] - FRESH] = line
    return [{**dict(zip(("task", "arm", "members", "cpu_budget", "way"), group, strict=True)), **kept(group, of_seeds)}
            for group, of_seeds in rows.items()]  # fmt: skip


def kept(group: tuple[Any, ...], replays: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Scores by seed, and the part of the winners' gain over random search that the replays have."""
    task, arm, members, budget, _ = group
    about, seeds = long.TASKS[task], sorted(replays)
    has_own_size = long.members_of(arm, 0) > 0  # its random search has the usual one
    lines = long.newest(task, long.MEMBERS if has_own_size else members, seeds, budget)
    baseline = long.baseline_of(arm, task)
    finals = {"replays": [replays[seed]["final"] for seed in seeds]}
    for name, of in (("winners", arm), (baseline, baseline)):
        finals[name] = [lines[of][seed]["final"] for seed in seeds if seed in lines.get(of, {})]
    means = {
        name: interquartile_mean([share(score, about.random, about.good) for score in scores]) if scores else None
        for name, scores in finals.items()
    }
    row: dict[str, Any] = {
        "seeds": seeds,
        **finals,
        "iqm": {k: v if v is None else rounded(v) for k, v in means.items()},
    }
    if None not in means.values() and len({len(scores) for scores in finals.values()}) == 1:
        gain = means["winners"] - means[baseline]
        row["kept"] = rounded((means["replays"] - means[baseline]) / gain) if gain > 0 else None
    return row


def main() -> None:
    parser = job_parser(__doc__, seeds="0-7", workers=2)
    parser.add_argument("--tasks", nargs="+", default=list(long.TASKS), choices=list(long.TASKS))
    parser.add_argument("--arms", nargs="+", default=["race"], choices=list(long.ARMS))
    parser.add_argument(
        "--members", type=int, default=long.MEMBERS, help=f"of the population; {long.MEMBERS} if not given"
    )
    args = parser.parse_args()
    if args.job:
        print(json.dumps(long.run_one(json.loads(args.job))))
        return
    if not args.summary:
        for task in args.tasks:
            found = long.newest(task, args.members, args.seeds, long.TASKS[task].cpu_seconds)
            lines = [found[arm][seed] for seed in args.seeds for arm in args.arms if seed in found.get(arm, {})]
            jobs = [job_of(line, way) for line in lines if "winner" in line for way in ways_of(line)]
            run_jobs(sys.argv[0], PATH, jobs, args.workers)
    for row in summary():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
