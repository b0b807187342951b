"""Published import path of the bases of all algorithms."""

from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.algorithms.language import LLMAlgorithm
from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm
from agilerl.algorithms.single_agent import RLAlgorithm

__all__ = ["EvolvableAlgorithm", "LLMAlgorithm", "MultiAgentRLAlgorithm", "RLAlgorithm"]
