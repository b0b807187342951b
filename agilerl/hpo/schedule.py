"""Train one agent by the schedule of an evolved run: the changes of the winner's line, each at its recorded step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

import numpy as np

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError, MutationError, RunError, unknown_choice
from agilerl.hpo import effects
from agilerl.hpo.architecture import (
    ArchitectureOptions,
    arguments_for,
    attempt,
    describe,
    install,
    replace_networks,
    spread,
)
from agilerl.hpo.effects import MutationRecord
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.kinds import KINDS
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork
from agilerl.telemetry.record import Birth, MemberRecord

MAX_DRAWS = 64  # attempts at a method that draws what its arguments do not settle, such as a new layer's kernel
OPTIONS = ArchitectureOptions(new_layer_prob=0.0, bound=None)


@dataclass(frozen=True)
class Change:
    """One change of an agent.

    Attributes:
        env_steps: steps of the agent after which it applies; 0: from the start.
        kind: one of `hpo.kinds.REPLAYED`.
        path: names of the hyperparameters, or the architecture method, as in `telemetry.record.Birth`.
        before, after: hyperparameters by name, short forms of the policy's architecture, or activations.
    """

    env_steps: int
    kind: str
    path: str = ""
    before: Any = None
    after: Any = None


class Schedule(Evolution):
    """Apply changes to a single agent, at the generation boundary at or after their steps.

    Weights of new units are drawn from the seed, and preserve the function as in evolution. Changes at step 0 are those
    of the founder, made by `begin_with`.

    Args:
        changes: in the order of their steps. seed: of the draws.
    """

    def __init__(self, changes: Sequence[Change], seed: int) -> None:
        self.changes, self.seed = tuple(changes), seed
        self.applied = sum(change.env_steps == 0 for change in self.changes)

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """See `Evolution.next`.

        Raises:
            ConfigError: more than one agent. MutationError: a change does not apply to it.
        """
        if len(population) != 1:
            raise ConfigError(f"a schedule trains one agent; got {len(population)} members. fix: training.pop_size=1.")
        (parent,), steps = population, records[0].env_steps
        due = [change for change in self.changes[self.applied :] if change.env_steps <= steps]
        if not due:
            return list(population), ()
        child = parent.clone(index=parent.index + 1)
        records_made = [
            apply(child, change, stream(self.seed, Purpose.MUTATION, generation, number))
            for number, change in enumerate(due, self.applied)
        ]
        self.applied += len(due)
        record = _joined(records_made)
        child.mut, child.mutation_record = record.path or "None", record
        child.mutation_hook()
        fitness = float(parent.fitness[-1]) if parent.fitness else None
        return [child], (Birth(child.index, parent.index, generation, **vars(record), parent_fitness=fitness),)

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed, "applied": self.applied}

    def load_state(self, state: Mapping[str, Any]) -> None:
        applied = int(state["applied"])
        if not 0 <= applied <= len(self.changes):
            raise RunError(f"the run has applied {applied} changes of a schedule that has {len(self.changes)}.")
        self.seed, self.applied = int(state["seed"]), applied


def check(agent: foreign.Agent, changes: Sequence[Change]) -> None:
    """Check that the agent has every hyperparameter and architecture method that the changes name.

    Raises:
        ConfigError: it does not, or a list is not one number for each of the agent's.
    """
    for change in changes:
        where = f"evolution.schedule: after {change.env_steps} steps"
        for name, value in change.after.items() if change.kind == "rl_hp" else ():
            if not hasattr(agent, name):
                raise ConfigError(f"{where}: {type(agent).__name__} has no {name}. fix: leave it out.")
            shape = np.shape(getattr(agent, name))
            if isinstance(value, list) and np.shape(value) != shape:
                expected = f"{shape} numbers" if shape else "one number"
                raise ConfigError(f"{where}: {name} is {expected}; got {value!r}. fix: as many as the agent has.")
        if change.kind == "architecture":
            group, method = _policy_of(agent, change.path)
            policy: Any = effects.networks_of(agent)[group.eval_network]
            if method not in policy.mutation_methods:
                prefix = change.path.removesuffix(method)
                methods = [f"{prefix}{name}" for name in policy.mutation_methods]
                raise ConfigError(f"{where}: {unknown_choice('architecture method', change.path, methods)}")


def begin_with(agent: Any, changes: Sequence[Change], seed: int) -> None:
    """Check all changes, and apply those at step 0 to an untrained agent, in place.

    If they change the networks, all weights are drawn anew from the seed: a network that grew from another one has
    other initial weights than one that was built in its size.

    Raises:
        ConfigError: see `check`.
    """
    check(agent, changes)
    first = [change for change in changes if change.env_steps == 0]
    for number, change in enumerate(first):
        apply(agent, change, stream(seed, Purpose.FOUNDERS, 0, number))
    if any(change.kind != "rl_hp" for change in first):
        draw_weights(agent, stream(seed, Purpose.FOUNDERS, 1))
    if first:
        agent.mutation_hook()


def apply(agent: foreign.Agent, change: Change, rng: np.random.Generator) -> MutationRecord:
    """Apply one change to an agent, in place; return its record.

    Raises:
        MutationError: the agent has no such hyperparameter or method, or its network cannot become the recorded one.
    """
    record: MutationRecord = resolve_name(KINDS[change.kind].replay)(agent, change, rng)
    return record


def set_values(agent: foreign.Agent, change: Change, rng: np.random.Generator) -> MutationRecord:
    """Set the recorded hyperparameters."""
    missing = [name for name in change.after if not hasattr(agent, name)]
    if missing:
        raise MutationError(f"the schedule names {', '.join(missing)}, which {type(agent).__name__} does not have.")
    before = {name: getattr(agent, name) for name in change.after}
    for name, value in change.after.items():
        current = before[name]
        setattr(agent, name, np.asarray(value, dtype=current.dtype) if isinstance(current, np.ndarray) else value)
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in before.items()}
    return MutationRecord("rl_hp", ", ".join(change.after), plain, dict(change.after), 0.0)


def set_activation(agent: foreign.Agent, change: Change, rng: np.random.Generator) -> MutationRecord:
    """Give all networks the recorded activation."""
    group = effects.policy_groups(agent)[0]
    policy = effects.networks_of(agent)[group.eval_network]
    probe = effects.probe_of(agent, policy, rng, group.eval_network)
    before = policy.activation
    changed = effects.change_activations(agent, policy, str(change.after), probe)
    if changed:
        effects.rebuild_optimizers(agent, {name: resolve(agent, name) for name in changed}, changed)
    return MutationRecord("activation", "activation", before, change.after, None)


def set_architecture(agent: foreign.Agent, change: Change, rng: np.random.Generator) -> MutationRecord:
    """Apply the recorded architecture method, with the arguments that lead to the recorded network."""
    group, method = _policy_of(agent, change.path)
    networks = effects.networks_of(agent)
    policy: Any = networks[group.eval_network]
    for network in networks.values():
        if network is not policy and isinstance(network.rng, np.random.Generator):
            network.rng = np.random.default_rng(int(rng.integers(2**63 - 1)))
    probes = effects.probes_of(agent, group.eval_network, rng)
    if method not in policy.mutation_methods:
        raise MutationError(f"the schedule applies {change.path}, which the networks of this agent do not have.")
    for arguments in (*candidates(change), *({} for _ in range(MAX_DRAWS))):
        if arguments_for(policy, method, arguments) != arguments:
            continue
        if isinstance(policy.rng, np.random.Generator):  # copies draw what their original would
            policy.rng = np.random.default_rng(int(rng.integers(2**63 - 1)))
        new_policy, result = attempt(policy, method, OPTIONS, probes.get(group.eval_network), arguments)
        if new_policy.last_mutation_attr is not None and describe(new_policy) == change.after:
            return replace_networks(agent, group, spread(agent, group, new_policy, result, OPTIONS, probes), {})
    raise MutationError(
        f"the schedule applies {change.path} to a network {change.before} to get {change.after}, which this agent's "
        f"{describe(policy)} does not become. fix: the environment and settings of the schedule."
    )


def _policy_of(agent: foreign.Agent, path: str) -> tuple[Any, str]:
    """Return the group of the policy that a recorded path names, and the method without that name."""
    groups = effects.policy_groups(agent)
    for group in groups if len(groups) > 1 else ():
        if path.startswith(f"{group.eval_network}."):
            return group, path.removeprefix(f"{group.eval_network}.")
    return groups[0], path


def candidates(change: Change) -> Iterator[dict[str, Any]]:
    """Yield possible arguments of a recorded architecture method.

    A record has the networks in short form, "[64, 64] 64 [32]" and "[64, 96] 64 [32]": a layer's number is not in it,
    and the amount is the difference of two numbers.
    """
    before, after = _numbers_in(change.before), _numbers_in(change.after)
    if len(before) != len(after):  # a layer was added or removed
        return
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    for amount in dict.fromkeys(abs(new - old) for old, new in moved):
        for name in ("numb_new_nodes", "numb_new_channels"):
            yield {name: amount}
            yield from ({"hidden_layer": layer, name: amount} for layer in range(len(before)))
    for _, new in moved:
        yield from ({"hidden_layer": layer, "kernel_size": new} for layer in range(len(before)))


def _numbers_in(form: object) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(form))]


def draw_weights(agent: foreign.Agent, rng: np.random.Generator) -> None:
    """Give the networks of an untrained agent fresh weights, in their current architecture; targets are copies."""
    networks: dict[str, Any] = effects.networks_of(agent)
    rebuilt: dict[str, Any] = {}
    for name, network in networks.items():
        new = network.rebuilt(network.spec(), network.device, random_seed=int(rng.integers(2**31 - 1)))
        new.train(network.training)
        new.last_refit = True  # targets become copies
        rebuilt[name] = new
    for name, network in networks.items():
        if isinstance(network, EvolvableNetwork) and network.encoder_source is not None:
            source = next(other for other, each in networks.items() if each is network.encoder_source)
            rebuilt[name].share_encoder(rebuilt[source])
    install(agent, rebuilt)


def _joined(records: Sequence[MutationRecord]) -> MutationRecord:
    """Return one record of all changes at one boundary."""
    if len(records) == 1:
        return records[0]
    kinds = {record.kind for record in records}
    last = replace(records[-1], kind=kinds.pop() if len(kinds) == 1 else "schedule")
    if last.kind == "rl_hp":
        before: dict[str, Any] = {}
        for record in reversed(records):
            before |= record.before
        after = {name: value for record in records for name, value in record.after.items()}
        return replace(last, path=", ".join(after), before={name: before[name] for name in after}, after=after)
    path = ", ".join(record.path for record in records)
    return replace(last, path=path, before=[r.before for r in records], after=[r.after for r in records])
