"""Action-value networks: for discrete actions, as return distributions, and for (state, action) pairs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.core.ranges import Positive, check
from agilerl.core.tree import Tree
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, ShapeError
from agilerl.modules.layers import DenseStack, noisy_layers
from agilerl.modules.morph import Index, prefixed
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import JointActions
from agilerl.networks.encoders import BY_POSITION, DEFAULT_OPTIONS, NetworkOptions, takes_options
from agilerl.networks.stacks import dense_stacks, overrides

PAIRINGS = 4  # actions by which each probe observation is refitted


class QNetwork(EvolvableNetwork):
    """Q(s, ·) for all joint actions of a Discrete or MultiDiscrete space: observations [..., O] -> values [..., A].

    See `JointActions` for their numbering. Arguments as `EvolvableNetwork`.

    Raises ValueError: unsupported action space, or too many combinations."""

    @takes_options("observation_space", "action_space", *BY_POSITION)
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:
        choices = JointActions.of(action_space, "QNetwork")
        super().__init__(observation_space, action_space=action_space, **vars(options))
        self.num_actions = choices.count
        self.build_head(self.num_actions)


class RainbowQNetwork(EvolvableNetwork):
    """Distributions of returns for every discrete action: observations [..., O] -> values [..., A].

    `output` gives logits [..., A, K] over the K atoms of the support (values [..., A] without `distributional`);
    `forward` gives the expected values. With `dueling` the head is two streams of equal shape, advantages (`head_net`)
    and state value (`value_net`), joined by q = v + a − mean_a a per atom (Wang et al. 2016, arXiv:1511.06581, eq. 9;
    Hessel et al. 2018, arXiv:1710.02298, section 3). Both mutate together, under the head's method names.

    Args:
        support: returns of the atoms [K], evenly spaced and increasing; None: `num_atoms` of them from `v_min` to
            `v_max`.
        num_atoms, v_min, v_max: the support if `support` is None.
        dueling, distributional: see above.
        noisy, noise_std: noisy linear layers in both streams, and their initial scale (arXiv:1706.10295).

    See `EvolvableNetwork` for the other arguments.

    Raises:
        AlgorithmError: the action space is not Discrete. ConfigError: invalid support.
    """

    @takes_options(
        "observation_space", "action_space", "support", "num_atoms", "noise_std", "encoder_config", "head_config",
        "min_latent_dim", "max_latent_dim", "latent_dim", "device", "random_seed",
    )  # fmt: skip
    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any],
        support: object = None, num_atoms: int = 51, noise_std: float = 0.5, options: NetworkOptions = DEFAULT_OPTIONS,
        v_min: float = 0.0, v_max: float = 200.0,
        dueling: bool = True, distributional: bool = True, noisy: bool = True,
    ) -> None:  # fmt: skip
        choices = JointActions.of(action_space, "RainbowQNetwork")
        super().__init__(observation_space, action_space=action_space, **vars(options))
        if support is not None:
            num_atoms, v_min, v_max = _range_of(support)
        self.num_atoms, self.v_min, self.v_max = check_support(num_atoms, v_min, v_max)
        self.num_actions = choices.count
        self.dueling, self.distributional = bool(dueling), bool(distributional)
        self.noisy, self.noise_std = bool(noisy), float(noise_std)
        self._head_config |= {"noisy": self.noisy, "noise_std": self.noise_std}
        self.build_head(self.num_actions * self._width)
        if self.dueling:
            self.build_value_head(self._width)
        self.reset_noise()

    @property
    def _width(self) -> int:
        """Number of outputs per action."""
        return self.num_atoms if self.distributional else 1

    @property
    def support(self) -> Tensor:
        """Support [K], in the network's dtype."""
        like = next(self.parameters())
        return torch.linspace(self.v_min, self.v_max, self.num_atoms, dtype=like.dtype, device=like.device)

    def get_init_dict(self) -> dict[str, Any]:
        return super().get_init_dict() | {"support": None}  # given by its three numbers

    def _streams(self) -> dict[str, Any]:
        return {"encoder": self.encoder, **self._heads()}

    def combine(  # type: ignore[override]
        self, parts: Mapping[str, Callable[[Tensor], Tensor]], obs: Tensor
    ) -> Tensor:
        """Compute logits [..., A, K] (values [..., A]) with the functions of the parts; obs preprocessed [..., in]."""
        features = self.encode_by(parts, obs)
        values = parts["head_net"](features)
        values = values.view(*values.shape[:-1], self.num_actions, self._width)
        if self.dueling:
            values = parts["value_net"](features).unsqueeze(-2) + values - values.mean(-2, keepdim=True)
        return values if self.distributional else values.squeeze(-1)

    def output(self, obs: Tree) -> Tensor:  # type: ignore[override]
        """Return logits [..., A, K] over the atoms, or values [..., A] without `distributional`."""
        return self.combine(self._streams(), self.preprocess(obs))

    def forward(self, obs: Tree, q: bool = True, log: bool = False) -> Tensor:  # type: ignore[override]
        """Return expected values [..., A]; with `q=False` the atoms' probabilities [..., A, K], with `log` their
        logarithms.

        Raises:
            ConfigError: probabilities requested without `distributional`.
        """
        output = self.output(obs)
        if q:
            return (output.softmax(-1) * self.support).sum(-1) if self.distributional else output
        if not self.distributional:
            raise ConfigError("RainbowQNetwork(distributional=False) has no distribution. fix: forward(obs).")
        return output.log_softmax(-1) if log else output.softmax(-1)

    def effect_output(self, obs: Tree) -> Tensor:
        """Return the expected values [..., A], not the logits, used to measure the effect of mutations."""
        return self.forward(obs)

    def dense_parts(self) -> dict[str, DenseStack] | None:
        encoder = self.encoder_parts()
        if encoder is None or overrides(self, RainbowQNetwork, "output", "combine"):
            return None
        return dense_stacks(self, {**encoder, **self._heads()})

    def reset_noise(self) -> None:
        """Resample the noise of all noisy layers."""
        for mlp in self._heads().values():
            mlp.reset_noise()

    @torch.no_grad()
    def set_noise_std(self, noise_std: float) -> None:
        """Scale all learned noise by new / old; growth samples noise at the new scale."""
        check("noise_std", noise_std, Positive, 0.5)
        factor, self.noise_std = float(noise_std) / self.noise_std, float(noise_std)
        self._head_config["noise_std"] = self.noise_std
        for mlp in self._heads().values():
            mlp.noise_std = self.noise_std
            for layer in noisy_layers(mlp):
                layer.noise_std = self.noise_std
                layer.weight_sigma.mul_(factor)
                layer.bias_sigma.mul_(factor)

    @torch.no_grad()
    def set_num_atoms(self, num_atoms: int) -> None:
        """Change the number of atoms over the same range.

        The logits of a new atom are linearly interpolated between the two surrounding old atoms, which preserves the
        shape of the distributions; optimiser moments (`last_transfer`) come from the nearest old atom.
        """
        check_support(num_atoms, self.v_min, self.v_max)
        old, self.num_atoms = self.num_atoms, int(num_atoms)
        self.last_transfer, self.last_refit = {}, True
        if not self.distributional or old == self.num_atoms:
            return
        place = np.linspace(0, old - 1, self.num_atoms)
        below = np.minimum(place.astype(np.int64), old - 2)
        share = torch.as_tensor(place - below)
        for name, mlp in self._heads().items():
            blocks = mlp.num_outputs // old
            start = np.repeat(np.arange(blocks, dtype=np.int64) * old, self.num_atoms)
            lower, fraction = start + np.tile(below, blocks), share.repeat(blocks)
            before = {n: p.detach().clone() for n, p in mlp.model.get_submodule("linear_output").named_parameters()}
            nearest: Index = start + np.tile(np.rint(place).astype(np.int64), blocks)
            mlp.resize_outputs(nearest)
            for key, parameter in mlp.model.get_submodule("linear_output").named_parameters():
                t = fraction.to(parameter).reshape(-1, *[1] * (parameter.dim() - 1))
                parameter.copy_(torch.lerp(before[key][lower], before[key][lower + 1], t))
            self.last_transfer |= prefixed(name, mlp.last_transfer)
        self.reset_noise()


def check_support(num_atoms: float, v_min: float, v_max: float) -> tuple[int, float, float]:
    """Validate and return the three numbers of a support.
    Raises ConfigError: fewer than two atoms, or an empty range."""
    if isinstance(num_atoms, bool) or int(num_atoms) != num_atoms or num_atoms < 2:
        raise ConfigError(f"num_atoms must be an integer of at least 2; got {num_atoms!r}. fix: 51.")
    if not v_min < v_max or not np.isfinite([v_min, v_max]).all():
        raise ConfigError(
            f"v_min must lie below v_max, both finite; got {v_min!r} and {v_max!r}. "
            "fix: the smallest and the largest discounted return; as mutable ranges, two that do not overlap."
        )
    return int(num_atoms), float(v_min), float(v_max)


def _range_of(support: object) -> tuple[int, float, float]:
    atoms = np.asarray(support.detach().cpu() if isinstance(support, Tensor) else support, np.float64).ravel()
    if len(atoms) < 2 or not np.allclose(np.diff(atoms), (atoms[-1] - atoms[0]) / (len(atoms) - 1), rtol=1e-3):
        raise ConfigError("support must be evenly spaced. fix: torch.linspace(v_min, v_max, num_atoms).")
    return len(atoms), float(atoms[0]), float(atoms[-1])


class ContinuousQNetwork(EvolvableNetwork):
    """Q(s, a): observations [..., O] and actions [..., A] -> values [..., 1].

    The encoder reads the observation, the head its features and the action. Discrete actions are accepted too, as
    integers [...] (one-hot encoded) or as A weights [..., A].

    LayerNorm in the encoder is disabled with a warning: normalised features next to raw actions are known to make value
    estimates unstable. Arguments as `EvolvableNetwork`.

    Raises AlgorithmError: actions that are neither Box nor Discrete."""

    _probe_actions: Tensor | None = None

    @takes_options("observation_space", "action_space", *BY_POSITION)
    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        options: NetworkOptions = DEFAULT_OPTIONS,
    ) -> None:
        if not isinstance(action_space, spaces.Box | spaces.Discrete):
            raise AlgorithmError(f"ContinuousQNetwork takes Box or Discrete actions; got {action_space}. fix: PPO.")
        changed = dataclasses.replace(options, encoder_config=_without_layer_norm(options.encoder_config))
        super().__init__(observation_space, action_space=action_space, **vars(changed))
        self.num_actions = self.num_beside = int(spaces.flatdim(action_space))
        self.build_head(1)

    def probe(self, inputs: Tree | None, actions: Tensor | None = None) -> None:
        """Set observations [B, ...] by which mutations measure importance, and the actions taken in them.

        Args:
            actions: as the head reads them, [B, A], or [K, B, A] of K agents. None: uniform ones.
        """
        self._probe_actions = actions
        super().probe(inputs)

    def _head_inputs(self, features: Tensor) -> Tensor:
        """Return features with actions as probe inputs [P·B, F + A]: the taken ones and those of other observations.

        In actions that depend on the features alone, as those of a policy, a refit would mix the weights of both.
        """
        actions = self._probe_actions
        if actions is not None:
            actions = torch.cat([actions.roll(shift, -2) for shift in range(PAIRINGS)]).flatten(0, -2)
        else:
            low, high = getattr(self.encoder_source, "raw_bounds", (-1.0, 1.0))
            generator = torch.Generator().manual_seed(self.random_seed % 2**63)
            actions = low + (high - low) * torch.rand(len(features), self.num_actions, generator=generator)
        return _beside(features, actions.to(features))

    def prepare_action(self, action: Tree) -> Tensor:
        """Convert actions (numpy or torch) to head input [..., A] in the network's dtype."""
        like = next(self.parameters())
        x = torch.as_tensor(np.asarray(action) if not isinstance(action, Tensor) else action, device=like.device)
        if isinstance(self.action_space, spaces.Discrete) and not x.is_floating_point():
            x = F.one_hot(x.long() - int(self.action_space.start), self.num_actions)
        elif isinstance(self.action_space, spaces.Box) and len(self.action_space.shape) != 1:
            lead = x.shape[: x.dim() - len(self.action_space.shape)]
            x = x if x.shape[-1:] == (self.num_actions,) else x.reshape(*lead, self.num_actions)
        if x.shape[-1:] != (self.num_actions,):
            raise ShapeError(
                f"ContinuousQNetwork got actions of shape {tuple(x.shape)}; its space is {self.action_space}. "
                f"fix: [..., {self.num_actions}], one row per observation."
            )
        x = x.to(like.dtype)
        return x.unsqueeze(0) if x.dim() == 1 else x

    def combine(  # type: ignore[override]
        self, parts: Mapping[str, Callable[[Tensor], Tensor]], obs: Tensor, action: Tensor
    ) -> Tensor:
        """Compute values [..., B, 1] with the functions of encoder and head; obs preprocessed [..., B, in], action
        [..., B, A].

        Actions [..., K·B, A] are K for each observation, one batch after another: the encoding is computed once.
        """
        encoder = parts.get("encoder")  # `encode_by` inlined: it runs in every update
        features = self.encoder.features_by(parts, obs) if encoder is None else encoder(obs)
        if features.shape[-2] == action.shape[-2]:
            return parts["head_net"](torch.cat((features, action), -1))
        run: Callable[..., Tensor] = parts["head_net"]
        return run(_beside(features, action)) if isinstance(run, nn.Module) else run(features, action)

    def output(self, obs: Tree, action: Tree) -> Tensor:  # type: ignore[override]
        """Return values [..., 1]; the actions may have any form that `prepare_action` accepts."""
        if self.encoder_source is not None:
            return self.from_features(self.extract_features(obs), action)
        parts = {"encoder": self.encoder, "head_net": self.head_net}
        return self.combine(parts, self.preprocess(obs), self.prepare_action(action))

    def from_features(self, features: Tensor, action: Tree) -> Tensor:  # type: ignore[override]
        """Return `output` from the features [..., latent_dim] of its observations."""
        values: Tensor = self.head_net(_beside(features, self.prepare_action(action)))
        return values

    def forward(self, obs: Tree, actions: Tree) -> Tensor:  # type: ignore[override]
        return self.output(obs, actions)

    def dense_parts(self) -> dict[str, DenseStack] | None:
        if self.encoder_source is not None:
            return self.head_alone()
        encoder = self.encoder_parts()
        if encoder is None or overrides(self, ContinuousQNetwork, "output", "combine"):
            return None
        return dense_stacks(self, {**encoder, "head_net": self.head_net})


def _beside(features: Tensor, action: Tensor) -> Tensor:
    """Concatenate features [..., B, F] with the actions [..., K·B, A] of their observations: [..., K·B, F + A]."""
    if features.shape[-2] == action.shape[-2]:
        return torch.cat((features, action), -1)
    rows = action.reshape(*action.shape[:-2], -1, features.shape[-2], action.shape[-1])
    alike = features.unsqueeze(-3).expand(*rows.shape[:-1], features.shape[-1])
    return torch.cat((alike, rows), -1).flatten(-3, -2)


def _without_layer_norm(config: Any) -> Any:
    """Return the encoder configuration with LayerNorm off; a typed one keeps its type, which determines the encoder."""
    is_typed = dataclasses.is_dataclass(config) and not isinstance(config, type)
    options = vars(config) if is_typed else config if isinstance(config, Mapping) else {}
    normed = {name: False for name in ("layer_norm", "output_layernorm") if options.get(name)}
    if not normed:
        return config
    warnings.warn(
        "Layer normalization is not supported for the encoder of DDPG networks and is turned off in the critic "
        "(TD3 and SAC too). fix: layer_norm=False.",
        AgileRLWarning,
        stacklevel=5,
    )
    return dataclasses.replace(config, **normed) if is_typed else {**config, **normed}
