"""What a network with a recurrent encoder does beside its forward pass: hidden states in, hidden states out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from agilerl.errors import ConfigError
from agilerl.modules.evolvable import EvolvableModule
from agilerl.modules.lstm import EvolvableLSTM, HiddenState
from agilerl.modules.mlp import EvolvableMLP


class WithHiddenState(EvolvableModule):
    """Methods of `EvolvableNetwork` that need a recurrent encoder; each is a ValueError without one."""

    encoder: Any

    def preprocess(self, obs: Any) -> Tensor:
        raise NotImplementedError

    def _head(self) -> EvolvableMLP:
        raise NotImplementedError

    def _recurrent_encoder(self) -> EvolvableLSTM:
        if not isinstance(self.encoder, EvolvableLSTM):
            raise ConfigError(
                f"{type(self).__name__} is a feed-forward network and has no hidden state. fix: recurrent=True."
            )
        return self.encoder

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units)."""
        return self._recurrent_encoder().hidden_state_architecture

    def initialize_hidden_state(self, batch_size: int = 1) -> HiddenState:
        """Zeros [layers, B, units] under "<encoder_name>_h" and, for an LSTM, "<encoder_name>_c"."""
        return self._recurrent_encoder().initial_hidden_state(batch_size)

    def carry_hidden_state(self, hidden_state: Mapping[str, Tensor]) -> HiddenState:
        """The state of running episodes, for the network as its last encoder mutation left it."""
        return self._recurrent_encoder().carry_hidden_state(hidden_state)

    def features_with_state(self, obs: Any, hidden_state: Mapping[str, Tensor]) -> tuple[Tensor, HiddenState]:
        """Latent features of one step [B, ...] or of sequences [B, T, ...], and the next hidden state."""
        features, state = self._recurrent_encoder()(self.preprocess(obs), hidden_state)
        return features, state

    def output_with_state(self, obs: Any, hidden_state: Mapping[str, Tensor]) -> tuple[Tensor, HiddenState]:
        """Output of the head [B, O] or [B, T, O], and the next hidden state."""
        features, state = self.features_with_state(obs, hidden_state)
        output: Tensor = self._head()(features)
        return output, state

    def _encode(self, x: Any) -> Tensor:
        """Features of encoder inputs; a recurrent encoder starts an episode."""
        if isinstance(self.encoder, EvolvableLSTM):
            features: Tensor = self.encoder(x, self.encoder.initial_hidden_state(x.shape[0]))[0]
        else:
            features = self.encoder(x)
        return features
