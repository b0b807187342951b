"""Agents that do not act in every step: who waits, and with what action, so that what happens meanwhile is learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl import tree as trees
from agilerl.envs.protocol import AGENTS, LAST_ACTION, PRESENT, WAITING, StepBatch
from agilerl.envs.team import Team
from agilerl.spaces import nested


def without_terminated(team: Team, batch: StepBatch) -> StepBatch:
    """The step without the last observations of agents that terminated: absent, as in every later observation.

    Critics that read all agents see the same absence in observations and in what they bootstrap from. An agent that was
    cut stays in `final_obs`, where its own value is asked for; from the next observation on it is absent too.
    """
    assert batch.team is not None
    gone = batch.team.terminated & ~np.asarray(batch.final_obs[PRESENT]).astype(bool)
    if not gone.any():
        return batch
    final: Any = batch.final_obs
    rows = dict(final[AGENTS])
    for lane, number in np.argwhere(gone).tolist():
        agent = team.agents[number]
        if rows[agent] is final[AGENTS][agent]:
            rows[agent] = trees.copy(rows[agent])
        trees.put(rows[agent], lane, trees.map_leaves(_lowest, nested(team.observation_spaces[agent])))
    final = {**final, AGENTS: rows}
    return replace(batch, final_obs=final)


def ends_of_agents(batch: StepBatch) -> tuple[np.ndarray, np.ndarray]:
    """(whose episode ended for good with this step, whose was cut) [L, M] bool.

    An agent of which the environment says neither ends or is cut with its team. One that is away when it is cut has
    ended: it has no last observation that a value could be asked of.
    """
    team = batch.team
    assert team is not None
    seen = np.asarray(batch.final_obs[PRESENT]).astype(bool)
    over = ((batch.terminated | batch.truncated) & batch.mask)[:, None]
    unsaid = over & ~(team.terminated | team.truncated)
    cut = seen & (team.truncated | (unsaid & batch.truncated[:, None]))
    return team.terminated | ((team.truncated | unsaid) & ~cut), cut


def _lowest(space: Space[Any]) -> Any:
    """What an absent agent shows of one part: 0, or the lowest of numbered choices."""
    return space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0


class IdleAgents:
    """What agents of L teams do while they wait for their next turn: they hold what they did last.

    An agent waits if it has acted in its episode, which goes on, and is not there now.

    Args:
        team: the agents, with the columns of their actions.

    Attributes:
        acted: [L, M] bool, who has acted in its running episode. held: [L, A] what each did last.
    """

    def __init__(self, team: Team) -> None:
        self.team, columns = team, team.columns.values()
        self._agent = np.repeat(np.arange(len(columns)), [own.stop - own.start for own in columns])
        self.acted: np.ndarray | None = None
        self.held: np.ndarray | None = None

    def step(self, obs: Any, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        """One vector step as it is stored: (observation, action [L, A], batch).

        Observations before and after it say who waits, `obs["waiting"]` [L, M] int8; those after it also with what,
        `final_obs["held"]` [L, A]. In the action of who waits stands what it holds.
        """
        batch = without_terminated(self.team, batch)
        team = batch.team
        assert team is not None
        acted = np.zeros_like(team.acted) if self.acted is None else self.acted
        waits = acted & ~np.asarray(obs[PRESENT]).astype(bool)
        held = action if self.held is None else np.where(team.acted[:, self._agent], action, self.held)
        over = (batch.terminated | batch.truncated | ~batch.mask)[:, None]
        going_on = (acted | team.acted) & ~team.terminated
        final: Any = batch.final_obs
        later = going_on & ~np.asarray(final[PRESENT]).astype(bool)
        final = {**final, WAITING: later.astype(np.int8), LAST_ACTION: held.astype(np.float32)}
        self.acted, self.held = going_on & ~(team.truncated | over), held
        stored = np.where(waits[:, self._agent], held, action)
        return {**obs, WAITING: waits.astype(np.int8)}, stored, replace(batch, final_obs=final)
