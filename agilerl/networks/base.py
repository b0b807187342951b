"""A network for reinforcement learning: an encoder for the observation space and a head for the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.errors import ConfigError
from agilerl.modules.base import EvolvableModule, is_untouched
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import Index
from agilerl.modules.spec import DenseStack
from agilerl.networks.as_data import AsData
from agilerl.networks.config import checked_arguments, checked_config
from agilerl.networks.encoders import encoder_class, input_form, make_encoder
from agilerl.networks.encoders import encoder_config as full_encoder_config
from agilerl.networks.hidden_state import WithHiddenState
from agilerl.networks.latent import LatentWidth
from agilerl.networks.observations import InputForm, Preprocessor
from agilerl.networks.parts import overrides
from agilerl.networks.recurrence import module_parts, recurrent_parts, run_recurrent
from agilerl.rng import Purpose, seeds

HEAD_DEFAULTS: dict[str, Any] = {"hidden_size": [64]}
LARGEST_INPUT = 10.0  # of normalised observations, in standard deviations

__all__ = ["EvolvableNetwork", "checked_arguments", "checked_config"]


class EvolvableNetwork(WithHiddenState, LatentWidth, AsData):
    """Encoder -> latent features -> head.

    Subclasses call `super().__init__` and then `build_head(num_outputs)`. Mutations: `add_latent_node`,
    `remove_latent_node`, the encoder's node methods ("encoder.add_node") and all of the head's ("head_net.…").

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them. It decides the encoder
            (`networks.encoders.encoder_class`).
        action_space: kept for the subclass.
        encoder_cls: an `EvolvableModule` class of your own, made as `networks.encoders.make_encoder` says.
        encoder_config, head_config: constructor arguments of encoder and head, as dict or net config.
        latent_dim: width between encoder and head; mutations keep it strictly between `min_latent_dim` and
            `max_latent_dim`.
        simba: residual blocks under LayerNorm (`EvolvableSimBa`) for vector observations.
        recurrent: an `EvolvableLSTM` for vector observations; `output_with_state` takes and gives hidden states.
        scale_observations: map features with finite bounds in `observation_space` to [-1, 1] before the encoder;
            images have `normalize_images` instead.
        normalize_images: divide images with values from 0 to 255 by 255.
        encoder_name: name of the encoder, by which the keys of a hidden state begin.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | None = None,
        encoder_cls: type[EvolvableModule] | None = None,
        encoder_config: Any = None,
        head_config: Any = None,
        min_latent_dim: int = 8,
        max_latent_dim: int = 128,
        latent_dim: int = 64,
        simba: bool = False,
        recurrent: bool = False,
        device: str | torch.device = "cpu",
        random_seed: int | None = None,
        scale_observations: bool = False,
        normalize_images: bool = True,
        encoder_name: str = "encoder",
    ) -> None:
        super().__init__(device, random_seed)
        if not isinstance(observation_space, spaces.Space):
            raise ConfigError(f"observation_space must be a gymnasium space; got {type(observation_space).__name__}")
        encoder_cls = encoder_class(observation_space, encoder_cls, encoder_config, simba, recurrent)
        if not 0 < min_latent_dim <= max_latent_dim or int(latent_dim) < 1:
            raise ConfigError(
                f"latent_dim {latent_dim} must be positive, limits {min_latent_dim}..{max_latent_dim} too"
            )
        self.observation_space, self.action_space = observation_space, action_space
        self.scale_observations, self.normalize_images = bool(scale_observations), bool(normalize_images)
        self.encoder_cls, self.simba = encoder_cls, simba
        self.recurrent = issubclass(encoder_cls, EvolvableLSTM)
        self.encoder_name = encoder_name
        self.min_latent_dim, self.max_latent_dim = int(min_latent_dim), int(max_latent_dim)
        self.latent_dim = int(latent_dim)
        self._latent_index: Index | None = None
        self._seeds = seeds(self.random_seed, Purpose.INITIAL_WEIGHTS, 2, generation=1).tolist()
        self._head_config = checked_config(head_config, EvolvableMLP, "head_config", HEAD_DEFAULTS)
        config = full_encoder_config(encoder_cls, encoder_config)
        form = input_form(observation_space, encoder_cls)
        self._prepare = Preprocessor.build(observation_space, form, self.scale_observations)
        self.encoder: Any = make_encoder(
            observation_space, encoder_cls, config, self.latent_dim, device, self._seeds[0], encoder_name
        )
        self.encoder.rng = self.rng

    def build_head(self, num_outputs: int) -> None:
        """Make `head_net`, an `EvolvableMLP` from the latent features to `num_outputs`."""
        self.head_net = EvolvableMLP(
            num_inputs=self.latent_dim,
            num_outputs=num_outputs,
            device=self._device,
            name="head",
            random_seed=self._seeds[1],
            **self._head_config,
        )
        self.head_net.rng = self.rng

    # -- running -------------------------------------------------------------------------------------------------

    def preprocess(self, obs: Any) -> Tensor:
        """Observations (numpy or torch; one, or with any leading axes) as encoder input.

        Returns:
            [..., I] for vectors; [..., C, H, W] for images (divided by 255 if `normalize_images` and the space is
            bounded by 0 and 255). One observation gives a batch of one. For a Dict or Tuple space a nested dict of
            such tensors, whatever the annotation says.
        """
        x = self.encoder_input(obs)
        mean = self._buffers.get("obs_mean")
        if mean is None:
            return x
        scaled = (x - mean) * self.get_buffer("obs_scale")
        return scaled.clamp_(-LARGEST_INPUT, LARGEST_INPUT)

    def encoder_input(self, obs: Any) -> Tensor:
        """As `preprocess`, before observations are normalised by running statistics."""
        x: Tensor = self._prepare(obs, next(self.parameters()), type(self).__name__, self.normalize_images)
        return x

    @property
    def normalize_observations(self) -> bool:
        """Whether inputs are shifted and scaled by statistics that are saved with the weights.

        They are 0 and 1 until `set_observation_statistics` is called. For vectors only.
        """
        return "obs_mean" in self._buffers

    @normalize_observations.setter
    def normalize_observations(self, wanted: bool) -> None:
        if not wanted:
            for name in ("obs_mean", "obs_scale"):
                self._buffers.pop(name, None)
            return
        if self._prepare.form is not InputForm.FLAT:
            raise ConfigError(
                f"normalize_observations is for observations that are read as vectors; got {self.observation_space}. "
                "fix: leave it out; images are divided by 255 anyway."
            )
        if not self.normalize_observations:
            like, width = next(self.parameters()).detach(), self._prepare.width()
            self.register_buffer("obs_mean", like.new_zeros(width))
            self.register_buffer("obs_scale", like.new_ones(width))

    def set_observation_statistics(self, mean: np.ndarray, var: np.ndarray, epsilon: float = 1e-8) -> None:
        """Normalise inputs by these from now on; both [I]."""
        for name, values in (("obs_mean", mean), ("obs_scale", 1 / np.sqrt(var + epsilon))):
            self.get_buffer(name).copy_(torch.as_tensor(values))

    def reading(self) -> tuple[Any, ...]:
        """What of `preprocess` is an option: members that share it can be given observations in one call."""
        statistics = (
            [self.get_buffer(n).tolist() for n in ("obs_mean", "obs_scale")] if "obs_mean" in self._buffers else []
        )
        return self.scale_observations, self.normalize_images, *(tuple(values) for values in statistics)

    def extract_features(self, obs: Any) -> Tensor:
        """Latent features [..., latent_dim]; a recurrent encoder starts an episode (see `features_with_state`)."""
        return self._encode(self.preprocess(obs)) if self.lender is None else self.lent_features(obs)

    def from_features(self, features: Tensor) -> Tensor:
        """As `output`, from the features [..., latent_dim] of its observations."""
        output: Tensor = self._head()(features)
        return output

    def forward(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """Output of the head [..., O] for observations with any leading axes; one observation gives a batch of one.

        A recurrent network that is given the `hidden_state` [layers, S, H] of S sequences takes their observations
        [S·L, ...], sequence by sequence, and returns (output [S·L, O], next hidden state).
        """
        return self.output(obs, hidden_state)

    def output(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """As `forward` here; a subclass whose `forward` samples or rescales keeps this as the raw output."""
        if hidden_state is not None:
            self._recurrent_encoder()
            return self.combine(module_parts(self), self.preprocess(obs), hidden_state)
        return self.from_features(self.extract_features(obs))

    def combine(self, parts: Mapping[str, Callable[[Tensor], Tensor]], *inputs: Any) -> Any:
        """The output from what runs the parts, of a network that is more than one stack.

        Of a recurrent network (output, next hidden state), see `run_recurrent`; without a hidden state every row starts
        an episode, and the output alone is returned.
        """
        if self.lender is not None:
            return parts["head_net"](parts["encoder"](inputs[0]))
        encoder, x = self._recurrent_encoder(), inputs[0]
        if len(inputs) > 1:
            return run_recurrent(encoder, parts, *inputs)
        shapes = encoder.hidden_state_architecture.items()
        start = {k: x.new_zeros(*x.shape[:-2], layers, x.shape[-2], units) for k, (layers, units) in shapes}
        return run_recurrent(encoder, parts, x, start)[0]

    def dense_parts(self) -> dict[str, DenseStack] | None:
        """The dense stacks of which the network consists: one ("") of a feed-forward one; None where it is more."""
        if self.lender is not None:
            return self.head_alone()
        if isinstance(self.encoder, EvolvableLSTM):
            replaced = (
                overrides(self, EvolvableNetwork, "output", "combine", "extract_features")
                or "head_net" not in self._modules
            )
            return None if replaced else recurrent_parts(self)
        stack = self.dense_stack()
        return None if stack is None else {"": stack}

    def _head(self) -> EvolvableMLP:
        head = self._modules.get("head_net")
        if head is None:
            raise AttributeError(f"{type(self).__name__} has no head_net: call build_head(num_outputs) in __init__.")
        return head  # type: ignore[return-value]

    def probe(self, inputs: Any) -> None:
        """Observations [B, ...] by which mutations of every part judge what matters; None forgets them."""
        x = None if inputs is None else self.preprocess(inputs)
        super().probe(x)
        self._probe_parts()

    @torch.no_grad()
    def _probe_parts(self) -> None:
        x = self.probe_inputs
        if self.lender is None:
            self.encoder.probe(x)
        if "head_net" in self._modules:
            features = None if x is None else self._head_inputs(self._encode(x))
            fits = features is not None and features.shape[-1] == self.head_net.num_inputs
            self.head_net.probe(features if fits else None)

    def _head_inputs(self, features: Tensor) -> Tensor:
        """What the head sees where it is probed, from features [B, latent_dim]."""
        return features

    def after_child_mutation(self, key: str) -> None:
        """The head sees the encoder's new features."""
        if key == "encoder" and self.probe_inputs is not None:
            self._probe_parts()

    @property
    def activation(self) -> str | None:
        """The encoder's hidden activation."""
        name: str | None = getattr(self.encoder, "activation", None)
        return name

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Hidden activations of encoder and head; the latent features use the hidden one too.

        With probe inputs the layers above are refitted, so that the output stays near to what it was.
        """
        head = self._modules.get("head_net")
        targets = head.preactivations() if isinstance(head, EvolvableMLP) else []
        if self.lender is None:  # else the lender has changed by itself
            self.encoder.change_activation(activation, output=True)
        if isinstance(head, EvolvableMLP):
            head.probe(None)  # its inputs have changed: it is refitted below, from its first layer on
            head.change_activation(activation, output=output)
        self.last_mutation_attr = "change_activation"
        if self.probe_inputs is not None:
            self._probe_parts()
            if isinstance(head, EvolvableMLP):
                head.refit_all(targets, 0)

    # -- as data -------------------------------------------------------------------------------------------------

    def dense_stack(self) -> DenseStack | None:
        """Encoder layers, then head layers; None if either, or a subclass's `forward`, adds anything to them."""
        methods = ("forward", "output", "extract_features")
        if any(getattr(type(self), m) is not getattr(EvolvableNetwork, m) for m in methods) or not is_untouched(self):
            return None
        encoder = self.encoder.dense_stack()
        head = self.head_net.dense_stack() if "head_net" in self._modules else None
        if encoder is None or head is None:
            return None
        parameters = encoder.parameters + head.parameters
        ids = [id(p) for group in parameters for p in group]
        kinds = {(p.dtype, p.device, p.requires_grad) for group in parameters for p in group}
        if len(set(ids)) != len(ids) or set(ids) != {id(p) for p in self.parameters()} or len(kinds) != 1:
            return None
        return DenseStack(encoder.layers + head.layers, parameters, encoder.buffers + head.buffers)
