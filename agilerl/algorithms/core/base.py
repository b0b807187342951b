"""Published import path of the base classes of all algorithms."""

from agilerl.algorithms.core import EvolvableAlgorithm, LLMAlgorithm, MultiAgentRLAlgorithm, RLAlgorithm
from agilerl.core.moved import forward

__all__ = ["EvolvableAlgorithm", "LLMAlgorithm", "MultiAgentRLAlgorithm", "RLAlgorithm"]

__getattr__ = forward(__name__)  # names of earlier versions
