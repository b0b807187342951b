"""Architecture mutation: one method, drawn for the policy, applied to all evaluation networks that have it."""

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

MIN_STEP = 4  # units or channels; below that a removal is not worth a rebuild
AMOUNTS = ("numb_new_nodes", "numb_new_channels")  # what methods call the size of their step


@dataclass(frozen=True)
class ArchitectureOptions:
    """How architecture mutations behave.

    Attributes:
        new_layer_prob: share of the layer methods.
        bound: largest relative change of the policy's output that a mutation may cause, on observations it was not
            fitted to; a larger one is tried with fewer units, then not done. None: no bound.
        agreement: least share of those observations whose greedy action stays (policies with discrete actions).
        fresh: "preserve", or "random" as published.
        removal: whether methods that remove are offered.
    """

    new_layer_prob: float
    bound: float | None = 0.1
    agreement: float = 0.95
    fresh: str = "preserve"
    removal: bool = True


def describe(network: Any) -> Any:
    """Short form of an architecture for the lineage."""
    form = described(network)
    return foreign.hidden_size(network) if form is None else form


def described(network: Any) -> str | None:
    """What a network says of itself; None for one without `describe`, as modules of the user's own may be."""
    describe = foreign.method(network, "describe")
    return None if describe is None else str(describe())


def arguments_for(network: EvolvableModule, name: str, given: Any) -> dict[str, Any]:
    """Those of `given` that the method `name` of `network` takes."""
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
    """A changed copy of `network` and what the method returned; the network itself is not touched."""
    return changed_copy(network, options, probe, lambda copy: copy.apply_mutation(name, **arguments))


def changed_copy(
    network: EvolvableModule, options: ArchitectureOptions, probe: Probe | None, change: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """A copy of `network` to which `change` was applied, and what that returned."""
    copy: Any = network.clone()
    copy.fresh = options.fresh
    with effects.probing(copy, probe.fit if probe is not None and options.fresh == "preserve" else None):
        result = change(copy)
    copy.fresh = network.fresh
    return copy, result


def bounded(
    policy: EvolvableModule, method: str, options: ArchitectureOptions, probe: Probe | None
) -> tuple[EvolvableModule, Any, float | None] | None:
    """A changed copy of the policy within the bound, by fewer and fewer units; None if there is none."""
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
        given = result if isinstance(result, dict) else {}
        fewer = {name: given[name] // 2 for name in AMOUNTS if given.get(name)}
        if not fewer or min(fewer.values()) < MIN_STEP:
            return None
        arguments = arguments_for(policy, method, {**given, **fewer})


def mutate_architecture(
    agent: Any, options: ArchitectureOptions, choice: Any, rng: np.random.Generator
) -> MutationRecord:
    """Apply one architecture mutation to the agent's networks, targets and optimisers.

    Args:
        agent: changed in place; its network attributes are replaced by the changed networks.
        choice: draws the method; rng: seeds the networks' own draws (a replaced network generator is left alone).

    Returns:
        The record; kind "none" if nothing could be applied, in which case nothing is rebuilt.
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
    offered = bool(policy.mutation_methods)  # a module of the user's own, as it stands, has none
    name = policy.sample_mutation_method(options.new_layer_prob, choice, **limits) if offered else None
    found = None if name is None else bounded(policy, name, options, probe)
    if found is None:
        return MutationRecord()
    new_policy, result, change = found
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
            continue  # it does not read the policy's features
        reader = changed.get(attribute)
        if reader is None:
            reader, _ = changed_copy(network, options, probe, lambda copy: copy.follow_encoder_source(new_policy))
        # Where the policy's target becomes a copy, those of its readers do as well.
        follows_copy = bool(effects.shared_names(group)) and effects.restarts(policy, new_policy)
        reader.last_refit = reader.last_refit or follows_copy
        changed[attribute] = reader
    # Of a team the path says whose policy it was drawn for.
    path = applied if len(effects.policy_groups(agent)) == 1 else f"{group.eval_network}.{applied}"
    record = MutationRecord("architecture", path, describe(policy), describe(new_policy), change)
    install(agent, changed)
    return record


def analogous(network: EvolvableModule, applied: str, agent: Any, policy: str) -> str | None:
    """The method of another evaluation network that does what `applied` did to the policy; None where none does.

    It is the same one, or that of the same kind in the part of a centralised encoder that reads the policy's agents: a
    part by their name, else the one that reads all vectors.
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
    """Put the changed evaluation networks into the agent, let targets follow and optimisers rebind.

    Optimisers go first: a network that is assigned while its optimiser still holds another one is a stranger to it,
    and its moments would start at zero.
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
