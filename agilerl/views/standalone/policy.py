"""A trained policy in plain PyTorch: needs only torch and safetensors.

    from policy import load
    policy = load("best")                # the folder with policy.json and policy.safetensors
    action = policy.act(observations)    # [B, ...] -> greedy environment actions [B, ...]
    action = policy.act(observations, mask)    # [B, A], 1 = legal: if it was trained with action masks

For a team, observations, masks and actions are dictionaries by agent; agents that are left out do not act. The names
are those of `agent.act`.

Covers dense encoders (with LayerNorm or noisy layers) over Box, Discrete, MultiDiscrete and MultiBinary observations,
convolutions over images [C, H, W] or [H, W, C], Dict and Tuple observations of all of these, texts (strings, or their
word counts), and Dict and Tuple actions, for networks of `NETWORKS`: those of all algorithms but language models.
Recurrent and other encoders are a `PolicyError`, and a run of one does not write this file. Copy it wherever you need
it.
"""

from __future__ import annotations

import json
import math
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

_PLAIN = ["ReLU", "ELU", "GELU", "SiLU", "Mish", "Tanh", "LeakyReLU", "Sigmoid", "Softplus", "Softsign", "Identity"]
ACTIVATIONS: dict[str, Any] = {name: getattr(nn, name) for name in _PLAIN}
ACTIVATIONS |= {"Softmax": lambda: nn.Softmax(dim=-1), "LogSoftmax": lambda: nn.LogSoftmax(dim=-1)}
RANGES = {"Tanh": (-1.0, 1.0), "Softsign": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0)}
LARGEST = 2**20  # features, units or atoms
MAX_HIDDEN_LAYERS = 64  # hidden layers
ENSEMBLE = "Ensemble"  # of networks, by name
BY_ARM = "RewardNetwork"  # of a bandit: one output for the context of each arm
QUANTILES = "QuantileQNetwork"  # whose values are means over quantiles
NETWORKS = (
    "QNetwork",
    QUANTILES,
    "RainbowQNetwork",
    "DeterministicActor",
    "StochasticActor",
    "SharedActorCritic",
    BY_ARM,
)
DENSE, IMAGES, PARTS = "EvolvableMLP", "EvolvableCNN", "EvolvableMultiInput"  # supported encoders
JOINED = "vector_mlp"  # the joint encoder of all vectors of an observation, if any
SIMPLE = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
LARGEST_PARTS = 1_000  # of a Dict or Tuple
MAX_HALF_RANGE = torch.finfo(torch.float32).max / 2  # of Box actions; a larger range counts as infinite
LARGEST_INPUT = 10.0  # of an observation in standard deviations


class PolicyError(ValueError):
    """The files are damaged, or the policy is not covered by this loader."""


def load(folder: str | Path = ".") -> Any:
    """Load the `Policy` or `TeamPolicy` from a folder with policy.json and policy.safetensors; PolicyError: missing,
    damaged or not covered."""
    path = Path(folder)
    try:
        spec = json.loads((path / "policy.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "policy.safetensors")
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"no policy can be read from {path} ({error}). fix: copy both files again.") from error
    except Exception as error:  # safetensors has its own exception class
        raise PolicyError(f"{path / 'policy.safetensors'} is damaged ({error}). fix: copy it again.") from error
    weights = {name.removeprefix("policy."): value for name, value in tensors.items() if name.startswith("policy.")}
    return policy_of(spec, weights)


def policy_of(spec: Any, weights: dict[str, Tensor]) -> Policy | TeamPolicy:
    """Build the policy of one agent or of a team, by the content of policy.json; PolicyError: not covered."""
    is_team = isinstance(spec, dict) and "networks" in spec
    return TeamPolicy(spec, weights) if is_team else build(spec, weights)


class TeamPolicy:
    """Policies of several agents; agents of a group share one.

    Attributes:
        policies: group -> `Policy`. groups: agent -> group.
    """

    def __init__(self, spec: dict[str, Any], weights: dict[str, Tensor]) -> None:
        try:
            self.groups = {agent: group for group, agents in spec["groups"].items() for agent in agents}
            specs = {group: {**spec, "network": network} for group, network in spec["networks"].items()}
            missing = [agent for agent, group in self.groups.items() if group not in specs]
        except (KeyError, TypeError, AttributeError) as error:
            raise PolicyError(f"policy.json does not say who is in the team ({error}).") from error
        if missing or not specs:
            raise PolicyError(f"policy.json has no network for {missing or 'anyone'}.")
        self.policies = {
            group: build({**policy_spec, "action_masks": False}, _part(weights, group, specs))
            for group, policy_spec in specs.items()
        }
        self.needs_mask = bool(spec.get("action_masks", False))

    def act(
        self, obs: dict[str, Any], mask: dict[str, Any] | None = None, *, action_masks: dict[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """Greedy actions of the observed agents, see `Policy.act`; masks may be missing for some agents.

        `action_masks`: earlier name of `mask`.
        """
        unknown = [agent for agent in obs if agent not in self.groups]
        if unknown:
            raise PolicyError(f"unknown agent {unknown[0]!r} (known: {', '.join(self.groups)}).")
        masks = action_masks if mask is None else mask
        if self.needs_mask and masks is None:
            _warn_without_mask("{agent: mask}", 3)
        masks = masks or {}
        return {agent: self.policies[self.groups[agent]].act(seen, masks.get(agent)) for agent, seen in obs.items()}

    __call__ = act


def _part(weights: dict[str, Tensor], group: str, groups: Iterable[str]) -> dict[str, Tensor]:
    """The weights of one group; names may contain dots, so that "bot" and "bot.0" may both be groups."""
    start = f"{group}."
    others = tuple(f"{other}." for other in groups if other.startswith(start))
    group_weights = {
        name: value for name, value in weights.items() if name.startswith(start) and not name.startswith(others)
    }
    return {name.removeprefix(start): value for name, value in group_weights.items()}


def build(spec: dict[str, Any], weights: dict[str, Tensor]) -> Policy:
    """Build the policy of a specification with these weights, in evaluation mode."""
    try:
        if spec["network"].get("class") == ENSEMBLE:
            networks = spec["network"]["members"]
            members = [build({**spec, "network": networks[key]}, _part(weights, key, networks)) for key in networks]
            for member, network in zip(members, networks.values(), strict=True):
                member.support = network.get("v_min", 0) - 0.0, network.get("v_max", 0) - 0.0
            members[0].others = nn.ModuleList(members[1:])
            return members[0]
        policy = Policy(spec)
        unused = "value_net." if policy.kind == "SharedActorCritic" else "-"
        wanted = {
            n: w for n, w in weights.items()
            if not n.endswith(("_sigma", "noise_in", "noise_out")) and not n.startswith(unused)
        }  # fmt: skip
        policy.load_state_dict(wanted, assign=True)  # the layers are on the meta device
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError) as error:
        raise PolicyError(f"policy.json and policy.safetensors do not fit together ({error}).") from error
    return policy.eval()


class Policy(nn.Module):
    """Observations to greedy actions, by the content `spec` of policy.json."""

    centre: Tensor
    factor: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.others = nn.ModuleList()  # further members of an ensemble, whose mean output decides
        network = spec["network"]
        self.kind, self.space, self.actions = network["class"], network["observation_space"], network["action_space"]
        self.single = "spaces" not in self.actions
        _check(network)
        self.arms = (_size(self.actions["n"]),) if self.kind == BY_ARM else ()
        self.needs_mask = bool(spec.get("action_masks", False))
        self.stochastic = self.kind in ("StochasticActor", "SharedActorCritic")
        self.by_component = self.stochastic or self.kind == "DeterministicActor"  # logits per component
        self.squashed = bool(network.get("squash_output", False))
        self.in_bounds = network.get("action_scaling", "none") == "bounds"  # means are in units of half a range
        encoder, head, latent = network["encoder_config"], network["head_config"], _size(network["latent_dim"])
        self.scaled = bool(network.get("scale_observations", False))
        self.distributional = bool(network.get("distributional", False))
        self.dueling = self.kind == "RainbowQNetwork" and bool(network.get("dueling", False))
        self.atoms = _size(network.get("num_atoms", 1)) if self.distributional else 1
        self.atoms = _size(network["num_quantiles"]) if self.kind == QUANTILES else self.atoms
        self.support = 0.0, self.atoms - 1.0  # one policy chooses by indices of atoms, an ensemble by returns
        kind = network.get("encoder_cls", DENSE)
        self.divided = bool(network.get("normalize_images", True))
        self.encoder = _encoder(self.space, kind, encoder, latent)
        self.nested, self.seen = kind == PARTS, kind == IMAGES
        self.head_net = nn.ModuleDict({"model": _dense(latent, head, self._outputs())})
        if self.dueling:
            self.value_net = nn.ModuleDict({"model": _dense(latent, head, self.atoms)})
        is_bounded = self.kind == "DeterministicActor" and self.actions["type"] == "Box"
        activation = head.get("output_activation") if is_bounded else None
        self.range = RANGES[activation or "Tanh"]
        self._constants(spec)
        self.standardised = bool(network.get("normalize_observations", False))
        if self.standardised:
            self.blocks = _size(network.get("blocks", 1))
            for name in ("obs_mean", "obs_scale"):
                self.register_buffer(name, torch.empty(_inputs(self.space), device="meta"))

    def _constants(self, spec: dict[str, Any]) -> None:
        """Register constants: bounds of observations and actions, running statistics."""
        if self.scaled and self.space["type"] == "Box":
            low, high = _bounds_seen(self.space)
            is_scaled = low.isfinite() & high.isfinite() & (high - low > 0) & (high - low < 1e30)
            self.register_buffer("centre", torch.where(is_scaled, (low + high) / 2, 0.0), persistent=False)
            self.register_buffer("factor", torch.where(is_scaled, 2 / (high - low), 1.0), persistent=False)
        for place, actions in enumerate(_leaves(self.actions)):
            if actions["type"] == "Box":
                constants = dict(zip(("low", "high"), _bounds(actions), strict=True))
                if self.stochastic and self.in_bounds and not self.squashed:
                    constants |= dict(zip(("middle", "half_range"), _units(actions), strict=True))
                for name, values in constants.items():
                    buffer_name = name if self.single else f"{name}_{place}"
                    self.register_buffer(buffer_name, torch.tensor(values, dtype=torch.float64), persistent=False)
        normaliser = spec.get("normaliser")
        self.normalised = normaliser is not None
        if normaliser is not None:
            if set(normaliser) != {"mean", "var", "epsilon"}:
                raise PolicyError("statistics of several observations are not covered.")
            mean, var = (torch.tensor(normaliser[name], dtype=torch.float64) for name in ("mean", "var"))
            self.register_buffer("mean", mean, persistent=False)
            self.register_buffer("deviation", (var + normaliser["epsilon"]).sqrt(), persistent=False)

    def _apply(self, function: object, recurse: bool = True) -> Policy:
        """Move and convert weights; constants stay in float64 and only follow the device."""
        constants = {name: value for name, value in self.named_buffers() if name not in ("obs_mean", "obs_scale")}
        super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        device = next(self.parameters()).device
        for name, value in constants.items():
            setattr(self, name, value.to(device))
        return self

    def _outputs(self) -> int:
        if self.arms:
            return 1
        if self.single and self.actions["type"] in ("Discrete", "MultiDiscrete") and not self.by_component:
            return _size(math.prod(self._choices()[0])) * self.atoms
        return _size(sum(map(self._width, _leaves(self.actions))))

    def _width(self, actions: dict[str, Any]) -> int:
        """Number of outputs for the actions of a leaf space."""
        if actions["type"] == "MultiBinary":
            return _size(math.prod(_flat(actions["n"])))
        if actions["type"] != "Box":
            return _size(sum(_choices(actions)[0]))
        size = _size(math.prod(actions["shape"]))
        return 2 * size if self.stochastic else size

    def _choices(self) -> tuple[list[int], list[int]]:
        """Number of choices of each component of an action, and the lowest value of each."""
        return _choices(self.actions)

    def _legal(self, mask: Any, device: Any) -> Tensor:
        """Convert masks of the components [B, sum of choices] to masks of their combinations [B, A]."""
        component_mask = torch.as_tensor(mask, device=device).bool()
        joint = torch.ones((component_mask.shape[0], 1), dtype=torch.bool, device=device)
        for part in torch.split(component_mask, self._choices()[0], -1):
            joint = (joint[:, :, None] & part[:, None, :]).flatten(1)
        return joint

    def _decode(self, number: Tensor) -> Tensor:
        """Convert indices of combinations [B] to actions; the last component varies fastest."""
        sizes, starts = self._choices()
        if self.actions["type"] == "Discrete":
            return number + starts[0]
        parts = []
        for size, start in zip(reversed(sizes), reversed(starts), strict=True):
            parts.append(number % size + start)
            number = number // size
        return torch.stack(parts[::-1], -1).reshape(-1, *_shape(self.actions["nvec"]))

    def prepare(self, obs: Any) -> Any:
        """Convert observations [B, ...] to encoder inputs: [B, I], images [B, C, H, W], or a list of such parts."""
        x = self._inputs_of(obs)
        if not self.standardised:
            return x
        scaled = (x - self.get_buffer("obs_mean")) * self.get_buffer("obs_scale")
        scaled = scaled.clamp(-LARGEST_INPUT, LARGEST_INPUT)
        if self.blocks == 1:
            return scaled
        is_filled = x.reshape(-1, self.blocks, x.shape[-1] // self.blocks).any(-1)
        return scaled * is_filled.repeat_interleave(x.shape[-1] // self.blocks, -1)

    def _inputs_of(self, obs: Any) -> Any:
        like = next(self.parameters())
        if self.nested:
            return self._nested(self.space, obs, like)
        if "spaces" in self.space:
            return torch.cat(list(self._side_by_side(self.space, obs, like)), -1)
        x = torch.as_tensor(_read(self.space, obs), device=like.device)
        kind, shape = self.space["type"], tuple(self.space.get("shape", ()))
        if self.normalised:
            x = ((x - self.mean) / self.deviation).float()
        if kind in ("Discrete", "MultiDiscrete"):
            return _one_hot(self.space, x, like)
        if kind == "Box" and tuple(x.shape[1:]) != (*self.arms, *shape):
            wanted = ", ".join(map(str, (*self.arms, *shape)))
            raise PolicyError(f"observations must have the shape [B, {wanted}]; got {tuple(x.shape)}.")
        x = x.flatten(0, 1) if self.arms else x
        if self.seen:
            return self._image(self.space, x, like)
        if _is_image(self.space):
            x = self._image(self.space, x, like)
        x = (x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1)).to(like.dtype)
        is_scaled = self.scaled and kind == "Box" and not _is_byte_image(self.space)
        return (x - self.centre.to(like)) * self.factor.to(like) if is_scaled else x

    def _side_by_side(self, space: dict[str, Any], obs: Any, like: Tensor) -> Iterator[Tensor]:
        """The parts of a Dict or Tuple observation in order, each as numbers [B, I]."""
        for part, values in _parts_of(space, obs):
            if "spaces" in part:
                yield from self._side_by_side(part, values, like)
                continue
            x = torch.as_tensor(_read(part, values), device=like.device)
            if part["type"] != "Box":
                yield _one_hot(part, x, like)
                continue
            x = self._image(part, x, like) if _is_image(part) else x
            yield _scaled(part, x, like, self.scaled and not _is_byte_image(part))

    def _image(self, space: dict[str, Any], x: Tensor, like: Tensor) -> Tensor:
        x = (x.movedim(-1, -3) if _is_turned(space) else x).to(like.dtype)
        return x / 255 if self.divided and _is_bytes(space) else x

    def _nested(self, space: dict[str, Any], obs: Any, like: Tensor) -> list[Any]:
        """The encoder inputs [B, ...] of the parts of a Dict or Tuple observation, in order."""
        rows: list[Any] = []
        for part, values in _parts_of(space, obs):
            if "spaces" in part:
                rows.append(self._nested(part, values, like))
            elif _is_image(part):
                rows.append(self._image(part, torch.as_tensor(values, device=like.device), like))
            else:
                x = torch.as_tensor(_read(part, values), device=like.device)
                rows.append(_one_hot(part, x, like) if part["type"] != "Box" else _scaled(part, x, like, self.scaled))
        return rows

    def outputs(self, x: Tensor) -> Tensor:
        """Encoder input [B, I] or [B, C, H, W] -> values or logits [B, A], raw actions [B, A], or a normal [B, 2A]."""
        features = self.encoder(x)
        out: Tensor = self.head_net["model"](features)
        if self.arms:
            return out.reshape(-1, *self.arms)
        if self.kind == QUANTILES:
            return out.reshape(-1, out.shape[-1] // self.atoms, self.atoms).mean(-1)
        if self.kind == "RainbowQNetwork":
            out = out.reshape(-1, out.shape[-1] // self.atoms, self.atoms)
            if self.dueling:
                out = self.value_net["model"](features).unsqueeze(-2) + out - out.mean(-2, keepdim=True)
            atoms = torch.linspace(*self.support, self.atoms, dtype=out.dtype, device=out.device)
            return (out.softmax(-1) * atoms).sum(-1) if self.distributional else out.squeeze(-1)
        return out

    def _mean(self, out: Tensor) -> Tensor:
        """Means of Box actions, without standard deviations; tanh of squashed ones."""
        mean = out.chunk(2, -1)[0]
        return mean.tanh() if self.squashed else mean

    def forward(self, obs: Any, action_mask: object = None) -> Any:
        """Greedy actions for observations [B, ...]: [B] or [B, *shape] int64, or [B, *shape] within the bounds of the
        Box; Dict and Tuple actions are nested like the space.

        `action_mask` [B, A]: 1 = legal; A counts the choices of all components of a MultiDiscrete space, two per bit of
        a MultiBinary one (0 legal, 1 legal), and those of all parts of a Dict or Tuple in order.
        """
        out = self.outputs(self.prepare(obs))
        if self.others:
            policies: Iterable[Any] = self.others
            out = torch.stack([out, *(other.outputs(other.prepare(obs)) for other in policies)]).mean(0)
        mask = None if action_mask is None else torch.as_tensor(action_mask, device=out.device).bool()
        if self.single:
            is_mean = self.stochastic and self.actions["type"] == "Box"
            return self._action(self.actions, "", self._mean(out) if is_mean else out, mask)
        each = list(_leaves(self.actions))
        outputs = torch.split(out, [self._width(leaf) for leaf in each], -1)
        masks: Any = [None] * len(each) if mask is None else torch.split(mask, [_mask_width(leaf) for leaf in each], -1)
        parts = [
            self._action(leaf, f"_{place}", self._mean(x) if leaf["type"] == "Box" else x, legal)
            for place, (leaf, x, legal) in enumerate(zip(each, outputs, masks, strict=True))
        ]
        return _nested_as(self.actions, iter(parts))

    def _action(self, actions: dict[str, Any], place: str, out: Tensor, mask: Tensor | None) -> Tensor:
        """Greedy actions of a leaf space; `place`: suffix of the names of its constants."""
        if actions["type"] == "MultiBinary":
            chosen = out > 0
            if mask is not None and mask.shape[-1] == 2 * out.shape[-1]:
                zero, one = mask.reshape(*mask.shape[:-1], -1, 2).unbind(-1)
                chosen = (chosen & one) | ~zero
            elif mask is not None:  # whether 1 is legal
                chosen = chosen & mask
            return chosen.to(torch.int8).reshape(-1, *_flat(actions["n"]))
        if actions["type"] != "Box":
            return self._choose(actions, out, mask)
        low, high = self.get_buffer(f"low{place}"), self.get_buffer(f"high{place}")
        if self.stochastic and not self.squashed:
            if self.in_bounds:
                out = out * self.get_buffer(f"half_range{place}").to(out) + self.get_buffer(f"middle{place}").to(out)
            bounded = torch.minimum(torch.maximum(self._whole(actions, out), low.to(out)), high.to(out))
        else:
            lowest, highest = self.range
            scaled = self._whole(actions, low + (out.double() - lowest) / (highest - lowest) * (high - low))
            bounded = torch.minimum(torch.maximum(scaled, low), high)
        return bounded.to(getattr(torch, actions["dtype"])).reshape(-1, *actions["shape"])

    def _whole(self, actions: dict[str, Any], action: Tensor) -> Tensor:
        """Round integer actions; stochastic policies in units of their actions were trained without rounding."""
        is_rounded = self.in_bounds or self.squashed or not self.stochastic
        return action.round() if is_rounded and "int" in actions["dtype"] else action

    def _choose(self, actions: dict[str, Any], out: Tensor, mask: Tensor | None) -> Tensor:
        """The best legal choice, of all combinations, or of each component for policies with logits per component."""
        if not self.by_component:
            if mask is not None:
                out = out.masked_fill(~self._legal(mask, out.device), float("-inf"))
            return self._decode(out.argmax(-1))
        if mask is not None:
            out = out.masked_fill(~mask, float("-inf"))
        sizes, starts = _choices(actions)
        if actions["type"] == "Discrete":
            return out.argmax(-1) + starts[0]
        best = torch.stack([part.argmax(-1) for part in torch.split(out, sizes, -1)], -1)
        action = best + torch.tensor(starts, device=out.device)
        return action.reshape(-1, *_shape(actions["nvec"]))

    @torch.no_grad()
    def act(self, obs: Any, mask: object = None, *, action_mask: object = None) -> Any:
        """See `forward`, without gradients; returns [] or [*shape] for one observation without a batch axis.

        An `action_mask` part of the observations that is not an input of the policy is removed and used as the mask.
        Without a mask, a policy trained with masks (`needs_mask`) warns and acts. `action_mask`: earlier
        name of `mask`.
        """
        obs, legal = _divided(self.space, obs, action_mask if mask is None else mask)
        if self.needs_mask and legal is None:
            _warn_without_mask('info["action_mask"]', 4)  # after torch's wrapper
        space, leaf = _first_leaf(self.space, obs)
        x = torch.as_tensor(_read(space, leaf))
        kind = space["type"]
        sizes = _shape(space["nvec"]) if kind == "MultiDiscrete" else space["n"] if kind == "MultiBinary" else ()
        axes = (
            len(self.arms) + len(space["shape"])
            if kind == "Box"
            else len(sizes)
            if isinstance(sizes, list | tuple)
            else 1
        )
        one = x.dim() == axes
        batch = obs if "spaces" in self.space else x
        legal = torch.as_tensor(legal).unsqueeze(0) if one and legal is not None else legal
        action = self(_batched(batch) if one else batch, legal)
        return _first(action) if one else action


def _warn_without_mask(mask: str, stacklevel: int) -> None:
    text = "this policy was trained with masks of legal actions, and without one it may take illegal actions."
    warnings.warn(f"{text} fix: policy.act(obs, {mask}).", stacklevel=stacklevel)


def _divided(space: dict[str, Any], obs: Any, mask: object) -> tuple[Any, Any]:
    """(policy inputs, mask) of observations with an `action_mask` part; other observations are unchanged."""
    names = space.get("spaces", {})
    names = names if isinstance(names, dict) else {}
    if not isinstance(obs, dict) or "action_mask" not in obs or "action_mask" in names:
        return obs, mask
    rest = {key: part for key, part in obs.items() if key != "action_mask"}
    beside = obs["action_mask"]
    if isinstance(beside, tuple):  # one array for each component
        beside = torch.cat([torch.as_tensor(part) for part in beside], -1)
    read = rest["observation"] if set(rest) == {"observation"} and set(names) != {"observation"} else rest
    return read, beside if mask is None else mask


def _check(network: dict[str, Any]) -> None:
    """Raise PolicyError for unsupported networks."""
    kind, space, actions = network["class"], network["observation_space"], network["action_space"]
    encoder = network.get("encoder_cls", DENSE)
    if kind not in NETWORKS:
        raise PolicyError(f"policies of class {kind} are not covered (covered: {', '.join(NETWORKS)}).")
    if encoder not in (DENSE, IMAGES, PARTS) or network.get("simba") or network.get("recurrent"):
        raise PolicyError(f"the encoder {encoder} is not covered (covered: {DENSE}, {IMAGES}, {PARTS}).")
    if encoder == IMAGES and (
        space["type"] != "Box" or len(space["shape"]) != 3 or network.get("normalize_observations")
    ):
        raise PolicyError(f"the encoder {encoder} is covered for images of three axes without running statistics.")
    if encoder == PARTS and ("spaces" not in space or network.get("normalize_observations")):
        raise PolicyError(f"the encoder {encoder} is covered for Dict and Tuple spaces without running statistics.")
    if encoder == DENSE:
        _inputs(space)  # raises for unsupported spaces
    choices: tuple[str, ...] = ("Discrete", "MultiDiscrete")
    if kind in ("StochasticActor", "SharedActorCritic"):
        choices = (*choices, "MultiBinary")
    if "spaces" in actions and kind not in ("StochasticActor", "SharedActorCritic"):
        raise PolicyError(f"{actions['type']} actions are not covered for policies of class {kind}.")
    for leaf in _leaves(actions):
        if leaf["type"] not in ("Box", *choices):
            raise PolicyError(f"{leaf['type']} actions are not covered.")


def _leaves(space: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The leaf spaces of a Dict or Tuple, in order; a leaf space itself."""
    if "spaces" not in space:
        yield space
        return
    parts: Any = space["spaces"]
    for part in parts.values() if isinstance(parts, dict) else parts:
        yield from _leaves(part)


def _nested_as(space: dict[str, Any], parts: Iterator[Any]) -> Any:
    """Nest `parts`, in the order of `_leaves`, like the space."""
    if "spaces" not in space:
        return next(parts)
    names: Any = space["spaces"]
    if isinstance(names, dict):
        return {key: _nested_as(part, parts) for key, part in names.items()}
    return tuple(_nested_as(part, parts) for part in names)


def _first(action: Any) -> Any:
    """The first of nested actions [B, ...]."""
    if isinstance(action, dict):
        return {key: _first(part) for key, part in action.items()}
    return tuple(map(_first, action)) if isinstance(action, tuple) else action[0]


def _choices(actions: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Number of choices of each component of an action, and the lowest value of each."""
    names = ("n", "start") if actions["type"] == "Discrete" else ("nvec", "start")
    sizes, starts = (_flat(actions[name]) for name in names)
    return sizes, starts


def _mask_width(actions: dict[str, Any]) -> int:
    """Number of entries of an action mask of a leaf space."""
    if actions["type"] == "Box":
        return 0
    return 2 * math.prod(_flat(actions["n"])) if actions["type"] == "MultiBinary" else sum(_choices(actions)[0])


def _first_leaf(space: dict[str, Any], obs: Any) -> tuple[dict[str, Any], Any]:
    """The space and the value of the first leaf of a nested observation."""
    while "spaces" in space:
        names = space["spaces"]
        key: Any = next(iter(names)) if isinstance(names, dict) else 0
        try:
            space, obs = names[key], obs[key]
        except (KeyError, IndexError, TypeError):
            raise PolicyError(f"observations have no part {key!r}; expected {list(names)}.") from None
    return space, obs


def _parts_of(space: dict[str, Any], obs: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """(space, observations) of each part of a Dict or Tuple, in order."""
    names: Any = space["spaces"]
    for key in names if isinstance(names, dict) else range(len(names)):
        try:
            values = obs[key]
        except (KeyError, IndexError, TypeError):
            raise PolicyError(f"observations have no part {key!r}; expected {list(names)}.") from None
        yield names[key], values


def _read(space: dict[str, Any], obs: Any) -> Any:
    """Convert texts in observations to word counts; everything else is unchanged."""
    if not space.get("text") or isinstance(obs, Tensor):
        return obs
    if isinstance(obs, str):
        return _counts(obs, int(space["shape"][0]), float(space["high"][0]))
    if len(obs) and isinstance(obs[0], str):
        return torch.stack([_read(space, str(text)) for text in obs])
    return obs


def _counts(text: str, buckets: int, max_count: float) -> Tensor:
    """Count words and pairs of neighbouring words, each in two buckets, by bits of their CRC-32."""
    words = re.findall(r"\w+", text.lower())
    counts = torch.zeros(buckets)
    for term in [*words, *(f"{one} {other}" for one, other in pairwise(words))]:
        number = zlib.crc32(term.encode())
        for bucket in (number % buckets, (number >> 16) % buckets):
            counts[bucket] += 1
    return counts.clamp(max=max_count)


def _batched(obs: object) -> Any:
    """One observation as a batch of one."""
    if isinstance(obs, str):
        return [obs]
    if isinstance(obs, dict):
        return {key: _batched(part) for key, part in obs.items()}
    return tuple(map(_batched, obs)) if isinstance(obs, tuple) else torch.as_tensor(obs).unsqueeze(0)


def _one_hot(space: dict[str, Any], x: Tensor, like: Tensor) -> Tensor:
    """Encode a discrete part [B, ...] as numbers [B, I]."""
    if space["type"] == "MultiBinary":
        return (x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1)).to(like.dtype)
    if space["type"] == "Discrete":
        return nn.functional.one_hot(x.long() - int(space["start"]), int(space["n"])).to(like.dtype)
    sizes, starts = _flat(space["nvec"]), _flat(space["start"])
    x = x.reshape(x.shape[0], len(sizes)).long()
    if len(sizes) > 16:  # many components, such as a board: vectorised
        of = torch.tensor([i for i, n in enumerate(sizes) for _ in range(n)], device=x.device)
        values = torch.tensor([starts[i] + k for i, n in enumerate(sizes) for k in range(n)], device=x.device)
        return (x[:, of] == values).to(like.dtype)
    columns = [nn.functional.one_hot(x[:, i] - starts[i], n) for i, n in enumerate(sizes)]
    return torch.cat(columns, -1).to(like.dtype)


def _scaled(space: dict[str, Any], x: Tensor, like: Tensor, scaled: bool) -> Tensor:
    """A vector [B, ...] as numbers [B, I], its finite bounds mapped to [-1, 1] if `scaled`."""
    x = (x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1)).to(like.dtype)
    if not scaled:
        return x
    low, high = _bounds_seen(space)
    is_bounded = low.isfinite() & high.isfinite() & (high - low > 0) & (high - low < 1e30)
    centre, factor = torch.where(is_bounded, (low + high) / 2, 0.0), torch.where(is_bounded, 2 / (high - low), 1.0)
    return (x - centre.to(like)) * factor.to(like)


class _One(nn.Module):
    """An encoder with a single stack of layers."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.model(x)
        return features


class _Parts(nn.Module):
    """One encoder per part, or one for all concatenated vectors, and a layer over all features."""

    def __init__(self, space: dict[str, Any], config: dict[str, Any], outputs: int) -> None:
        super().__init__()
        spaces, configs = space["spaces"], config.get("init_dicts") or {}
        parts = list(spaces.values()) if isinstance(spaces, dict) else list(spaces)
        is_vector = ["spaces" not in part and not _is_image(part) for part in parts]
        self.joined = [i for i, is_plain in enumerate(is_vector) if is_plain and config.get("vector_space_mlp")]
        apart = [i for i in range(len(parts)) if i not in self.joined]
        if len(configs) != len(apart) + bool(self.joined) or len(parts) > LARGEST_PARTS:
            raise PolicyError(f"policy.json has {len(configs)} encoders for the {len(parts)} parts of an observation.")
        width, names = _size(config["latent_dim"]), [name for name in configs if not self.joined or name != JOINED]
        self.feature_net = nn.ModuleDict()
        for i, name in zip(apart, names, strict=True):
            kind = PARTS if "spaces" in parts[i] else IMAGES if _is_image(parts[i]) else DENSE
            self.feature_net[name] = _encoder(parts[i], kind, configs[name], width)
        if self.joined:  # one network over all concatenated vectors
            for i in self.joined:
                if parts[i]["type"] not in SIMPLE:
                    raise PolicyError(f"{parts[i]['type']} observations are not covered.")
            self.vector_mlp = _One(_dense(_size(sum(_inputs(parts[i]) for i in self.joined)), configs[JOINED], width))
        activation = config.get("output_activation") or "Identity"
        if activation not in ACTIVATIONS:
            raise PolicyError(f"the activation {activation!r} is not covered (covered: {', '.join(ACTIVATIONS)}).")
        self.model = nn.Sequential()
        self.model.add_module("linear_output", nn.Linear(width * len(configs), outputs, device="meta"))
        self.model.add_module("act_output", ACTIVATIONS[activation]())

    def forward(self, x: list[Any]) -> Tensor:
        apart = [rows for i, rows in enumerate(x) if i not in self.joined]
        each = [part(rows) for part, rows in zip(self.feature_net.values(), apart, strict=True)]
        if self.joined:
            each.append(self.vector_mlp(torch.cat([x[i] for i in self.joined], -1)))
        features: Tensor = self.model(torch.cat(each, -1))
        return features


def _encoder(space: dict[str, Any], kind: str, config: dict[str, Any], outputs: int) -> nn.Module:
    if kind == PARTS:
        return _Parts(space, config, outputs)
    if kind == IMAGES:
        return _One(_convolutions(space, config, outputs))
    return _One(_dense(_inputs(space), config, outputs))


def _dense(inputs: int, config: dict[str, Any], outputs: int) -> nn.Sequential:
    """Layers linear_i, norm_i, act_i for every hidden layer, then linear_output, norm_output, act_output."""
    if len(config["hidden_size"]) > MAX_HIDDEN_LAYERS:
        raise PolicyError(f"policy.json has {len(config['hidden_size'])} hidden layers; at most {MAX_HIDDEN_LAYERS}.")
    sizes = [_size(width) for width in config["hidden_size"]]
    parts, width = nn.Sequential(), inputs
    for label, size in [*((str(i), size) for i, size in enumerate(sizes)), ("output", outputs)]:
        is_output = label == "output"
        name = config.get("output_activation" if is_output else "activation") or "Identity"
        if name not in ACTIVATIONS:
            raise PolicyError(f"the activation {name!r} is not covered (covered: {', '.join(ACTIVATIONS)}).")
        parts.add_module(f"linear_{label}", nn.Linear(width, size, device="meta"))
        if config.get("output_layernorm" if is_output else "layer_norm"):
            parts.add_module(f"norm_{label}", nn.LayerNorm(size, device="meta"))
        parts.add_module(f"act_{label}", ACTIVATIONS[name]())
        width = size
    return parts


def _convolutions(space: dict[str, Any], config: dict[str, Any], outputs: int) -> nn.Sequential:
    """Layers conv_i, act_i for every convolution, then linear_output over all pixels, act_output."""
    if config.get("block_type", "Conv2d") != "Conv2d" or config.get("layer_norm"):
        raise PolicyError("convolutions other than Conv2d without LayerNorm are not covered.")
    channels = [_size(width) for width in config["channel_size"]]
    if len(channels) > MAX_HIDDEN_LAYERS:
        raise PolicyError(f"policy.json has {len(channels)} hidden layers; expected at most {MAX_HIDDEN_LAYERS}.")
    for name in ("activation", "output_activation"):
        if (config.get(name) or "Identity") not in ACTIVATIONS:
            raise PolicyError(f"the activation {config[name]!r} is not covered (covered: {', '.join(ACTIVATIONS)}).")
    shape = [_size(n) for n in space["shape"]]
    width, *sides = [shape[2], shape[0], shape[1]] if _is_turned(space) else shape
    parts = nn.Sequential()
    taps = zip(channels, config["kernel_size"], config["stride_size"], config["padding_size"], strict=True)
    for i, (channel, *tap) in enumerate(taps):
        kernel, stride, padding = (tuple(n) if isinstance(n, list) else (n, n) for n in tap)
        _size(kernel[0] * kernel[1] * stride[0] * stride[1])
        parts.add_module(f"conv_{i}", nn.Conv2d(width, channel, kernel, stride, padding, device="meta"))
        parts.add_module(f"act_{i}", ACTIVATIONS[config.get("activation") or "Identity"]())
        sides = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, kernel, stride, padding, strict=True)]
        width = channel
    parts.add_module("flat", nn.Flatten())
    parts.add_module("linear_output", nn.Linear(_size(width * sides[0] * sides[1]), outputs, device="meta"))
    parts.add_module("act_output", ACTIVATIONS[config.get("output_activation") or "Identity"]())
    return parts


def _is_image(space: dict[str, Any]) -> bool:
    return space["type"] == "Box" and len(space["shape"]) == 3


def _is_turned(space: dict[str, Any]) -> bool:
    """Whether images are [H, W, C]: the last axis is shorter than both others and has at most 16 entries."""
    return bool(space["shape"][2] < min(space["shape"][:2]) and space["shape"][2] <= 16)


def _is_bytes(space: dict[str, Any]) -> bool:
    """Whether values range from 0 to 255."""
    return all(float(v) == 0 for v in space["low"]) and all(float(v) == 255 for v in space["high"])


def _is_byte_image(space: dict[str, Any]) -> bool:
    return len(space["shape"]) >= 3 and _is_bytes(space)


def _inputs(space: dict[str, Any]) -> int:
    """Number of inputs of an observation, with all its parts concatenated."""
    if "spaces" in space:
        parts: Any = space["spaces"]
        if len(parts) > LARGEST_PARTS:
            raise PolicyError(f"policy.json has {len(parts)} parts in an observation; at most {LARGEST_PARTS}.")
        return _size(sum(map(_inputs, parts.values() if isinstance(parts, dict) else parts)))
    if space["type"] not in SIMPLE:
        raise PolicyError(f"{space['type']} observations are not covered.")
    if space["type"] == "Box":
        return _size(math.prod(space["shape"]))
    return _size(sum(_flat(space["nvec"])) if space["type"] == "MultiDiscrete" else math.prod(_flat(space["n"])))


def _bounds(space: dict[str, Any]) -> tuple[list[float], list[float]]:
    size = _size(math.prod(space["shape"]))
    low, high = ([float(v) for v in space[name]] for name in ("low", "high"))
    return (low * size if len(low) == 1 else low), (high * size if len(high) == 1 else high)


def _bounds_seen(space: dict[str, Any]) -> Iterator[Tensor]:
    """Flat bounds of observations; images are channels first."""
    for bound in _bounds(space):
        values = torch.tensor(bound, dtype=torch.float64)
        is_turned = _is_image(space) and _is_turned(space)
        yield values.reshape(space["shape"]).movedim(-1, 0).reshape(-1) if is_turned else values


def _units(space: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Middle and half range of each component of a Box action; 0 and 1 if a bound is, or means, infinite."""
    whole = re.fullmatch(r"(u?)int(32|64)", space["dtype"])
    limits = (math.inf, math.inf)  # of a dtype, at which bounds mean infinity
    if whole is not None:
        bits = int(whole[2])
        limits = (math.inf, 2.0**bits - 3) if whole[1] else (2.0 ** (bits - 1) - 2, 2.0 ** (bits - 1) - 3)
    middle, half = [], []
    for low, high in zip(*_bounds(space), strict=True):
        half_range = high / 2 - low / 2
        is_open = not half_range < MAX_HALF_RANGE or -low >= limits[0] or high >= limits[1]
        middle.append(0.0 if is_open else low / 2 + high / 2)
        half.append(1.0 if is_open or half_range < torch.finfo(torch.float32).tiny else half_range)
    return middle, half


def _size(value: object) -> int:
    """Check a width before allocating memory for it."""
    if not isinstance(value, int) or not 0 < value <= LARGEST:
        raise PolicyError(f"policy.json has a width of {value!r}; expected 1 to {LARGEST}.")
    return value


def _shape(values: Any) -> tuple[int, ...]:
    return (len(values), *_shape(values[0])) if isinstance(values, list) else ()


def _flat(values: Any) -> list[int]:
    return [n for part in values for n in _flat(part)] if isinstance(values, list) else [int(values)]
