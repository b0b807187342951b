"""Detect diverged members within a generation by checking weights, actions, losses and priorities for NaN and Inf.

See `training.quarantine` for the consequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl import foreign
from agilerl.engine.learner import Learner
from agilerl.sources.source import Tally


def is_finite(agent: Any) -> bool:
    """Whether all weights of an agent are finite; True for agents without accessible networks."""
    networks = foreign.method(agent, "evaluation_networks")
    if networks is None:
        return True
    with torch.no_grad():
        sums = [p.sum() for network in networks().values() for p in network.parameters() if p.is_floating_point()]
        return not sums or bool(torch.stack(sums).isfinite().all())


class Watch:
    """Track which members of one generation are still finite.

    Args:
        learner: holds the members. tallies: one per member; the first reason is written to `fault`.
        num_envs: lanes per member.

    Attributes:
        is_finite: [N] bool. all_sound, any_sound: its reductions. With several ranks, `any_sound` depends on the
            weights alone, which are equal on all ranks, so that all of them end a generation together. A member that
            diverged on one rank only stops acting on that rank.
        lanes: [N * E] bool, the lanes to step; None for all.
    """

    def __init__(self, learner: Learner, tallies: Sequence[Tally], num_envs: int) -> None:
        self.learner, self.tallies, self.num_envs = learner, tallies, num_envs
        self.is_finite = np.ones(len(tallies), dtype=bool)
        self.all_sound = self.any_sound = True
        self.lanes: np.ndarray | None = None

    def weights(self) -> None:
        """Check the weights before acting."""
        sound = self.learner.is_finite()
        if not sound.all():
            self._mark(np.flatnonzero(~sound), "its weights are not finite")
            self.any_sound = bool(sound.any()) if self.learner.ranks.size > 1 else self.any_sound

    def actions(self, action: np.ndarray) -> np.ndarray:
        """Return the actions [N, E, ...], with those of quarantined members set to zero."""
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            sound = np.isfinite(action.reshape(len(action), -1)).all(axis=1)
            self._mark(np.flatnonzero(~sound), "its actions are not finite")
        if self.all_sound:
            return action
        action = action.copy()
        action[~self.is_finite] = 0
        return action

    def losses(self, members: Sequence[int], loss: Tensor) -> None:
        """Check the losses [N_g] of a group's members; sums over several updates are accepted."""
        if not math.isfinite(loss.detach().sum()):
            self._mark(np.array(members)[~loss.isfinite().cpu().numpy()], "its loss is not finite")

    def priorities(self, member: int, values: np.ndarray) -> bool:
        """Whether a member's priorities may be written to the buffer."""
        if not np.isfinite(values).all():
            self._mark(np.array([member]), "its TD errors are not finite")
        return bool(self.is_finite[member])

    def _mark(self, members: np.ndarray, reason: str) -> None:
        for member in members[self.is_finite[members]].tolist():
            self.tallies[member].fault = self.tallies[member].fault or reason
            self.is_finite[member] = self.all_sound = False
        if not self.all_sound:
            self.lanes = np.repeat(self.is_finite, self.num_envs)
            if self.learner.ranks.size == 1:
                self.any_sound = bool(self.is_finite.any())
