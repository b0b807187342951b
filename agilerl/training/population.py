"""Helpers for a whole population: training modes, files, lanes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.core import foreign
from agilerl.errors import RunError
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.ensemble import Ensemble

RESOLVED = 1e-7  # relative resolution of float32


@contextlib.contextmanager
def evaluation_mode(population: Sequence[Any]) -> Iterator[None]:
    """Set agents to evaluation mode inside the block, and back to training mode after it, also after an interrupt."""
    with_modes = [agent for agent in population if foreign.has_methods(agent, "set_training_mode")]
    for agent in with_modes:
        agent.set_training_mode(False)
    try:
        yield
    finally:
        for agent in with_modes:
            agent.set_training_mode(True)


def ensemble_of(lead: EvolvableAlgorithm, members: Sequence[EvolvableAlgorithm]) -> EvolvableAlgorithm:
    """Return an agent with the mean of the members' policies, and everything else of `lead`; its `clone` shares nothing
    with them, itself it shares their networks, until one of them trains."""
    joint: EvolvableAlgorithm = object.__new__(type(lead))
    policy = Ensemble([cast(EvolvableNetwork, agent.policy_module()) for agent in members])
    joint.__dict__ |= {**lead.__dict__, str(lead.registry.policy()): policy}  # the optimiser of `lead` never sees it
    joint.reinit_optimizers()
    return joint


def save_population(population: Sequence[Any], base: str | Path, overwrite: bool) -> list[Path]:
    """Write every agent to `<base>_<slot>_<steps>.pt`, or `<base>_<slot>.pt` with `overwrite`; atomic, no pickle."""
    paths = []
    for slot, agent in enumerate(population):
        suffix = "" if overwrite else f"_{agent.steps[-1]}"
        paths.append(Path(f"{base}_{slot}{suffix}.pt"))
        agent.save_checkpoint(str(paths[-1]))
    return paths


def weights_of(population: Sequence[Any]) -> list[Tensor]:
    """Copy all learned weights of the members' networks; [] if an agent does not expose any."""
    agents = [foreign.bare(agent) for agent in population]
    if not all(isinstance(agent, EvolvableAlgorithm) for agent in agents):
        return []
    networks = (network for agent in agents for network in agent.evaluation_networks().values())
    return [part.detach().clone() for network in networks for part in network.parameters() if part.requires_grad]


@torch.no_grad()
def are_unchanged(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether weights are equal up to float32 resolution; False without weights."""
    change = sum(float((now - then).double().square().sum()) for then, now in zip(before, after, strict=True))
    size = sum(float(then.double().square().sum()) for then in before)
    return bool(before) and math.sqrt(change) <= RESOLVED * math.sqrt(size)


def set_lanes(population: Sequence[Any], num_envs: int) -> None:
    """Set the number of lanes of agents with rollouts, which determines the rollout length."""
    for agent in population:
        if hasattr(agent, "num_envs"):
            agent.num_envs = num_envs


def filled(agent: Any, templates: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
    """Return an agent with this state: `agent` itself if the class matches, else a copy of a matching template."""
    kind = str(state["class"])
    if type(agent).__name__ != kind:
        if kind not in templates:
            raise RunError(f"the run has a {kind}; the population given has {sorted(templates)}. fix: the same script.")
        agent = templates[kind].clone()
    agent.load_run_state(state)
    return agent
