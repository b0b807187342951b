"""Resets of dormant units: hidden units that hardly respond are drawn anew, while the outputs stay what they were.

ReDo of Sokar, Agarwal, Castro and Evci 2023 (arXiv:2302.12902), section 4, between generations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError
from agilerl.hpo import effects
from agilerl.modules.base import EvolvableModule
from agilerl.modules.layered import HiddenUnits, LayeredModule
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork
from agilerl.telemetry.record import Birth

PARTS = {"encoder", "head_net", "value_net"}  # a network of these alone has no other reader of its features


# -- which units -------------------------------------------------------------------------------------------------------


def unit_scores(activations: Tensor, axis: int = -1) -> Tensor:
    """Return the score of each of H units: its mean |activation| over the mean of that in its layer (definition 3.1).

    Args:
        activations: [..., H], or channels [B, H, ...] with `axis` 1. axis: of the units.

    Returns:
        [H] float64 with mean 1; zeros for a layer without any activation.
    """
    others = [k for k in range(activations.dim()) if k != axis % activations.dim()]
    sizes = activations.detach().abs().mean(others, dtype=torch.float64)
    mean = sizes.mean()
    return torch.zeros_like(sizes) if mean == 0 else sizes / mean


def is_dormant(scores: Tensor, threshold: float) -> Tensor:
    """Return the mask [H] of units whose score is at most the threshold; NaN is not dormant."""
    return scores <= threshold


@dataclass(frozen=True)
class DormantUnits:
    """Dormant units of one layer.

    Attributes:
        path: prefix of the part's parameters, "" or "encoder.". part: the module that holds them. units: their layer.
        mask: [H], which of its units are dormant.
        centers: [H] medians of the normalised inputs of the layer's activation; None without normalisation.
    """

    path: str
    part: LayeredModule
    units: HiddenUnits
    mask: Tensor
    centers: Tensor | None


# -- what changes ------------------------------------------------------------------------------------------------------


@dataclass
class Resets:
    """Entries of one network to reset, by parameter.

    Attributes:
        rows: parameter -> mask of its first dimension: weights that write a reset unit. Drawn anew.
        fresh: parameter -> values of those rows. columns: parameter -> mask of its second dimension: weights that read
            a reset unit. Set to 0, except in a row that is drawn anew: it writes a unit that is not read, and a row of
            zeros would never learn.
        count: number of units.
    """

    rows: dict[str, Tensor] = field(default_factory=dict)
    fresh: dict[str, Tensor] = field(default_factory=dict)
    columns: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0

    def masks(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the changed entries of each changed parameter, in its shape and on its device."""
        masks: dict[str, Tensor] = {}
        for axis, each in enumerate((self.rows, self.columns)):
            for name, mask in each.items():
                parameter = parameters[name]
                entries = masks.setdefault(name, torch.zeros_like(parameter, dtype=torch.bool))
                entries.movedim(axis, 0)[mask.to(parameter.device)] = True
        return masks

    @torch.no_grad()
    def apply(self, parameters: Mapping[str, Tensor]) -> None:
        """Change the parameters in place."""
        for name, mask in self.columns.items():
            parameters[name][:, mask.to(parameters[name].device)] = 0
        for name, mask in self.rows.items():
            parameter = parameters[name]
            parameter[mask.to(parameter.device)] = self.fresh[name].to(parameter)


def add_units(resets: Resets, dormant: DormantUnits, generator: torch.Generator) -> None:
    """Add the weights that write dormant units, drawn as initial weights are, with biases of 0.

    A normalised unit gets weight 1 and bias -median of its normalised input instead, which makes it respond to half of
    the observations. Its incoming weights stay: through mean and variance every unit of the layer depends on them, and
    drawing three of 128 anew changed the outputs of small trained networks by 7 %.
    """
    part, units, mask, number = dormant.part, dormant.units, dormant.mask, int(dormant.mask.sum())
    name = units.incoming if units.norm is None else units.norm
    layer = part.layers()[name]
    for parameter in layer.axes:
        shape = (number, *part.get_parameter(f"model.{name}.{parameter}").shape[1:])
        values = torch.zeros(shape) if parameter == "bias" else layer.initial[parameter](shape, generator)
        if parameter == "bias" and dormant.centers is not None:
            values = -dormant.centers[mask]
        full = f"{dormant.path}model.{name}.{parameter}"
        resets.rows[full], resets.fresh[full] = mask, values
    resets.count += number


def add_reader(
    resets: Resets, path: str, module: LayeredModule, layer: str, mask: Tensor, is_image: bool = False
) -> None:
    """Add the columns of `layer` that read the units of `mask` [H]; columns beyond them read something else.

    is_image: whether units are channels, of which a dense layer reads every pixel in one column.
    """
    features = module.get_parameter(f"model.{layer}.weight").shape[1]
    each = features // len(mask) if is_image else 1
    wide = torch.zeros(features, dtype=torch.bool)
    wide[: each * len(mask)] = mask.cpu().repeat_interleave(each)
    for parameter, axes in module.layers()[layer].axes.items():
        if len(axes) > 1:
            resets.columns[f"{path}model.{layer}.{parameter}"] = wide


# -- one network -------------------------------------------------------------------------------------------------------


def parts_with_units(network: EvolvableModule) -> dict[str, tuple[LayeredModule, tuple[HiddenUnits, ...]]]:
    """Return the parts of a network whose units can be reset, with these, by path ("encoder."); none of a recurrent
    network, whose activations depend on more than the observation."""
    if isinstance(network, EvolvableNetwork) and network.recurrent:
        return {}
    modules = network.named_modules() if isinstance(network, torch.nn.Module) else ()
    parts = {path: (part, part.hidden_units()) for path, part in modules if isinstance(part, LayeredModule)}
    return {f"{path}." if path else "": each for path, each in parts.items() if each[1]}


def activations_of(part: LayeredModule, hidden: Sequence[HiddenUnits]) -> dict[str, Tensor]:
    """Return the activations of these units for the part's probe inputs, and their normalised inputs without scale and
    shift, by layer; empty without inputs. The part must be in evaluation mode."""
    if part.probe_inputs is None:
        return {}
    seen: dict[str, Tensor] = {}

    def note(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, nn.GroupNorm):
            output = functional.group_norm(inputs[0], layer.num_groups, eps=layer.eps)
        elif isinstance(layer, nn.LayerNorm):
            output = functional.layer_norm(inputs[0], layer.normalized_shape, eps=layer.eps)
        seen[name] = output

    names = [name for units in hidden for name in (units.norm, units.activation) if name is not None]
    hooks = [part.model.get_submodule(name).register_forward_hook(partial(note, name)) for name in names]
    try:
        with torch.no_grad():
            part(part.probe_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def dormant_units(network: EvolvableModule, probe: effects.Probe, threshold: float) -> list[DormantUnits]:
    """Return the layers of a network that have dormant units on the observations, and actions, of `probe.fit`."""
    parts, dormant = parts_with_units(network), []
    if not parts:
        return []
    with effects.evaluating(network), effects.probing(network, probe):
        for path, (part, hidden) in parts.items():
            seen = activations_of(part, hidden)
            for units in hidden if seen else ():
                if units.outgoing is None and path != "encoder.":
                    continue  # an output of the network, or a part's among the features
                mask = is_dormant(unit_scores(seen[units.activation], units.axis), threshold)
                if mask.any():
                    normed = None if units.norm is None else seen[units.norm].movedim(units.axis, 0).flatten(1)
                    centers = None if normed is None else normed.median(1).values.cpu()
                    dormant.append(DormantUnits(path, part, units, mask.cpu(), centers))
    return dormant


def readers_of(
    network: EvolvableModule, networks: Mapping[str, Any]
) -> dict[str, list[tuple[str, EvolvableMLP]]] | None:
    """Return the heads that read a network's features: name of the network -> (path, head); None if others may."""
    readers: dict[str, list[tuple[str, EvolvableMLP]]] = {}
    for name, each in networks.items():
        if each is not network and not (isinstance(each, EvolvableNetwork) and each.encoder_source is network):
            continue
        heads = {key: part for key, part in each.named_children() if key != "encoder"}
        if not isinstance(each, EvolvableNetwork) or not set(heads) <= PARTS or not heads:
            return None
        if not all(isinstance(head, EvolvableMLP) for head in heads.values()):
            return None
        readers[name] = [(f"{key}.", head) for key, head in heads.items() if isinstance(head, EvolvableMLP)]
    return readers


# -- one agent, and a population ---------------------------------------------------------------------------------------


def planned_resets(
    networks: Mapping[str, Any], probes: Mapping[str, effects.Probe], threshold: float, rng: np.random.Generator
) -> dict[str, Resets]:
    """Return what to reset in each of an agent's evaluation networks, by name, from its recent observations."""
    plan: dict[str, Resets] = {name: Resets() for name in networks}
    generator = torch.Generator().manual_seed(int(rng.integers(2**31 - 1)))
    for name, network in networks.items():
        for each in dormant_units(network, probes[name], threshold) if name in probes else ():
            outgoing = each.units.outgoing
            if outgoing is not None:
                add_reader(plan[name], each.path, each.part, outgoing, each.mask, each.units.axis == 1)
            elif (readers := readers_of(network, networks)) is not None:
                for reader, heads in readers.items():
                    for path, head in heads:
                        add_reader(plan[reader], path, head, next(iter(head.layers())), each.mask)
            else:
                continue
            add_units(plan[name], each, generator)
    return {name: resets for name, resets in plan.items() if resets.rows or resets.columns}


def reset_dormant_units(agent: Any, threshold: float, rng: np.random.Generator) -> int:
    """Reset the dormant units of an agent's networks in place; return their number.

    A reset unit gets fresh incoming weights and outgoing weights of 0, so that the outputs change by no more than what
    it had contributed. Target networks get the same entries: a slow average of old and fresh incoming weights could
    wake a unit up while its old outgoing weights still count. Moments of the reset entries start anew
    (`OptimizerWrapper.forget_entries`). An agent without recent observations stays as it is.
    """
    agent = effects.inner(agent)
    networks = effects.networks_of(agent)
    plan = planned_resets(networks, _recent(agent, networks), threshold, rng)
    if not plan:
        return 0
    masks = {}
    for group in effects.registry_of(agent).groups:
        resets = plan.get(group.eval_network)
        if resets is None:
            continue
        parameters = dict(networks[group.eval_network].named_parameters())
        masks[group.eval_network] = resets.masks(parameters)
        resets.apply(parameters)
        for name in effects.shared_names(group):
            resets.apply(dict(resolve(agent, name).named_parameters()))
    for entry in effects.registry_of(agent).optimizers:
        resolve(agent, entry.name).forget_entries(masks)
    if foreign.has_methods(agent, "mutation_hook"):
        agent.mutation_hook()
    return sum(resets.count for resets in plan.values())


def _recent(agent: foreign.Agent, networks: Mapping[str, Any]) -> dict[str, effects.Probe]:
    """Return the recent observations that each network reads; nothing for networks that read something else."""
    seen = agent.probe_observations(effects.PROBES) if isinstance(agent, effects.Probed) else None
    if seen is None:
        return {}
    space = foreign.observation_space(networks[effects.policy_groups(agent)[0].eval_network])
    probes = {}
    for name, network in networks.items():
        if isinstance(agent, effects.Apart):
            shown = agent.observations_for(name, seen)
        elif foreign.observation_space(network) == space:
            shown = seen
        else:
            continue
        actions = effects.actions_for(agent, network, name)
        probes[name] = effects.Probe(shown, shown, actions, actions)
    return probes


class DormantResets:
    """Reset the dormant units of every member between two generations.

    Args:
        threshold: highest score of a dormant unit, from 0 to below 1. seed: of the fresh weights, one stream per
            (generation, slot).

    Attributes:
        counts: member id -> number of units that were reset before its current generation.
    """

    def __init__(self, threshold: float, seed: int) -> None:
        self.threshold, self.seed = threshold, seed
        self.counts: dict[int, int] = {}

    def check(self, agent: foreign.Agent) -> None:
        """Raise ConfigError unless the agent keeps recent observations and has hidden units that can be reset."""
        member = effects.inner(agent)
        parts = [parts_with_units(network) for network in effects.networks_of(member).values()]
        if not (isinstance(member, effects.Probed) and any(parts)):
            raise ConfigError(
                f"mutation.reset_dormant={self.threshold:g} resets units of dense and convolutional layers that read "
                f"observations; the networks of this {type(member).__name__} are recurrent, or of another kind. "
                "fix: reset_dormant=null."
            )

    def apply(self, members: Sequence[Any], generation: int, slots: Sequence[int] | None = None) -> None:
        """Reset units of the members that train in `generation`.

        slots: of these members; None for a whole population.
        """
        if slots is None:
            self.forget()
        for slot, agent in zip(range(len(members)) if slots is None else slots, members, strict=True):
            rng = stream(self.seed, Purpose.RESETS, generation, slot)
            self.counts[agent.index] = reset_dormant_units(agent, self.threshold, rng)

    def forget(self) -> None:
        """Forget the counters of a generation that has ended."""
        self.counts = {}

    def inherit(self, births: Sequence[Birth]) -> None:
        """Give copies that are made after the resets the counters of their parents, whose weights they have."""
        for birth in births:
            if birth.parent in self.counts:
                self.counts[birth.id] = self.counts[birth.parent]

    def details_of(self, agent: foreign.Agent) -> dict[str, float]:
        """Return the counter of a member's record."""
        return {"reset_units": self.counts.get(agent.index, 0)}

    def state(self) -> dict[str, int]:
        """Return the counters, for a checkpoint."""
        return {str(index): count for index, count in self.counts.items()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Restore the output of `state`."""
        self.counts = {int(index): int(count) for index, count in state.items()}
