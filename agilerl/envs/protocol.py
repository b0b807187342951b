"""The interface of the environment layer, independent of back end and autoreset mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import Space

from agilerl.core import foreign
from agilerl.core.tree import Tree

AGENTS, PRESENT, STATE = "agents", "present", "state"  # parts of a multi-agent observation
WAITING, LAST_ACTION = "waiting", "held"  # in stored ones: agents waiting for their next turn, and their action
JOINT = "joint"  # in preprocessed observations: input of centralised networks
DEFINED = "env_defined_actions"  # key in infos: action taken by the environment for an agent


class SeenByTeam(dict[str, Any]):
    """Observations by agent and additional data: none here; see `TeamObservations`."""

    present: Mapping[str, Any] | None = None
    final: Mapping[str, Any] | None = None
    final_present: Mapping[str, Any] | None = None
    acted: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, obs: Tree) -> SeenByTeam:
        """Return the observations if they carry additional data; else an empty instance."""
        return obs if isinstance(obs, SeenByTeam) else cls()


class TeamObservations(SeenByTeam):
    """Observations by agent [E, ...] of a vector environment, with additional data.

    Attributes:
        present: agent -> [E] bool, observed agents.
        final: agent -> [E, ...], next observation of the transition: the final one if an episode has ended and the next
            one has begun, else the observation itself. None after a reset. final_present: agents present then and not
            terminated.
        acted: agent -> [E] bool, agents that were present and acted in the last step. None after a reset.
        state: [E, ...] global states, if shown.
    """

    def __init__(
        self,
        rows: Mapping[str, Any],
        present: Mapping[str, np.ndarray],
        final: Mapping[str, Any] | None = None,
        final_present: Mapping[str, np.ndarray] | None = None,
        acted: Mapping[str, np.ndarray] | None = None,
        state: object = None,
    ) -> None:
        super().__init__(rows)
        self.present: Mapping[str, np.ndarray] = present
        self.final, self.final_present, self.acted = final, final_present, acted
        self.state = state


@dataclass(frozen=True, slots=True)
class TeamStep:
    """One step of L multi-agent environments with M agents: [L, M] each.

    Attributes:
        reward: float64, 0 for an agent without one. Rewards of agents that did not act in this step belong to their
            last action. terminated, truncated: bool, never merged.
        acted: bool, whether the agent was present and acted: only then is its row a transition.
        defined: [L, A] actions that the environment took instead of the agents' choices, in its format, and NaN
            elsewhere; None if all were the agents' own.
    """

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    acted: np.ndarray
    defined: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step of L lanes. The arrays belong to the caller: no later step writes to them.

    For Dict and Tuple observation spaces `obs` and `final_obs` are dicts and tuples of [L, ...] arrays.

    Attributes:
        obs: [L, ...] observation for the next action: the reset observation if the episode has just ended. (NEXT_STEP
            vector environments give it one call later: until then this is the final one, and the row of that later
            call has mask False.)
        reward: [L] float64. terminated, truncated: [L] bool, never merged.
        final_obs: [L, ...] s' of the transition: the true FINAL observation where the episode ended, else `obs`.
        mask: [L] bool; False where the row is not a transition (the reset step of NEXT_STEP autoreset, an idle lane, a
            lane whose environment failed and was replaced: there `truncated` is True anyway).
        info: the back end's info dictionary, unchanged (keys as in Gymnasium's vector environments). Lanes stepped in
            this process contain `action_mask` (of `obs`), `final_action_mask` (of `final_obs`, if an episode has ended)
            and nothing else; multi-agent ones `env_defined_actions` (see `TeamLanes`).
        team: for multi-agent lanes, the step by agent; `reward` is then the sum over them, and `terminated` and
            `truncated` end the whole episode.
        healed: [L] bool, lanes whose worker was replaced in this step; None if there was none. An environment's own
            info cannot set it.
    """

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: np.ndarray
    mask: np.ndarray
    info: dict[str, Any]
    team: TeamStep | None = None
    healed: np.ndarray | None = None


class Lanes(Protocol):
    """L environments stepped together: the interface for loops, rollouts and evaluation."""

    num_lanes: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    backend: str  # name for run.json: "lanes", "cartpole", "envpool", "gymnasium.SyncVectorEnv", ...

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode in every lane: obs [L, ...], and info, with `action_mask` [L, A] if available.

        `seeds` [L] int64 make each lane's episodes repeatable; None continues each lane's generator.
        """

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes. Where `active` [L] is False the lane idles: it is not stepped and mask is False."""

    def close(self) -> None:
        """Release the environments' resources."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """A step of lanes that cannot step in the background: it is made when its result is asked for."""

    actions: Any
    active: np.ndarray | None


def begin_step(lanes: Lanes, actions: Tree, active: np.ndarray | None = None) -> Any:
    """Begin a step, which lanes in worker processes make in the background; pass the result to `finish_step`."""
    apart: Any = lanes
    is_apart = foreign.has_methods(lanes, "begin_step", "finish_step")
    return apart.begin_step(actions, active) if is_apart else Postponed(actions, active)


def finish_step(lanes: Lanes, pending: object) -> StepBatch:
    """Return the result of a step begun by `begin_step`; the same as that of `lanes.step`."""
    apart: Any = lanes
    batch: StepBatch = (
        lanes.step(pending.actions, pending.active) if isinstance(pending, Postponed) else apart.finish_step(pending)
    )
    return batch
