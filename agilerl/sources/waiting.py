"""Agents that do not act in every step: who waits, and with what action, so that what happens meanwhile is learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from agilerl.envs.protocol import HELD, PRESENT, WAITING, StepBatch


class Waiting:
    """What agents of L teams do while they wait for their next turn: they hold what they did last.

    An agent waits if it has acted in its episode, which goes on, and is not there now.

    Args:
        columns: where each agent's numbers stand in a team's action.

    Attributes:
        acted: [L, M] bool, who has acted in its running episode. held: [L, A] what each did last.
    """

    def __init__(self, columns: Mapping[str, slice]) -> None:
        self._agent = np.repeat(np.arange(len(columns)), [own.stop - own.start for own in columns.values()])
        self.acted: np.ndarray | None = None
        self.held: np.ndarray | None = None

    def step(self, obs: Any, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        """One vector step as it is stored: (observation, action [L, A], batch).

        Observations before and after it say who waits, `obs["waiting"]` [L, M] int8; those after it also with what,
        `final_obs["held"]` [L, A]. In the action of who waits stands what it holds.
        """
        team = batch.team
        assert team is not None
        acted = np.zeros_like(team.acted) if self.acted is None else self.acted
        waits = acted & ~np.asarray(obs[PRESENT]).astype(bool)
        held = action if self.held is None else np.where(team.acted[:, self._agent], action, self.held)
        over = (batch.terminated | batch.truncated | ~batch.mask)[:, None]
        going_on = (acted | team.acted) & ~team.terminated
        final: Any = batch.final_obs
        later = going_on & ~np.asarray(final[PRESENT]).astype(bool)
        final = {**final, WAITING: later.astype(np.int8), HELD: held.astype(np.float32)}
        self.acted, self.held = going_on & ~(team.truncated | over), held
        stored = np.where(waits[:, self._agent], held, action)
        return {**obs, WAITING: waits.astype(np.int8)}, stored, replace(batch, final_obs=final)
