"""Base class of networks: an encoder for the observation space and a head for the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.core import foreign, tree
from agilerl.core.rng import Purpose, seeds
from agilerl.core.signatures import also_takes
from agilerl.core.spaces import space_to_json
from agilerl.core.tree import Tree
from agilerl.errors import ConfigError
from agilerl.modules.base import EvolvableModule, MutationType, Refused, described, is_untouched, mutation
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import checked_config
from agilerl.modules.layered import OUTPUT as LAST
from agilerl.modules.layered import drawn_amount
from agilerl.modules.layers import DenseStack
from agilerl.modules.lstm import EvolvableLSTM, HiddenState
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import Index, grown, prefixed, without
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks import encoders, specs
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, checked_arguments, takes_options
from agilerl.networks.observations import InputForm, Preprocessor
from agilerl.networks.stacks import dense_stacks, joined, module_parts, overrides, recurrent_parts, run_recurrent

HEAD_DEFAULTS: dict[str, Any] = {"hidden_size": [64]}
LARGEST_INPUT = 10.0  # clip of normalised observations, in standard deviations
LATENT_STEPS = (8, 16, 32)

__all__ = ["EvolvableNetwork", "checked_arguments", "checked_config"]


class EvolvableNetwork(EvolvableModule):
    """Encoder -> latent features -> head.

    Subclasses call `super().__init__` and then `build_head(num_outputs)`. Mutations: `add_latent_node`,
    `remove_latent_node`, the encoder's node methods ("encoder.add_node") and all of the head's ("head_net.…"). A second
    head for a state value (`build_value_head`) reads the same features and mutates with the first, under its names.

    A network without an encoder reads the detached features of another one, its encoder source (`share_encoder`). The
    source's weights do not belong to this network: they are not among its parameters, in its state or in its optimiser,
    and receive no gradient from it. Only its head has architecture mutations.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them. It determines the
            encoder (`networks.encoders.encoder_class`).
        action_space: stored for the subclass.
        encoder_cls: a user-defined `EvolvableModule` class, constructed by `networks.encoders.make_encoder`, or the
            name of a built-in one.
        encoder_config, head_config: constructor arguments of encoder and head, as dict or net config.
        latent_dim: width between encoder and head; mutations keep it strictly between `min_latent_dim` and
            `max_latent_dim`.
        simba: residual blocks with LayerNorm (`EvolvableSimBa`) for vector observations.
        recurrent: `EvolvableLSTM`, for images `EvolvableCnnLstm`; `output_with_state` takes and returns hidden states.
        scale_observations: map features with finite bounds in `observation_space` to [-1, 1] before the encoder; for
            images use `normalize_images`.
        normalize_images: divide images with values from 0 to 255 by 255.
        encoder_name: name of the encoder, the prefix of hidden-state keys.

    Attributes:
        reads_vectors: whether the encoder reads observations as one vector.
        vector_widths: columns of each part of the encoder input; 0 for images.
    """

    head_net: EvolvableMLP
    last_latent_index: Index | None = None  # source of the latent features at their last change of width
    has_value_head = False  # whether `build_value_head` was called
    blocks = 1  # equal parts of a vector input, of which those of zeros alone stay so when the others are normalised
    num_beside = 0  # inputs of the head besides the features
    # A class that overrides one of these is more than a stack of encoder and head.
    stack_methods: tuple[str, ...] = ("forward", "output", "extract_features")
    runs_forward = True
    """Whether engines run `forward`; else `output`, because `forward` does more. A subclass that overrides `forward`
    and neither `output` nor `outputs_apart` is run by its `forward`."""
    outputs_apart = False  # whether `forward` does more than the inherited `output`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined = [vars(c).keys() for c in cls.__mro__]
        forward = next(i for i, names in enumerate(defined) if "forward" in names)
        output = next(i for i, names in enumerate(defined) if {"output", "outputs_apart"} & names)
        cls.runs_forward = cls.__mro__[forward] is EvolvableNetwork or forward < output

    @takes_options(
        "observation_space", "encoder_cls", "encoder_config", "encoder_name", "action_space", *BY_POSITION[3:]
    )
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None,
        options: NetworkOptions = DEFAULT_OPTIONS, normalize_images: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(options.device, options.random_seed)
        if not isinstance(observation_space, spaces.Space):
            raise ConfigError(f"observation_space is {observation_space!r}, not a space. fix: env.observation_space.")
        encoder_cls = encoders.encoder_class(
            observation_space,
            encoders.class_named(options.encoder_cls),
            options.encoder_config,
            options.simba,
            options.recurrent,
        )
        least, most = options.min_latent_dim, options.max_latent_dim
        if not 0 < least <= most or int(options.latent_dim) < 1:
            raise ConfigError(f"latent_dim {options.latent_dim} and limits {least}..{most} must be positive. fix: 32.")
        self.observation_space, self.action_space = observation_space, action_space
        self.scale_observations, self.normalize_images = bool(options.scale_observations), bool(normalize_images)
        self.encoder_cls, self.simba, self.encoder_name = encoder_cls, options.simba, options.encoder_name
        self.recurrent = issubclass(encoder_cls, EvolvableLSTM)
        self.min_latent_dim, self.max_latent_dim, self.latent_dim = int(least), int(most), int(options.latent_dim)
        self._latent_index: Index | None = None
        self._seeds = seeds(self.random_seed, Purpose.INITIAL_WEIGHTS, 2, generation=1).tolist()
        self._head_config = checked_config(options.head_config, EvolvableMLP, "head_config", HEAD_DEFAULTS)
        config = encoders.encoder_config(encoder_cls, options.encoder_config, observation_space)
        form = encoders.input_form(observation_space, encoder_cls)
        self._prepare = Preprocessor.build(observation_space, form, self.scale_observations)
        self.reads_vectors, self.vector_widths = form is InputForm.FLAT, self._prepare.widths
        self.encoder: Any = encoders.make_encoder(
            observation_space, encoder_cls, config, self.latent_dim, options.device, self._seeds[0], self.encoder_name
        )
        self.encoder.rng = self.rng

    def build_head(self, num_outputs: int) -> None:
        """Create `head_net`, an `EvolvableMLP` from the latent features (and additional inputs) to `num_outputs`."""
        self.head_net = self._make_head(num_outputs, "head", self._seeds[1])

    def build_value_head(self, num_outputs: int) -> None:
        """Create `value_net`, with the architecture and the mutations of `head_net`."""
        self.value_net = self._make_head(num_outputs, "value", self._seeds[1] + 1)
        self.value_net.disable_mutations()
        self.has_value_head = True

    def _make_head(self, num_outputs: int, name: str, seed: int) -> EvolvableMLP:
        width = self.latent_dim + self.num_beside
        head = EvolvableMLP(width, num_outputs, device=self._device, name=name, random_seed=seed, **self._head_config)
        head.rng = self.rng
        return head

    # -- user-defined networks: built in `build_network_head`, and rebuilt in `recreate_network` -----------------------

    def create_mlp(self, num_inputs: int, num_outputs: int, name: str, net_config: Any = None) -> EvolvableMLP:
        """Create an `EvolvableMLP` on this network's device, initialised by its generator.

        net_config: a mapping or net config; None uses `head_config`."""
        options = self._head_config if net_config is None else net_config
        config = checked_config(options, EvolvableMLP, "net_config", HEAD_DEFAULTS)
        seed = int(seeds(self.random_seed, Purpose.INITIAL_WEIGHTS, 3, generation=1)[-1])
        mlp = EvolvableMLP(num_inputs, num_outputs, device=self._device, name=name, random_seed=seed, **config)
        mlp.rng = self.rng
        return mlp

    def build_network_head(self, net_config: object = None) -> None:
        """Rebuild `head_net` with the same number of outputs; user-defined networks override this and call it once."""
        self.head_net = self.create_mlp(self._head().num_inputs, self._head().num_outputs, "head", net_config)

    def recreate_encoder(self) -> None:
        """Apply the latent width requested by a mutation to the encoder and to `latent_dim`.

        Call it in a custom `recreate_network`, which then rebuilds its head.
        """
        index, self._latent_index = self._latent_index, None
        if index is None:
            return
        self.last_latent_index, self.latent_dim = index, len(index)
        self.encoder.resize_outputs(index)
        self.last_transfer |= prefixed("encoder", self.encoder.last_transfer)

    def _heads(self) -> dict[str, Any]:
        """Return the heads by name, `head_net` first."""
        names = ("head_net", "value_net") if self.has_value_head else ("head_net",)
        return {name: self._modules[name] for name in names if name in self._modules}

    # -- running -------------------------------------------------------------------------------------------------

    def preprocess(self, obs: Tree) -> Tensor:
        """Convert observations (numpy or torch; one, or with any leading axes) to encoder input.

        Returns:
            [..., I] for vectors; [..., C, H, W] for images (divided by 255 if `normalize_images` and the space is
            bounded by 0 and 255). One observation gives a batch of one. For a Dict or Tuple space a nested dict of
            such tensors, despite the annotation.
        """
        x: Tensor = self._prepare(obs, next(self.parameters()), type(self).__name__, self.normalize_images)
        mean = self._buffers.get("obs_mean")
        if mean is None:
            return x
        scale = self.get_buffer("obs_scale")
        if self.blocks == 1 and self.reads_vectors:
            return ((x - mean) * scale).clamp_(-LARGEST_INPUT, LARGEST_INPUT)
        parts = zip(torch.split(mean, self.vector_widths), torch.split(scale, self.vector_widths), strict=True)
        return cast(Tensor, tree.map_leaves(lambda part: _normalised(part, *next(parts), self.blocks), x))

    def encoder_input(self, obs: Tree) -> Tensor:
        """Preprocess observations without normalisation by running statistics."""
        return cast(Tensor, self._prepare(obs, next(self.parameters()), type(self).__name__, self.normalize_images))

    @property
    def normalize_observations(self) -> bool:
        """Whether vector inputs are normalised by statistics that are saved with the weights.
        They are 0 and 1 until `set_observation_statistics` is called. Parts of a Dict that are zeros stay zeros."""
        return "obs_mean" in self._buffers

    @normalize_observations.setter
    def normalize_observations(self, wanted: bool) -> None:
        width = sum(self.vector_widths)
        if wanted and not width:
            raise ConfigError(
                f"normalize_observations is for observations that are read as vectors; got {self.observation_space}. "
                "fix: leave it out; images are divided by 255 anyway."
            )
        for name, value in (("obs_mean", 0.0), ("obs_scale", 1.0)):
            if not wanted:
                self._buffers.pop(name, None)
            elif name not in self._buffers:
                self.register_buffer(name, next(self.parameters()).detach().new_full((width,), value))

    def set_observation_statistics(self, mean: np.ndarray, var: np.ndarray, epsilon: float = 1e-8) -> None:
        """Set the statistics that normalise inputs; both [I]."""
        for name, values in (("obs_mean", mean), ("obs_scale", 1 / np.sqrt(var + epsilon))):
            self.get_buffer(name).copy_(torch.as_tensor(values))

    def reading(self) -> tuple[Any, ...]:
        """Options of `preprocess`: members that share them can preprocess observations in one call."""
        names = ("obs_mean", "obs_scale") if self.normalize_observations else ()
        statistics = (tuple(self.get_buffer(name).tolist()) for name in names)
        return self.scale_observations, self.normalize_images, self.blocks, *statistics

    def extract_features(self, x: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """Return latent features [..., latent_dim]; a recurrent encoder starts an episode.

        With the `hidden_state` of a recurrent encoder (features, next hidden state), see `features_with_state`.
        """
        if hidden_state is not None:
            return self.features_with_state(x, hidden_state)
        return self._encode(self.preprocess(x)) if self.encoder_source is None else self.shared_features(x)

    def forward_head(self, latent: Tensor) -> Tensor:
        """Return the head's output [..., O] for features [..., latent_dim]."""
        return self._head()(latent)  # type: ignore[no-any-return]

    def from_features(self, features: Tensor) -> Tensor:
        """Return `output` from the features [..., latent_dim] of its observations."""
        return self._head()(features)  # type: ignore[no-any-return]

    @also_takes(x="obs")
    def forward(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """Return the head's output [..., O] for observations with any leading axes; one observation gives a batch of
        one.

        Discrete observations may be a column [B, 1], as stored in replay. A recurrent network with a `hidden_state`
        [layers, S, H] of S sequences takes their observations [S·L, ...], sequence by sequence, and returns
        (output [S·L, O], next hidden state).
        """
        if isinstance(self.observation_space, spaces.Discrete) and (foreign.shape(obs) or ())[1:] == (1,):
            obs = obs[:, 0]
        return self.output(obs, hidden_state)

    def output(self, obs: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """Same as `forward` here; the raw output in subclasses whose `forward` samples or rescales."""
        if hidden_state is not None:
            self._recurrent_encoder()
            return self.combine(module_parts(self), self.preprocess(obs), hidden_state)
        return self.from_features(self.extract_features(obs))

    def combine(self, parts: Mapping[str, Callable[[Tensor], Tensor]], *inputs: Any) -> Any:
        """Compute the output from the functions of the parts, for a network of several stacks.

        A recurrent network returns (output, next hidden state), see `run_recurrent`; without a hidden state every row
        starts an episode, and only the output is returned.
        """
        if self.encoder_source is not None:
            return parts["head_net"](parts["encoder"](inputs[0]))
        if isinstance(self.encoder, EvolvableMultiInput):
            return self.encoder.features_by(parts, inputs[0])
        encoder, x = self._recurrent_encoder(), inputs[0]
        if len(inputs) > 1:
            return run_recurrent(encoder, parts, *inputs)
        shapes = encoder.hidden_state_architecture.items()
        start = {k: x.new_zeros(*x.shape[:-2], layers, x.shape[-2], units) for k, (layers, units) in shapes}
        return run_recurrent(encoder, parts, x, start)[0]

    def dense_parts(self) -> dict[str, DenseStack] | None:
        """Return the dense stacks of the network: one ("") if it is feed-forward and reads vectors, several if it is
        recurrent or reads the parts of a Dict or Tuple space; None if it contains other layers."""
        if self.encoder_source is not None:
            return self.head_alone()
        if isinstance(self.encoder, EvolvableLSTM | EvolvableMultiInput):
            replaced = overrides(self, EvolvableNetwork, "output", "combine", "extract_features")
            if replaced or "head_net" not in self._modules:
                return None
            if isinstance(self.encoder, EvolvableLSTM):
                return recurrent_parts(self)
            encoder_stacks, head = self.encoder.dense_parts(), self.head_net.dense_stack()
            if encoder_stacks is None or head is None:
                return None
            return dense_stacks(self, {**encoder_stacks, LAST: joined({LAST: encoder_stacks[LAST], "head_net": head})})
        stack = self.dense_stack()
        return None if stack is None else {"": stack}

    def encoder_parts(self) -> dict[str, Any] | None:
        """Return the encoder's part of `dense_stacks`: itself as "encoder", or its parts; None without an encoder."""
        encoder = self.encoder
        return encoder.dense_parts() if isinstance(encoder, EvolvableMultiInput) else {"encoder": encoder}

    def encode_by(self, parts: Mapping[str, Callable[[Any], Tensor]], x: Tree) -> Tensor:
        """Compute features with the functions of the encoder: one of `parts`, or several in parallel."""
        encoder = parts.get("encoder")
        return self.encoder.features_by(parts, x) if encoder is None else encoder(x)  # type: ignore[no-any-return]

    @property
    def row_input(self) -> Callable[[Any], Tensor]:
        """Function that prepares observations for `dense_parts`: `preprocess`, with concatenated parts or pixels."""
        encoder = None if self.encoder_source is not None else self.encoder
        if isinstance(encoder, EvolvableCNN):
            return lambda obs: self.preprocess(obs).flatten(-3)
        if not isinstance(encoder, EvolvableMultiInput):
            return self.preprocess
        return lambda obs: encoder.flat(self.preprocess(obs))  # type: ignore[arg-type]  # nested for such spaces

    def dense_stack(self) -> DenseStack | None:
        """Encoder layers, then head layers; None if either, or a subclass's `forward`, contains more."""
        if overrides(self, EvolvableNetwork, *self.stack_methods) or "head_net" not in self._modules:
            return None
        return joined(dense_stacks(self, {"encoder": self.encoder, "head_net": self.head_net}))

    def _head(self) -> EvolvableMLP:
        head = self._modules.get("head_net")
        if head is None:
            raise AttributeError(f"{type(self).__name__} has no head_net: call build_head(num_outputs) in __init__.")
        return head  # type: ignore[return-value]

    # -- hidden states; all raise ValueError without a recurrent encoder --------------------------------------------

    def _recurrent_encoder(self) -> EvolvableLSTM:
        if not isinstance(self.encoder, EvolvableLSTM):
            raise ConfigError(f"{type(self).__name__} is feed-forward and has no hidden state. fix: recurrent=True.")
        return self.encoder

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Return key of each part of the hidden state -> (layers, units)."""
        return self._recurrent_encoder().hidden_state_architecture

    def initialize_hidden_state(self, batch_size: int = 1) -> HiddenState:
        """Return zeros [layers, B, units] under "<encoder_name>_h" and, for an LSTM, "<encoder_name>_c"."""
        return self._recurrent_encoder().initial_hidden_state(batch_size)

    def carry_hidden_state(self, hidden_state: Mapping[str, Tensor]) -> HiddenState:
        """Adapt the state of running episodes to the last encoder mutation."""
        return self._recurrent_encoder().carry_hidden_state(hidden_state)

    def features_with_state(self, obs: Tree, hidden_state: Mapping[str, Tensor]) -> tuple[Tensor, HiddenState]:
        """Return latent features of one step [B, ...] or of sequences [B, T, ...], and the next hidden state."""
        features, state = self._recurrent_encoder()(self.preprocess(obs), hidden_state)
        return features, state

    def output_with_state(self, obs: Tree, hidden_state: Mapping[str, Tensor]) -> tuple[Tensor, HiddenState]:
        """Return the head's output [B, O] or [B, T, O], and the next hidden state."""
        features, state = self.features_with_state(obs, hidden_state)
        return self._head()(features), state

    def _encode(self, x: Any) -> Tensor:
        """Encode preprocessed inputs; a recurrent encoder starts an episode."""
        encoder = self.encoder
        if isinstance(encoder, EvolvableLSTM):
            return encoder(x, encoder.initial_hidden_state(x.shape[0]))[0]  # type: ignore[no-any-return]
        return encoder(x)  # type: ignore[no-any-return]

    # -- features of another network ---------------------------------------------------------------------------------

    @property
    def encoder_source(self) -> Any:
        """Network whose features are read; None for a network with its own encoder."""
        return self.__dict__.get("_encoder_source")

    def share_encoder(self, encoder_source: Any) -> None:
        """Read the features of `encoder_source` from now on; the network's own encoder is dropped."""
        self._modules.pop("encoder", None)
        self.__dict__["_encoder_source"] = encoder_source  # bypasses torch, which would register its weights here

    def check_same_encoder(self, encoder_source: Any) -> None:
        """Raise EncoderMismatchError if the current features come from an encoder of another architecture."""
        mine, theirs = (specs.architecture(network.encoder) for network in (self, encoder_source))
        if mine != theirs:
            raise specs.EncoderMismatchError(
                f"incompatible encoder architectures: {type(self).__name__} has {mine}, "
                f"{type(encoder_source).__name__} {theirs}. "
                "fix: build both with the same encoder_config and latent_dim, or share_encoders=False."
            )

    def derived(self, name: str) -> Any:
        encoder_source = self.__dict__.get("_encoder_source") if name == "encoder" else None
        return super().derived(name) if encoder_source is None else encoder_source.encoder

    def not_owned(self) -> Sequence[Any]:
        """Return the encoder source, which is not copied with the network: copies share it."""
        return () if self.encoder_source is None else (self.encoder_source,)

    @torch.no_grad()
    def shared_features(self, obs: Tree) -> Tensor:
        """Return detached features [..., latent_dim] of the encoder source."""
        return cast(Tensor, self.encoder_source.extract_features(obs))

    @property
    def takes_features(self) -> bool:
        """Whether `output` equals `from_features` of the source's features."""
        writer: Any = next(cls for cls in type(self).__mro__ if "output" in vars(cls))
        return self.encoder_source is not None and "from_features" in vars(writer) and is_untouched(self)

    def shared_depth(self) -> int | None:
        """Number of layers of the source's last dense stack that form its encoder; None if it ends differently."""
        parts, stack = self.encoder_source.dense_parts(), self.encoder_source.encoder.dense_stack()
        if parts is not None and isinstance(self.encoder_source.encoder, EvolvableMultiInput):
            return 1 if tuple(parts)[-1] == LAST else None
        return None if stack is None or parts is None or tuple(parts) != ("",) else len(stack.layers)

    def head_alone(self) -> dict[str, DenseStack] | None:
        """Return the dense parts of a network that shares an encoder: its head; None if that, or its source, contains
        more."""
        if not self.takes_features or self.shared_depth() is None:
            return None
        return dense_stacks(self, {"head_net": self.head_net})

    # -- probing and mutations ---------------------------------------------------------------------------------------

    def probe(self, inputs: Tree | None) -> None:
        """Set observations [B, ...] by which mutations of all parts measure importance; None clears them."""
        super().probe(None if inputs is None else self.preprocess(inputs))
        self._probe_parts()

    @torch.no_grad()
    def _probe_parts(self) -> None:
        x = self.probe_inputs
        if self.encoder_source is None:
            self.encoder.probe(x)
        heads = self._heads()
        if "head_net" in heads:
            features = None if x is None else self._head_inputs(self._encode(x))
            fits = features is not None and features.shape[-1] == self.head_net.num_inputs
            for head in heads.values():
                head.probe(features if fits else None)

    def _head_inputs(self, features: Tensor) -> Tensor:
        """Return probe inputs of the head from features [B, latent_dim]."""
        return features

    def apply_mutation(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Apply a mutation; a mutation of the head is also applied to the value head, which selects its own units."""
        result = super().apply_mutation(name, *args, **kwargs)
        applied = self.last_mutation_attr
        if self.has_value_head and applied is not None and applied.startswith("head_net."):
            getattr(self.value_net, applied.removeprefix("head_net."))(**result)
            self.last_transfer |= prefixed("value_net", self.value_net.last_transfer)
            self.last_refit = self.last_refit or self.value_net.last_refit
        return result

    def after_child_mutation(self, key: str) -> None:
        if key == "encoder" and self.probe_inputs is not None:
            self._probe_parts()

    @property
    def activation(self) -> str | None:
        """Hidden activation of the encoder."""
        return foreign.activation(self.encoder)

    def change_activation(self, activation: str, output: bool = False) -> None:
        """Change the activation of encoder and heads, including the latent features. With probe inputs the following
        layers are refitted to preserve the output."""
        heads = [head for head in self._heads().values() if isinstance(head, EvolvableMLP)]
        targets = [head.preactivations() for head in heads]
        if self.encoder_source is None:  # otherwise the source changes itself
            self.encoder.change_activation(activation, output=True)
        for head in heads:
            head.probe(None)  # its inputs have changed: refitted below, from its first layer on
            head.change_activation(activation, output=output)
        self.last_mutation_attr = "change_activation"
        if self.probe_inputs is not None:
            self._probe_parts()
            for head, target in zip(heads, targets, strict=True):
                head.refit_all(target, 0)

    def can_apply(self, name: str) -> bool:
        steps = {"add_latent_node": LATENT_STEPS[0], "remove_latent_node": -LATENT_STEPS[0]}
        return self._fits(steps[name]) if name in steps else super().can_apply(name)

    def own_mutations(self) -> dict[str, MutationType]:
        """Return latent mutations only if the encoder can change its output width."""
        names = super().own_mutations()
        encoder = self._modules.get("encoder")
        if not (isinstance(encoder, EvolvableModule) and encoder.resizes_outputs):
            names = {n: k for n, k in names.items() if n not in ("add_latent_node", "remove_latent_node")}
        return names

    @mutation(MutationType.NODE)
    def add_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen the latent features (by 8, 16 or 32 if not given); exact without LayerNorm."""
        count = drawn_amount(self.rng, LATENT_STEPS, numb_new_nodes, self._fits)
        if count == 0:
            return Refused(numb_new_nodes=0)
        self._latent_index = grown(self.latent_dim, count)
        return {"numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove the least important latent features (8, 16 or 32 if not given) and refit the head's first layer."""
        count = drawn_amount(self.rng, LATENT_STEPS, numb_new_nodes, lambda n: self._fits(-n))
        if count == 0:
            return Refused(numb_new_nodes=0)
        is_overridden = type(self).recreate_network is not EvolvableNetwork.recreate_network  # it keeps leading blocks
        if self.fresh == "random" or is_overridden:
            removed = list(range(self.latent_dim - count, self.latent_dim))
        else:
            removed = self._head().input_importance()[: self.latent_dim].argsort()[:count].tolist()
        self._latent_index = without(self.latent_dim, removed)
        return {"numb_new_nodes": count}

    def _fits(self, change: int) -> bool:
        new = self.latent_dim + change
        return new < self.max_latent_dim if change > 0 else new > self.min_latent_dim

    def recreate_network(self, **kwargs: Any) -> None:
        index, self._latent_index = self._latent_index, None
        if index is not None:
            self.last_latent_index = index
            self._carry_latent(index, lambda: self.encoder.resize_outputs(index))
            self.last_transfer |= prefixed("encoder", self.encoder.last_transfer)

    def follow_encoder_source(self, encoder_source: Any) -> None:
        """Read `encoder_source`, a mutated copy of the previous source, from now on; adapt the head to its latent
        width.

        Growth preserves the function: the head's weights of new features are zero. After a removal the head's first
        layer is refitted, if there are probe inputs.
        """
        self.last_transfer, self.last_refit = {}, False
        if encoder_source.latent_dim == self.latent_dim:
            self.share_encoder(encoder_source)
        else:
            self._carry_latent(encoder_source.last_latent_index, lambda: self.share_encoder(encoder_source))

    def _carry_latent(self, index: Index, change_encoder: Callable[[], None]) -> None:
        """Change the latent width, in the encoder by `change_encoder` and in the heads."""
        self._head()
        heads, before = self._heads(), {}
        exact = bool((index >= 0).sum() == self.latent_dim) and not self.encoder.output_layernorm
        if self.fresh == "preserve" and not exact:
            probed = {name: head for name, head in heads.items() if head.probe_inputs is not None}
            before = {name: head.preactivation(0, head.probe_inputs) for name, head in probed.items()}
        for name, head in reversed(heads.items()):  # in sampling order: value, encoder, head
            if name == "head_net":
                change_encoder()
            others = np.arange(self.latent_dim, head.num_inputs, dtype=np.int64)  # e.g. actions besides the features
            head.resize_inputs(np.concatenate([index, others]))
        self.latent_dim = len(index)
        self.last_transfer = {}
        for name, head in heads.items():
            self.last_transfer |= prefixed(name, head.last_transfer)
        self.last_refit = bool(before)
        if self.probe_inputs is not None:
            self._probe_parts()
            for name, target in before.items():
                if heads[name].probe_inputs is not None:
                    heads[name].refit_layer(0, heads[name].probe_inputs, target)

    # -- as data -------------------------------------------------------------------------------------------------

    def get_init_dict(self) -> dict[str, Any]:
        configs = {"encoder_config": self.encoder.net_config}
        if "head_net" in self._modules:
            configs["head_config"] = self.head_net.net_config
        arguments = super().get_init_dict()
        return arguments | {k: v for k, v in configs.items() if k in arguments}

    def spec(self) -> dict[str, Any]:
        data = self.get_init_dict()
        if self.encoder_source is not None:
            data.pop("encoder_config")
        for name in ("device", "random_seed", "encoder_cls"):
            data.pop(name, None)
        for name in ("observation_space", "action_space"):
            data[name] = None if data.get(name) is None else space_to_json(data[name])
        kind = type(self.encoder)
        if self.encoder_source is not None:
            data["encoder_cls"] = specs.BORROWED
        elif kind is not EvolvableMLP:
            is_builtin = encoders.ENCODERS.get(kind.__name__) is kind
            data["encoder_cls"] = kind.__name__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
        for name, usual in specs.OPTIONS.items():  # a subclass need not take them as arguments
            data[name] = getattr(self, name)
            if data[name] == usual:
                del data[name]
        return {"class": type(self).__name__, **described(data)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """Build a network; `arguments` may include `encoder_cls`, which a user-defined encoder class requires."""
        return cast(Self, specs.made_of_spec(cls, spec, arguments))

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device, **more: Any) -> Self:
        """Build from a spec, with this network's encoder class if the spec names it, or with its source."""
        kind, spec = type(self.encoder), self.with_objects(spec, device, **more)
        if self.encoder_source is not None and spec.get("encoder_cls") == specs.BORROWED:
            encoder = {**specs.stand_in(self.encoder_source), "latent_dim": spec["latent_dim"]}
            network = type(self).from_spec(spec, device=device, **encoder, **more)
            network.share_encoder(self.encoder_source)
            return network
        is_custom = spec.get("encoder_cls") == f"{kind.__module__}.{kind.__qualname__}"
        return type(self).from_spec(spec, device=device, **({"encoder_cls": kind} if is_custom else {}), **more)

    def describe(self) -> str:
        """Return a short form for tables, e.g. "[64, 64] 64 [32]": encoder, latent width, head."""
        head = [self.head_net.hidden_size] if "head_net" in self._modules else []
        return " ".join(str(part) for part in (self.encoder.short(), self.latent_dim, *head))


def _normalised(x: Tensor, mean: Tensor, scale: Tensor, blocks: int) -> Tensor:
    """Normalise a part [..., I]; blocks of zeros stay so, and images are unchanged."""
    if not len(mean):
        return x
    is_filled = x.reshape(*x.shape[:-1], blocks, -1).any(-1).repeat_interleave(x.shape[-1] // blocks, -1)
    return ((x - mean) * scale).clamp_(-LARGEST_INPUT, LARGEST_INPUT) * is_filled
