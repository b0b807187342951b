"""Infos of multi-agent environments by lane: action masks and environment-defined actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agilerl.core.spaces import mask_width
from agilerl.envs.masks import ActionMasks
from agilerl.envs.protocol import DEFINED
from agilerl.envs.team import Team
from agilerl.errors import EnvError

WHOSE_TURN = "observe the agent when it can act, or let infos[agent]['active_agent'] say whose turn it is"


class TeamInfo:
    """Action masks and environment-defined actions of multi-agent lanes.

    Args:
        team: agents and their spaces. num_lanes: lanes. name: environment name, for messages.

    Attributes:
        masks: [L, W] bool, see `Team.mask_columns`; None until an environment gives a mask.
        defined: [L, A], see `Team.columns`, NaN where nothing is defined; None until an environment defines an action.
    """

    def __init__(self, team: Team, num_lanes: int, name: str) -> None:
        self.team, self.num_lanes, self.name = team, num_lanes, name
        self.masks: np.ndarray | None = None
        self.defined: np.ndarray | None = None
        self._readers = {
            agent: ActionMasks(space, f"{name}, agent {agent}", nothing_legal=WHOSE_TURN, fills=False)
            for agent, space in team.action_spaces.items()
        }

    def forget(self) -> None:
        """Reset all lanes."""
        self.masks = self.defined = None

    def clear(self, lane: int) -> None:
        """Reset one lane: everything is legal, nothing is defined."""
        if self.masks is not None:
            self.masks[lane] = True
        if self.defined is not None:
            self.defined[lane] = np.nan

    def leave(self, agent: str, lane: int) -> None:
        """Mark the agent as absent while others continue."""
        if self.masks is not None:
            self.masks[lane, self.team.mask_columns[agent]] = True

    def keep_mask(self, agent: str, lane: int, mask: Any, is_needed: bool) -> None:
        """Store a mask in any form that `envs.masks` reads; `is_needed`: the agent acts next.

        Raises:
            EnvError: invalid form, or no legal action for an agent that acts.
        """
        reader, columns = self._readers[agent], self.team.mask_columns[agent]
        legal = reader.rows([mask], lanes=[lane], is_over=np.array([not is_needed]))[0]
        if self.masks is None:
            self.masks = np.ones((self.num_lanes, mask_width(self.team.action_space)), bool)
        self.masks[lane, columns] = legal

    def keep_defined(self, agent: str, lane: int, info: Mapping[str, Any]) -> None:
        """Store the action that infos define for the agent, if any; EnvError if it is outside of its space."""
        action = info.get(DEFINED, info.get(DEFINED[:-1]))
        if action is None:
            return
        row, columns = np.asarray(action, np.float64).reshape(-1), self.team.columns[agent]
        if len(row) != columns.stop - columns.start:
            raise EnvError(
                f"{self.name}, agent {agent}, lane {lane}: {DEFINED} of {len(row)} numbers; its actions "
                f"{self.team.action_spaces[agent]} have {columns.stop - columns.start}. fix: one action."
            )
        if self.defined is None:
            self.defined = np.full((self.num_lanes, self.team.width), np.nan)
        self.defined[lane, columns] = row

    def decided(self, acted: np.ndarray) -> np.ndarray | None:
        """Return [L, A]: actions that the environments define for agents that act now ([L, M]), NaN elsewhere; None
        without any."""
        if self.defined is None:
            return None
        decided = self.defined.copy()
        for number, agent in enumerate(self.team.agents):
            decided[~acted[:, number], self.team.columns[agent]] = np.nan
        return None if np.isnan(decided).all() else decided

    def info(self) -> dict[str, Any]:
        """Return copies for the lanes' info."""
        info: dict[str, Any] = {} if self.masks is None else {"action_mask": self.masks.copy()}
        if self.defined is not None:
            info[DEFINED] = self.defined.copy()
        return info
