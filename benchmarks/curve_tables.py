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
        "## Where training takes long",
        "",
        "`python benchmarks/curve.py`, one seed each. Steps are environment steps of the whole population, or of",
        "Stable-Baselines3's one agent; fitness is the mean of 8 greedy episodes: the best member's, the mean of all",
        "members', the other agent's. Score: 100 fresh episodes of the best agent of the run. Our CPU seconds hold all",
        "evaluation; other jobs ran beside both sides, so that CPU seconds are upper bounds.",
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
            seconds = line["stable_baselines3"]["cpu_seconds"]
            rows += ["", f"Stable-Baselines3's SAC: {seconds:,.0f} CPU seconds for training alone."]
        rows.append("")
    return rows[:-1]


def short_curve(line: dict[str, Any]) -> str:
    """One long run in one line, and the other side at its own last step."""
    key, other = line["key"], line["stable_baselines3"]
    text = (
        f"* {key['algo']} on {key['env']}, seed {key['seed']}: {line['score']:,.0f} after "
        f"{line['population_env_steps']:,} steps of the population and {line['cpu_seconds']:,.0f} CPU seconds"
    )
    if other:
        steps, score = other["curve"][-1]
        name = f"SAC of Stable-Baselines3 {other['versions']['stable-baselines3']} with its defaults"
        text += f"; {name}: {score:,.0f} after {steps:,} steps and {other['cpu_seconds']:,.0f} CPU seconds"
    return f"{text} (`python benchmarks/curve.py`)."
