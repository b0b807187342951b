"""Policies: deterministic for continuous actions, stochastic for every space, optionally with a state value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agilerl.core.signatures import also_takes
from agilerl.core.spaces import mask_width
from agilerl.core.tree import Tree
from agilerl.errors import AlgorithmError, ConfigError, unknown_choice
from agilerl.modules.layers import DenseStack
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import ActionDistribution, distribution_of, squashed_normal_sample
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options
from agilerl.networks.stacks import FEATURES, OUTPUT, Run, dense_stacks, module_parts, overrides, recurrent_parts

HEADS = ("head_net", "value_net")  # of a policy with a state value
ACTION_SCALINGS = ("bounds", "none")
OUTPUT_BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("Tanh", "Softsign"), (-1.0, 1.0)),
    **dict.fromkeys(("Sigmoid", "Softmax", "GumbelSoftmax"), (0.0, 1.0)),
}
"""Activations with a bounded range, which is mapped to the bounds of the actions."""


def get_output_bounds(output_activation: str) -> tuple[float, float]:
    """Return the lowest and highest output of an activation.
    Raises ConfigError: the activation is unknown or unbounded."""
    if output_activation not in OUTPUT_BOUNDS:
        raise ConfigError(unknown_choice("bounded output activation", str(output_activation), OUTPUT_BOUNDS))
    return OUTPUT_BOUNDS[output_activation]


def rescale_action(action: Tree, low: object, high: object, output_activation: str = "Tanh") -> Any:
    """Rescale actions from the range of `output_activation` to [low, high], by one affine map per component.

    Args:
        action: [..., A] numpy or torch; the result has the same type, and the dtype of the bounds. Values outside of
            the range map outside of the bounds. Integers are rounded.
        low, high: [A]; a component with an infinite bound is unchanged.
        output_activation: activation that defines the range of `action`.
    """
    lowest, highest = get_output_bounds(output_activation)
    bounds = [np.asarray(b.detach().cpu() if isinstance(b, Tensor) else b) for b in (low, high)]
    dtype = torch.from_numpy(np.empty(0, bounds[0].dtype)).dtype
    # float64 internally: high - low overflows float32 for the widest boxes.
    bottom, top = (np.asarray(b, np.float64) for b in bounds)
    finite = np.isfinite(bottom) & np.isfinite(top)
    bottom, width = np.where(finite, bottom, 0.0), np.where(finite, top, 1.0) - np.where(finite, bottom, 0.0)
    if isinstance(action, Tensor):
        raw = action.double()
        start, extent, keep = (torch.as_tensor(v, device=raw.device) for v in (bottom, width, ~finite))
        scaled = torch.where(keep, raw, start + (raw - lowest) / (highest - lowest) * extent)
        return (scaled if dtype.is_floating_point else scaled.round()).to(dtype)
    x = np.asarray(action, np.float64)
    mapped = np.where(finite, bottom + (x - lowest) / (highest - lowest) * width, x)
    return (mapped if dtype.is_floating_point else np.rint(mapped)).astype(bounds[0].dtype)


def box_action(action: np.ndarray, low: np.ndarray, high: np.ndarray, kind: ActionDistribution) -> np.ndarray:
    """Convert Box actions to the environment's format: rescaled to the bounds if squashed, rounded and clipped.

    Args:
        action: [..., *shape] in units of the space, or in [-1, 1] if squashed.
        low, high: [*shape]. kind: their distribution.

    Returns:
        [..., *shape] in the dtype of `action`, or of the bounds if squashed.
    """
    if kind.kind == "squashed":
        bounds = (low, high) if not kind.rounds else (low.astype(np.float64), high.astype(np.float64))
        action = rescale_action(action, *bounds)
    clipped: np.ndarray = np.clip(np.rint(action) if kind.rounds else action, low, high)
    return clipped


class DeterministicActor(EvolvableNetwork):
    """μ(s): observations [..., O] -> raw actions [..., A] in the range of its output activation, [-1, 1] by default.

    `rescale_action` maps them to the bounds of the space. Arguments as `EvolvableNetwork`; the head's
    `output_activation` is Tanh unless another bounded one is given. For Discrete and MultiDiscrete actions the output
    is logits [..., ΣA], component by component: the action is their argmax, or a Gumbel-softmax sample.

    Attributes:
        action_low, action_high: [A] float64 bounds of a Box, flattened; None for discrete actions.

    Raises:
        AlgorithmError: unsupported action space, or an infinite bound.
    """

    @takes_options("observation_space", "action_space", *BY_POSITION)
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.action_low: np.ndarray | None = None
        self.action_high: np.ndarray | None = None
        if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
            super().__init__(observation_space, action_space=action_space, **vars(options))
            self._head_config["output_activation"], self.output_activation = None, "GumbelSoftmax"
            self.build_head(mask_width(action_space))
            return
        if not isinstance(action_space, spaces.Box):
            raise AlgorithmError(f"DeterministicActor takes Box or (Multi)Discrete; got {action_space}. fix: PPO.")
        check_bounded(action_space, "DeterministicActor")
        super().__init__(observation_space, action_space=action_space, **vars(options))
        self._head_config["output_activation"] = self._head_config.get("output_activation") or "Tanh"
        self.output_activation = str(self._head_config["output_activation"])
        self.raw_bounds = get_output_bounds(self.output_activation)
        bounds = (action_space.low, action_space.high)
        self.action_low, self.action_high = (np.asarray(bound, np.float64).ravel() for bound in bounds)
        self.build_head(len(self.action_low))

    @staticmethod
    def rescale_action(action: Tree, low: object, high: object, output_activation: str = "Tanh") -> Any:
        """Map raw actions to the bounds of a space; see `rescale_action` of this module."""
        return rescale_action(action, low, high, output_activation)

    @staticmethod
    def get_output_bounds(output_activation: str) -> tuple[float, float]:
        """Return the lowest and highest output of an activation."""
        return get_output_bounds(output_activation)


def check_bounded(space: Any, owner: str) -> None:
    """Raise AlgorithmError, naming the components, if a bound of the Box is infinite."""
    open_ended = ~(np.isfinite(space.low) & np.isfinite(space.high))
    if open_ended.any():
        raise AlgorithmError(
            f"{owner} needs bounded actions; got {space}, with infinite bounds in {int(open_ended.sum())} of "
            f"{open_ended.size} components. fix: gymnasium.wrappers.RescaleAction, or a Box with finite low and high."
        )


class StochasticActor(EvolvableNetwork):
    """π(·|s): observations [..., O] -> raw output [..., raw_size] of the distribution over actions.

    The raw output is mean and log standard deviation for Box (2A), logits for the discrete spaces; see `distribution`
    for sampling. `forward` samples with random numbers from the network's own generator.

    Args:
        squash_output: pass actions of a Box through tanh; they lie in [-1, 1], and `scale_action` maps them to the
            bounds.
        log_std_init: initial log standard deviation of a Box action, given by the head's bias, in the units of
            `action_scaling`.
        action_scaling: "bounds": mean and standard deviation of Box actions are in units of half of each component's
            range, around its centre, and integer actions are rounded to the nearest. "none": they are in units of the
            space, around 0, and integer actions are truncated. Components without two finite bounds always use units of
            the space; so do specifications without this key (`from_spec`).

    See `EvolvableNetwork` for the other arguments.
    """

    stack_methods = ("output", "extract_features")  # used by `output`; `forward` samples
    outputs_apart = True  # `forward` samples

    @also_takes(action_std_init="log_std_init")
    @takes_options("observation_space", "action_space", *BY_POSITION[:3])
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any],
        options: NetworkOptions = DEFAULT_OPTIONS, squash_output: bool = False,
        log_std_init: float = 0.0, action_scaling: str = "bounds",
    ) -> None:  # fmt: skip
        if squash_output and not isinstance(action_space, spaces.Box):
            raise ConfigError(f"squash_output=True is for Box actions; got {action_space}. fix: leave it out.")
        super().__init__(observation_space, action_space=action_space, **vars(options))
        if self._head_config.get("output_activation") is not None:
            raise ConfigError(
                "StochasticActor: head_config['output_activation'] must be None, because the head gives means and "
                f"logits; got {self._head_config['output_activation']!r}. fix: squash_output=True for bounded actions."
            )
        if squash_output:
            check_bounded(action_space, "StochasticActor with squash_output")  # type: ignore[arg-type]
        self.squash_output, self.log_std_init = bool(squash_output), float(log_std_init)
        self.action_scaling = action_scaling
        self.build_head(self.distribution.raw_size)
        with torch.no_grad():
            bias = self.head_net.model.get_submodule("linear_output").get_parameter("bias")
            for columns in self.distribution.log_std_columns():
                bias[columns] += self.log_std_init

    @property
    def distribution(self) -> ActionDistribution:
        """Distribution parameterised by the raw output."""
        return self._distribution

    @property
    def action_scaling(self) -> str:
        """Units of Box actions: "bounds" or "none"."""
        return self._action_scaling

    @action_scaling.setter
    def action_scaling(self, scaling: str) -> None:
        assert self.action_space is not None
        if scaling not in ACTION_SCALINGS:
            raise ConfigError(unknown_choice("action_scaling", str(scaling), ACTION_SCALINGS))
        self._action_scaling = scaling
        self._distribution = distribution_of(self.action_space, self.squash_output, scaling == "bounds")

    def spec(self) -> dict[str, Any]:
        """Return the specification; includes `action_scaling` if it makes a difference."""
        assert self.action_space is not None
        data = {name: value for name, value in super().spec().items() if name != "action_scaling"}
        is_scaled = self._distribution != distribution_of(self.action_space, self.squash_output)
        return {**data, "action_scaling": self._action_scaling} if is_scaled else data

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """Build from a specification; without `action_scaling`, as in older ones, actions are in units of the space."""
        data = {name: value for name, value in spec.items() if name != "action_scaling"}
        actor = super().from_spec(data, **arguments)
        actor.action_scaling = str(spec.get("action_scaling", "none"))
        return actor

    def forward(self, obs: Tree, action_mask: Tree | None = None) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return (action [..., *], log probability [...], entropy [...]) of one sample per row.

        The entropy of a squashed normal is estimated by −log π of the sample.

        action_mask: [..., W] 1 = legal, for the discrete spaces; see `ActionDistribution.mask_width`."""
        return self.sampled(self.output(obs), action_mask)

    def sampled(self, raw: Tensor, action_mask: Tree | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sample as `forward`, from the raw output [..., raw_size]."""
        kind = self.distribution
        mask = None if action_mask is None else torch.as_tensor(np.array(action_mask), device=raw.device)
        generator = self.generator()
        parts = kind.draw(
            lambda shape: torch.randn(shape, generator=generator), lambda shape: torch.rand(shape, generator=generator),
            tuple(raw.shape[:-1]),
        )  # fmt: skip
        numbers = (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).to(raw)
        if kind.kind == "squashed":
            action, log_prob = squashed_normal_sample(raw, numbers)
            return action, log_prob, -log_prob
        action = kind.sample(raw, numbers, mask)
        return action, kind.log_prob(raw, action.detach(), mask), kind.entropy(raw, mask)

    def action_log_prob(self, obs: Tree, action: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Return log π(action | obs) [...], differentiable in the network's parameters."""
        return self.distribution.log_prob(self.output(obs), action, action_mask)

    def scale_action(self, action: Tree) -> Any:
        """Map squashed actions [..., A] in [-1, 1] to the bounds of the Box."""
        assert isinstance(self.action_space, spaces.Box)
        return rescale_action(action, self.action_space.low.ravel(), self.action_space.high.ravel(), "Tanh")


class SharedActorCritic(StochasticActor):
    """π(·|s) and V(s): `output` is the policy's raw output with the value as a last column, [..., raw_size + 1].

    Gradients of both losses are summed in the encoder; policy and value share its mutations. `forward` samples from the
    policy. See `StochasticActor` for the arguments.
    """

    def build_head(self, num_outputs: int) -> None:
        super().build_head(num_outputs)
        self.build_value_head(1)

    def combine(self, parts: Mapping[str, Run], *inputs: Any) -> Any:
        """Combine the parts to raw output and value [..., raw_size + 1]; see `EvolvableNetwork.combine`."""
        if not isinstance(self.encoder, EvolvableLSTM):
            return _both(parts, self.encode_by(parts, inputs[0]))
        heads: dict[str, Run] = {**parts, OUTPUT: lambda x: _both(parts, parts[FEATURES](x))}
        return super().combine(heads, *inputs)

    def output(self, obs: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> Any:
        """Return [..., raw_size + 1]; with a hidden state (output, next hidden state), as in every network."""
        x = self.preprocess(obs)
        parts: dict[str, Run] = {name: self.get_submodule(name) for name in HEADS}
        if hidden_state is not None:
            self._recurrent_encoder()
            return self.combine({**module_parts(self), **parts}, x, hidden_state)
        return _both(parts, self._encode(x))

    def forward(self, obs: Tree, action_mask: Tree | None = None) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        return self.sampled(self.output(obs)[..., :-1], action_mask)

    def effect_output(self, obs: Tree) -> Tensor:
        """Return the policy's raw output, used to measure the effect of mutations."""
        return cast(Tensor, self.output(obs)[..., :-1])

    def value(self, obs: Tree) -> Tensor:
        """Return V(s) [..., 1]."""
        return cast(Tensor, self.output(obs)[..., -1:])

    def dense_parts(self) -> dict[str, DenseStack] | None:
        if overrides(self, SharedActorCritic, "output", "combine"):
            return None
        if isinstance(self.encoder, EvolvableLSTM):
            return recurrent_parts(self, *HEADS)
        encoder = self.encoder_parts()
        return None if encoder is None else dense_stacks(self, {**encoder, **self._heads()})

    def dense_stack(self) -> DenseStack | None:
        return None  # more than one stack


def _both(parts: Mapping[str, Run], features: Tensor) -> Tensor:
    return torch.cat([parts[name](features) for name in HEADS], -1)


class ValueView(nn.Module):
    """State value of a shared network, used as a critic: observations [..., O] -> values [..., 1].

    Its parameters are those that the value depends on: the network's encoder and value head themselves, not copies.
    """

    network: SharedActorCritic

    def __init__(self, network: SharedActorCritic) -> None:
        super().__init__()
        object.__setattr__(self, "network", network)  # not a submodule: its policy head does not belong to the value
        self.encoder, self.value_net = network.encoder, network.value_net

    def forward(self, obs: Tree) -> Tensor:
        return self.network.value(obs)

    def clone(self) -> Self:
        """Return the value of an independent copy of the whole network."""
        return type(self)(self.network.clone())
