"""Published type aliases for observations, tensors, network configurations and sequences.

They are for annotations; this package does not use them. Protocols of the published library are `Any`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch.optim import Optimizer

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]


class BPTTSequenceType(StrEnum):
    """Splitting of episodes into sequences for backpropagation through time in `PPO`; each equals its value."""

    CHUNKED = "chunked"
    MAXIMUM = "maximum"
    FIFTY_PERCENT_OVERLAP = "fifty_percent_overlap"


T = TypeVar("T", bound=torch.nn.Module)

# Spaces and environments.
SupportedObsSpaces: TypeAlias = (
    spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.Dict | spaces.Tuple | spaces.MultiBinary  # type: ignore[type-arg]
)
SupportedActionSpaces: TypeAlias = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
GymSpaceType: TypeAlias = SupportedObsSpaces | list[SupportedObsSpaces]
GymEnvType: TypeAlias = str | gym.Env | gym.vector.VectorEnv | gym.vector.AsyncVectorEnv
PzEnvType: TypeAlias = Union[str, "ParallelEnv"]

# Observations, actions and experience.
ArrayOrTensor: TypeAlias = np.ndarray | torch.Tensor
ArrayDict: TypeAlias = dict[str, np.ndarray]
ArrayTuple: TypeAlias = tuple[np.ndarray, ...]
StandardTensorDict: TypeAlias = dict[str, torch.Tensor]
TensorTuple: TypeAlias = tuple[torch.Tensor, ...]
LLMObsType: TypeAlias = list[dict[str, Any]] | dict[str, Any]
NumpyObsType: TypeAlias = np.ndarray | ArrayDict | ArrayTuple
TorchObsType: TypeAlias = torch.Tensor | StandardTensorDict | TensorTuple
ObservationType: TypeAlias = NumpyObsType | TorchObsType | Number | int | float | LLMObsType
MultiAgentObservationType: TypeAlias = dict[str, ObservationType]
MaybeObsList: TypeAlias = list[ObservationType] | ObservationType
ActionType: TypeAlias = int | float | np.ndarray | torch.Tensor
ActionReturnType: TypeAlias = tuple[ActionType | Any, ...] | ActionType | Any
InfosDict: TypeAlias = dict[str, dict[str, Any]]
ExperiencesType: TypeAlias = dict[str, ObservationType] | tuple[ObservationType, ...]
GymStepReturn: TypeAlias = tuple[NumpyObsType, ActionType, float, MaybeObsList, InfosDict]
PzStepReturn: TypeAlias = tuple[dict[str, NumpyObsType], ArrayDict, ArrayDict, ArrayDict, dict[str, Any]]

# Networks, optimisers and evolution.
DeviceType: TypeAlias = str | torch.device
KernelSizeType: TypeAlias = int | tuple[int, ...]
NetConfigType: TypeAlias = Mapping[str, Any]  # or a `NetConfig` of `agilerl.modules.configs`
ConfigType: TypeAlias = NetConfigType | Any
StateDict: TypeAlias = dict[str, Any] | dict[str, dict[str, Any]] | list[dict[str, Any]]
SingleAgentModule: TypeAlias = T | torch.nn.Module
MultiAgentModule: TypeAlias = Mapping[str, T]
NetworkType: TypeAlias = SingleAgentModule[T] | MultiAgentModule[T]
EvolvableNetworkType: TypeAlias = torch.nn.Module | Mapping[str, torch.nn.Module]
OptimizerType: TypeAlias = Optimizer
LrNameType: TypeAlias = str | tuple[str, str]
SingleAgentMutReturnType: TypeAlias = dict[str, Any]
MultiAgentMutReturnType: TypeAlias = dict[str, dict[str, Any]]
MutationReturnType: TypeAlias = SingleAgentMutReturnType | MultiAgentMutReturnType
PopulationType: TypeAlias = list[Any]
MutationMethod: TypeAlias = Callable[[Any], Any]

__all__ = [
    "ActionReturnType", "ActionType", "ArrayDict", "ArrayOrTensor", "ArrayTuple", "BPTTSequenceType", "ConfigType",
    "DeviceType", "EvolvableNetworkType", "ExperiencesType", "GymEnvType", "GymSpaceType", "GymStepReturn",
    "InfosDict", "KernelSizeType", "LLMObsType", "LrNameType", "MaybeObsList", "MultiAgentModule",
    "MultiAgentMutReturnType", "MultiAgentObservationType", "MutationMethod", "MutationReturnType", "NetConfigType",
    "NetworkType", "NumpyObsType", "ObservationType", "OptimizerType", "PopulationType", "PzEnvType", "PzStepReturn",
    "SingleAgentModule", "SingleAgentMutReturnType", "StandardTensorDict", "StateDict", "SupportedActionSpaces",
    "SupportedObsSpaces", "TensorTuple", "TorchObsType",
]  # fmt: skip
