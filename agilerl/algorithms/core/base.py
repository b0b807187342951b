"""Published import path of the bases of all algorithms."""

from agilerl.algorithms.core import EvolvableAlgorithm, LLMAlgorithm, MultiAgentRLAlgorithm, RLAlgorithm

__all__ = ["EvolvableAlgorithm", "LLMAlgorithm", "MultiAgentRLAlgorithm", "RLAlgorithm"]
