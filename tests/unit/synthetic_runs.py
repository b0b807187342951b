"""Run directories without a training: what `agilerl train` would have written, from a few numbers."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl.telemetry.evaluation import Evaluation

COLUMNS = (
    "generation", "id", "slot", "parent", "fitness", "score", "env_steps", "updates", "loss", "mutation", "network",
    "is_best", "hp.batch_size", "hp.lr", "population_env_steps", "evaluation_env_steps", "epsilon", "confirmation",
    "seconds",
)  # fmt: skip
SETTINGS = """algorithm: {{name: DQN, lr: {lr}}}
environment: {{name: CartPole-v1}}
training: {{max_steps: 50000, pop_size: 4, target_score: 195, seed: {seed}}}
"""
Row = Mapping[str, Any]


def birth(id: int, parent: int | None, generation: int, kind: str, path: str = "", **more: Any) -> dict[str, Any]:
    """A line of evolution.jsonl."""
    return {"id": id, "parent": parent, "generation": generation, "kind": kind, "path": path, **more}


def member(generation: int, id: int, slot: int, fitness: float, **more: Any) -> dict[str, Any]:
    """A row of metrics.csv."""
    usual = {
        "env_steps": 1000 * (generation + 1), "network": "[64] 64 [64]", "hp.batch_size": 64, "hp.lr": 1e-3,
        "population_env_steps": 4000 * (generation + 1), "evaluation_env_steps": 7000 * (generation + 1),
        "seconds": 60.0 * (generation + 1), "is_best": 0, "mutation": "",
    }  # fmt: skip
    return {"generation": generation, "id": id, "slot": slot, "fitness": fitness, **usual, **more}


def write_run(
    path: Path,
    rows: Sequence[Row],
    births: Sequence[Row],
    *,
    seed: int = 0,
    lr: float = 0.002,
    status: str = "done",
    returns: Sequence[float] | None = None,
    **facts: Any,
) -> Path:
    """The directory of a run with these members and births; `returns` are those of its final evaluation."""
    path.mkdir(parents=True)
    result: dict[str, Any] = {
        "stopped": "target",
        "best_fitness": max((float(row["fitness"]) for row in rows), default=0),
    }
    if returns is not None:
        result["test"] = Evaluation.from_returns(returns).as_dict()
    usual = {"status": status, "algo": "DQN", "env_id": "CartPole-v1", "seed": seed, "device": "cpu", "result": result}
    (path / "run.json").write_text(json.dumps({**usual, **facts}))
    (path / "config.yaml").write_text(SETTINGS.format(seed=seed, lr=lr))
    with open(path / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (path / "evolution.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in births))
    return path


def family(path: Path, population: int, generations: int, seed: int = 0, **more: Any) -> Path:
    """A run of random births: an elite that lives on, children of winners of tournaments, mutations of all kinds."""
    rng = random.Random(seed)
    members: list[dict[str, Any]] = [
        {"id": slot, "parent": "", "worth": rng.gauss(20, 5), "lr": 1e-3} for slot in range(population)
    ]
    births = [birth(slot, None, 0, "founder") for slot in range(population)]
    rows: list[Row] = []
    for generation in range(generations):
        for entry in members:
            entry["fitness"] = entry["worth"] + rng.gauss(0, 3)
        best = max(members, key=lambda entry: entry["fitness"])
        for slot, entry in enumerate(members):
            own = {"parent": entry["parent"], "is_best": int(entry is best), "hp.lr": entry["lr"]}
            rows.append(member(generation, entry["id"], slot, entry["fitness"], **own))
        following = [best]
        while generation + 1 < generations and len(following) < population:
            parent = max(rng.sample(members, 2), key=lambda entry: entry["fitness"])
            child = {**parent, "id": len(births), "parent": parent["id"], "worth": parent["worth"] + rng.gauss(3, 4)}
            kind = rng.choice(("none", "rl_hp", "architecture", "parameters"))
            changed: dict[str, Any] = {}
            if kind == "rl_hp":
                child["lr"] = parent["lr"] * rng.choice((0.5, 2.0))
                changed = {"path": "lr", "before": parent["lr"], "after": child["lr"]}
            elif kind == "architecture":
                changed = {"path": "encoder.add_node", "before": "[64] 64 [64]", "after": "[96] 64 [64]"}
            births.append(birth(child["id"], parent["id"], generation + 1, kind, **changed))
            following.append(child)
        members = following
    return write_run(path, rows, births, **more)
