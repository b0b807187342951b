"""Evolvable layers and modules."""

from agilerl.modules.base import DummyEvolvable, EvolvableModule, EvolvableWrapper, ModuleDict, MutationType, mutation
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import CnnNetConfig, MlpNetConfig, SimBaNetConfig
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.simba import EvolvableSimBa
from agilerl.modules.spec import DenseLayer, DenseStack

__all__ = [
    "CnnNetConfig",
    "DenseLayer",
    "DenseStack",
    "DummyEvolvable",
    "EvolvableCNN",
    "EvolvableMLP",
    "EvolvableModule",
    "EvolvableSimBa",
    "EvolvableWrapper",
    "MlpNetConfig",
    "ModuleDict",
    "MutationType",
    "SimBaNetConfig",
    "mutation",
]
