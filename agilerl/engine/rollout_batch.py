"""Another name of what is in `batches` and `epochs`."""

from agilerl.engine.batches import RolloutBatch
from agilerl.engine.epochs import EpochPlan, plan_epoch

__all__ = ["EpochPlan", "RolloutBatch", "plan_epoch"]
