"""Agents that do not act in every step: track which agents wait and the action they hold, for replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.core import tree as trees
from agilerl.core.spaces import nested
from agilerl.envs.protocol import AGENTS, LAST_ACTION, PRESENT, WAITING, StepBatch
from agilerl.envs.team import Team


def without_terminated(team: Team, batch: StepBatch) -> StepBatch:
    """Mask the last observations of terminated agents as absent, as in all later observations.

    Critics over all agents then see the same absence in observations and in bootstrap observations. A truncated agent
    stays in `final_obs`, where its value is bootstrapped; it is absent from the next observation on.
    """
    assert batch.team is not None
    left_agents = batch.team.terminated & ~np.asarray(batch.final_obs[PRESENT]).astype(bool)
    if not left_agents.any():
        return batch
    final: Any = batch.final_obs
    rows = dict(final[AGENTS])
    for lane, number in np.argwhere(left_agents).tolist():
        agent = team.agents[number]
        if rows[agent] is final[AGENTS][agent]:
            rows[agent] = trees.copy(rows[agent])
        trees.put(rows[agent], lane, trees.map_leaves(_lowest, nested(team.observation_spaces[agent])))
    final = {**final, AGENTS: rows}
    return replace(batch, final_obs=final)


def ends_of_agents(batch: StepBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return (terminated, truncated) [L, M] bool per agent for this step.

    An agent without a flag from the environment ends or is truncated with its team. An agent that is absent when it is
    truncated counts as terminated: it has no last observation to bootstrap from.
    """
    team = batch.team
    assert team is not None
    present = np.asarray(batch.final_obs[PRESENT]).astype(bool)
    over = ((batch.terminated | batch.truncated) & batch.mask)[:, None]
    unsaid = over & ~(team.terminated | team.truncated)
    cut = present & (team.truncated | (unsaid & batch.truncated[:, None]))
    return team.terminated | ((team.truncated | unsaid) & ~cut), cut


def _lowest(space: Space[Any]) -> Any:
    """Observation of an absent agent for one part: 0, or the lowest value of a discrete space."""
    return space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0


class IdleAgents:
    """Last actions of waiting agents in L teams.

    An agent is waiting if it has acted in its running episode and is currently absent.

    Args:
        team: the agents, with the columns of their actions.

    Attributes:
        acted: [L, M] bool, agents that have acted in their running episode. held: [L, A] last action of each agent.
    """

    def __init__(self, team: Team) -> None:
        self.team, columns = team, team.columns.values()
        self._agent = np.repeat(np.arange(len(columns)), [span.stop - span.start for span in columns])
        self.acted: np.ndarray | None = None
        self.held: np.ndarray | None = None

    def step(self, obs: Any, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        """Return one vector step in storage format: (observation, action [L, A], batch).

        Observations before and after the step mark waiting agents in `obs["waiting"]` [L, M] int8. Those after it also
        hold the waiting agents' actions, `final_obs["held"]` [L, A]. The action of a waiting agent is the one it holds.
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
