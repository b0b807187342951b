"""Published import path of `MutationType`."""

from agilerl.modules.base import MutationType

__all__ = ["MutationType"]
