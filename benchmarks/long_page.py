"""Tables of docs/lab/evolution.md from the lines of `long.py`; `tables.py` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from long import ARMS, TASKS, members_of, newest, path_of, summary
from runner import read_lines

CLAIMS, DEVELOPMENT = range(8), range(1000, 1100)
HEAD = "| arm | scores by seed | interquartile mean | P(better than random search) | area | generations | steps |"


def budgets(task: str) -> list[tuple[int, float]]:
    """(members, CPU seconds) of the lines of a task; arms with a size of their own are shown beside each."""
    keys = [line["key"] for line in read_lines(path_of(task))]
    asked = [key for key in keys if members_of(key["arm"], 0) == 0]
    return sorted({(key["members"], key["cpu_budget"]) for key in asked}, reverse=True)


def task_rows(task: str, members: int, cpu_seconds: float, seeds: Sequence[int]) -> list[str]:
    """The table of one task, with the arms in the order of `ARMS`; empty without lines."""
    if not newest(task, members, list(seeds), cpu_seconds):
        return []
    found = {row["arm"]: row for row in summary(task, members, list(seeds), cpu_seconds=cpu_seconds)}
    kind = "seeds of claims" if seeds is CLAIMS else "development seeds, a first look"
    about = TASKS[task]
    rows = [
        f"**{task.replace(':', ', ')}**, {members} members, {cpu_seconds:g} CPU seconds; {kind}. "
        f"A share is 0 at {about.random:g} and 1 at {about.good:g}.",
        "",
        HEAD,
        "|---|---|---|---|---|---|---|",
    ]
    return [*rows, *(arm_row(found[arm]) for arm in ARMS if arm in found), ""]


def arm_row(row: dict[str, Any]) -> str:
    scores = " ".join(f"{score:.4g}" for score in row["scores"])
    over = row.get("better")
    has_interval = over is not None and len(row["seeds"]) > 1
    better = f"{over['value']:.2f} ({over['low']:.2f} to {over['high']:.2f})" if has_interval else ""
    steps = f"{row['env_steps'] / 1e6:.1f} million"
    return (
        f"| {row['arm']} | {scores} | {row['iqm']:.2f} | {better} | {row['anytime']:.2f} | "
        f"{row['generations']:.0f} | {steps} |"
    )


def rows() -> list[str]:
    shown = [
        table
        for task in TASKS
        for members, cpu_seconds in budgets(task)
        for seeds in (CLAIMS, DEVELOPMENT)
        for table in task_rows(task, members, cpu_seconds, seeds)
    ]
    if not shown:
        return []
    return [
        "### Long horizons",
        "",
        "`python benchmarks/long.py --tasks TASK --arms ARM... --seeds SEEDS`. A score is the mean of 100 fresh greedy",
        "episodes, or the share of 100 games won. The interquartile mean is that of shares, the area is that under the",
        "curve of what would be returned, and steps are those of all members with evaluation. Random search is",
        "`random`, or `rule` for arms that have the rules.",
        "",
        *shown,
    ]
