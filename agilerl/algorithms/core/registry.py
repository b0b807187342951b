"""Published import path of the registration classes."""

from agilerl.algorithms.core import HyperparameterConfig, MutationRegistry, NetworkGroup, OptimizerConfig, RLParameter

__all__ = ["HyperparameterConfig", "MutationRegistry", "NetworkGroup", "OptimizerConfig", "RLParameter"]
