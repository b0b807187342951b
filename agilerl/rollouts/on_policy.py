"""Rollout collection: the loop that steps lanes for a recorder, and the published functions around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.core.tree import Tree
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import MaskedObservations, follow_masks
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.envs.step import VectorLanes, as_lanes

Collected = tuple[list[float], Any, np.ndarray, np.ndarray, dict[str, Any]]


class Recorder(Protocol):
    """Acts in lanes and records the steps, for one agent or several in lockstep.

    Attributes:
        active: lanes [L] bool that the action applies to; None steps all of them.
    """

    active: np.ndarray | None

    @property
    def full(self) -> bool:
        """Whether all requested steps are recorded."""

    def act(self, obs: Tree, mask: np.ndarray | None) -> Any:
        """Return environment actions from observations [L, ...] and action masks [L, A] bool."""

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Store the result of the last `act`; `reward` [L] is the training reward."""

    def finish(self, obs: Tree) -> None:
        """Complete the rollout; `obs` [L, ...] follows the last step."""


class ActingStep(NamedTuple):
    """One vector step: observations acted on, action masks, training reward, and result."""

    obs: Any
    mask: np.ndarray | None
    reward: np.ndarray
    batch: StepBatch


def record(
    recorder: Recorder,
    lanes: Lanes,
    obs: Tree,
    info: dict[str, Any] | None,
    learned: Callable[[StepBatch], np.ndarray] | None = None,
    takes_masks: bool = True,
) -> Iterator[ActingStep]:
    """Step `lanes` until `recorder` is full.

    Args:
        obs, info: current observations and info of the lanes.
        learned: computes the training rewards [L]; None uses the rewards unchanged.
        takes_masks: whether action masks are passed on.

    Yields:
        Every vector step after it is stored.
    """
    masks = ActionMasks(lanes.single_action_space, lanes.backend)
    while not recorder.full:
        mask = masks.of(info, lanes.num_lanes) if takes_masks and info else None
        action = recorder.act(obs, mask)
        batch = lanes.step(action, recorder.active)
        reward = batch.reward if learned is None else learned(batch)
        recorder.store(reward, batch)
        yield ActingStep(obs, mask, reward, batch)
        obs, info = batch.obs, batch.info
    recorder.finish(obs)


def collect_rollouts(
    agent: Any,
    env: Any,
    n_steps: int | None = None,
    last_obs: Tree | None = None,
    last_done: np.ndarray | None = None,
    last_scores: np.ndarray | None = None,
    last_info: dict[str, Any] | None = None,
) -> Collected:
    """Fill `agent.rollout_buffer` with one rollout, for `agent.learn()`.

    The hidden state of a recurrent agent is carried from call to call. It is reset to zero when the environment is
    reset, and in each lane where an episode begins.

    Args:
        agent: agent of an on-policy algorithm.
        env: vector environment in any autoreset mode, or a single environment; it is stepped, never closed.
        n_steps: vector steps; None uses the agent's rollout length, `ceil(learn_step / num_envs)`.
        last_obs, last_done, last_scores, last_info: result of the last call, to continue from; without `last_obs` the
            environment is reset.

    Returns:
        (returns of the episodes that ended, observation, done flags, returns of the running episodes so far, info).
    """
    inner: Lanes = VectorLanes(env) if isinstance(env, VectorEnv) else as_lanes(env)
    if isinstance(inner, VectorLanes) and last_done is not None and last_obs is not None:
        inner.resume(last_done)
    elif isinstance(inner, SyncLanes) and last_obs is not None:
        inner.resume(last_obs)
    lanes = follow_masks(inner, agent.observation_space)
    agent.num_envs = lanes.num_lanes
    agent.set_training_mode(True)
    recorder = agent.recorder(n_steps)
    obs, info, done = last_obs, last_info, last_done
    if obs is None:
        obs, info = lanes.reset()
        recorder.restart()
    elif isinstance(lanes, MaskedObservations):
        obs, info = lanes.resumed(obs, info)
    running = np.zeros(lanes.num_lanes) if last_scores is None or done is None else np.array(last_scores, np.float64)
    completed: list[float] = []
    for seen in record(recorder, lanes, obs, info):
        batch = seen.batch
        running += batch.reward
        obs, info, done = batch.obs, batch.info, batch.terminated | batch.truncated
        completed += running[done].tolist()
        running[done] = 0.0
    assert done is not None
    shown = lanes.whole if isinstance(lanes, MaskedObservations) else obs
    return completed, shown, done, running, dict(info or {})


collect_rollouts_recurrent = collect_rollouts  # its published name for recurrent agents
