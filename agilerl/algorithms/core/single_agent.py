"""Published import path of `RLAlgorithm`."""

from agilerl.algorithms.single_agent import RLAlgorithm

__all__ = ["RLAlgorithm"]
