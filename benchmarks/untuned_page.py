"""Tables of docs/lab/evolution.md from the lines of `untuned.py`: the environments that the bare command solves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

import untuned
from runner import of_last_key, read_lines

OF_OTHERS = (
    'Other environments (`--others`). Five of them changed the command (see "Changes made after a failure").',
    "Nothing else was tuned on them.",
)


def untuned_table(tasks: Mapping[str, float]) -> list[str]:
    """The bare command on environments without presets, all seeds; nothing where none of them has run."""
    rows = []
    for env_id, threshold in tasks.items():
        lines = read_lines(untuned.path_of(env_id))
        last = sorted(of_last_key(lines), key=lambda line: line["key"]["seed"]) if lines else []
        if not last:
            continue
        scores = " ".join(f"{line['score']:.3g}" for line in last)
        seconds = sorted(line["cpu_seconds"] for line in last)
        ends = ", ".join(f"{count} {name}" for name, count in Counter(ended_by(line) for line in last).items())
        rows.append(
            f"| {env_id}, {threshold:g} | {sum(line['solved'] for line in last)} of {len(last)} | {scores} | "
            f"{median(seconds):.0f} ({seconds[0]:.0f} to {seconds[-1]:.0f}) | {ends} | {of_sb3(env_id, threshold)} |"
        )
    head = (
        "| environment, solved at | solved | scores of the seeds | CPU seconds, median (all) | ended by | "
        "Stable-Baselines3: solved, median score |"
    )
    return [head, "|---|---|---|---|---|---|", *rows, ""] if rows else []


def untuned_rows() -> list[str]:
    """Environments of development, and others."""
    others = untuned_table(untuned.OTHERS)
    return [
        "### The bare command", "", *untuned_table(untuned.TASKS),
        "`python benchmarks/untuned.py`, seeds 0, 1, 2, ...; the command chooses PPO in all of them. The score is the",
        "mean of 100 held-out episodes. CPU seconds are those of the whole run without them, beside other jobs on two",
        "shared cores. A run ends before the generation that would pass 600 CPU seconds, or with the command's budget",
        "of ten minutes at measured speed (in earlier runs: 500,000 steps of each member). The file explains the",
        "thresholds. Stable-Baselines3's PPO with its defaults had the same CPU seconds for each seed (`--sb3`;",
        "on Hopper-v5 up to 23 fewer and 17 more).", "",
        *([*OF_OTHERS, "", *others] if others else []),
    ]  # fmt: skip


def ended_by(line: dict[str, Any]) -> str:
    """What stopped a run: "target", "plateau", "budget" (of minutes), "500,000 steps", "CPU seconds"."""
    stopped: str = line["stopped"]
    if stopped == "budget" and "minutes" not in line["key"]:
        return "500,000 steps"
    return "CPU seconds" if stopped.endswith(f"{untuned.Limit.__name__}.on_generation") else stopped


def of_sb3(env_id: str, threshold: float) -> str:
    """ "0 of 10, -200"; "-" where it did not run."""
    scores = [line["final"]["score"] for line in untuned.opponent_lines(env_id)]
    if not scores:
        return "-"
    return f"{sum(score >= threshold for score in scores)} of {len(scores)}, {median(scores):.3g}"
