"""Detect diverged members within a generation by checking weights, actions, losses and priorities for NaN and Inf.

See `training.quarantine` for the consequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.collector import Tally
from agilerl.core import foreign

if TYPE_CHECKING:
    from agilerl.engine.learner import Learner

CHECK_INTERVAL = 16  # vector steps, on an accelerator


def is_finite(agent: foreign.Agent) -> bool:
    """Whether all weights of an agent are finite; True for agents without accessible networks."""
    networks = adapted(agent).evaluation_networks().values()
    with torch.no_grad():
        sums = [p.sum() for n in networks for p in n.parameters() if p.is_floating_point()]
        return not sums or bool(torch.stack(sums).isfinite().all())


def check_interval(device: torch.device) -> int:
    """Vector steps from one check of weights and losses to the next: a check waits for the device."""
    return 1 if device.type == "cpu" else CHECK_INTERVAL


class Watch:
    """Track which members of one generation are still finite.

    Args:
        learner: holds the members. tallies: one per member; the first reason is written to `fault`.
        num_envs: lanes per member.
        interval: calls of `weights` from one check to the next, see `check_interval`. With more than 1, losses are
            checked together with the weights, in one transfer from the device.

    Attributes:
        is_finite: [N] bool. all_sound, any_sound: its reductions. With several ranks, `any_sound` depends on the
            weights alone, which are equal on all ranks, so that all of them end a generation together. A member that
            diverged on one rank only stops acting on that rank.
        lanes: [N * E] bool, the lanes to step; None for all.
    """

    def __init__(self, learner: Learner, tallies: Sequence[Tally], num_envs: int, interval: int = 1) -> None:
        self.learner, self.tallies, self.num_envs, self.interval = learner, tallies, num_envs, interval
        self.is_finite = np.ones(len(tallies), dtype=bool)
        self.all_sound = self.any_sound = True
        self.lanes: np.ndarray | None = None
        self._calls = 0
        self._losses: dict[int, tuple[Sequence[int], Tensor]] = {}  # unchecked, by the group's first member

    def weights(self) -> None:
        """Check the weights before acting, if a check is due."""
        is_due = self._calls % self.interval == 0
        self._calls += 1
        if not is_due:
            return
        sound = self.learner.is_finite() if self.interval == 1 else self._read()
        if not sound.all():
            self._mark(np.flatnonzero(~sound), "its weights are not finite")
            self.any_sound = bool(sound.any()) if self.learner.ranks.size > 1 else self.any_sound

    def _read(self) -> np.ndarray:
        """Check the last losses of all members, and return [N] whose weights are finite, in one transfer."""
        losses = list(self._losses.values())
        self._losses.clear()
        groups: list[Sequence[int]] = [group.members for group in self.learner.groups]
        flags = [group.finite_flags() for group in self.learner.groups]
        read = torch.cat([*flags, *(loss.detach().isfinite() for _, loss in losses)]).cpu().numpy()
        parts = np.split(read, np.cumsum([len(members) for members in (*groups, *(m for m, _ in losses))])[:-1])
        sound = np.ones(len(self.tallies), dtype=bool)
        for members, part in zip(groups, parts, strict=False):
            sound[members] = part
        for (members, _), part in zip(losses, parts[len(groups) :], strict=True):  # first: they came before
            self._mark(np.array(members)[~part], "its loss is not finite")
        return sound

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
        """Check the losses [N_g] of a group's members, or at the next check; sums over several updates are accepted."""
        if self.interval > 1:
            self._losses[members[0]] = members, loss
        elif not math.isfinite(loss.detach().sum()):
            self._mark(np.array(members)[~loss.isfinite().cpu().numpy()], "its loss is not finite")

    def finish(self) -> None:
        """Check the losses that no check has seen yet; called when the generation ends."""
        if self._losses:
            self._read()

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
