"""Claim: what each kind of mutation is worth. A line per run in results/operators-<pair>.jsonl.

    python benchmarks/operators.py --pairs CartPole-v1:DQN LunarLander-v3:PPO --seeds 1000-1002
    python benchmarks/operators.py --summary

Runs of the published operators (`evolution.py`, arm "published") with every kind of mutation, from the good start and
without a stop. Of each birth it is asked whether anybody descends from it 1, 3 and 5 generations later, and how much
fitter its descendants are then than those of its siblings that were not mutated: clones of the same parent in the same
generation, and that parent where it lived on. Fitness is in shares of the way from random play to the target.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from evolution_arms import ARMS, PAIRS, STARTS, probabilities, settings
from evolution_tables import rounded
from runner import RESULTS, job_parser, package_commit, read_lines, run_jobs

AFTER = (1, 3, 5)  # generations
KINDS = {"no_mut": 0.3, "arch_mut": 0.3, "new_layer": 0.3, "params_mut": 0.2, "act_mut": 0.2, "rl_hp_mut": 0.3}
DEFAULT = ("CartPole-v1:DQN", "LunarLander-v3:PPO", "Pendulum-v1:SAC")


def path_of(pair: str) -> Any:
    return RESULTS / f"operators-{pair.replace(':', '-').lower()}.jsonl"


class Watch:
    """Fitness by member and generation, and an end after the CPU seconds of the pair."""

    def __init__(self, cpu_seconds: float) -> None:
        self.until = time.process_time() + cpu_seconds
        self.fitness: list[dict[int, float]] = []

    def on_generation(self, record: Any) -> bool | None:
        self.fitness.append({member.id: round(member.fitness, 2) for member in record.members})
        return False if time.process_time() > self.until else None


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    import agilerl

    watch = Watch(job["cpu_seconds"])
    run = agilerl.train(
        job["env"], config=job["config"], seed=job["key"]["seed"], out=None, verbose=False, callbacks=[watch]
    )
    births = [
        {"id": b.id, "parent": b.parent, "generation": b.generation, "kind": kind_of(b.kind, b.path), "path": b.path}
        for b in run.lineage
    ]
    return {"key": job["key"], "fitness": watch.fitness, "births": births}


def kind_of(kind: str, path: str) -> str:
    """Architecture mutations by what they do."""
    if kind != "architecture":
        return kind
    return next((f"{word} {part}" for word in ("add", "remove") for part in ("layer", "latent", "node")
                 if word in path and part in path), kind)  # fmt: skip


# -- what became of them ----------------------------------------------------------------------------------------------


def outcomes(line: Mapping[str, Any]) -> dict[str, list[dict[int, tuple[bool, float | None]]]]:
    """By kind, of each birth: generations later -> (somebody descends from it, fitness above unmutated siblings)."""
    fitness = [{int(member): value for member, value in row.items()} for row in line["fitness"]]
    parents = {birth["id"]: birth["parent"] for birth in line["births"]}
    found: dict[str, list[dict[int, tuple[bool, float | None]]]] = defaultdict(list)
    for birth in line["births"]:
        if birth["parent"] is None or birth["kind"] == "healed":
            continue
        litter = [b for b in line["births"] if (b["parent"], b["generation"]) == (birth["parent"], birth["generation"])]
        same = [b["id"] for b in litter if b["kind"] == "none" and b["id"] != birth["id"]]
        if birth["generation"] < len(fitness) and birth["parent"] in fitness[birth["generation"]]:
            same.append(birth["parent"])  # it lived on
        born = {b["id"] for b in litter}
        later: dict[int, tuple[bool, float | None]] = {}
        for after in AFTER:
            generation = birth["generation"] + after - 1
            if generation >= len(fitness):
                continue
            own = heirs(birth["id"], fitness[generation], parents)
            others = [value for sibling in same for value in heirs(sibling, fitness[generation], parents, born)]
            gain = mean(own) - mean(others) if own and others else None
            later[after] = (bool(own), gain)
        found[birth["kind"]].append(later)
    return found


def heirs(
    ancestor: int, alive: Mapping[int, float], parents: Mapping[int, int | None], but: Collection[int] = ()
) -> list[float]:
    """Fitness of those alive who are `ancestor` or descend from it, and not by way of one of `but`."""
    found = []
    for member, value in alive.items():
        line: int | None = member
        while line is not None and line != ancestor and line not in but:
            line = parents.get(line)
        if line == ancestor and not math.isnan(value):
            found.append(value)
    return found


def rows(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One per pair and kind: tries, survival, and gain over siblings with its standard error."""
    table = []
    for pair, runs in lines.items():
        span = PAIRS[pair].target - PAIRS[pair].random
        by_kind: dict[str, list[dict[int, tuple[bool, float | None]]]] = defaultdict(list)
        for run in runs:
            for kind, each in outcomes(run).items():
                by_kind[kind] += each
        for kind, each in sorted(by_kind.items()):
            row: dict[str, Any] = {"pair": pair, "kind": kind, "tries": len(each), "runs": len(runs)}
            for after in AFTER:
                known = [later[after] for later in each if after in later]
                gains = [gain / span for _, gain in known if gain is not None]
                error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
                row[f"after {after}"] = {
                    "survive": rounded(mean(alive for alive, _ in known)) if known else None,
                    "gain": rounded(mean(gains)) if gains else None, "error": rounded(error), "compared": len(gains),
                }  # fmt: skip
            table.append(row)
    return table


def jobs_for(pair: str, seeds: list[int]) -> list[dict[str, Any]]:
    from agilerl.config import apply_overrides

    about = PAIRS[pair]
    manifest = settings(about, STARTS["good"], ARMS["published"])
    manifest = apply_overrides(manifest, probabilities(KINDS), "operators")
    key = {"pair": pair, "settings": manifest.hash(), "commit": package_commit(), "cpu_seconds": about.cpu_seconds}
    return [
        {"key": {**key, "seed": seed}, "env": about.env, "config": manifest.as_dict(), "cpu_seconds": about.cpu_seconds}
        for seed in seeds
    ]


def main() -> None:
    parser = job_parser(__doc__, seeds="0-2", workers=1)
    parser.add_argument("--pairs", nargs="+", default=list(DEFAULT), choices=list(PAIRS), metavar="ENV:ALGO")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for pair in args.pairs if not args.summary else ():
        run_jobs(sys.argv[0], path_of(pair), jobs_for(pair, args.seeds), args.workers)
    for row in rows({pair: read_lines(path_of(pair)) for pair in args.pairs}):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
