"""Published import path of `RLAlgorithm`."""

from agilerl.algorithms.base.single_agent import RLAlgorithm

__all__ = ["RLAlgorithm"]
