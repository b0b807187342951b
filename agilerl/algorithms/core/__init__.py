"""Published import paths of the base classes and registration, defined in `agilerl.algorithms`."""

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import (
    HyperparameterConfig,
    MutationRegistry,
    NetworkGroup,
    OptimizerConfig,
    RLParameter,
)
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.language.algorithms.base import LLMAlgorithm

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
