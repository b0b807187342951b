"""Published import path of the running statistics."""

from agilerl.components.running import RunningMeanStd

__all__ = ["RunningMeanStd"]
