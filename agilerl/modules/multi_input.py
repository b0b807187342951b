"""Evolvable network for observations with several parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.core.rng import Purpose, seeds
from agilerl.core.spaces import is_image, parts_of
from agilerl.core.tree import Tree
from agilerl.errors import ConfigError, NotAvailableYetError, ShapeError, unknown_choice
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import ModuleDict, MutationType, Refused, mutation
from agilerl.modules.cnn import EvolvableCNN, with_usual_layers
from agilerl.modules.configs import checked_config
from agilerl.modules.layered import OUTPUT, LayeredModule, Range, check_limits
from agilerl.modules.layers import DenseLayer, DenseStack, Layer, activation_layer, linear, orthogonal, whole
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.morph import Index, grown, prefixed

LATENT_STEPS = (8, 16, 32)
VECTOR_MLP = "vector_mlp"
RUN_BY = (
    "forward",
    "output_features",
    "finish",
    "_inputs",
)  # a class that overrides one of these is more than its parts


class EvolvableMultiInput(LayeredModule):
    """One feature network per part of a Dict or Tuple space, in parallel, then one dense layer.

    Images get an `EvolvableCNN`, nested spaces an `EvolvableMultiInput`, everything else an `EvolvableMLP`; they and
    their mutations are named `feature_net.<key>`. Each outputs `latent_dim` features, followed by the activation. In a
    key that cannot name a module (it contains a dot, or is an attribute of torch's) characters are replaced by
    underscores. Growth is exact if that of the parts is.

    Args:
        observation_space: Dict or Tuple; images channels first.
        num_outputs: width of the output.
        latent_dim: features of each part.
        vector_space_mlp: concatenate all vectors and pass them to one `vector_mlp`.
        cnn_config, mlp_config: constructor arguments of the parts, as dict or net config.
        init_dicts: constructor arguments by name of the part, which override those: the evolved architecture.
        activation, output_activation: of the parts' features, and of the output.
        min_latent_dim, max_latent_dim: limits of the mutations, inclusive.
        lstm_config: published; only None is supported.
    """

    ranges: ClassVar = {"latent_node": Range("latent_dim", "latent_dim", LATENT_STEPS)}

    def __init__(
        self, observation_space: spaces.Space[Any], num_outputs: int, latent_dim: int = 32,
        vector_space_mlp: bool = False, cnn_config: Mapping[str, Any] | None = None,
        mlp_config: Mapping[str, Any] | None = None, init_dicts: Mapping[str, Any] | None = None,
        output_activation: str | None = None, *, activation: str | None = "ReLU", min_latent_dim: int = 8,
        max_latent_dim: int = 128, device: str | torch.device = "cpu", name: str = "multi_input",
        random_seed: int | None = None, lstm_config: None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        if lstm_config is not None:
            raise NotAvailableYetError(
                "EvolvableMultiInput(lstm_config=) is not available in this version: parts have no memory. "
                "fix: lstm_config=None; PPO(recurrent=True) has one for vectors or an image."
            )
        parts = parts_of(observation_space)
        if not parts:
            raise ConfigError(f"observation_space must be a Dict or Tuple with parts; got {observation_space}")
        self.observation_space, self.num_outputs = observation_space, whole(num_outputs, "num_outputs")
        self.latent_dim, self.vector_space_mlp = whole(latent_dim, "latent_dim"), bool(vector_space_mlp)
        self.cnn_config = checked_config(cnn_config, EvolvableCNN, "cnn_config", {})
        self.mlp_config = checked_config(mlp_config, EvolvableMLP, "mlp_config", {})
        known_activation(activation, hidden=True)
        self.activation, self.output_activation, self.name = activation, output_activation, name
        check_limits({"latent_dim": (min_latent_dim, max_latent_dim)})
        self.min_latent_dim, self.max_latent_dim = min_latent_dim, max_latent_dim
        self._latent_index: dict[str, Index] = {}
        vectors = {k: s for k, s in parts.items() if not is_image(s) and not parts_of(s)} if vector_space_mlp else {}
        self.feature_net = ModuleDict(device=device, random_seed=self.random_seed)
        self.vector_keys = list(vectors)
        self.part_names: dict[str, str] = {}  # key of the space -> name in feature_net
        part_seeds = seeds(self.random_seed, Purpose.INITIAL_WEIGHTS, len(parts) + 1, generation=2).tolist()
        part_configs = dict(init_dicts or {})
        for (key, space), seed in zip(parts.items(), part_seeds, strict=False):
            if key not in vectors:
                part = self.part_names[key] = _module_name(self.feature_net, key)
                self.feature_net[part] = self._make_part(space, dict(part_configs.pop(part, {})), seed)
        if vectors:
            width = sum(int(spaces.flatdim(space)) for space in vectors.values())
            self.vector_mlp = self._make_mlp(width, dict(part_configs.pop(VECTOR_MLP, {})), part_seeds[-1])
        if part_configs:
            raise ConfigError(unknown_choice("part in init_dicts", str(next(iter(part_configs))), self._part_modules()))
        self.rng = self.rng  # one generator for all parts
        self.build()

    def _make_part(self, space: spaces.Space[Any], config: dict[str, Any], seed: int) -> Any:
        if parts_of(space):
            inherited = ("latent_dim", "vector_space_mlp", "cnn_config", "mlp_config")
            config = {**{name: getattr(self, name) for name in inherited}, **config}
            return self._build_part(EvolvableMultiInput, space, config, seed)
        if is_image(space):
            layers = with_usual_layers({**self.cnn_config, **config}, space.shape or ())
            return self._build_part(EvolvableCNN, space.shape or (), layers, seed)
        return self._make_mlp(int(spaces.flatdim(space)), config, seed)

    def _make_mlp(self, width: int, config: dict[str, Any], seed: int) -> EvolvableMLP:
        usual: dict[str, Any] = {"hidden_size": [64], "output_vanish": False}
        return cast(EvolvableMLP, self._build_part(EvolvableMLP, width, {**usual, **self.mlp_config, **config}, seed))

    def _build_part(self, cls: Any, inputs: object, config: dict[str, Any], seed: int) -> Any:
        activations = {"activation": self.activation, "output_activation": self.activation}
        return cls(inputs, self.latent_dim, **{**activations, **config}, device=self._device, random_seed=seed)

    def _part_modules(self) -> dict[str, Any]:
        """Return the networks of all parts by name, in the order of their concatenated features."""
        modules: dict[str, Any] = dict(self.feature_net.items())
        return {**modules, VECTOR_MLP: self.vector_mlp} if self.vector_keys else modules

    def layers(self) -> dict[str, Layer]:
        """Return `linear_output` over the features of all parts."""
        width = len(self._part_modules()) * self.latent_dim
        output = linear((("output", self.num_outputs),), (("features", width),), orthogonal(2**0.5))
        return {OUTPUT: output, "act_output": activation_layer(self.output_activation, hidden=False)}

    def _inputs(self, x: Any) -> dict[str, Any]:
        """Return name of the part -> its input."""
        missing = [key for key in (*self.part_names, *self.vector_keys) if key not in x.keys()]  # noqa: SIM118
        if missing:
            raise ShapeError(f"{self.name} got an observation without {missing}; it has {sorted(x.keys())}")
        inputs = {name: x[key] for key, name in self.part_names.items()}
        if self.vector_keys:
            inputs[VECTOR_MLP] = torch.cat([self.as_input(x[key]) for key in self.vector_keys], dim=-1)
        return inputs

    def output_features(self, x: Tree) -> Tensor:
        """Return the concatenated features of all parts [..., parts * latent_dim]."""
        inputs = self._inputs(x)
        return torch.cat([module(inputs[name]) for name, module in self._part_modules().items()], dim=-1)

    def forward(self, x: Mapping[str, Any]) -> Tensor:
        """Map parts by key, [..., I] (one-hot if discrete) or [..., C, H, W] -> [..., O]."""
        return self.finish(self.output_features(x))

    # -- as dense stacks, if all encoded parts of the space are vectors ------------------------------------------------

    def flat(self, x: Mapping[str, Any]) -> Tensor:
        """Concatenate the parts' inputs [..., I], in the order of the parts: the input of `features_by`."""
        inputs, modules = self._inputs(x), self._part_modules()
        vectors = [m.flat(inputs[n]) if isinstance(m, EvolvableMultiInput) else inputs[n] for n, m in modules.items()]
        return torch.cat(vectors, dim=-1)

    @property
    def flat_width(self) -> int:
        """Number of inputs of all parts."""
        modules = self._part_modules().values()
        return sum(m.flat_width if isinstance(m, EvolvableMultiInput) else m.num_inputs for m in modules)

    def dense_parts(self, path: str = "") -> dict[str, DenseStack] | None:
        """Return the stack of each part by its name, and of the output layer by `OUTPUT`, in execution order; None if
        one contains more than dense layers, as for images."""
        if any(getattr(type(self), name) is not getattr(EvolvableMultiInput, name) for name in RUN_BY):
            return None
        stacks: dict[str, DenseStack] = {}
        for name, module in self._part_modules().items():
            inside = isinstance(module, EvolvableMultiInput)
            part_stacks = module.dense_parts(f"{path}{name}.") if inside else {f"{path}{name}": module.dense_stack()}
            if part_stacks is None or any(s is None or s.layers[0].window for s in part_stacks.values()):
                return None
            stacks |= part_stacks
        if not known_activation(self.output_activation).pointwise:
            return None
        last, kind = self.model.get_submodule(OUTPUT), self.output_activation
        width = len(self._part_modules()) * self.latent_dim
        layer = DenseLayer(width, self.num_outputs, None if kind in (None, "Identity") else kind)
        parameters = (last.get_parameter("weight"), last.get_parameter("bias"))
        return {**stacks, f"{path}{OUTPUT}": DenseStack((layer,), (parameters,))}

    def features_by(self, parts: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor, path: str = "") -> Tensor:
        """Compute `forward` from flat inputs [..., I] and the functions of `dense_parts`."""
        start, features = 0, []
        for name, module in self._part_modules().items():
            inside = isinstance(module, EvolvableMultiInput)
            end = start + (module.flat_width if inside else module.num_inputs)
            inputs, start = x[..., start:end], end
            features.append(
                module.features_by(parts, inputs, f"{path}{name}.") if inside else parts[f"{path}{name}"](inputs)
            )
        return parts[f"{path}{OUTPUT}"](torch.cat(features, dim=-1))

    def probe(self, inputs: Tree | None) -> None:
        """Store inputs by key [B, ...], here and in the parts; None clears them."""
        super().probe(inputs)
        part_inputs = None if inputs is None else self._inputs(self.probe_inputs)
        for name, module in self._part_modules().items():
            module.probe(None if part_inputs is None else part_inputs[name])

    def short(self) -> str:
        inside = ", ".join(f"{name}: {module.short()}" for name, module in self._part_modules().items())
        return f"multi {self.latent_dim} ({inside})"

    def get_init_dict(self) -> dict[str, Any]:
        parts = {name: module.net_config for name, module in self._part_modules().items()}
        arguments = {k: v for k, v in super().get_init_dict().items() if k != "lstm_config"}
        return {**arguments, "init_dicts": parts}

    @mutation(MutationType.NODE)
    def add_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen the features of every part (by 8, 16 or 32 if not given); exact unless a part normalises its output.
        Returns {"numb_new_nodes": features added}; 0 if the limit left no room."""
        count = self.drawn("latent_node", numb_new_nodes)
        if count == 0:
            return Refused(numb_new_nodes=0)
        self._move_features({name: grown(self.latent_dim, count) for name in self._part_modules()}, count)
        return {"numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_latent_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove the least important features of every part and refit the output layer. See `add_latent_node`."""
        count = self.drawn("latent_node", numb_new_nodes, -1)
        if count == 0:
            return Refused(numb_new_nodes=0)
        self._change.target = self.output_target()
        scores = zip(self._part_modules(), self._importance(), strict=True)
        self._move_features({name: self.remaining(score, count) for name, score in scores}, -count)
        return {"numb_new_nodes": count}

    def recreate_network(self, **kwargs: Any) -> None:
        """Rebuild the layers; the parts change the width of their features first."""
        pending, self._latent_index = self._latent_index, {}
        modules = self._part_modules()
        for name, index in pending.items():
            modules[name].resize_outputs(index)
        super().recreate_network(**kwargs)
        for name in pending:
            path = name if name == VECTOR_MLP else f"feature_net.{name}"
            self.last_transfer |= prefixed(path, modules[name].last_transfer)

    def set_activation(self, activation: str) -> None:
        """Set the activation of the parts and of their features."""
        for module in self._part_modules().values():
            module.change_activation(activation, output=True)
        self.activation = activation

    def _move_features(self, indices: dict[str, Index], change: int) -> None:
        self._latent_index = indices
        places = [np.where(index < 0, -1, index + i * self.latent_dim) for i, index in enumerate(indices.values())]
        self._change.groups["features"] = np.concatenate(places)
        self.latent_dim += change

    @torch.no_grad()
    def _importance(self) -> Tensor:
        """Return the importance of each feature of each part for the output layer [parts, latent_dim]."""
        output: Any = self.model[OUTPUT]
        strength: Tensor = output.weight.norm(dim=0)
        if self.probe_inputs is not None:
            strength = strength * self.output_features(self.probe_inputs).abs().mean(0)
        return strength.reshape(-1, self.latent_dim)


def _module_name(holder: ModuleDict, key: str) -> str:
    """Return the key as a module name for `holder`: without dots, and different from its attributes."""
    name = key.replace(".", "_") or "_"
    while hasattr(holder, name) or name == VECTOR_MLP:
        name += "_"
    return name
