"""Tables of docs/lab/evolution.md from the lines of `evolution.py`; `tables.py` writes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from evolution_arms import ARMS, CHECKPOINTS, PAIRS, STARTS, lines_of
from evolution_tables import better, compared, interval, iqm_difference, of_runs, score_at, share
from runner import of_last_key
from untuned_page import untuned_rows

SEEDS = range(10)  # of claims; others are for development
GENERATION = 8_192  # steps of a member, once generations have grown; of PPO's general preset
WITHIN = 3.0  # times the environment steps from the good start
WORDS = {
    "lr_low": "rate / 10", "lr_high": "rate x 10", "gamma_low": "gamma 0.9", "narrow": "8 units",
    "batch_16": "batch 16", "off_centre": "range off-centre",
}  # fmt: skip
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "evolution_bad_starts.svg"
Runs = dict[tuple[str, str, str], list[dict[str, Any]]]


def runs() -> Runs:
    """(pair, start, arm) -> the lines of claims' seeds, of the last commit and settings, by seed."""
    found: Runs = defaultdict(list)
    for pair in PAIRS:
        for line in lines_of(pair):
            key = line["key"]
            if key["seed"] in SEEDS:
                found[pair, key["start"], key["arm"]].append(line)
    return {place: of_last_key(lines) for place, lines in found.items()}


def shares(pair: str, lines: Sequence[dict[str, Any]]) -> list[float]:
    """Of the way from random play to the target, at the budget of CPU seconds."""
    about = PAIRS[pair]
    scores = [score_at(line, "cpu_seconds", line["key"]["cpu_budget"]) for line in lines]
    return [share(score, about.random, about.target) for score in scores]


def to_target(lines: Sequence[dict[str, Any]], by: str = "cpu_seconds") -> list[float]:
    """What the runs used that reached the target."""
    return [line["reached"][by] for line in lines if line["reached"]]


def in_seconds(value: float) -> str:
    """With a tenth where that matters."""
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def reached(lines: Sequence[dict[str, Any]]) -> str:
    """ "9 of 10, 12 s": how many, and the median of their CPU seconds."""
    seconds = to_target(lines)
    return f"{len(seconds)} of {len(lines)}" + (f", {in_seconds(median(seconds))} s" if seconds else "")


def never_worse_rows(found: Runs) -> list[str]:
    rows = [
        "### From a good start",
        "",
        "| environment, algorithm | fixed population | ours | ours less fixed, share of the way to the target, 95 % |",
        "|---|---|---|---|",
    ]
    begun = len(rows)
    for pair in PAIRS:
        fixed, ours = found.get((pair, "good", "fixed")), found.get((pair, "good", "ours"))
        if not fixed or not ours:
            continue
        both = [shares(pair, ours), shares(pair, fixed)]
        low, high = interval([both], iqm_difference)
        gain = f"{100 * iqm_difference(both):+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(f"| {pair.replace(':', ', ')} | {reached(fixed)} | {reached(ours)} | {gain} |")
    return [] if len(rows) == begun else [
        *rows, "",
        "Seeds that reached the target, and the median of their CPU seconds. The difference is between interquartile",
        "means at equal CPU seconds.", "",
    ]  # fmt: skip


def rescue_rows(found: Runs) -> list[str]:
    bad = [start for start in STARTS if start != "good"]
    rows = [
        "### From bad starts",
        "",
        f"| environment, algorithm | arm | {' | '.join(WORDS[start] for start in bad)} |",
        f"|---|---|{'---|' * len(bad)}",
    ]
    begun = len(rows)
    for pair in PAIRS:
        for arm in ("ours", "random", "fixed"):
            if not any((pair, start, arm) in found for start in bad):
                continue
            steps = to_target(found.get((pair, "good", arm), []), "env_steps")
            limit = WITHIN * median(steps) if steps else None
            cells = [rescued(found.get((pair, start, arm), []), limit) for start in bad]
            rows.append(f"| {pair.replace(':', ', ')} | {arm} | {' | '.join(cells)} |")
    control = [
        "`random` trains founders drawn from wide ranges of learning rate and horizon, without selection and without",
        "an adaptive learning rate; `fixed` trains one configuration. From 8 units, all founders of PPO and SAC except",
        "the first have 64 units in `ours` and `random`. Runs that were tested at twelfths of their budgets (whole",
        "seconds from 5 on) appear half a twelfth later on average; comparisons correct for that.",
    ]
    control = control if any(arm != "ours" and start in WORDS for _, start, arm in found) else []
    return [] if len(rows) == begun else [
        *rows, "",
        "Seeds that reached the target within the budget, and the median of their CPU seconds. In parentheses: seeds",
        f"within {WITHIN:g} times the median environment steps of the same arm from the good start.", *control, "",
    ]  # fmt: skip


def rescued(lines: Sequence[dict[str, Any]], limit: float | None) -> str:
    """ "10 of 10, 12 s (9)"."""
    if not lines:
        return "-"
    near = "" if limit is None else f" ({sum(steps <= limit for steps in to_target(lines, 'env_steps'))})"
    return reached(lines) + near


def beaten_rows(found: Runs) -> list[str]:
    rows = [
        "### Against others",
        "",
        "| against | over | ours is better, 95 % | ours less theirs, share of the way, 95 % | reached: ours, theirs | "
        "CPU seconds to the target: ours, theirs | environment steps to it, thousands |",
        "|---|---|---|---|---|---|---|",
    ]
    begun = len(rows)
    for arm in (name for name in ARMS if name != "ours"):
        for is_good in (True, False):
            places = [
                (pair, start) for pair, start, each in found
                if each == arm and (start == "good") is is_good and (pair, start, "ours") in found
            ]  # fmt: skip
            if arm == "fixed" and is_good:  # that is the table of good starts
                continue
            groups = [[p for p in places if p[0] == pair] for pair in dict.fromkeys(pair for pair, _ in places)]
            groups = [places, *groups] if len(groups) > 1 and not is_good else groups
            rows += [beaten_row(found, arm, group) for group in groups]
    return [] if len(rows) == begun else [
        *rows, "",
        "The better run reaches the target in fewer CPU seconds; if neither does, it has the higher score. CPU seconds",
        "are medians over all runs; runs that missed the target rank last. Optuna and Ray search learning rate and",
        "horizon over the ranges of the start.", "",
    ]  # fmt: skip


def clock_of(line: dict[str, Any]) -> int:
    """Into how many parts the budgets of a run were cut, at each of which it was tested."""
    return int(line["key"].get("checkpoints", CHECKPOINTS))


def as_tested(line: dict[str, Any], clock: int) -> dict[str, Any]:
    """A run as if it had been tested at fewer parts of its budget of CPU seconds: it reaches the target at the next."""
    if line["reached"] is None or clock_of(line) == clock:
        return line
    part = line["key"]["cpu_budget"] / clock
    return {**line, "reached": {**line["reached"], "cpu_seconds": part * ceil(line["reached"]["cpu_seconds"] / part)}}


def beaten_row(found: Runs, arm: str, places: Sequence[tuple[str, str]]) -> str:
    """Ours beside another arm over these (pair, start), by the coarser clock of both."""
    mine, theirs = [], []
    for place in places:
        both = found[*place, "ours"], found[*place, arm]
        clock = min(clock_of(line) for lines in both for line in lines)
        for side, lines in zip((mine, theirs), both, strict=True):
            side.append([as_tested(line, clock) for line in lines])
    strata = [[of_runs(a), of_runs(b)] for a, b in zip(mine, theirs, strict=True)]
    low, high = interval(strata, lambda arms: better(*arms))
    value = sum(better(*stratum) for stratum in strata) / len(strata)
    parts = [[shares(p, a), shares(p, b)] for (p, _), a, b in zip(places, mine, theirs, strict=True)]
    gain = compared(parts)["iqm_difference"]
    pooled = [[line for lines in side for line in lines] for side in (mine, theirs)]
    starts: dict[str, list[str]] = defaultdict(list)
    for pair, start in places:
        starts[pair.replace(":", " ")].append(start)
    over = "; ".join(f"{pair}: {counted(names)}" for pair, names in starts.items())
    return (
        f"| {arm} | {over} | {value:.2f} ({low:.2f} to {high:.2f}) | "
        f"{100 * gain['value']:+.0f} % ({100 * gain['low']:+.0f} to {100 * gain['high']:+.0f}) | "
        f"{len(to_target(pooled[0]))} of {len(pooled[0])}, {len(to_target(pooled[1]))} of {len(pooled[1])} | "
        f"{middle(pooled[0])}, {middle(pooled[1])} | {middle_steps(pooled[0])}, {middle_steps(pooled[1])} |"
    )


def counted(starts: Sequence[str]) -> str:
    """ "good start", "6 bad starts", or the name of one."""
    if starts == ["good"]:
        return "good start"
    return WORDS[starts[0]] if len(starts) == 1 else f"{len(starts)} bad starts"


def middle(lines: Sequence[dict[str, Any]]) -> str:
    """Median CPU seconds to the target of all runs; "> budget" where half of them missed it."""
    seconds = sorted(line["reached"]["cpu_seconds"] if line["reached"] else float("inf") for line in lines)
    value = median(seconds)
    return in_seconds(value) if value < float("inf") else f"> {median(line['key']['cpu_budget'] for line in lines):.0f}"


def middle_steps(lines: Sequence[dict[str, Any]]) -> str:
    """Median thousands of environment steps to the target, with those of evaluation; "-" where half missed it."""
    value = median(line["reached"]["env_steps"] if line["reached"] else float("inf") for line in lines)
    return f"{value / 1000:.0f}" if value < float("inf") else "-"


def generations(lines: Sequence[dict[str, Any]]) -> dict[int, list[float]]:
    """CPU seconds of generations, by how many members trained in them, between two tests of a run."""
    found: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        points = [point for point in line["curve"] if "members" in point]
        points = [p for i, p in enumerate(points) if not i or p["env_steps"] != points[i - 1]["env_steps"]]
        for before, after in pairwise(points):
            members = (after["training_env_steps"] - before["training_env_steps"]) / GENERATION
            if len(after["members"]) == members:  # not two generations of fewer
                found[int(members)].append(after["cpu_seconds"] - before["cpu_seconds"])
    return found


def generation_rows(found: Runs) -> list[str]:
    """What there is to gain for selection: a population beside its best member alone."""
    pair = "LunarLander-v3:PPO"
    lines = [line for start in STARTS if start != "batch_16" for line in found.get((pair, start, "ours"), [])]
    seconds = generations(lines)
    if 1 not in seconds:
        return []
    alone = median(seconds[1])
    return [
        "### What a generation costs",
        "",
        "| members | generations | CPU seconds, median | times one member's |",
        "|---|---|---|---|",
        *(
            f"| {members} | {len(each)} | {median(each):.2f} | {median(each) / alone:.1f} |"
            for members, each in sorted(seconds.items())
        ),
        "",
        f"`ours` on {pair.replace(':', ', ')}: {GENERATION:,} steps of each member and their evaluation, in",
        f"{len(lines)} runs from the good start and all bad starts except minibatches of 16.",
        "",
    ]


def claim_rows(found: Runs) -> list[str]:
    """What `evolution.py` has shown so far."""
    parts = [*never_worse_rows(found), *rescue_rows(found), *beaten_rows(found), *generation_rows(found)]
    return [] if not parts else [
        *parts,
        "`python benchmarks/evolution.py --pairs ... --starts ... --arms ... --seeds 0-9`; budgets, starts and arms",
        "are in that file. Two or three runs at a time shared two cores. A run is tested at each twelfth of its",
        "budget, or at the number of parts that `checkpoints` in its key gives. Times to the target are rounded up to",
        "the next such test; comparisons use the coarser grid of both sides.", "",
    ]  # fmt: skip


def draw(found: Runs) -> bool:
    """A figure: of each pair and arm the share of runs from bad starts that reached the target within so many CPU
    seconds. False where there are no runs."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    places = {pair: [arm for arm in ARMS if any((pair, s, arm) in found for s in WORDS)] for pair in PAIRS}
    pairs = [pair for pair, arms in places.items() if len(arms) > 1]
    if not pairs:
        return False
    with rc_context({"svg.hashsalt": "agilerl", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4 * len(pairs), 3.2), layout="constrained")
        for axes, pair in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
            for arm in places[pair]:
                lines = [line for start in WORDS for line in found.get((pair, start, arm), [])]
                seconds = sorted(to_target(lines))
                budget = max(line["key"]["cpu_budget"] for line in lines)
                shares_within = [place / len(lines) for place in range(len(seconds) + 1)]
                axes.step([0.0, *seconds, budget], [*shares_within, shares_within[-1]], where="post",
                          label=f"{arm} ({len(lines)} runs)")  # fmt: skip
            axes.set(title=pair.replace(":", ", "), xlabel="CPU seconds", ylim=(0, 1.02))
            axes.legend(loc="lower right", frameon=False)
        figure.axes[0].set_ylabel("runs at the target")
        FIGURE.parent.mkdir(exist_ok=True)
        figure.savefig(FIGURE, metadata={"Date": None})
    return True


def rows() -> list[str]:
    found = runs()
    shown = [
        "![Share of runs from bad starts that reached the target, by CPU seconds](../images/evolution_bad_starts.svg)",
        "",
    ]
    return ["", *untuned_rows(), *claim_rows(found), *(shown if draw(found) else [])]
