"""How an agent is evaluated: greedy episodes, in an environment that is given or in the one it was trained in.

Everything here takes an agent, in its wrapper or without one: anything with `seed`, `training`, `fitness`,
`environment`, `set_training_mode`, `begin_episodes` and `_greedy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl import tree
from agilerl.engine.protocol import Mask
from agilerl.envs.step import as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.rng import Purpose, resolve_seed, seeds
from agilerl.rollouts.evaluate import evaluate as evaluate_lanes
from agilerl.rollouts.evaluate import test_agent
from agilerl.telemetry.evaluation import Evaluation
from agilerl.threads import one_thread

Callback = Callable[[float, dict[str, Any]], None]


def run_test(
    agent: Any,
    env: Any,
    swap_channels: bool = False,
    max_steps: int | None = None,
    loop: int = 1,
    *,
    vectorized: bool = True,
    callback: Callback | None = None,
) -> float:
    """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

    The training mode is restored. The result is appended to `fitness`. See `RLAlgorithm.test`.
    """
    if not vectorized and isinstance(env, gym.vector.VectorEnv):
        raise EnvError(
            f"{agent.algo}.test(vectorized=False) got a vector of {env.num_envs} environments. fix: leave vectorized "
            "out; which of the two it is follows from the environment."
        )

    def ended(returns: np.ndarray, info: Any) -> None:
        for score in returns.tolist():
            callback(score, dict(info or {}))  # type: ignore[misc]  # only called where there is one

    before = agent.training
    agent.set_training_mode(False)
    try:
        count = max(1, int(getattr(env, "num_envs", 1)))
        start = seeds(agent.seed, Purpose.EVALUATION, count * loop, len(agent.fitness)).reshape(loop, count)
        begin = agent.begin_episodes
        told = None if callback is None else ended
        fitness = test_agent(agent._greedy, env, max_steps, loop, swap_channels, seeds=start, begin=begin, ended=told)
    finally:
        agent.set_training_mode(before)
    agent.fitness.append(fitness)
    return fitness


def evaluate(agent: Any, episodes: int = 100, seed: int | None = None, env: Any = None) -> Evaluation:
    """Play whole episodes greedily and summarise their returns; neither `fitness` nor training is touched.

    Args:
        episodes: how many. seed: of the episodes; None takes the agent's own final-test stream, so that two calls play
            the same episodes.
        env: anything that trains; None makes the environment that the agent was trained in.

    Raises:
        EnvError: no environment is given and none is known.
    """
    made: Any = None
    known = agent.environment
    if env is None:
        if known is None:
            raise EnvError(f"{agent.algo}.evaluate() does not know an environment. fix: agent.evaluate(env=my_env).")
        made = make_vect_envs(known["id"], num_envs=min(episodes, 32), **dict(known.get("kwargs") or {}))
    lanes = as_lanes(env) if made is None else made.replicate(1, reset_ended=False)
    start = seeds(agent.seed if seed is None else resolve_seed(seed), Purpose.FINAL_TEST, episodes)
    before = agent.training
    agent.set_training_mode(False)
    try:
        with one_thread():
            found = evaluate_lanes(_GreedyActor(agent), lanes, 1, episodes, start)
    finally:
        agent.set_training_mode(before)
        if made is not None:
            lanes.close()
            made.close()
    return Evaluation.from_returns(found.returns[0].tolist())


class _GreedyActor:
    """One agent as the population that `rollouts.evaluate` expects."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.begin_episodes = agent, agent.begin_episodes

    def act_greedy(self, obs: np.ndarray, mask: Mask = None) -> np.ndarray:
        """obs [1, E, ...] (nested as the space is) -> actions [1, E, ...]."""
        action: np.ndarray = self.agent._greedy(tree.take(obs, 0), None if mask is None else mask[0])
        return action[None]
