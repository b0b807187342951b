"""Numbers as short text, for tables and lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agilerl.telemetry.record import GenerationRecord, RunPlan

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "._-=+*#@"


def count(number: float) -> str:
    """950, 5.9k, 280k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            digits = 0 if abs(number) >= limit * 99.95 else 1
            return f"{number / limit:.{digits}f}".removesuffix(".0") + unit
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """MM:SS, or H:MM:SS from an hour on; "--:--" where it is not known."""
    if not math.isfinite(seconds):
        return "--:--"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits without a needless exponent: 6.3e-4, 0.99, 128; "-" for None."""
    if value is None:
        return "-"
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.{digits}g}"


def sparkline(values: Sequence[float], low: float, high: float, blocks: str = BLOCKS, width: int = 12) -> str:
    """The last `width` values as blocks between `low` and `high`; a value that is not finite is a blank."""
    span = high - low
    found = []
    for value in list(values)[-width:]:
        if not math.isfinite(value):
            found.append(" ")
            continue
        share = (value - low) / span if span > 0 else 0.5
        found.append(blocks[min(max(int(share * len(blocks)), 0), len(blocks) - 1)])
    return "".join(found)


def headline(plan: RunPlan, path: str | None) -> str:
    """The line that stands above everything: what runs, where, from which seed."""
    threads = f" ({plan.threads} thread{'s' if plan.threads != 1 else ''})" if plan.device == "cpu" else ""
    parts = [
        f"{plan.algo} on {plan.env_id}",
        f"{plan.population} members x {count(plan.max_env_steps)} env steps",
        f"seed {plan.seed}",
        plan.device + threads,
    ]
    return "   ".join([*parts, path] if path else parts)


def pace(env_steps: int, max_env_steps: int, population: int, seconds: float) -> str:
    """Steps so far (population and member), speed, time gone and time left. `env_steps` is per member."""
    rate = env_steps * population / seconds if seconds > 0 else 0.0
    left = seconds * (max_env_steps - env_steps) / env_steps if env_steps > 0 else math.inf
    return (
        f"{count(env_steps * population)}/{count(max_env_steps * population)} env steps "
        f"({count(env_steps)}/{count(max_env_steps)} per member)   {count(rate)} steps/s   "
        f"elapsed {clock(seconds)}   left {clock(left)}"
    )


def generation_line(record: GenerationRecord) -> str:
    """One generation in one line without colour."""
    best = record.best
    fitness = [m.fitness for m in record.members if math.isfinite(m.fitness)]
    mean = number(sum(fitness) / len(fitness)) if fitness else "-"
    line = (
        f"gen {record.generation:>2}/{record.generations}   best {number(best.fitness)} (member {best.id})   "
        f"mean {mean}   " + pace(record.env_steps, record.max_env_steps, len(record.members), record.seconds)
    )
    return line if record.confirmation is None else f"{line}   confirmed at {number(record.confirmation)}"
