"""Which members of a generation are still sound: weights, actions, losses and priorities are looked at as they come.

What follows from it is said in `training.quarantine`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.engine.learner import Learner, RowsGroup
from agilerl.sources.source import MemberTally


def sound_rows(learner: Learner) -> np.ndarray:
    """[N] bool: which members' weights are finite, targets left out (they follow, and show in the loss).

    Sums are looked at, not numbers: a NaN or an infinity anywhere makes its row's sum one.
    """
    sound = np.ones(len(learner.agents), dtype=bool)
    for group in learner.groups:
        if isinstance(group, RowsGroup):
            for cohort in group.engine.cohorts:
                if math.isfinite(cohort.value.sum()):  # one number tells that all is well, which it nearly always is
                    continue
                finite = cohort.value.sum(1).isfinite().view(-1, len(group.members)).all(0)
                if not bool(finite.all()):
                    sound[np.array(group.members)[~finite.cpu().numpy()]] = False
        elif not is_sound(group.lead):
            sound[group.members] = False
    return sound


def is_sound(agent: Any) -> bool:
    """Whether all weights of an agent are finite; True for agents that do not show any."""
    networks = getattr(agent, "evaluation_networks", None)
    if not callable(networks):
        return True
    with torch.no_grad():
        sums = [p.sum() for network in networks().values() for p in network.parameters() if p.is_floating_point()]
        return not sums or bool(torch.stack(sums).isfinite().all())


class Watch:
    """Which members of one generation are still sound.

    Args:
        learner: holds the members. tallies: theirs; the first reason is written into `fault`.

    Attributes:
        sound: [N] bool.
    """

    def __init__(self, learner: Learner, tallies: Sequence[MemberTally]) -> None:
        self.learner, self.tallies = learner, tallies
        self.sound = np.ones(len(tallies), dtype=bool)
        self.all_sound = True

    def weights(self) -> None:
        """Look at the weights; before acting."""
        self._mark(~sound_rows(self.learner), "its weights are not finite")

    def actions(self, action: np.ndarray) -> np.ndarray:
        """The actions [N, E, ...] with zeros in place of those of quarantined members."""
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            self._mark(~np.isfinite(action.reshape(len(action), -1)).all(axis=1), "its actions are not finite")
        if self.all_sound:
            return action
        action = action.copy()
        action[~self.sound] = 0
        return action

    def lanes(self, num_envs: int) -> np.ndarray | None:
        """[N * E] bool: the lanes that are stepped; None for all."""
        return None if self.all_sound else np.repeat(self.sound, num_envs)

    def losses(self, members: Sequence[int], loss: Tensor) -> None:
        """Look at the losses [N_g] of a group's members; a sum over updates will do."""
        if not math.isfinite(loss.detach().sum()):
            finite = loss.isfinite()
            bad = np.zeros(len(self.sound), dtype=bool)
            bad[np.array(members)[~finite.cpu().numpy()]] = True
            self._mark(bad, "its loss is not finite")

    def priorities(self, member: int, values: np.ndarray) -> bool:
        """Whether a member's priorities may be stored."""
        if not np.isfinite(values).all():
            bad = np.zeros(len(self.sound), dtype=bool)
            bad[member] = True
            self._mark(bad, "its TD errors are not finite")
        return bool(self.sound[member])

    def _mark(self, bad: np.ndarray, reason: str) -> None:
        for member in np.flatnonzero(bad & self.sound).tolist():
            self.tallies[member].fault = self.tallies[member].fault or reason
            self.sound[member] = self.all_sound = False

    @property
    def any_sound(self) -> bool:
        """Whether it makes sense to go on with this generation."""
        return self.all_sound or bool(self.sound.any())
