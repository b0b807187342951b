"""Published import path of what an algorithm registers."""

from agilerl.algorithms.core import HyperparameterConfig, MutationRegistry, NetworkGroup, OptimizerConfig, RLParameter

__all__ = ["HyperparameterConfig", "MutationRegistry", "NetworkGroup", "OptimizerConfig", "RLParameter"]
