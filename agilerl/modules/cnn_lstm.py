"""Evolvable recurrent network over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agilerl.core.rng import Purpose, seeds
from agilerl.modules.cnn import EvolvableCNN, with_usual_layers
from agilerl.modules.configs import checked_config
from agilerl.modules.lstm import EvolvableLSTM


class EvolvableCnnLstm(EvolvableLSTM):
    """Recurrent layers over the features of an `EvolvableCNN`; its mutations are named `features.<method>`.

    Args:
        input_shape: (channels, height, width).
        num_features: features of an image, the input of the recurrent layers.
        cnn_config: constructor arguments of the `EvolvableCNN`, as dict or net config.

    See `EvolvableLSTM` for the other arguments.
    """

    def __init__(
        self, input_shape: Sequence[int], num_outputs: int = 64, hidden_state_size: int = 128, num_layers: int = 1,
        output_activation: str | None = None, *, num_features: int = 64, cnn_config: Mapping[str, Any] | None = None,
        cell: str = "LSTM", min_hidden_state_size: int = 32, max_hidden_state_size: int = 512, min_layers: int = 1,
        max_layers: int = 3, max_seq_len: int | None = None, device: str | torch.device = "cpu", name: str = "lstm",
        random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, hidden_state_size, num_outputs, num_layers, output_activation, min_hidden_state_size,
            max_hidden_state_size, min_layers, max_layers, cell=cell, max_seq_len=max_seq_len, device=device, name=name,
            random_seed=random_seed,
        )  # fmt: skip
        self.input_shape, self.num_features = tuple(input_shape), num_features
        config = {"output_activation": "ReLU", **with_usual_layers(cnn_config or {}, self.input_shape)}
        options = checked_config(config, EvolvableCNN, "cnn_config", {})
        seed = int(seeds(self.random_seed, Purpose.INITIAL_WEIGHTS, 1, generation=2)[0])
        self.features = EvolvableCNN(self.input_shape, num_features, **options, device=device, random_seed=seed)
        self.features.rng = self.rng

    @property
    def cnn_config(self) -> dict[str, Any]:
        """Current architecture of the convolutional layers."""
        return self.features.net_config

    @property
    def activation(self) -> str | None:  # type: ignore[override]
        """Activation of the convolutional layers."""
        return self.features.activation

    def embed(self, x: Tensor) -> Tensor:
        return self.features(x)  # type: ignore[no-any-return]

    def probe(self, inputs: Any) -> None:
        """Store images [B, C, H, W], or sequences [B, T, C, H, W], here and in the convolutional layers."""
        super().probe(inputs)
        self.features.probe(None if inputs is None else inputs.reshape(-1, *self.input_shape))

    def set_activation(self, activation: str) -> None:
        """Set the activation of the convolutional layers and of their features."""
        self.features.change_activation(activation, output=True)

    def short(self) -> str:
        return f"{self.features.short()} {super().short()}"
