"""Statistics of `evolution.py`: interquartile means, stratified bootstrap, probability of improvement, profiles.

The definitions are those of Agarwal et al. 2021 (arXiv:2108.13264): the interquartile mean leaves out the lowest and
the highest quarter of all runs; the probability of improvement of X over Y is the chance that a run of X scores above
one of Y, ties counted as half; intervals are percentiles of a bootstrap that draws runs anew within each (pair, start).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

Line = Mapping[str, Any]
DRAWS = 2_000
MISSED = 1e9  # more than any CPU seconds and any score


def share(score: float, random: float, target: float) -> float:
    """Of the way from random play to the target: 0 or less as bad as random, 1 at most."""
    return min(1.0, (score - random) / (target - random))


def score_at(line: Line, by: str, budget: float) -> float:
    """The score of the last checkpoint within a budget of CPU seconds or env_steps; a run that reached the target keeps
    its second test's from there on. Before the first checkpoint there is none: nan."""
    if line["reached"] is not None and line["reached"][by] <= budget:
        return float(line["reached"]["second_score"])
    within = [point["score"] for point in line["curve"] if point[by] <= 1.1 * budget]
    return float(within[-1]) if within else float("nan")


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of what lies between the quartiles, with fractional weights at the edges."""
    ordered, count = np.sort(np.asarray(values, dtype=np.float64)), len(values)
    weights = np.clip(np.arange(1, count + 1) - count / 4, 0, 1) - np.clip(
        np.arange(1, count + 1) - 3 * count / 4, 0, 1
    )
    return float((ordered * weights).sum() / weights.sum())


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs of runs."""
    x, y = np.asarray(ours)[:, None], np.asarray(theirs)[None, :]
    return float(np.mean((x > y) + 0.5 * (x == y)))


def of_runs(lines: Sequence[Line]) -> list[float]:
    """What orders runs: CPU seconds to the target, less is better; behind all of these the final score, more is better.
    As one number each, of which more is better."""
    return [
        -float(line["reached"]["cpu_seconds"]) if line["reached"] else float(line["final"]["score"]) - MISSED
        for line in lines
    ]


def better(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The probability that a run of the first is better than one of the second, in the order of `of_runs`."""
    return probability_of_improvement(ours, theirs)


def interval(
    strata: Sequence[Sequence[Sequence[float]]], statistic: Callable[[list[list[float]]], float], seed: int = 0
) -> tuple[float, float]:
    """95 % of a statistic over samples [arm][run] of several strata, each drawn anew within itself, then averaged."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        values = []
        for stratum in strata:
            drawn = [[arm[i] for i in rng.integers(0, len(arm), len(arm))] for arm in stratum]
            values.append(statistic(drawn))
        found.append(float(np.mean(values)))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def profile(values: Sequence[float], thresholds: Sequence[float]) -> list[float]:
    """The share of runs that score above each threshold."""
    return [float(np.mean(np.asarray(values) > threshold)) for threshold in thresholds]


def summarise(pair: str, random: float, target: float, lines: Sequence[Line]) -> None:
    """A line per (start, arm, commit): reached, medians, shares at both budgets."""
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[json.dumps({k: v for k, v in line["key"].items() if k not in ("seed", "pair")})].append(line)
    for group, runs in sorted(groups.items()):
        key, runs = json.loads(group), sorted(runs, key=lambda line: line["key"]["seed"])
        reached = [line["reached"] for line in runs]
        found = [one for one in reached if one is not None]
        at = {
            by: [share(score_at(line, by, key[budget]), random, target) for line in runs] if key[budget] else [np.nan]
            for by, budget in (("cpu_seconds", "cpu_budget"), ("env_steps", "step_budget"))
        }
        print(
            json.dumps(
                {
                    "pair": pair,
                    **key,
                    "seeds": [line["key"]["seed"] for line in runs],
                    "reached": f"{len(found)}/{len(runs)}",
                    "cpu_to_target": [None if one is None else one["cpu_seconds"] for one in reached],
                    "steps_to_target": [None if one is None else one["env_steps"] for one in reached],
                    "iqm_at_cpu": rounded(interquartile_mean(at["cpu_seconds"])),
                    "iqm_at_steps": rounded(interquartile_mean(at["env_steps"])),
                    "final": [line["final"]["score"] for line in runs],
                    "cpu_seconds": round(median(line["cpu_seconds"] for line in runs), 1),
                    "evaluation_share": round(
                        median(line["evaluation_env_steps"] / line["env_steps"] for line in runs), 2
                    )
                    if "evaluation_env_steps" in runs[0]
                    else None,
                }
            )
        )


THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 0.95)


def compare(
    lines: Mapping[str, Sequence[Line]], ends: Mapping[str, tuple[float, float]], against: str, seed: int = 0
) -> None:
    """A line per arm beside the arm `against`, at equal CPU seconds, over the (pair, start) that both have runs of.

    Args:
        lines: by pair. ends: mean return of random play and the target, by pair.
    """
    found: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair, runs in lines.items():
        for line in runs:
            key = line["key"]
            worth = share(score_at(line, "cpu_seconds", key["cpu_budget"]), *ends[pair])
            found[key["arm"]][pair, key["start"]].append(worth)
    for arm in sorted(set(found) - {against}):
        common = sorted(set(found[arm]) & set(found[against]))
        if not common:
            continue
        strata = [[found[arm][place], found[against][place]] for place in common]
        print(json.dumps({"arm": arm, "against": against, "over": common, **compared(strata, seed)}))


def compared(strata: Sequence[Sequence[Sequence[float]]], seed: int = 0) -> dict[str, Any]:
    """Of [stratum][arm, the other arm][run]: what the first gains, with 95 % intervals, and both profiles."""
    found: dict[str, Any] = {}
    for name, statistic in (("iqm_difference", iqm_difference), ("probability_of_improvement", improvement)):
        low, high = interval(strata, statistic, seed)
        value = float(np.mean([statistic([list(arm) for arm in stratum]) for stratum in strata]))
        found[name] = {"value": rounded(value), "low": rounded(low), "high": rounded(high)}
    for place, name in enumerate(("profile", "profile_of_other")):
        pooled = [value for stratum in strata for value in stratum[place]]
        found[name] = dict(zip(map(str, THRESHOLDS), map(rounded, profile(pooled, THRESHOLDS)), strict=True))
    return found


def iqm_difference(arms: list[list[float]]) -> float:
    return interquartile_mean(arms[0]) - interquartile_mean(arms[1])


def improvement(arms: list[list[float]]) -> float:
    return probability_of_improvement(arms[0], arms[1])


def rounded(value: float) -> float | None:
    """Three digits; None where there is no number."""
    return None if value != value else round(value, 3)
