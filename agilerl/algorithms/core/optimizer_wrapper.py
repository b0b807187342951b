"""Published import path of `OptimizerWrapper`."""

from agilerl.algorithms.optimizer import OptimizerWrapper

__all__ = ["OptimizerWrapper"]
