"""The one shape that leaves the environment layer, whatever the backend and its autoreset mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import Space

AGENTS, PRESENT, STATE = "agents", "present", "state"  # parts of a team's observation
WAITING, LAST_ACTION = "waiting", "held"  # of stored ones: who waits for its next turn, and with what action


@dataclass(frozen=True, slots=True)
class TeamStep:
    """One step of L teams of M agents, agent by agent: [L, M] each.

    Attributes:
        reward: float64, 0 for an agent that got none. What an agent gets that did not act in this step belongs to what
            it did last. terminated, truncated: bool, never merged.
        acted: bool, whether the agent was there and acted: only then is its row a transition.
        defined: [L, A] what the environment did in place of the agents' own choice, as it takes actions, and NaN
            elsewhere; None where everything was the agents' own.
    """

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    acted: np.ndarray
    defined: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step of L lanes. The arrays are the caller's: no later step writes into them.

    For Dict and Tuple observation spaces `obs` and `final_obs` are dicts and tuples of [L, ...] arrays.

    Attributes:
        obs: [L, ...] what the policy acts on next: the reset observation where the episode has just ended. (NEXT_STEP
            vector environments give it one call later: until then this is the final one, and the row of that later
            call has mask False.)
        reward: [L] float64. terminated, truncated: [L] bool, never merged.
        final_obs: [L, ...] s' of the transition: the true FINAL observation where the episode ended, else `obs`.
        mask: [L] bool; False where the row is not a transition (the reset step of NEXT_STEP autoreset, a lane at rest,
            a lane whose environment failed and was replaced: there `truncated` is True all the same).
        info: the backend's info dictionary, as it came (keys as in Gymnasium's vector environments). Lanes stepped in
            this process carry `action_mask` (of `obs`), `final_action_mask` (of `final_obs`, where an episode has
            ended) and nothing else; those of teams `env_defined_actions` (see `TeamLanes`).
        team: of lanes with several agents, what happened to each of them; `reward` is then the sum over them, and
            `terminated` and `truncated` are ends of the whole team's episode.
        healed: [L] bool, lanes whose worker was replaced in this step; None where none was. An environment's own info
            cannot set it.
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
    """L environments stepped together: what the loop, the rollouts and the evaluation see."""

    num_lanes: int
    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    backend: str  # name for run.json: "lanes", "cartpole", "envpool", "gymnasium.SyncVectorEnv", ...

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new episode in every lane: obs [L, ...], and info, with `action_mask` [L, A] where there is one.

        `seeds` [L] int64 make each lane's episodes repeatable; None goes on with each lane's generator.
        """

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes. Where `active` [L] is False the lane rests: nothing is stepped and mask is False."""

    def close(self) -> None:
        """Release what the environments hold."""
