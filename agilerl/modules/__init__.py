"""Evolvable layers and modules."""

from agilerl.modules.base import DummyEvolvable, EvolvableModule, EvolvableWrapper, ModuleDict, MutationType, mutation
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import CnnNetConfig, MlpNetConfig, MultiInputNetConfig, SimBaNetConfig
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
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
    "EvolvableMultiInput",
    "EvolvableSimBa",
    "EvolvableWrapper",
    "MlpNetConfig",
    "ModuleDict",
    "MultiInputNetConfig",
    "MutationType",
    "SimBaNetConfig",
    "mutation",
]
