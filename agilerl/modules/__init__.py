"""Evolvable layers and modules."""

from agilerl.modules.base import DummyEvolvable, EvolvableModule, EvolvableWrapper, ModuleDict, MutationType, mutation
from agilerl.modules.bert import EvolvableBERT
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import (
    CnnNetConfig,
    LstmNetConfig,
    MlpNetConfig,
    MultiInputNetConfig,
    ResNetNetConfig,
    SimBaNetConfig,
)
from agilerl.modules.gpt import EvolvableGPT
from agilerl.modules.layers import DenseLayer, DenseStack
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.modules.resnet import EvolvableResNet
from agilerl.modules.simba import EvolvableSimBa

__all__ = [
    "CnnNetConfig", "DenseLayer", "DenseStack", "DummyEvolvable", "EvolvableBERT", "EvolvableCNN", "EvolvableGPT",
    "EvolvableLSTM", "EvolvableMLP", "EvolvableModule", "EvolvableMultiInput", "EvolvableResNet", "EvolvableSimBa",
    "EvolvableWrapper", "LstmNetConfig", "MlpNetConfig", "ModuleDict", "MultiInputNetConfig", "MutationType",
    "ResNetNetConfig", "SimBaNetConfig", "mutation",
]  # fmt: skip
