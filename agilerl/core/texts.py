"""Records as plain data, and numbers as short texts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def as_dict(event: Any) -> dict[str, Any]:
    """Return an event's fields for files; `changes` only where there are some, as runs before they were recorded."""
    return {name: value for name, value in asdict(event).items() if name != "changes" or value is not None}


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits without a needless exponent: 6.3e-4, 0.99, 128; "-" for None."""
    if value is None:
        return "-"
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.{digits}g}"


def count(number: float) -> str:
    """950, 5.9k, 280k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            digits = 0 if abs(number) >= limit * 99.95 else 1
            return f"{number / limit:.{digits}f}".removesuffix(".0") + unit
    return f"{number:.0f}"
