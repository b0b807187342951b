"""Evolvable layers and modules. Imports are lazy."""

from typing import TYPE_CHECKING

from agilerl.core.lazy import attributes

if TYPE_CHECKING:
    from agilerl.modules.base import (
        DummyEvolvable,
        EvolvableModule,
        EvolvableWrapper,
        ModuleDict,
        MutationType,
        mutation,
    )
    from agilerl.modules.bert import EvolvableBERT
    from agilerl.modules.cnn import EvolvableCNN
    from agilerl.modules.cnn_lstm import EvolvableCnnLstm
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
    "CnnNetConfig", "DenseLayer", "DenseStack", "DummyEvolvable", "EvolvableBERT", "EvolvableCNN", "EvolvableCnnLstm",
    "EvolvableGPT", "EvolvableLSTM", "EvolvableMLP", "EvolvableModule", "EvolvableMultiInput", "EvolvableResNet",
    "EvolvableSimBa", "EvolvableWrapper", "LstmNetConfig", "MlpNetConfig", "ModuleDict", "MultiInputNetConfig",
    "MutationType", "ResNetNetConfig", "SimBaNetConfig", "mutation",
]  # fmt: skip
_HOMES = {
    "base": "DummyEvolvable EvolvableModule EvolvableWrapper ModuleDict MutationType mutation",
    "bert": "EvolvableBERT",
    "cnn": "EvolvableCNN",
    "cnn_lstm": "EvolvableCnnLstm",
    "configs": "CnnNetConfig LstmNetConfig MlpNetConfig MultiInputNetConfig ResNetNetConfig SimBaNetConfig",
    "gpt": "EvolvableGPT",
    "layers": "DenseLayer DenseStack",
    "lstm": "EvolvableLSTM",
    "mlp": "EvolvableMLP",
    "multi_input": "EvolvableMultiInput",
    "resnet": "EvolvableResNet",
    "simba": "EvolvableSimBa",
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
