"""Experience collection and evaluation, typed against protocols rather than the class of a population.

Published names are re-exported here with lazy imports.
"""

from agilerl.core.lazy import attributes

__all__ = ["collect_rollouts", "collect_rollouts_recurrent"]
__getattr__, __dir__ = attributes(__name__, {"on_policy": "collect_rollouts collect_rollouts_recurrent"})
