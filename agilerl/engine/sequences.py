"""Another name of what is in `rollouts`."""

from agilerl.engine.rollouts import KINDS, cut_points, sequences_of

__all__ = ["KINDS", "cut_points", "sequences_of"]
