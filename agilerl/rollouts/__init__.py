"""Experience collection and evaluation, typed against protocols rather than the class of a population.

Published names are re-exported here with lazy imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["collect_rollouts", "collect_rollouts_recurrent"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'agilerl.rollouts' has no attribute {name!r}")
    return getattr(import_module("agilerl.rollouts.on_policy"), name)
