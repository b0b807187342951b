"""What algorithms are made of."""

from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import (
    HyperparameterConfig,
    MutationRegistry,
    NetworkGroup,
    OptimizerConfig,
    RLParameter,
)
from agilerl.algorithms.core.single_agent import RLAlgorithm

__all__ = [
    "EvolvableAlgorithm",
    "HyperparameterConfig",
    "MutationRegistry",
    "NetworkGroup",
    "OptimizerConfig",
    "OptimizerWrapper",
    "RLAlgorithm",
    "RLParameter",
]
