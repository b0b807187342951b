"""Collecting the rollout of one agent in the user's own environment, as the published functions do."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.envs.protocol import Lanes
from agilerl.envs.step import VectorLanes, action_mask, as_lanes
from agilerl.spaces import mask_width

Collected = tuple[list[float], Any, np.ndarray, np.ndarray, dict[str, Any]]


def collect_rollouts(
    agent: Any,
    env: Any,
    n_steps: int | None = None,
    last_obs: Any = None,
    last_done: np.ndarray | None = None,
    last_scores: np.ndarray | None = None,
    last_info: dict[str, Any] | None = None,
) -> Collected:
    """Fill `agent.rollout_buffer` with one rollout, from which `agent.learn()` then learns.

    Args:
        agent: of an on-policy algorithm.
        env: vector environment in any autoreset mode, or a single environment; it is stepped, never closed.
        n_steps: vector steps; None takes the agent's own rollout length, `ceil(learn_step / num_envs)`.
        last_obs, last_done, last_scores, last_info: what the last call returned, to go on from there; without
            `last_obs` the environment is reset.

    Returns:
        (returns of the episodes that ended, observation, done flags, returns of the running episodes so far, info).
    """
    return _collect(agent, env, n_steps, last_obs, last_done, last_scores, last_info)


def collect_rollouts_recurrent(
    agent: Any,
    env: Any,
    n_steps: int | None = None,
    last_obs: Any = None,
    last_done: np.ndarray | None = None,
    last_scores: np.ndarray | None = None,
    last_info: dict[str, Any] | None = None,
) -> Collected:
    """As `collect_rollouts`, for a recurrent agent: its hidden state goes on from call to call.

    It starts at zero where the environment is reset, and in each lane where an episode begins.
    """
    return _collect(agent, env, n_steps, last_obs, last_done, last_scores, last_info)


def _collect(
    agent: Any,
    env: Any,
    n_steps: int | None,
    obs: Any,
    done: np.ndarray | None,
    scores: np.ndarray | None,
    info: dict[str, Any] | None,
) -> Collected:
    lanes: Lanes = VectorLanes(env) if isinstance(env, VectorEnv) else as_lanes(env)
    if isinstance(lanes, VectorLanes) and done is not None and obs is not None:
        lanes.resume(done)
    agent.num_envs = lanes.num_lanes
    agent.set_training_mode(True)
    recorder = agent.recorder(n_steps)
    if obs is None:
        obs, info = lanes.reset()
        recorder.restart()
    running = np.zeros(lanes.num_lanes) if scores is None or done is None else np.array(scores, np.float64)
    count = mask_width(lanes.single_action_space)
    completed: list[float] = []
    while not recorder.full:
        mask = action_mask(info, lanes.num_lanes, count) if info and count else None
        batch = lanes.step(recorder.act(obs, mask))
        recorder.store(batch.reward, batch)
        running += batch.reward
        ended = batch.terminated | batch.truncated
        completed += running[ended].tolist()
        running[ended] = 0.0
        obs, info, done = batch.obs, batch.info, ended
    recorder.finish(obs)
    assert done is not None
    return completed, obs, done, running, dict(info or {})
