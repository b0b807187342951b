"""Published import paths of what algorithms are made of; it lives in `agilerl.algorithms` itself."""

from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.algorithms.language import LLMAlgorithm
from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm
from agilerl.algorithms.optimizer import OptimizerWrapper
from agilerl.algorithms.registry import (
    HyperparameterConfig,
    MutationRegistry,
    NetworkGroup,
    OptimizerConfig,
    RLParameter,
)
from agilerl.algorithms.single_agent import RLAlgorithm

__all__ = [
    "EvolvableAlgorithm",
    "HyperparameterConfig",
    "LLMAlgorithm",
    "MultiAgentRLAlgorithm",
    "MutationRegistry",
    "NetworkGroup",
    "OptimizerConfig",
    "OptimizerWrapper",
    "RLAlgorithm",
    "RLParameter",
]
