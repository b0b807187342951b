"""Baseline score of uniformly random play in a run's environment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.collect.evaluator import CheckedLanes
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.data.recording import Policy, random_policy
from agilerl.engine.protocol import Mask
from agilerl.envs.limits import EpisodeLimit
from agilerl.envs.step import Lanes
from agilerl.rollouts.episodes import EvaluationResult
from agilerl.rollouts.evaluate import evaluate
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.training.deadline import Deadline

EPISODES, FIRST_EPISODES, MIN_RANDOM_EPISODES = 20, 5, 2
MAX_SHARE = 0.05  # of the run's training steps; the number of episodes is reduced to fit
MAX_SHARE_OF_TIME = 0.005  # of a budget in minutes


def random_play(
    env: Any,
    agent: EvolvableAlgorithm,
    options: LoopOptions,
    members: int,
    seed: int,
    check: Callable[[], None] | None = None,
    deadline: Deadline | None = None,
) -> Baseline:
    """Play episodes with uniformly random legal actions.

    Uses a copy of `env` and a separate random stream, so that the run itself is unaffected.

    Args:
        env: evaluation environment. agent: a member, for the action space of a team. options: of the run. members: of
            the population. seed: of the run.
        check: called between vector steps; an exception it raises aborts the play.
        deadline: of a budget in minutes, of which long episodes would take too much.
    """
    if not foreign.can_replicate(env):
        return Baseline(skipped="the environment was handed over as an object; a function that makes it can be copied")
    num_envs = max(1, int(env.num_envs))
    limit = EpisodeLimit.of(env, options.eval_steps, options.evo_steps // num_envs)
    is_team = isinstance(agent, MultiAgentRLAlgorithm)
    episode_seeds = seeds(seed, Purpose.RANDOM_PLAY, EPISODES)
    with contextlib.closing(env.replicate(1, reset_ended=False)) as lanes:
        checked: Lanes = lanes if check is None else CheckedLanes(lanes, check)
        actor = _RandomActor(agent, lanes.single_action_space, stream(seed, Purpose.RANDOM_PLAY, member=1))
        start, first = time.perf_counter(), FIRST_EPISODES if deadline is None else MIN_RANDOM_EPISODES
        played = [_play(actor, checked, episode_seeds[:first], limit.steps, is_team)]
        seconds = time.perf_counter() - start
        last, expected = EPISODES, played[0].env_steps * EPISODES / first
        if deadline is not None:
            last = int(min(EPISODES, first * MAX_SHARE_OF_TIME * deadline.seconds / max(seconds, 1e-9)))
        if expected <= MAX_SHARE * options.max_steps * members and last > first:
            played.append(_play(actor, checked, episode_seeds[first:last], limit.steps, is_team))
    returns = np.concatenate([result.returns[0] for result in played])
    if not is_team:
        return Baseline(Evaluation.from_returns(returns.tolist()))
    return Baseline(Evaluation.from_returns(returns.sum(1).tolist()), is_zero_sum=_is_zero_sum(returns))


def _play(
    actor: _RandomActor, lanes: Lanes, episode_seeds: np.ndarray, max_steps: int | None, by_agent: bool
) -> EvaluationResult:
    return evaluate(actor, lanes, 1, len(episode_seeds), episode_seeds, max_steps, by_agent=by_agent)


def _is_zero_sum(returns: np.ndarray) -> bool:
    """Whether returns [episodes, 2] of two agents are opposite, and not all zero."""
    scale = float(np.abs(returns).max())
    return returns.shape[1] == 2 and scale > 0 and bool((np.abs(returns.sum(1)) <= 1e-6 * scale).all())


class _RandomActor:
    """A member that is uniform over the legal actions, with the population interface of `rollouts.evaluate`."""

    def __init__(self, agent: Any, space: gym.Space[Any], rng: np.random.Generator) -> None:
        self.agent, self.space, self.rng = agent, space, rng
        plain = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.Box)
        self.policy: Policy | None = random_policy(space, rng) if isinstance(space, plain) else None

    def act_greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """obs [1, E, ...] -> actions [1, E, ...] in the environment's format."""
        if self.policy is not None:
            return self.policy(trees.take(obs, 0), None if mask is None else mask[0])[None]
        if isinstance(self.space, gym.spaces.MultiBinary) and mask is None:
            count = trees.count_rows(trees.take(obs, 0))
            return self.rng.integers(0, 2, (1, count, *self.space.shape)).astype(self.space.dtype)
        stored = self.agent.random_action(self.rng, (1, trees.count_rows(trees.take(obs, 0))), mask)
        taken: np.ndarray = self.agent.environment_action(stored)
        return taken
