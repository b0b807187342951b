"""Choice of the engine for a population: which members can share rows, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from agilerl.core import foreign
from agilerl.engine.parts import MemberBinding, OptimizerBinding, PartBinding, PartName, parts_of
from agilerl.engine.rows.kernels import rule_of
from agilerl.errors import ConfigError
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork

if TYPE_CHECKING:
    from agilerl.engine.protocol import Trainable
IMAGE_ENCODERS = ("EvolvableCNN", "EvolvableResNet")


class Reason(Enum):
    """Reason why an agent cannot be stacked as a row."""

    LEARN_ONLY = "it defines learn() only"
    CUSTOM_LEARN = "it has a learn() of its own"
    NOT_DENSE = "its networks do not share their parts as dense layers do"


@dataclass(frozen=True)
class Choice:
    """Engine chosen for agents; invalid once their networks or optimisers have changed.

    Attributes:
        name: "fused" over rows, "sequential" member by member with their modules, or "agents" if one of them has a
            custom `learn`, which no engine runs.
        reason: for messages.
        bindings: one per agent, in order; for "fused" only.
    """

    name: Literal["fused", "sequential", "agents"]
    reason: str
    bindings: tuple[MemberBinding, ...] = ()


def no_engine_reason(agent: Any) -> Reason | None:
    """Return why no engine can run the agent's update, on rows or on its modules; None if one can."""
    update = foreign.method(type(agent), "update")
    if update is None or foreign.is_missing(update):
        return Reason.LEARN_ONLY
    if type(agent).learn is not foreign.published_learn(type(agent)):
        return Reason.CUSTOM_LEARN
    return None


def bind(agent: Trainable) -> MemberBinding | Reason:
    """Return the agent's binding to rows, or why it has none; a custom `learn` may call `update` too."""
    agent.follow_optimizers()
    registry = agent.registry
    parts: list[PartBinding] = []
    if not all(isinstance(resolve(agent, name), EvolvableNetwork) for name in registry.policies):
        return Reason.NOT_DENSE
    for group in registry.groups:
        name = str(group.eval_network)
        network_parts = parts_of(resolve(agent, name))
        shared = [parts_of(resolve(agent, other)) for other in group.shared_networks or []]
        if (
            network_parts is None
            or len(shared) > 1
            or any(other is None or other.keys() != network_parts.keys() for other in shared)
        ):
            return Reason.NOT_DENSE
        target, encoder_source = (shared[0] if shared else None) or {}, registry.encoder_sources.get(name)
        depth = (
            None if encoder_source is None else resolve(agent, name).shared_depth()
        )  # layers of it that give the features
        lent = None if depth is None else (encoder_source, depth)
        parts += [PartBinding(PartName(name, key), part, target.get(key), lent) for key, part in network_parts.items()]
    optimizers = []
    for config in registry.optimizers:
        optimizer = config.wrapper(agent).optimizer
        rule = rule_of(optimizer)
        if rule is None:
            return Reason.NOT_DENSE
        moved = tuple(p.name for name in config.networks for p in parts if p.name.network == name)
        optimizers.append(OptimizerBinding(config.name, moved, rule, optimizer))
    return MemberBinding(tuple(parts), tuple(optimizers))


def reason_text(agent: foreign.Agent, why: Reason) -> str:
    """Message for a reason: the network or optimiser, and how the members could be updated in one pass."""
    if why is not Reason.NOT_DENSE:
        return str(why.value)
    slow = "so members learn one after another, which is slower"
    for group in agent.registry.groups:
        name = str(group.eval_network)
        network = resolve(agent, name)
        if parts_of(network) is None or not isinstance(network, EvolvableNetwork):
            encoder = type(network.encoder if isinstance(network, EvolvableNetwork) else network).__name__
            if encoder in IMAGE_ENCODERS:
                return f"its network {name} ({encoder}) reads images, {slow}"
            reason = f"its network {name} ({encoder}) is not a plain stack of dense layers, {slow}"
            flat = "; one vector in place of parts (gymnasium.wrappers.FlattenObservation) is learned from at once"
            has_encoder = isinstance(network, EvolvableNetwork)  # else a custom module
            return reason + flat if has_encoder and encoder == "EvolvableMultiInput" else reason
    for config in agent.registry.optimizers:
        kind = type(config.wrapper(agent).optimizer)
        if rule_of(config.wrapper(agent).optimizer) is None:
            return f"its optimiser {config.name} is {kind.__name__}, which has no rule for all members at once, {slow}"
    return f"{why.value}, {slow}"


def choose(agents: Sequence[Any], wanted: str = "auto") -> Choice:
    """Choose the engine of these agents, by a fixed rule over (algorithm, genomes, device).

    Args:
        wanted: "auto", "fused" or "sequential".

    Raises:
        ConfigError: "fused" is requested and a member does not stack.
    """
    unsupported = next((agent for agent in agents if no_engine_reason(agent)), None)
    if unsupported is not None:
        return Choice("agents", f"agent {unsupported.index} brings its own learn()")
    if wanted == "sequential":
        return Choice("sequential", "asked for")
    bound = [bind(agent) for agent in agents]
    bindings = tuple(binding for binding in bound if isinstance(binding, MemberBinding))
    if len(bindings) == len(bound):
        return Choice("fused", "every network consists of dense layers or small convolutions", bindings)
    agent, why = next((a, b) for a, b in zip(agents, bound, strict=True) if isinstance(b, Reason))
    reason = f"agent {agent.index} does not stack: {reason_text(agent, why)}"
    if wanted == "fused":
        raise ConfigError(f"learner='fused' is not possible: {reason}. fix: learner='auto'")
    return Choice("sequential", reason)
