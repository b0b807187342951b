"""How an agent is evaluated: greedy episodes, in an environment that is given or in the one it was trained in."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl import tree
from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.envs.step import as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.rng import Purpose, resolve_seed, seeds
from agilerl.rollouts.evaluate import evaluate, test_agent
from agilerl.telemetry.evaluation import Evaluation
from agilerl.threads import one_thread


class Playing(EvolvableAlgorithm):
    """An agent with an action for every observation.

    Attributes:
        seed: of the agent's own streams.
        environment: {"id", "kwargs"} of the environment that it was trained in; None where that is not known.
    """

    seed: int
    environment: dict[str, Any] | None

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

        The training mode is restored. The result is appended to `fitness`.

        Args:
            env: single or vector environment; it is reset, never closed.
            swap_channels: observations are [H, W, C] and turned to [C, H, W].
            max_steps: cut episodes there and count the return so far; None runs to the end.
            loop: evaluation rounds.
        """
        before = self.training
        self.set_training_mode(False)
        try:
            count = max(1, int(getattr(env, "num_envs", 1)))
            start = seeds(self.seed, Purpose.EVALUATION, count * loop, len(self.fitness)).reshape(loop, count)
            fitness = test_agent(
                self._greedy, env, max_steps, loop, swap_channels, seeds=start, begin=self.begin_episodes
            )
        finally:
            self.set_training_mode(before)
        self.fitness.append(fitness)
        return fitness

    def evaluate(self, episodes: int = 100, seed: int | None = None, env: Any = None) -> Evaluation:
        """Play whole episodes greedily and summarise their returns; neither `fitness` nor training is touched.

        Args:
            episodes: how many. seed: of the episodes; None takes the agent's own final-test stream, so that two calls
                play the same episodes.
            env: anything that trains; None makes the environment that the agent was trained in.

        Raises:
            EnvError: no environment is given and none is known.
        """
        made = None if env is not None else self._make_environment(episodes)
        lanes = as_lanes(env) if made is None else made.replicate(1, reset_ended=False)
        start = seeds(self.seed if seed is None else resolve_seed(seed), Purpose.FINAL_TEST, episodes)
        before = self.training
        self.set_training_mode(False)
        try:
            with one_thread():
                found = evaluate(_GreedyActor(self), lanes, 1, episodes, start)
        finally:
            self.set_training_mode(before)
            if made is not None:
                lanes.close()
                made.close()
        return Evaluation.from_returns(found.returns[0].tolist())

    def begin_episodes(self) -> None:
        """All environments that this agent is evaluated in begin an episode; for agents with a memory."""

    def _make_environment(self, episodes: int) -> Any:
        if self.environment is None:
            raise EnvError(f"{self.algo}.evaluate() does not know an environment. fix: agent.evaluate(env=my_env).")
        return make_vect_envs(
            self.environment["id"], num_envs=min(episodes, 32), **dict(self.environment.get("kwargs") or {})
        )

    def _greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        action: np.ndarray = self.get_action(obs, 0.0, mask)
        return action


class _GreedyActor:
    """One agent as the population that `rollouts.evaluate` expects."""

    def __init__(self, agent: Playing) -> None:
        self.agent = agent

    def begin_episodes(self) -> None:
        """Every lane begins an episode."""
        self.agent.begin_episodes()

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """obs [1, E, ...] (nested as the space is) -> actions [1, E, ...]."""
        return self.agent._greedy(tree.map_leaves(lambda x: x[0], obs), None if mask is None else mask[0])[None]
