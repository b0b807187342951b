"""Effects of a mutation on an agent: its record, the size of the change, and updates of targets and optimisers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.core.tree import Tree, count_rows, map_leaves
from agilerl.errors import MutationError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.morph import Transfer
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.observations import sample_batch
from agilerl.networks.q_networks import ContinuousQNetwork

PROBES = 512  # half of them to fit on, half (256) held out to measure the change


@dataclass(frozen=True)
class MutationRecord:
    """Record of a mutation, in the format of `telemetry.record.Birth`.

    Attributes:
        kind: see `hpo.kinds`.
        path: the method, attribute or part that changed, "" if nothing.
        before, after: JSON-serialisable values of the change.
        change: relative change of the policy's output over probe observations, None if not measured.
        changes: the same of the other evaluation networks that were measured, by name; None without.
    """

    kind: str = "none"
    path: str = ""
    before: Any = None
    after: Any = None
    change: float | None = None
    changes: dict[str, float] | None = None


@runtime_checkable
class Probed(Protocol):
    """An agent that stores recent observations."""

    def probe_observations(self, count: int = 256) -> Any:
        """Return up to `count` recent observations [B, ...], or None."""


@runtime_checkable
class Apart(Protocol):
    """A team, whose networks read different observations."""

    def agents_of(self, network: str) -> list[str]:
        """Return the agents that share the network of this name."""

    def observations_for(self, network: str, observations: Tree) -> Any:
        """Return the observations read by the network of this name."""


@dataclass(frozen=True)
class Probe:
    """Observations to fit on, and held-out observations to measure on.

    Both are tensors [B, ...], or nested dicts of them for Dict and Tuple spaces.

    Attributes:
        fit_actions, measure_actions: what a critic reads beside them, [B, A], or [K, B, A] for the K agents that share
            it; None for other networks, and as long as none are stored.
    """

    fit: Any
    measure: Any
    fit_actions: Tensor | None = None
    measure_actions: Tensor | None = None


def inner(agent: object) -> Any:
    """Return the agent inside any wrappers."""
    while "agent" in vars(agent) and hasattr(agent.__dict__["agent"], "registry"):
        agent = agent.__dict__["agent"]
    return agent


def registry_of(agent: foreign.Agent) -> Any:
    """Return the agent's registry; MutationError if it has none."""
    if not hasattr(agent, "registry"):
        raise MutationError(f"{type(agent).__name__} has no registry. fix: a subclass of EvolvableAlgorithm.")
    return agent.registry


def policy_groups(agent: foreign.Agent) -> list[Any]:
    """Return the groups of policy networks: one, or one per group of a team's agents."""
    groups = [g for g in registry_of(agent).groups if g.policy]
    if not groups:
        raise MutationError(f"{type(agent).__name__} registers no policy. fix: NetworkGroup(..., policy=True).")
    return groups


def drawn_policy(agent: foreign.Agent, rng: np.random.Generator) -> Any:
    """Return the group whose policy is mutated; drawn at random if there are several."""
    groups = policy_groups(agent)
    return groups[0] if len(groups) == 1 else groups[int(rng.integers(len(groups)))]


def shared_names(group: Any) -> list[str]:
    """Return attribute names of the networks that follow the group's evaluation network."""
    names = group.shared_networks
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def networks_of(agent: foreign.Agent, *, shared: bool = False) -> dict[str, EvolvableModule]:
    """Map attribute names to evaluation networks (with `shared` also targets)."""
    groups = registry_of(agent).groups
    names = [name for g in groups for name in (g.eval_network, *(shared_names(g) if shared else ()))]
    return {name: resolve(agent, name) for name in names}


def reads_actions(network: nn.Module) -> bool:
    """Whether a network is a critic whose head reads more than features: actions, or who asks."""
    return isinstance(network, ContinuousQNetwork)


def probe_of(agent: foreign.Agent, policy: EvolvableModule, rng: np.random.Generator, name: str = "") -> Probe | None:
    """Return recent observations of the agent, else samples of the policy's observation space, else None.

    name: of the network, for teams, whose networks read different observations (`observations_for`)."""
    seen = agent.probe_observations(PROBES) if isinstance(agent, Probed) else None
    if seen is not None and isinstance(agent, Apart):
        seen = agent.observations_for(name, seen)
    if seen is None or count_rows(seen) < 2:
        if not isinstance(policy, EvolvableNetwork):
            return None
        seen = sample_batch(policy.observation_space, PROBES, rng)
    probe = Probe(map_leaves(lambda x: x[::2], seen), map_leaves(lambda x: x[1::2], seen))
    return _with_actions(probe, agent, policy, name)


def probe_for(
    network: EvolvableModule, policy: EvolvableModule, probe: Probe | None, agent: foreign.Agent, name: str
) -> Probe | None:
    """Return the policy's observations if the network reads the same space; for a team, those of this network."""
    if isinstance(agent, Apart):
        return None if probe is None else probe_of(agent, network, np.random.default_rng(0), name)
    if probe is None or foreign.observation_space(network) != foreign.observation_space(policy):
        return None
    return _with_actions(probe, agent, network, name)


def actions_for(agent: foreign.Agent, network: EvolvableModule, name: str) -> Tensor | None:
    """Return what a network reads beside the agent's recent observations, if it does and the agent stores it."""
    stored = foreign.method(agent, "probe_actions") if reads_actions(network) else None
    return None if stored is None else cast("Tensor | None", stored(name, PROBES))


def _with_actions(probe: Probe, agent: foreign.Agent, network: EvolvableModule, name: str) -> Probe:
    actions = actions_for(agent, network, name)
    if actions is None:
        return probe
    return replace(probe, fit_actions=actions[..., ::2, :], measure_actions=actions[..., 1::2, :])


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set the network to evaluation mode; wrap a loop in it to avoid traversing the modules on each pass."""
    training = network.training
    if training:
        network.eval()
    try:
        yield
    finally:
        if training:
            network.train()


@torch.no_grad()
def output_of(network: Any, observations: Any, actions: Tensor | None = None) -> Tensor:
    """Return the network's deterministic output [B, O], before sampling and without noise; of critics for `actions`.

    Networks whose raw output does not determine the action (logits of a return distribution) override this with
    `effect_output`.
    """
    with evaluating(network):
        has_raw_output = isinstance(network, EvolvableNetwork) and not network.runs_forward
        run = foreign.method(network, "effect_output") or (network.output if has_raw_output else network)
        result = run(observations) if actions is None else run(observations, actions.flatten(0, -2))
    return cast(Tensor, result[0] if isinstance(result, tuple) else result)


def probes_of(agent: foreign.Agent, name: str, rng: np.random.Generator) -> dict[str, Probe]:
    """Return what the agent's evaluation networks are probed with; `name` is that of the mutated policy.
    rng: draws observations for an agent that has not learned yet."""
    networks = networks_of(agent)
    policy = networks.pop(name)
    probe = probe_of(agent, policy, rng, name)
    probes = {other: probe_for(network, policy, probe, agent, other) for other, network in networks.items()}
    return {other: found for other, found in {name: probe, **probes}.items() if found is not None}


def outputs_of(networks: Mapping[str, Any], probes: Mapping[str, Probe]) -> dict[str, Tensor]:
    """Return the networks' outputs on the held-out rows of their probes, without networks that need other inputs."""
    outputs = {}
    for name, probe in probes.items():
        try:
            outputs[name] = output_of(networks[name], probe.measure, probe.measure_actions)
        except TypeError as error:  # a network with further inputs: of the user, or a critic before actions are stored
            if "required positional argument" not in str(error):
                raise
    return outputs


def changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the relative change of outputs by network."""
    return {name: relative_change(after[name], output) for name, output in before.items()}


def others(changes: Mapping[str, float], policy: str) -> dict[str, float] | None:
    """Return the `changes` of a record: those of other networks than the policy."""
    return {name: change for name, change in changes.items() if name != policy} or None


def relative_change(after: Tensor, before: Tensor) -> float:
    """|after − before| / |before| (Frobenius norm); infinite if not a number."""
    change = float((after - before).norm() / before.norm().clamp_min(1e-12))
    return change if change == change else float("inf")


def greedy_agreement(after: Tensor, before: Tensor) -> float:
    """Fraction of the observations with an unchanged greedy action."""
    return float((after.argmax(-1) == before.argmax(-1)).double().mean())


def is_discrete(network: nn.Module) -> bool:
    """Whether the network selects a discrete action, so that greedy agreement is defined."""
    return isinstance(foreign.action_space(network), spaces.Discrete)


@contextmanager
def probing(network: EvolvableModule, probe: Probe | None) -> Iterator[None]:
    """Attach probe inputs to the network for the duration of a mutation."""
    inputs = () if probe is None or probe.fit_actions is None else (probe.fit_actions,)
    network.probe(None if probe is None else probe.fit, *inputs)
    try:
        yield
    finally:
        network.probe(None)


def restarts(old: EvolvableModule, new: EvolvableModule) -> bool:
    """Whether the target of a mutated network is replaced by a copy: after a refit, or if an entry was removed."""
    left = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name not in left:
            return True
        if name in new.last_transfer:
            old_entries = ((index >= 0).sum() for index in new.last_transfer[name].index)
            if any(k < size for k, size in zip(old_entries, parameter.shape, strict=True)):
                return True
    return new.last_refit


@torch.no_grad()
def follow(target: EvolvableModule, old_eval: EvolvableModule, new_eval: EvolvableModule) -> EvolvableModule:
    """Return the target network in the shape of the mutated evaluation network; the old target is unchanged.

    Existing entries change like those of the evaluation network, and new entries are copied from it. After a removal or
    a refit, all weights are copied from the evaluation network, because they belong to the refitted layer.
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
    agent: foreign.Agent, policy: EvolvableModule, activation: str, probe: Probe | None
) -> dict[str, Mapping[str, Transfer]]:
    """Change the hidden activation of every network in place; return the transfers of networks with new parameters."""
    changed: dict[str, Mapping[str, Transfer]] = {}
    networks = networks_of(agent, shared=True)
    with ExitStack() as stack:
        # Probe all networks first: those that read another network's features need its outputs before the change.
        for name, network in networks.items():
            stack.enter_context(probing(network, probe_for(network, policy, probe, agent, name)))
        for name, network in networks.items():
            parameters = [id(p) for p in network.parameters()]
            network.change_activation(activation, output=False)
            if parameters != [id(p) for p in network.parameters()]:
                changed[name] = network.last_transfer
    return changed


def rebuild_optimizers(
    agent: foreign.Agent, changed: Mapping[str, EvolvableModule], transfers: Mapping[str, Mapping[str, Transfer]]
) -> None:
    """Rebuild the optimisers of changed networks for their new parameters; moments follow the transfers."""
    for entry in registry_of(agent).optimizers:
        names = [entry.networks] if isinstance(entry.networks, str) else list(entry.networks)
        if any(name in transfers for name in names):
            live = {name: changed[name] if name in changed else resolve(agent, name) for name in names}
            resolve(agent, entry.name).rebuild(live, {name: transfers.get(name, {}) for name in names})
