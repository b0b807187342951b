"""Draws the evolution of a run: fitness by generation and who descends from whom, marked by what changed at birth.

    python benchmarks/plot_run.py runs/LunarLander-v3/dqn-0001 docs/images/evolution.png

Needs matplotlib (the `plots` extra). Everything comes from the run's own metrics.csv, evolution.jsonl and
config.yaml.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import yaml

COLOURS = {"rl_hp": "tab:orange", "architecture": "tab:purple", "parameters": "tab:red", "activation": "tab:brown"}
LABELS = {
    "rl_hp": "hyperparameter",
    "architecture": "architecture",
    "parameters": "weights",
    "activation": "activation",
}


def read(run: Path) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    with open(run / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = [
            {"id": int(r["id"]), "generation": int(r["generation"]), "fitness": float(r["fitness"])}
            for r in csv.DictReader(file)
        ]
    births = [json.loads(line) for line in (run / "evolution.jsonl").read_text(encoding="utf-8").splitlines()]
    return rows, {birth["id"]: birth for birth in births}


def draw(run: Path, out: Path) -> None:
    rows, births = read(run)
    target = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["training"].get("target_score")
    at = {(r["id"], r["generation"]): r["fitness"] for r in rows}
    figure, axis = plt.subplots(figsize=(9, 4.2), dpi=110)
    for row in rows:
        here = (row["generation"], row["fitness"])
        source = (row["id"], row["generation"] - 1)
        if source not in at:
            source = (births[row["id"]]["parent"], row["generation"] - 1)
        if source in at:
            axis.plot([here[0] - 1, here[0]], [at[source], here[1]], color="0.75", linewidth=1, zorder=1)
        kind = births[row["id"]]["kind"] if births[row["id"]]["generation"] == row["generation"] else ""
        axis.scatter(*here, color=COLOURS.get(kind, "0.55"), s=26, zorder=2)
    generations = sorted({r["generation"] for r in rows})
    best = [max(r["fitness"] for r in rows if r["generation"] == g) for g in generations]
    axis.plot(generations, best, color="tab:blue", linewidth=2, label="best member")
    if target is not None:
        axis.axhline(float(target), color="tab:green", linestyle="--", linewidth=1, label=f"target {float(target):g}")
    for kind, colour in COLOURS.items():
        if any(b["kind"] == kind for b in births.values()):
            axis.scatter([], [], color=colour, s=26, label=f"born with another {LABELS.get(kind, kind)}")
    axis.set_xlabel("generation")
    axis.set_ylabel("fitness (mean of greedy episodes)")
    axis.set_title(f"{run.parent.name}: {len({r['id'] for r in rows})} members over {len(generations)} generations")
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
