"""What infos of environments of several agents say, lane by lane: legal actions, and decisions in an agent's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agilerl.envs.masks import ActionMasks
from agilerl.envs.team import Team
from agilerl.errors import EnvError
from agilerl.spaces import mask_width

WHOSE_TURN = "observe the agent when it can act, or let infos[agent]['active_agent'] say whose turn it is"
DEFINED = "env_defined_actions"  # key of infos: what the environment does in an agent's place


class TeamInfo:
    """Masks and decisions of a team's lanes.

    Args:
        team: who plays. num_lanes: lanes. name: of the environment, for messages.

    Attributes:
        masks: [L, W] bool, `Team.mask_columns`; None as long as no environment has said what is legal.
        defined: [L, A], `Team.columns`, NaN where nothing was decided; None as long as nothing was.
    """

    def __init__(self, team: Team, num_lanes: int, name: str) -> None:
        self.team, self.num_lanes, self.name = team, num_lanes, name
        self.width = sum(part.stop - part.start for part in team.columns.values())
        self.masks: np.ndarray | None = None
        self.defined: np.ndarray | None = None
        self._readers = {
            agent: ActionMasks(space, f"{name}, agent {agent}", nothing_legal=WHOSE_TURN, fills=False)
            for agent, space in team.action_spaces.items()
        }

    def forget(self) -> None:
        """All lanes begin anew, as if nothing had ever been said."""
        self.masks = self.defined = None

    def clear(self, lane: int) -> None:
        """Nothing is said of this lane yet: all is legal, nothing decided."""
        if self.masks is not None:
            self.masks[lane] = True
        if self.defined is not None:
            self.defined[lane] = np.nan

    def leave(self, agent: str, lane: int) -> None:
        """The agent is not there any more, while others go on."""
        if self.masks is not None:
            self.masks[lane, self.team.mask_columns[agent]] = True

    def keep_mask(self, agent: str, lane: int, mask: Any, is_needed: bool) -> None:
        """Keep a mask in any form that `envs.masks` reads; `is_needed`: the agent acts next.

        Raises:
            EnvError: a mask of another form, or without a legal action for an agent that acts.
        """
        reader, own = self._readers[agent], self.team.mask_columns[agent]
        legal = reader.rows([mask], lanes=[lane], is_over=np.array([not is_needed]))[0]
        if self.masks is None:
            self.masks = np.ones((self.num_lanes, mask_width(self.team.action_space)), bool)
        self.masks[lane, own] = legal

    def keep_defined(self, agent: str, lane: int, info: Mapping[str, Any]) -> None:
        """Keep what infos decide in the agent's place, if they do; EnvError for no action of its space."""
        given = info.get(DEFINED, info.get(DEFINED[:-1]))
        if given is None:
            return
        row, own = np.asarray(given, np.float64).reshape(-1), self.team.columns[agent]
        if len(row) != own.stop - own.start:
            raise EnvError(
                f"{self.name}, agent {agent}, lane {lane}: {DEFINED} of {len(row)} numbers; its actions "
                f"{self.team.action_spaces[agent]} have {own.stop - own.start}. fix: one action."
            )
        if self.defined is None:
            self.defined = np.full((self.num_lanes, self.width), np.nan)
        self.defined[lane, own] = row

    def decided(self, acted: np.ndarray) -> np.ndarray | None:
        """[L, A] what the environments decide in place of agents that act now ([L, M]), NaN elsewhere; None where
        nothing."""
        if self.defined is None:
            return None
        decided = self.defined.copy()
        for number, agent in enumerate(self.team.agents):
            decided[~acted[:, number], self.team.columns[agent]] = np.nan
        return None if np.isnan(decided).all() else decided

    def info(self) -> dict[str, Any]:
        """What lanes hand on: copies."""
        info: dict[str, Any] = {} if self.masks is None else {"action_mask": self.masks.copy()}
        if self.defined is not None:
            info[DEFINED] = self.defined.copy()
        return info
