"""Tables of docs/lab/evolution.md from the lines of `long.py`; `tables.py` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolution_tables import compared
from long import ARMS, MEMBERS, TASKS, baseline_of, members_of, named_for, newest, path_of, shares_of_pairs, summary
from long_replays import summary as replays
from runner import read_lines

CLAIMS, DEVELOPMENT = range(8), range(1000, 1100)
HEAD = (
    "| arm | scores by seed | interquartile mean | P(better than random search) | runs above a quarter, half, three "
    "quarters | area | generations | steps | cost(N)/cost(1) |"
)


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
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return [*rows, *(arm_row(found[arm]) for arm in ARMS if arm in found), ""]


def arm_row(row: dict[str, Any]) -> str:
    scores = " ".join(f"{score:.4g}" for score in row["scores"])
    better = chance_in(row)
    mean, (low, high) = row["iqm"], row["iqm_interval"]
    mean = f"{mean:.2f} ({low:.2f} to {high:.2f})" if len(row["seeds"]) > 1 else f"{mean:.2f}"
    above = ", ".join(f"{100 * part:.0f} %" for part in row["profile"].values())
    steps = f"{row['env_steps'] / 1e6:.1f} million"
    cost = f"{row['cost']:.1f}" if "cost" in row else ""
    return (
        f"| {row['arm']} | {scores} | {mean} | {better} | {above} | {row['anytime']:.2f} | "
        f"{row['generations']:.0f} | {steps} | {cost} |"
    )


def chance_in(row: Mapping[str, Any]) -> str:
    """P(better than random search) of a row, and of how many common seeds it is; empty for less than two."""
    common = row.get("common", 0)
    return f"{with_interval(row['better'])}; {common} seeds" if common > 1 else ""


def with_interval(value: Mapping[str, float]) -> str:
    return f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def verdict_rows(members: int = MEMBERS) -> list[str]:
    """Arm by task: interquartile mean of shares, and P(better than random search); seeds of claims where there are any.

    Development seeds are in italics.
    """
    cells: dict[str, dict[str, str]] = {}
    for task in TASKS:
        for seeds in (DEVELOPMENT, CLAIMS):
            for row in summary(task, members, list(seeds)):
                better, count = chance_in(row), len(row["seeds"])
                cell = f"{row['iqm']:.2f}; {count} {'seed' if count == 1 else 'seeds'}"
                cell = f"{row['iqm']:.2f}, {better}" if better else cell
                cells.setdefault(row["arm"], {})[task] = cell if seeds is CLAIMS else f"*{cell}*"
    shown = [task for task in TASKS if any(task in of_task for of_task in cells.values())]
    table = [f"| {arm} | {' | '.join(cells[arm].get(task, '') for task in shown)} |" for arm in ARMS if arm in cells]
    return [f"| arm | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|", *table] if table else []


# What is compared: the command with random search, with its founders alone and with one agent, and so on.
PAIRS = (
    ("command", "rule"), ("command", "command-fixed"), ("command-fixed", "rule"), ("command", "command-one"),
    ("command-fixed", "command-one"), ("command-one", "rule"), ("command", "rule-default"), ("rule-default", "rule"),
)  # fmt: skip


def bar_rows(members: int = MEMBERS) -> list[str]:
    """Pair of arms by task: P(improvement) on the seeds of claims that both have; the last column is of all tasks."""
    lines = {task: newest(task, members, list(CLAIMS), about.cpu_seconds) for task, about in TASKS.items()}
    shown = [task for task in TASKS if lines[task]]
    table = []
    for arm, other in PAIRS:
        pairs = [
            shares_of_pairs(TASKS[task], lines[task], named_for(arm, task), named_for(other, task)) for task in shown
        ]
        strata = [each for each in pairs if len(each[0]) > 1]
        cells = [chance([each]) if len(each[0]) > 1 else "" for each in pairs]
        table += [f"| {arm} | {other} | {' | '.join(cells)} | {chance(strata)} |"] if strata else []
    head = [f"| arm | over | {' | '.join(shown)} | all |", "|---" * (len(shown) + 3) + "|"]
    return [*head, *table] if table else []


OF_REPLAYS = (
    "One agent with the winner's final hyperparameters (or by its schedule), fresh weights and a fresh seed, and the",
    "part of the gain over random search that it keeps (`python benchmarks/long_replays.py --arms command`):",
)


def replay_rows() -> list[str]:
    """What one agent with the winner's hyperparameters keeps of the gain over random search, by task and arm."""
    table = []
    for row in replays():
        baseline = baseline_of(row["arm"], row["task"])
        scores = (" ".join(f"{score:.4g}" for score in row[name]) for name in ("replays", "winners", baseline))
        kept = f"{100 * row['kept']:.0f} %" if row.get("kept") is not None else ""
        table.append(f"| {row['task']} | {row['arm']} | {row['way']} | {' | '.join(scores)} | {kept} |")
    head = ["| task | arm | way | replays by seed | winners | random search | kept |", "|---|---|---|---|---|---|---|"]
    return [*head, *table] if table else []


def chance(strata: Sequence[Sequence[Sequence[float]]]) -> str:
    """P(improvement) over tasks, with its interval and the number of seeds of each."""
    counts = sorted({len(pairs[0]) for pairs in strata})
    return f"{with_interval(compared(strata)['probability_of_improvement'])}; {' or '.join(map(str, counts))} seeds"


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
    bar = bar_rows()
    if bar:
        bar = ["P(one arm is better than another), of the seeds of claims that both have:", "", *bar]
    repeated = replay_rows()
    if repeated:
        bar += ["", *OF_REPLAYS, "", *repeated]
    return [
        "### Long horizons",
        "",
        "`python benchmarks/long.py --tasks TASK --arms ARM... --seeds SEEDS`. A score is the mean of 100 fresh greedy",
        "episodes, or the share of 100 games won. The interquartile mean is that of shares, the area is that under the",
        "curve of what would be returned, and steps are those of all members with evaluation. Random search is",
        "`random`, or `rule` for arms that have the rules. cost(N)/cost(1) is the CPU seconds of a generation over",
        "those of one agent with usual values (`command-one` for the command), for arms that keep their members.",
        "",
        "Interquartile mean of shares, P(better than random search) with 95 % interval; in italics development seeds:",
        "",
        *verdict_rows(),
        "",
        *bar,
        *([""] if bar else []),
        *shown,
    ]
