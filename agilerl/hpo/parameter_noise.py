"""Parameter mutation: Gaussian noise on a tenth of the policy's weights, scaled to a bounded effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.core.tree import Tree
from agilerl.hpo import effects
from agilerl.hpo.effects import MutationRecord
from agilerl.modules.paths import resolve

SHARE = 0.1  # fraction of the weights that change
RESET_SHARE = 0.05  # fraction of those that are redrawn
SUPER_PROB = 0.1  # probability of a super mutation
SUPER_SD = 10.0  # published: ten times the weight
MIN_SCALE = 2.0**-24  # of the noise; the relative resolution of float32 weights
NORMALISATION = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm)


@dataclass(frozen=True)
class NoiseOptions:
    """Magnitude of parameter mutations.

    Attributes:
        sd: standard deviation of the noise, relative to the weight.
        bound, super_bound: maximum relative change of the policy's output over the probe observations, for normal and
            super mutations. On a solved DQN agent, a change of 0.026 flipped 9 % of the greedy actions and 3 of 12
            children survived; with the published mix (0.27) none did.
        agreement, super_agreement: minimum fraction of probe observations with an unchanged greedy action (discrete
            actions).
        published: use the published magnitudes without bounds; targets become copies of the policy.
    """

    sd: float = 0.1
    bound: float = 0.02
    super_bound: float = 0.05
    agreement: float = 0.95
    super_agreement: float = 0.9
    published: bool = False


def mutable_weights(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return weights with two or more dimensions, including convolutional and recurrent ones, without normalisation."""
    weights: dict[str, nn.Parameter] = {}
    for prefix, module in network.named_modules():
        if isinstance(module, NORMALISATION):
            continue
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.dim() >= 2 and parameter.is_floating_point():
                weights[name] = parameter
    return weights


def noise(weights: Mapping[str, Tensor], sd: float, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return noise for each weight: nine tenths get 0, a tenth gets N(0, (sd·|w|)²) or is redrawn at layer scale."""
    deltas = {}
    for name, weight in weights.items():
        size = weight.numel()
        old = weight.detach().cpu().double().flatten().numpy()
        where = rng.choice(size, size=math.ceil(SHARE * size), replace=False)
        draws = rng.standard_normal(len(where))
        reset = rng.random(len(where)) < RESET_SHARE
        delta = np.zeros(size)
        delta[where] = np.where(reset, draws * old.std() - old[where], draws * sd * np.abs(old[where]))
        deltas[name] = torch.as_tensor(delta).reshape(weight.shape).to(weight)
    return deltas


def published_noise(weights: Mapping[str, Tensor], sd: float, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return noise of the published magnitudes: of the touched weights, 5 % get ten times their size, 5 % a standard
    normal."""
    names = list(weights)
    chosen = set(rng.choice(names, size=int(rng.integers(1, len(names) + 1)), replace=False).tolist())
    deltas = {}
    for name, weight in weights.items():
        new = old = weight.detach().cpu().double().flatten().numpy()
        if name in chosen:
            where = rng.integers(0, len(old), size=math.ceil(SHARE * len(old)))
            kind, draws = rng.random(len(where)), rng.standard_normal(len(where))
            scale = np.where(kind < 0.05, SUPER_SD, sd) * np.abs(old[where])
            new = old.copy()
            new[where] = np.where((kind >= 0.05) & (kind < 0.1), draws, old[where] + scale * draws).clip(-1e6, 1e6)
        deltas[name] = torch.as_tensor(new - old).reshape(weight.shape).to(weight)
    return deltas


@torch.no_grad()
def shift(network: nn.Module, deltas: Mapping[str, Tensor], scale: float) -> None:
    """Add `scale` times the deltas to the parameters, in place."""
    for name, parameter in network.named_parameters():
        if name in deltas:
            parameter.add_(deltas[name].to(parameter), alpha=scale)


def largest_scale(
    policy: nn.Module, deltas: Mapping[str, Tensor], observations: Tree, bound: float, agreement: float
) -> tuple[float, float]:
    """Find by bisection the largest scale in [0, 1] within the bounds; return it with the relative change there.

    Safe mutation (Lehman et al. 2018, arXiv:1712.06563): bounds the change of the output, not the size of the noise.
    The policy is restored afterwards.
    """
    moved = [(p, p.detach().clone(), deltas[name].to(p)) for name, p in policy.named_parameters() if name in deltas]
    before = effects.output_of(policy, observations)
    least = agreement if effects.is_discrete(policy) else 0.0

    @torch.no_grad()
    def change_at(scale: float) -> float:
        for parameter, value, delta in moved:
            parameter.copy_(value).add_(delta, alpha=scale)
        after = effects.output_of(policy, observations)
        for parameter, value, _ in moved:
            parameter.copy_(value)
        change = effects.relative_change(after, before)
        return change if effects.greedy_agreement(after, before) >= least else float("inf")

    with effects.evaluating(policy):
        change = change_at(1.0)
        if change <= bound:
            return 1.0, change
        low, high, change_at_low = 0.0, 1.0, 0.0
        for _ in range(8):  # to a precision of 1/256
            middle = (low + high) / 2
            change = change_at(middle)
            if change <= bound:
                low, change_at_low = middle, change
            else:
                high = middle
        while low == 0.0 and high > MIN_SCALE:  # small outputs may only tolerate smaller steps
            high /= 2
            change = change_at(high)
            if change <= bound:
                low, change_at_low = high, change
    return low, change_at_low


def mutate_parameters(agent: foreign.Agent, options: NoiseOptions, rng: np.random.Generator) -> MutationRecord:
    """Add noise to the agent's policy in place; targets change by the same amount, optimiser moments are kept.

    Every policy of a team is mutated; the record is of the one that changed most. The record's kind is "none" if no
    weight changed: the noise is zero, or no scale of it keeps the outputs within their bounds.
    """
    networks, groups = effects.networks_of(agent), effects.policy_groups(agent)
    probes = effects.probes_of(agent, groups[0].eval_network, np.random.default_rng(0))
    before = effects.outputs_of(networks, probes)
    records = [_mutate_policy(agent, group, options, rng) for group in groups]
    done = [record for record in records if record.kind != "none"]
    if not done:
        return MutationRecord()
    largest = max(done, key=lambda record: record.change or 0.0)
    changed = effects.changes(before, effects.outputs_of(networks, probes))
    only = groups[0].eval_network if len(groups) == 1 else None  # whose change the record has anyway
    return replace(largest, changes={n: change for n, change in changed.items() if change and n != only} or None)


def _mutate_policy(agent: foreign.Agent, group: Any, options: NoiseOptions, rng: np.random.Generator) -> MutationRecord:
    policy = effects.networks_of(agent)[group.eval_network]
    weights = mutable_weights(policy)
    if not weights:
        return MutationRecord()
    targets = [resolve(agent, name) for name in effects.shared_names(group)]
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    if options.published:
        shift(policy, published_noise(weights, options.sd, rng), 1.0)
        for target in targets:
            target.load_state_dict(policy.state_dict())
        done = MutationRecord("parameters", "published", None, {"sd": options.sd}, None)
        return MutationRecord() if _is_same(weights, before) else done
    is_super = bool(rng.random() < SUPER_PROB)
    deltas = noise(weights, SUPER_SD if is_super else options.sd, rng)
    bound = options.super_bound if is_super else options.bound
    agreement = options.super_agreement if is_super else options.agreement
    probe = effects.probe_of(agent, policy, rng, group.eval_network)
    scale, change = 1.0, None
    if probe is not None:
        scale, change = largest_scale(policy, deltas, probe.measure, bound, agreement)
    for network in (policy, *targets):
        shift(network, deltas, scale)
    done = MutationRecord("parameters", "super" if is_super else "normal", None, {"scale": scale}, change)
    return MutationRecord() if _is_same(weights, before) else done


def _is_same(weights: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(weight, before[name]) for name, weight in weights.items())
