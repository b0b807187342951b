"""Running statistics of observations, with which an agent's networks normalise their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from agilerl.components.running import RunningMeanStd
from agilerl.core.tree import Tree, leaves
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranks import ONE, Ranks

EPSILON = 1e-8  # added to variances where observations are scaled
LOADED_ROWS = 10_000  # weight of a loaded policy's statistics against further observations
ALONE = ""  # name of the statistics of an agent without groups
Readers = Sequence[tuple[EvolvableNetwork, Sequence[str]]]
"""Networks, policies first, and the names of the statistics of their inputs, part by part."""


class RunningStatistics(dict[str, RunningMeanStd]):
    """Statistics by group of agents that can be updated."""

    def add(self, sources: Sequence[Mapping[str, np.ndarray]], ranks: Ranks = ONE) -> None:
        """Add rows [B, I] by group, of several sources and of all ranks."""
        for name in sources[0]:
            rows = np.concatenate([source[name] for source in sources])
            shape = rows.shape[1:]
            self.setdefault(name, RunningMeanStd(shape, EPSILON)).update_over(ranks, rows, shape)


class ObservationStatistics(dict[str, Any]):
    """Mean, variance and count of the observations learned from so far; empty before the first rollout.

    A dictionary of `mean` [I], `var` [I] and `count`, by group for teams, the form in checkpoints. It is replaced,
    never modified. Members of a population and ranks update `running()`, and all of them adopt the same result (`of`,
    `normalise`).
    """

    @staticmethod
    def rows(network: EvolvableNetwork, obs: Tree) -> np.ndarray:
        """Return observations [..., ...] as float64 rows [B, I] of encoder inputs, which the statistics describe."""
        with torch.no_grad():
            parts = zip(leaves(network.encoder_input(obs)), network.vector_widths, strict=True)
        return torch.cat([x.flatten(0, -2) for x, width in parts if width], -1).double().cpu().numpy()

    def by_group(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the statistics by name, `ALONE` for an agent without groups."""
        return self if isinstance(self.get("mean", {}), Mapping) else {ALONE: self}

    @property
    def count(self) -> int:
        """Rows of all groups."""
        return sum(entries["count"] for entries in self.by_group().values())

    def running(self) -> RunningStatistics:
        """Return statistics that can be updated with further observations."""
        running = RunningStatistics()
        for name, entries in self.by_group().items():
            running[name] = RunningMeanStd()
            running[name].load_state({**entries, "epsilon": EPSILON})
        return running

    @classmethod
    def of(cls, running: RunningStatistics) -> Self:
        """Create from running statistics, after an update or a merge over ranks."""
        states = {name: statistics.state() for name, statistics in running.items()}
        entries = {name: {key: state[key] for key in ("mean", "var", "count")} for name, state in states.items()}
        return cls(entries.get(ALONE, entries))

    @classmethod
    def in_networks(cls, policies: Mapping[str, EvolvableNetwork]) -> Self:
        """Read those of the policies; empty unless all of them normalise. Their count is not saved: `LOADED_ROWS`."""
        entries = {}
        for name, network in policies.items():
            if network.normalize_observations and network.get_buffer("obs_mean").any():
                mean, scale = (network.get_buffer(x).double().cpu().numpy() for x in ("obs_mean", "obs_scale"))
                entries[name] = {"mean": mean, "var": scale**-2 - EPSILON, "count": LOADED_ROWS}
        return cls(entries.get(ALONE, entries) if len(entries) == len(policies) else {})

    def normalise(self, readers: Readers) -> None:
        """Set these statistics in networks that normalise observations."""
        by_group = self.by_group()
        for network, names in readers if by_group else ():
            mean, var = (np.concatenate([by_group[name][key] for name in names]) for key in ("mean", "var"))
            network.set_observation_statistics(mean, var)

    @classmethod
    def begin(cls, readers: Readers, is_asked: bool) -> Self | None:
        """Enable normalisation in the networks that read observations. Return the statistics to begin with, those of
        loaded policies or empty; None if the agent does not normalise.

        Args:
            is_asked: whether the agent normalises. Otherwise the other networks follow loaded policies that do.
        """
        policies = {names[0]: network for network, names in reversed(readers)}
        loaded = cls.in_networks(policies)
        for network, names in readers:
            leads = [policies[name] for name in names if name in policies and policies[name].normalize_observations]
            width = sum(sum(lead.vector_widths) for lead in leads)  # a new critic that reads other columns is untrained
            follows = not is_asked and len(leads) == len(names) and width == sum(network.vector_widths) > 0
            if is_asked or follows:
                network.normalize_observations = True
            for name in ("obs_mean", "obs_scale") if follows else ():
                network.get_buffer(name).copy_(torch.cat([lead.get_buffer(name) for lead in leads]))
        return loaded if is_asked or loaded else None
