"""Import path of the running statistics, as used by wrappers."""

from __future__ import annotations

from agilerl.components.running import RunningMeanStd

__all__ = ["RunningMeanStd"]
