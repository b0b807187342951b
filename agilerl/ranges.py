"""Types of numbers with ranges, for the constructors of own algorithms; see `agilerl.core.ranges`."""

from __future__ import annotations

from agilerl.core.ranges import Count, CountOrZero, Fraction, NonNegative, Number, Positive, PositiveFraction

__all__ = ["Count", "CountOrZero", "Fraction", "NonNegative", "Number", "Positive", "PositiveFraction"]
