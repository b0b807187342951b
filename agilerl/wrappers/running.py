"""Running statistics, under the name by which wrappers find them."""

from __future__ import annotations

from agilerl.components.running import RunningMeanStd

__all__ = ["RunningMeanStd"]
