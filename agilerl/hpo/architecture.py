"""Architecture mutation: one method, drawn for the policy and applied to all evaluation networks that have it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl import foreign
from agilerl.hpo import effects
from agilerl.hpo.effects import MutationRecord, Probe
from agilerl.modules.base import EvolvableModule
from agilerl.modules.multi_input import VECTOR_MLP
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork

MIN_STEP = 4  # units or channels; smaller removals are not worth a rebuild
AMOUNTS = ("numb_new_nodes", "numb_new_channels")  # names of the methods' step-size arguments


@dataclass(frozen=True)
class ArchitectureOptions:
    """Settings of architecture mutations.

    Attributes:
        new_layer_prob: probability of the layer methods.
        bound: maximum relative change of the policy's output on held-out observations. Larger mutations are retried
            with fewer units, then skipped. None: no bound.
        agreement: minimum fraction of those observations with an unchanged greedy action (discrete actions).
        fresh: "preserve", or "random" as published.
        removal: whether to allow methods that remove units or layers.
    """

    new_layer_prob: float
    bound: float | None = 0.1
    agreement: float = 0.95
    fresh: str = "preserve"
    removal: bool = True


def describe(network: Any) -> Any:
    """Return a short form of an architecture for the lineage."""
    form = described(network)
    return foreign.hidden_size(network) if form is None else form


def described(network: Any) -> str | None:
    """Return a network's own description; None if it has no `describe`, as with custom modules."""
    describe = foreign.method(network, "describe")
    return None if describe is None else str(describe())


def arguments_for(network: EvolvableModule, name: str, given: Any) -> dict[str, Any]:
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


def bounded(
    policy: EvolvableModule, method: str, options: ArchitectureOptions, probe: Probe | None
) -> tuple[EvolvableModule, Any, float | None] | None:
    """Return a changed copy of the policy within the bound, retrying with fewer units; None on failure."""
    before = None if probe is None else effects.output_of(policy, probe.measure)
    arguments: dict[str, Any] = {}
    while True:
        copy, result = attempt(policy, method, options, probe, arguments)
        if copy.last_mutation_attr is None:
            return None
        if probe is None or before is None:
            return copy, result, None
        after = effects.output_of(copy, probe.measure)
        change = effects.relative_change(after, before)
        agrees = not effects.is_discrete(policy) or effects.greedy_agreement(after, before) >= options.agreement
        if options.bound is None or (change <= options.bound and agrees):
            return copy, result, change
        last_arguments = result if isinstance(result, dict) else {}
        fewer = {name: last_arguments[name] // 2 for name in AMOUNTS if last_arguments.get(name)}
        if not fewer or min(fewer.values()) < MIN_STEP:
            return None
        arguments = arguments_for(policy, method, {**last_arguments, **fewer})


def mutate_architecture(
    agent: Any, options: ArchitectureOptions, choice: Any, rng: np.random.Generator
) -> MutationRecord:
    """Apply one architecture mutation to the agent's networks, targets and optimisers.

    Args:
        agent: changed in place; its network attributes are replaced by the changed networks.
        choice: draws the method; rng: seeds the networks' generators (a custom network generator is left unchanged).

    Returns:
        The record; kind "none" if no method could be applied, in which case nothing is rebuilt.
    """
    group = effects.drawn_policy(agent, rng)
    networks = effects.networks_of(agent)
    policy = networks.pop(group.eval_network)
    for network in (policy, *networks.values()):
        if isinstance(network.rng, np.random.Generator):
            network.rng = np.random.default_rng(int(rng.integers(2**63 - 1)))
    probe = effects.probe_of(agent, policy, rng, group.eval_network)
    removing = [m for m in policy.mutation_methods if m.rpartition(".")[2].startswith("remove_")]
    limits: dict[str, Any] = {"excluded": removing} if removing and not options.removal else {}
    offered = bool(policy.mutation_methods)  # empty for plain custom modules
    name = policy.sample_mutation_method(options.new_layer_prob, choice, **limits) if offered else None
    mutated = None if name is None else bounded(policy, name, options, probe)
    if mutated is None:
        return MutationRecord()
    new_policy, result, change = mutated
    return spread_change(agent, group, new_policy, result, change, options, probe)


def spread_change(
    agent: Any,
    group: Any,
    new_policy: EvolvableModule,
    result: Any,
    change: float | None,
    options: ArchitectureOptions,
    probe: Probe | None,
) -> MutationRecord:
    """Apply the mutation of a policy to the agent's other networks, and install all of them; return the record.

    Args:
        group: of the policy, which is still the agent's. new_policy: its changed copy. result: of the method.
        change: relative change of the policy's output, None if not measured.
    """
    networks: dict[str, Any] = effects.networks_of(agent)
    policy = networks.pop(group.eval_network)
    applied = str(new_policy.last_mutation_attr)
    changed = {group.eval_network: new_policy}
    for attribute, network in networks.items():
        method = analogous(network, applied, agent, group.eval_network)
        if method is None or not network.can_apply(method):
            continue
        new, _ = attempt(network, method, options, effects.probe_for(network, policy, probe, agent, attribute),
                         arguments_for(network, method, result))  # fmt: skip
        if new.last_mutation_attr is not None:
            changed[attribute] = new
    for attribute, network in networks.items():
        if not (isinstance(network, EvolvableNetwork) and network.encoder_source is policy):
            continue  # does not read the policy's features
        reader = changed.get(attribute)
        if reader is None:
            reader, _ = changed_copy(network, options, probe, lambda copy: copy.follow_encoder_source(new_policy))
        # If the policy's target becomes a copy, so do the targets of networks that read its features.
        follows_copy = bool(effects.shared_names(group)) and effects.restarts(policy, new_policy)
        reader.last_refit = reader.last_refit or follows_copy
        changed[attribute] = reader
    # For a team, prefix the path with the name of the mutated policy.
    path = applied if len(effects.policy_groups(agent)) == 1 else f"{group.eval_network}.{applied}"
    record = MutationRecord("architecture", path, describe(policy), describe(new_policy), change)
    install(agent, changed)
    return record


def analogous(network: EvolvableModule, applied: str, agent: Any, policy: str) -> str | None:
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


def install(agent: Any, changed: dict[str, EvolvableModule]) -> None:
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
