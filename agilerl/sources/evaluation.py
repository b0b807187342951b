"""Evaluation inside the loop: all members at once, with the same episodes for all of them in a generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes, StepBatch, as_lanes
from agilerl.envs.swapped import ChannelsFirstLanes
from agilerl.options import LoopOptions
from agilerl.rng import Purpose, seeds
from agilerl.rollouts.evaluate import evaluate

# Blocks of `Purpose.EVALUATION` seeds within one generation, so that no two uses share an episode.
_FITNESS, _RESCORE = 0, 1


class CheckedLanes:
    """Other lanes, with a call before every reset and every step of them."""

    def __init__(self, lanes: Lanes, check: Callable[[], None]) -> None:
        self.lanes, self.check = lanes, check
        self.num_lanes, self.backend = lanes.num_lanes, lanes.backend
        self.single_observation_space = lanes.single_observation_space
        self.single_action_space = lanes.single_action_space

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the lanes."""
        self.check()
        return self.lanes.reset(seeds)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """As of the lanes."""
        self.check()
        return self.lanes.step(actions, active)

    def close(self) -> None:
        """Close the lanes."""
        self.lanes.close()


class Evaluator:
    """Evaluates members of one run.

    Args:
        env: what `make_vect_envs` built is replicated; any other environment evaluates one member at a time.
        check: called between vector steps; what it raises ends the evaluation there.

    Attributes:
        env_steps: environment steps of all evaluations so far.
    """

    def __init__(self, env: Any, options: LoopOptions, seed: int, check: Callable[[], None] | None = None) -> None:
        self.env, self.options, self.seed, self.check = env, options, seed, check
        self.env_steps = 0
        self._num_envs = max(1, int(getattr(env, "num_envs", 1)))
        self._replicable = callable(getattr(env, "replicate", None))
        self._lanes: dict[int, Lanes] = {}

    def _lanes_for(self, count: int, members: int) -> Lanes:
        """Lanes for about `count` episodes at once, as many for each member; replicas come in whole environments."""
        if not self._replicable:
            count = 0
        step = members // math.gcd(members, self._num_envs)
        copies = -(-count // (self._num_envs * step)) * step
        if copies not in self._lanes:
            lanes = self.env.replicate(copies, reset_ended=False) if copies else as_lanes(self.env)
            self._lanes[copies] = ChannelsFirstLanes(lanes) if self.options.swap_channels else lanes
        return self._lanes[copies]

    @property
    def lanes(self) -> list[Lanes]:
        """The lanes in use."""
        return list(self._lanes.values())

    def close(self) -> None:
        """Close the replicas; an environment that was handed over stays open."""
        if self._replicable:
            for lanes in self._lanes.values():
                lanes.close()
            self._lanes.clear()

    def _run(self, learner: Learner, episode_seeds: np.ndarray) -> list[float]:
        members = len(learner.agents)
        count = len(episode_seeds)
        if not self._replicable and members > 1:
            each = (Learner([agent], choose([agent], "sequential")) for agent in learner.agents)
            return [self._run(one, episode_seeds)[0] for one in each]
        lanes = self._lanes_for(members * count, members)
        if self.check is not None:
            lanes = CheckedLanes(lanes, self.check)
        found = evaluate(learner, lanes, members, count, episode_seeds, self.options.eval_steps)
        self.env_steps += int(found.env_steps)
        return [float(np.mean(row)) for row in found.returns]

    def population(self, learner: Learner, generation: int) -> list[float]:
        """Mean return of every member over this generation's episodes; the same seeds for all."""
        count = self.options.eval_episodes
        return self._run(learner, seeds(self.seed, Purpose.EVALUATION, count, generation, _FITNESS))

    def rescore(self, learner: Learner, generation: int, count: int) -> list[float]:
        """Mean return over `count` further episodes of this generation."""
        return self._run(learner, seeds(self.seed, Purpose.EVALUATION, count, generation, _RESCORE))

    def confirm(self, learner: Learner, generation: int) -> float:
        """Mean return of one member over fresh episodes that chose nothing."""
        count = self.options.confirm_episodes
        return self._run(learner, seeds(self.seed, Purpose.CONFIRMATION, count, generation))[0]

    def one(self, agent: Any) -> float:
        """An agent with a `test` of its own; it appends to its own fitness. `check` is called before it only."""
        if self.check is not None:
            self.check()
        loop = max(1, self.options.eval_episodes // self._num_envs)
        return float(
            agent.test(self.env, swap_channels=self.options.swap_channels, max_steps=self.options.eval_steps, loop=loop)
        )
