"""How an agent is evaluated: greedy episodes, in an environment that is given or in the one it was trained in.

Everything here takes an agent, in its wrapper or without one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from agilerl import tree
from agilerl.envs.step import as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.rng import Purpose, resolve_seed, seeds
from agilerl.rollouts.evaluate import evaluate as evaluate_lanes
from agilerl.rollouts.evaluate import test_agent
from agilerl.telemetry.evaluation import Evaluation
from agilerl.threads import one_thread


class Player(Protocol):
    """An agent with a greedy action for every observation.

    Attributes:
        seed: of the agent's own streams. training: its mode. fitness: one entry per `test`.
        environment: {"id", "kwargs"} of the environment that it was trained in; None where that is not known.
    """

    algo: str
    seed: int
    environment: dict[str, Any] | None
    training: bool
    fitness: list[float]

    def set_training_mode(self, training: bool) -> None:
        """Switch exploration and the networks' train/eval mode."""

    def begin_episodes(self) -> None:
        """All environments that the agent is evaluated in begin an episode."""

    def _greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions [E, ...] for the environment."""


def run_test(
    agent: Player, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1
) -> float:
    """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

    The training mode is restored. The result is appended to `fitness`. See `RLAlgorithm.test`.
    """
    before = agent.training
    agent.set_training_mode(False)
    try:
        count = max(1, int(getattr(env, "num_envs", 1)))
        start = seeds(agent.seed, Purpose.EVALUATION, count * loop, len(agent.fitness)).reshape(loop, count)
        fitness = test_agent(
            agent._greedy, env, max_steps, loop, swap_channels, seeds=start, begin=agent.begin_episodes
        )
    finally:
        agent.set_training_mode(before)
    agent.fitness.append(fitness)
    return fitness


def evaluate(agent: Player, episodes: int = 100, seed: int | None = None, env: Any = None) -> Evaluation:
    """Play whole episodes greedily and summarise their returns; neither `fitness` nor training is touched.

    Args:
        episodes: how many. seed: of the episodes; None takes the agent's own final-test stream, so that two calls play
            the same episodes.
        env: anything that trains; None makes the environment that the agent was trained in.

    Raises:
        EnvError: no environment is given and none is known.
    """
    made = None if env is not None else _make_environment(agent, episodes)
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


def _make_environment(agent: Player, episodes: int) -> Any:
    known = agent.environment
    if known is None:
        raise EnvError(f"{agent.algo}.evaluate() does not know an environment. fix: agent.evaluate(env=my_env).")
    return make_vect_envs(known["id"], num_envs=min(episodes, 32), **dict(known.get("kwargs") or {}))


class _GreedyActor:
    """One agent as the population that `rollouts.evaluate` expects."""

    def __init__(self, agent: Player) -> None:
        self.agent = agent

    def begin_episodes(self) -> None:
        """Every lane begins an episode."""
        self.agent.begin_episodes()

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """obs [1, E, ...] (nested as the space is) -> actions [1, E, ...]."""
        return self.agent._greedy(tree.map_leaves(lambda x: x[0], obs), None if mask is None else mask[0])[None]
