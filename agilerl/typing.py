"""Published names of types: what observations, tensors and network configurations may be, and how episodes are cut."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    import torch


class BPTTSequenceType(StrEnum):
    """How `PPO` cuts episodes into sequences for back-propagation through time; each equals its value."""

    CHUNKED = "chunked"
    MAXIMUM = "maximum"
    FIFTY_PERCENT_OVERLAP = "fifty_percent_overlap"


NumpyObsType: TypeAlias = np.ndarray | dict[str, np.ndarray] | tuple[np.ndarray, ...]
TorchObsType: TypeAlias = Union["torch.Tensor", dict[str, "torch.Tensor"], tuple["torch.Tensor", ...]]
ObservationType: TypeAlias = NumpyObsType | TorchObsType | int | float
ArrayOrTensor: TypeAlias = Union[np.ndarray, "torch.Tensor"]
NetConfigType: TypeAlias = Mapping[str, Any]  # or a `NetConfig` of `agilerl.modules.configs`

__all__ = ["ArrayOrTensor", "BPTTSequenceType", "NetConfigType", "NumpyObsType", "ObservationType", "TorchObsType"]
