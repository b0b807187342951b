"""Running statistics of observations, with which an agent's networks normalise their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from agilerl.components.running import RunningMeanStd
from agilerl.networks.base import EvolvableNetwork

EPSILON = 1e-8  # added to variances where observations are scaled


class ObservationStatistics(dict[str, Any]):
    """Mean, variance and count of the observations learned from so far; empty before the first rollout.

    A dictionary of `mean` [I], `var` [I] and `count`, the form in checkpoints. It is replaced, never modified. Members
    of a population and ranks update `running()`, and all of them adopt the same result (`of`, `normalise`).
    """

    @staticmethod
    def rows(network: EvolvableNetwork, obs: Any) -> np.ndarray:
        """Return observations [..., ...] as float64 rows [B, I] of encoder inputs, which the statistics describe."""
        with torch.no_grad():
            inputs = network.encoder_input(obs)
        return inputs.flatten(0, -2).double().cpu().numpy()

    def running(self) -> RunningMeanStd:
        """Return statistics that can be updated with further observations."""
        statistics = RunningMeanStd(epsilon=EPSILON)
        if self:
            statistics.load_state({**self, "epsilon": EPSILON})
        return statistics

    @classmethod
    def of(cls, statistics: RunningMeanStd) -> Self:
        """Create from running statistics, after an update or a merge over ranks."""
        state = statistics.state()
        return cls({name: state[name] for name in ("mean", "var", "count")})

    def normalise(self, networks: Sequence[EvolvableNetwork]) -> None:
        """Set these statistics in networks that normalise observations."""
        for network in networks:
            network.set_observation_statistics(self["mean"], self["var"])


def begin_normalising(networks: Sequence[EvolvableNetwork], is_asked: bool) -> None:
    """Enable normalisation in the networks that read observations, the policy first.

    Args:
        is_asked: whether the agent normalises. Otherwise the other networks follow a loaded policy that does.
    """
    if is_asked:
        for network in networks:
            network.normalize_observations = True
    elif networks and networks[0].normalize_observations:
        policy, *others = networks
        for network in others:
            if not network.reads_vectors:
                continue  # a new critic for a loaded policy: it is untrained
            network.normalize_observations = True
            for name in ("obs_mean", "obs_scale"):
                network.get_buffer(name).copy_(policy.get_buffer(name))
