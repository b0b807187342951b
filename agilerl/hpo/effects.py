"""What a mutation does to an agent: its record, the size of the change, the targets and optimisers that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl import foreign
from agilerl.errors import MutationError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.morph import Transfer
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.observations import sample_batch
from agilerl.tree import count_rows, map_leaves

PROBES = 512  # half of them to fit on, half (256) to measure on


@dataclass(frozen=True)
class MutationRecord:
    """What a mutation did to an agent, in the words of `telemetry.record.Birth`.

    Attributes:
        kind: "none", "architecture", "parameters", "activation" or "rl_hp".
        path: the method, attribute or part that changed, "" if nothing.
        before, after: JSON-able values of what changed.
        change: relative change of the policy's output over probe observations, None if not measured.
    """

    kind: str = "none"
    path: str = ""
    before: Any = None
    after: Any = None
    change: float | None = None


@runtime_checkable
class Probed(Protocol):
    """An agent that remembers observations."""

    def probe_observations(self, count: int = 256) -> Any:
        """Up to `count` recent observations [B, ...], or None."""


@runtime_checkable
class Apart(Protocol):
    """A team, whose networks read different observations."""

    def agents_of(self, network: str) -> list[str]:
        """The agents that share the network of this name."""

    def observations_for(self, network: str, observations: Any) -> Any:
        """The observations that the network of this name reads."""


@dataclass(frozen=True)
class Probe:
    """Observations to fit on and, apart from them, observations to measure on.

    Both are tensors [B, ...], or nested dicts of them for Dict and Tuple spaces.
    """

    fit: Any
    measure: Any


def inner(agent: Any) -> Any:
    """The agent inside any wrappers."""
    while "agent" in vars(agent) and hasattr(agent.__dict__["agent"], "registry"):
        agent = agent.__dict__["agent"]
    return agent


def registry_of(agent: Any) -> Any:
    """The registry, or MutationError for an object that has none."""
    if not hasattr(agent, "registry"):
        raise MutationError(f"{type(agent).__name__} has no registry: only an EvolvableAlgorithm can be mutated.")
    return agent.registry


def policy_groups(agent: Any) -> list[Any]:
    """The groups whose evaluation networks choose the actions: one, or one for each group of a team's agents."""
    groups = [g for g in registry_of(agent).groups if g.policy]
    if not groups:
        raise MutationError(f"{type(agent).__name__} registers no network group with policy=True.")
    return groups


def drawn_policy(agent: Any, rng: np.random.Generator) -> Any:
    """The group whose policy is mutated; drawn where there are several."""
    groups = policy_groups(agent)
    return groups[0] if len(groups) == 1 else groups[int(rng.integers(len(groups)))]


def shared_names(group: Any) -> list[str]:
    """Attribute names of the networks that follow the group's evaluation network."""
    names = group.shared_networks
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def networks_of(agent: Any, *, shared: bool = False) -> dict[str, EvolvableModule]:
    """Attribute name -> evaluation network (with `shared` also the targets)."""
    groups = registry_of(agent).groups
    names = [name for g in groups for name in (g.eval_network, *(shared_names(g) if shared else ()))]
    return {name: resolve(agent, name) for name in names}


def probe_of(agent: Any, policy: EvolvableModule, rng: np.random.Generator, name: str = "") -> Probe | None:
    """Recent observations of the agent, else made-up ones from the policy's observation space, else None.

    name: of the network, for a team, whose networks see different things (`observations_for`)."""
    seen = agent.probe_observations(PROBES) if isinstance(agent, Probed) else None
    if seen is not None and isinstance(agent, Apart):
        seen = agent.observations_for(name, seen)
    if seen is None or count_rows(seen) < 2:
        if not isinstance(policy, EvolvableNetwork):
            return None
        seen = sample_batch(policy.observation_space, PROBES, rng)
    return Probe(map_leaves(lambda x: x[::2], seen), map_leaves(lambda x: x[1::2], seen))


def probe_for(network: Any, policy: Any, probe: Probe | None, agent: Any = None, name: str = "") -> Probe | None:
    """The policy's observations, where the network reads the same space; of a team's what this one sees."""
    if isinstance(agent, Apart):
        return None if probe is None else probe_of(agent, network, np.random.default_rng(0), name)
    same = foreign.observation_space(network) == foreign.observation_space(policy)
    return probe if same else None


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """The network in evaluation mode; around a loop it spares each pass the walk through the modules."""
    training = network.training
    if training:
        network.eval()
    try:
        yield
    finally:
        if training:
            network.train()


@torch.no_grad()
def output_of(network: Any, observations: Any) -> Tensor:
    """What the network computes before anything is sampled from it [B, O], without noise.

    A network whose raw output is not what decides (the logits of a distribution of returns) gives what does by
    `effect_output`.
    """
    with evaluating(network):
        known = isinstance(network, EvolvableNetwork) and not network.runs_forward
        run = network.output if known else network
        result = (foreign.method(network, "effect_output") or run)(observations)
    return cast(Tensor, result[0] if isinstance(result, tuple) else result)


def relative_change(after: Tensor, before: Tensor) -> float:
    """|after − before| / |before| (Frobenius), infinite if it is not a number."""
    change = float((after - before).norm() / before.norm().clamp_min(1e-12))
    return change if change == change else float("inf")


def greedy_agreement(after: Tensor, before: Tensor) -> float:
    """Share of the observations in which the best action is still the same."""
    return float((after.argmax(-1) == before.argmax(-1)).double().mean())


def is_discrete(network: Any) -> bool:
    """True if the network chooses one of several actions, so that greedy agreement means something."""
    return isinstance(foreign.action_space(network), spaces.Discrete)


@contextmanager
def probing(network: EvolvableModule, observations: Any) -> Iterator[None]:
    """Give the network its probe inputs for the time of a mutation."""
    network.probe(observations)
    try:
        yield
    finally:
        network.probe(None)


def restarts(old: EvolvableModule, new: EvolvableModule) -> bool:
    """Whether the target of a mutated network becomes a copy of it: a layer was refitted, or an entry is gone."""
    left = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name not in left:
            return True
        if name in new.last_transfer:
            kept = ((index >= 0).sum() for index in new.last_transfer[name].index)
            if any(k < size for k, size in zip(kept, parameter.shape, strict=True)):
                return True
    return new.last_refit


@torch.no_grad()
def follow(target: EvolvableModule, old_eval: EvolvableModule, new_eval: EvolvableModule) -> EvolvableModule:
    """The target network in the shape of the mutated evaluation network; the old target is left as it is.

    Its own entries move as the evaluation network's did; new entries are the evaluation network's. After a removal
    or a refit its weights are the evaluation network's, because the refitted layer belongs to those.
    """
    twin = new_eval.clone()
    twin.train(target.training)
    frozen = not any(p.requires_grad for p in target.parameters())
    if not restarts(old_eval, new_eval):
        old = dict(target.named_parameters())
        for name, parameter in twin.named_parameters():
            transfer = new_eval.last_transfer.get(name)
            parameter.copy_(old[name] if transfer is None else transfer.apply(old.get(name), parameter))
    return twin.requires_grad_(False) if frozen else twin


def change_activations(
    agent: Any, policy: EvolvableModule, activation: str, probe: Probe | None
) -> dict[str, Mapping[str, Transfer]]:
    """Change the hidden activation of every network in place; the transfers of those whose parameters are new."""
    changed: dict[str, Mapping[str, Transfer]] = {}
    networks = networks_of(agent, shared=True)
    with ExitStack() as stack:
        # All are probed first: what reads another network's features has to see them before that one changes.
        for name, network in networks.items():
            seen = probe_for(network, policy, probe, agent, name)
            stack.enter_context(probing(network, None if seen is None else seen.fit))
        for name, network in networks.items():
            parameters = [id(p) for p in network.parameters()]
            network.change_activation(activation, output=False)
            if parameters != [id(p) for p in network.parameters()]:
                changed[name] = network.last_transfer
    return changed


def rebuild_optimizers(
    agent: Any, changed: Mapping[str, EvolvableModule], transfers: Mapping[str, Mapping[str, Transfer]]
) -> None:
    """Point every optimiser of a changed network to its new parameters; moments follow the transfers."""
    for entry in registry_of(agent).optimizers:
        names = [entry.networks] if isinstance(entry.networks, str) else list(entry.networks)
        if any(name in transfers for name in names):
            live = {name: changed[name] if name in changed else resolve(agent, name) for name in names}
            resolve(agent, entry.name).rebuild(live, {name: transfers.get(name, {}) for name in names})
