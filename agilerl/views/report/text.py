"""Numbers and values of records as short texts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable


def compact(value: object) -> str:
    """Short form of a value of a birth: numbers with their significant digits, the rest as JSON."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return tidy(float(value))
    return value if isinstance(value, str) else json.dumps(value)


def tidy(value: float | None, digits: int = 4) -> str:
    """Significant digits: 6.3e-4, 0.99, 128, 1234; a dash for None or a value that is not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def finite(values: Iterable[float | None]) -> list[float]:
    """The finite values."""
    return [value for value in values if value is not None and math.isfinite(value)]
