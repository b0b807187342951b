"""Tables of docs/lab/evolution.md from the lines of `choices.py` and `operators.py`; `tried_page.py` puts them in."""

from __future__ import annotations

from typing import Any

import choices
import operators
from evolution_arms import PAIRS
from runner import of_last_key, read_lines

KINDS = {
    "none": "none", "rl_hp": "hyperparameter", "parameters": "noise on weights", "activation": "activation",
    "add node": "units added", "remove node": "units removed", "add layer": "layer added",
    "remove layer": "layer removed", "add latent": "latent units added", "remove latent": "latent units removed",
}  # fmt: skip


def choice_rows() -> list[str]:
    """How often the best member is found by evaluating fewer of them."""
    rows = [
        "### Choosing the best member",
        "",
        "| environment, algorithm | evaluated of a population of four | episodes, mean | "
        "right, share of the generations | above all by 8 | return lost, mean |",
        "|---|---|---|---|---|---|",
    ]
    begun, generations = len(rows), dict[str, int]()
    for task in choices.TASKS:
        lines = read_lines(choices.path_of(task))
        for row in choices.rows(task, of_last_key(lines) if lines else []):
            generations[task] = row["generations"]
            rows.append(
                f"| {task.replace(':', ', ')} | {row['evaluated']} | {row['episodes']:.0f} | "
                f"{row['right']:.2f} | {row['gain']:+.2f} ± {row['gain_error']:.2f} | {row['lost']:.1f} |"
            )
    counts = ", ".join(f"{count} ({task.replace(':', ', ')})" for task, count in generations.items())
    return [] if len(rows) == begun else [
        *rows, "",
        f"`python benchmarks/choices.py`, {counts} generations of complete runs of the preset. A choice is right",
        f"if the member's mean over {choices.TRUTH - choices.MOST} held-out episodes is the best, or at most one",
        "standard error of the difference below it. With several episodes at a time, members more than half a standard",
        "error behind the leader are dropped, and evaluation stops when one member is left. Gains are mean and",
        "standard error over the generations.", "",
    ]  # fmt: skip


def operator_rows() -> list[str]:
    """What became of each kind of mutation."""
    spans = ", ".join(str(after) for after in operators.AFTER[:-1]) + f" and {operators.AFTER[-1]}"
    rows = [
        "### Effect of each kind of mutation",
        "",
        f"| environment, algorithm | kind | tries | alive after {spans} generations | "
        "fitness above unmutated siblings then, % of the way to the target |",
        "|---|---|---|---|---|",
    ]
    begun, runs = len(rows), dict[str, int]()
    for pair in PAIRS:
        lines = read_lines(operators.path_of(pair))
        if not lines:
            continue
        last = of_last_key(lines)
        runs[pair] = len(last)
        for row in operators.rows({pair: last}):
            after = [row[f"after {count}"] for count in operators.AFTER]
            alive = " ".join("-" if each["survive"] is None else f"{each['survive']:.2f}" for each in after)
            rows.append(
                f"| {pair.replace(':', ', ')} | {KINDS.get(row['kind'], row['kind'])} | {row['tries']} | {alive} | "
                f"{', '.join(gain(each) for each in after)} |"
            )
    counts = ", ".join(f"{count} of {pair.replace(':', ', ')}" for pair, count in runs.items())
    return [] if len(rows) == begun else [
        *rows, "",
        f"`python benchmarks/operators.py`, runs of the published operators with every kind on: {counts}.",
        "Alive: the member has descendants. Fitness: that of its living descendants, relative to unmutated clones of",
        "the same parent and to the parent; ± one standard error, where both sides are alive.", "",
    ]  # fmt: skip


def gain(each: dict[str, Any]) -> str:
    if each["gain"] is None:
        return "-"
    error = each["error"]
    return f"{100 * each['gain']:+.0f}" + ("" if error is None or error != error else f" ± {100 * error:.0f}")
