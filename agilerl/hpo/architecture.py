"""Architecture mutation: one method, drawn for the policy and applied to all evaluation networks that have it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from agilerl.core import foreign
from agilerl.hpo import effects
from agilerl.hpo.effects import MutationRecord, Probe
from agilerl.modules.base import EvolvableModule
from agilerl.modules.multi_input import VECTOR_MLP
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork

MIN_STEP = 4  # units or channels; smaller removals are not worth a rebuild
VALUE_SHARE = 0.5  # bound of values, relative to that of policies
AMOUNTS = ("numb_new_nodes", "numb_new_channels")  # names of the methods' step-size arguments


@dataclass(frozen=True)
class ArchitectureOptions:
    """Settings of architecture mutations.

    Attributes:
        new_layer_prob: probability of the layer methods.
        bound: maximum relative change of a policy's output on held-out observations; half of it for other networks,
            whose errors are learned from. Larger mutations are retried with fewer units, then skipped. None: no bound.
        agreement: minimum fraction of those observations with an unchanged greedy action (discrete actions).
        fresh: "preserve", or "random" as published.
        removal: whether to allow methods that remove units or layers.
    """

    new_layer_prob: float
    bound: float | None = 0.1
    agreement: float = 0.95
    fresh: str = "preserve"
    removal: bool = True


def describe(network: EvolvableModule) -> Any:
    """Return a short form of an architecture for the lineage."""
    form = described(network)
    return foreign.hidden_size(network) if form is None else form


def described(network: EvolvableModule) -> str | None:
    """Return a network's own description; None if it has no `describe`, as with custom modules."""
    describe = foreign.method(network, "describe")
    return None if describe is None else str(describe())


def arguments_for(network: EvolvableModule, name: str, given: object) -> dict[str, Any]:
    """Filter `given` to the arguments of the method `name` of `network`."""
    *path, method = name.split(".")
    owner: Any = network
    for key in path:
        owner = owner.modules()[key]
    while not hasattr(owner, method) and hasattr(owner, "wrapped"):
        owner = owner.wrapped
    taken = inspect.signature(resolve(owner, method)).parameters
    return {k: v for k, v in given.items() if k in taken} if isinstance(given, dict) else {}


def attempt(
    network: EvolvableModule, name: str, options: ArchitectureOptions, probe: Probe | None, arguments: dict[str, Any]
) -> tuple[EvolvableModule, Any]:
    """Return a changed copy of `network` and the method's return value; `network` itself is unchanged."""
    return changed_copy(network, options, probe, lambda copy: copy.apply_mutation(name, **arguments))


def changed_copy(
    network: EvolvableModule, options: ArchitectureOptions, probe: Probe | None, change: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Apply `change` to a copy of `network`; return the copy and the output of `change`."""
    copy: Any = network.clone()
    copy.fresh = options.fresh
    with effects.probing(copy, probe if options.fresh == "preserve" else None):
        result = change(copy)
    copy.fresh = network.fresh
    return copy, result


def mutate_architecture(
    agent: foreign.Agent, options: ArchitectureOptions, choice: Any, rng: np.random.Generator
) -> MutationRecord:
    """Apply one architecture mutation to the agent's networks, targets and optimisers.

    Args:
        agent: changed in place; its network attributes are replaced by the changed networks.
        choice: draws the method; rng: seeds the networks' generators (a custom network generator is left unchanged).

    Returns:
        The record; kind "none" if no method could be applied within the bounds, in which case nothing is rebuilt.
    """
    group = effects.drawn_policy(agent, rng)
    networks = effects.networks_of(agent)
    policy = networks[group.eval_network]
    for network in (policy, *(other for other in networks.values() if other is not policy)):
        if isinstance(network.rng, np.random.Generator):
            network.rng = np.random.default_rng(int(rng.integers(2**63 - 1)))
    probes = effects.probes_of(agent, group.eval_network, rng)
    removing = [m for m in policy.mutation_methods if m.rpartition(".")[2].startswith("remove_")]
    limits: dict[str, Any] = {"excluded": removing} if removing and not options.removal else {}
    offered = bool(policy.mutation_methods)  # empty for plain custom modules
    name = policy.sample_mutation_method(options.new_layer_prob, choice, **limits) if offered else None
    mutated = None if name is None else bounded(agent, group, name, options, probes)
    return MutationRecord() if mutated is None else replace_networks(agent, group, *mutated)


def bounded(
    agent: foreign.Agent, group: Any, method: str, options: ArchitectureOptions, probes: Mapping[str, Probe]
) -> tuple[dict[str, EvolvableModule], dict[str, float]] | None:
    """Apply a method of a group's policy to copies of the agent's networks, with fewer units until all stay in bounds.

    Returns:
        (changed copies, relative changes of outputs), both by network; None on failure.
    """
    networks: dict[str, Any] = effects.networks_of(agent)
    policy, before = networks[group.eval_network], effects.outputs_of(networks, probes)
    arguments: dict[str, Any] = {}
    while True:
        new_policy, result = attempt(policy, method, options, probes.get(group.eval_network), arguments)
        if new_policy.last_mutation_attr is None:
            return None
        changed = spread(agent, group, new_policy, result, options, probes)
        after = effects.outputs_of({**networks, **changed}, probes)
        if is_within(agent, options, before, after):
            return changed, effects.changes(before, after)
        last_arguments = result if isinstance(result, dict) else {}
        fewer = {key: last_arguments[key] // 2 for key in AMOUNTS if last_arguments.get(key)}
        if not fewer or min(fewer.values()) < MIN_STEP:
            return None
        arguments = arguments_for(policy, method, {**last_arguments, **fewer})


def is_within(
    agent: foreign.Agent, options: ArchitectureOptions, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> bool:
    """Whether the outputs of all networks are within their bounds."""
    if options.bound is None:
        return True
    policies = {group.eval_network for group in effects.policy_groups(agent)}
    for name, change in effects.changes(before, after).items():
        if change > options.bound * (1 if name in policies else VALUE_SHARE):
            return False
        is_choice = name in policies and effects.is_discrete(resolve(agent, name))
        if is_choice and effects.greedy_agreement(after[name], before[name]) < options.agreement:
            return False
    return True


def spread(
    agent: foreign.Agent,
    group: Any,
    new_policy: EvolvableModule,
    result: Mapping[str, Any],
    options: ArchitectureOptions,
    probes: Mapping[str, Probe],
) -> dict[str, EvolvableModule]:
    """Return changed copies of the agent's networks, by name, for the mutation of a policy; the agent is unchanged.

    Args:
        group: of the policy. new_policy: its changed copy. result: of the method. probes: by network.
    """
    networks: dict[str, Any] = effects.networks_of(agent)
    policy = networks.pop(group.eval_network)
    applied = str(new_policy.last_mutation_attr)
    changed = {group.eval_network: new_policy}
    for attribute, network in networks.items():
        method = analogous(network, applied, agent, group.eval_network)
        if method is None or not network.can_apply(method):
            continue
        new, _ = attempt(network, method, options, probes.get(attribute), arguments_for(network, method, result))
        if new.last_mutation_attr is not None:
            changed[attribute] = new
    for attribute, network in networks.items():
        if not (isinstance(network, EvolvableNetwork) and network.encoder_source is policy):
            continue  # does not read the policy's features
        reader = changed.get(attribute)
        if reader is None:
            reader, _ = changed_copy(
                network, options, probes.get(attribute), lambda copy: copy.follow_encoder_source(new_policy)
            )
        # If the policy's target becomes a copy, so do the targets of networks that read its features.
        follows_copy = bool(effects.shared_names(group)) and effects.restarts(policy, new_policy)
        reader.last_refit = reader.last_refit or follows_copy
        changed[attribute] = reader
    return changed


def replace_networks(
    agent: foreign.Agent, group: Any, changed: dict[str, EvolvableModule], changes: Mapping[str, float]
) -> MutationRecord:
    """Install the networks changed by a mutation of a group's policy in the agent; return the record.
    changes: relative changes of outputs by network, as far as measured."""
    name = group.eval_network
    applied = str(changed[name].last_mutation_attr)
    # For a team, prefix the path with the name of the mutated policy.
    path = applied if len(effects.policy_groups(agent)) == 1 else f"{name}.{applied}"
    architectures = describe(resolve(agent, name)), describe(changed[name])
    install(agent, changed)
    return MutationRecord("architecture", path, *architectures, changes.get(name), effects.others(changes, name))


def analogous(network: EvolvableModule, applied: str, agent: foreign.Agent, policy: str) -> str | None:
    """Return the method of another evaluation network equivalent to the `applied` policy method; None if there is none.

    The method has the same name, or is of the same kind in the part of a centralised encoder that reads the policy's
    agents: the part with their name, else the part that reads all vectors.
    """
    if applied in network.mutation_methods:
        return applied
    *path, last = applied.split(".")
    agents = agent.agents_of(policy) if isinstance(agent, effects.Apart) else ()
    alike = [
        method
        for method in network.mutation_methods
        if method.split(".")[-1] == last and path[:1] == method.split(".")[:1]
    ]
    return next((method for name in (*agents, VECTOR_MLP) for method in alike if name in method.split(".")), None)


def install(agent: foreign.Agent, changed: dict[str, EvolvableModule]) -> None:
    """Install the changed evaluation networks in the agent; targets follow and optimisers are rebuilt.

    Optimisers are rebuilt first: if a network is assigned while its optimiser still holds the old one, its moments are
    reset to zero.
    """
    effects.rebuild_optimizers(agent, changed, {name: network.last_transfer for name, network in changed.items()})
    for group in effects.registry_of(agent).groups:
        new = changed.get(group.eval_network)
        if new is None:
            continue
        old = resolve(agent, group.eval_network)
        for name in effects.shared_names(group):
            setattr(agent, name, effects.follow(resolve(agent, name), old, new))
        setattr(agent, group.eval_network, new)
