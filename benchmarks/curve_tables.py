"""What `curve.py` stored, as rows of Markdown for `tables.py`."""

from __future__ import annotations

from typing import Any

from runner import RESULTS, read_lines


def latest_curves() -> dict[tuple[str, ...], dict[str, Any]]:
    """The latest line of each environment and algorithm in curves.jsonl."""
    return {tuple(line["key"][k] for k in ("env", "algo")): line for line in read_lines(RESULTS / "curves.jsonl")}


def curve_rows() -> list[str]:
    """Long runs, at a few numbers of steps."""
    latest = latest_curves()
    if not latest:
        return []
    rows = [
        "## Long runs",
        "",
        "`python benchmarks/curve.py`, one seed each. Steps are environment steps of the whole population, or of",
        "Stable-Baselines3's single agent. Columns are mean returns of 8 greedy episodes. The score is the mean of 100",
        "held-out episodes of the best agent. Our CPU seconds include evaluation. Other jobs ran beside both sides, so",
        "CPU seconds are upper bounds.",
        "",
    ]
    for (env_id, algo), line in latest.items():
        low, high = line["ci95"]
        total, seconds = line["population_env_steps"], line["cpu_seconds"]
        rows += [
            f"{env_id}, {algo}: {line['score']:,.0f} [{low:,.0f}, {high:,.0f}] after {total:,} steps, "
            f"{seconds:,.0f} CPU seconds, stopped by {line['stopped']}.",
            "",
            "| steps | best member | mean of the members | Stable-Baselines3 SAC |",
            "|---|---|---|---|",
        ]
        other = dict((line["stable_baselines3"] or {}).get("curve", ()))
        curve = line["curve"]
        for steps, best, mean in curve[:: max(1, len(curve) // 12)]:
            near = min(other, key=lambda s: abs(s - steps), default=None)
            beside = f"{other[near]:,.0f} (at {near:,})" if near is not None and abs(near - steps) <= 20_000 else "-"
            rows.append(f"| {steps:,} | {best:,.0f} | {mean:,.0f} | {beside} |")
        if other:
            beside = line["stable_baselines3"]
            steps, score = beside["curve"][-1]
            rows += [
                "",
                f"SAC of Stable-Baselines3 {beside['versions']['stable-baselines3']} with its defaults: {score:,.0f} "
                f"after {steps:,} steps and {beside['cpu_seconds']:,.0f} CPU seconds of training alone.",
            ]
        rows.append("")
    return rows[:-1]
