"""Another name of what is in `rollouts` and `epochs`."""

from agilerl.engine.epochs import LearnReport, learn_rollout
from agilerl.engine.rollouts import Rollout, SequenceRollout, make_rollout

__all__ = ["LearnReport", "Rollout", "SequenceRollout", "learn_rollout", "make_rollout"]
