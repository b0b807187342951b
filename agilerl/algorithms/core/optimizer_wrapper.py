"""Published import path of `OptimizerWrapper`."""

from agilerl.algorithms.base.optimizer import OptimizerWrapper

__all__ = ["OptimizerWrapper"]
