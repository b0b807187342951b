"""Agent evaluation: greedy episodes in a given environment or in the training environment.

The functions accept any agent, wrapped or not: any object with `seed`, `training`, `fitness`, `environment`,
`set_training_mode`, `begin_episodes` and `_greedy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.algorithms.base.predict import greedy_of
from agilerl.core import foreign, tree
from agilerl.core.env_ids import check_lookup
from agilerl.core.ranges import Count, check
from agilerl.core.rng import Purpose, resolve_seed, seeds
from agilerl.core.threads import one_thread
from agilerl.engine.protocol import Mask
from agilerl.envs.copies import map_in_copies
from agilerl.envs.generators import isolated
from agilerl.envs.healing import start_method
from agilerl.envs.limits import EpisodeLimit
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.step import as_lanes
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.modules.layers import whole
from agilerl.rollouts.episodes import EvaluationResult
from agilerl.rollouts.evaluate import evaluate as evaluate_lanes
from agilerl.rollouts.evaluate import test_agent
from agilerl.telemetry.evaluation import Callback, Evaluation

MAX_LANES = 32
MAX_REPLACEMENTS = 10  # of environments that fail in an evaluation, as in a run


class EvaluatedIn:
    """Evaluation environment of a run, reused by later evaluations. It is not saved with the agent.

    Attributes:
        env: environment passed by the user, or a factory. None if it was created by id, and in other processes:
            copies in this process share it, pickling drops it.
        eval_steps: see `training.eval_steps`. training: vector steps per generation, see `EpisodeLimit.of`.
        workers: options of `make_vect_envs` for environments that step in worker processes; empty for this process.
        processes: that play episodes; more than one are copies of this process, where it can be copied.
    """

    processes = 1

    def __init__(
        self,
        env: Any = None,
        eval_steps: int | None = None,
        training: int = 0,
        workers: Mapping[str, Any] | None = None,
    ) -> None:
        self.env, self.eval_steps, self.training, self.workers = env, eval_steps, training, dict(workers or {})

    @classmethod
    def of(cls, manifest: Any, env: foreign.EnvLike = None) -> EvaluatedIn:
        """Create from a run's manifest; `env` is the environment passed by the user, if any."""
        training, environment = manifest.training, manifest.environment
        vector_steps = training.evo_steps // environment.num_envs
        return cls(env, training.eval_steps, vector_steps, environment.of_workers)

    def __call__(self) -> Any:
        """Return the environment, calling it first if it is a function or a class."""
        return self.env() if self.is_maker else self.env

    @property
    def is_maker(self) -> bool:
        """Whether every call returns a new environment."""
        return isinstance(self.env, type) or (self.env is not None and not hasattr(self.env, "reset"))

    def __deepcopy__(self, memo: dict[int, Any]) -> EvaluatedIn:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return EvaluatedIn, (None, self.eval_steps, self.training, self.workers)


def run_test(
    agent: Any,
    env: Any,
    swap_channels: bool = False,
    max_steps: int | None = None,
    loop: int = 1,
    *,
    vectorized: bool = True,
    callback: Callback | None = None,
    by_agent: bool = False,
) -> Any:
    """Implement `RLAlgorithm.test` for any agent; `by_agent`: return the returns of agents [M], append their mean."""
    check_lookup(env)
    if not vectorized and isinstance(env, gym.vector.VectorEnv):
        raise EnvError(
            f"{agent.algo}.test(vectorized=False) got a vector of {env.num_envs} environments. fix: leave vectorized "
            "out; which of the two it is follows from the environment."
        )

    def ended(returns: np.ndarray, info: Any) -> None:
        for score in returns.tolist():
            callback(score, dict(info or {}))  # type: ignore[misc]  # only called if given

    before = agent.training
    agent.set_training_mode(False)
    try:
        count = max(1, int(foreign.num_envs(env)))
        start = seeds(agent.seed, Purpose.EVALUATION, count * loop, len(agent.fitness)).reshape(loop, count)
        begin = agent.begin_episodes
        on_end = None if callback is None else ended
        fitness = test_agent(
            greedy_of(agent), env, max_steps, loop, swap_channels, seeds=start, begin=begin, ended=on_end,
            by_agent=by_agent, left=agent.end_episodes, reads=agent.observation_space,
        )  # fmt: skip
    finally:
        agent.set_training_mode(before)
    agent.fitness.append(float(np.mean(fitness)) if by_agent else fitness)
    return fitness


def evaluate(
    agent: Any, episodes: int = 100, seed: int | None = None, env: foreign.Env | None = None,
    max_steps: int | None = None,
) -> Evaluation:  # fmt: skip
    """Implement `RLAlgorithm.evaluate` for any agent."""
    episodes = whole(episodes, f"{agent.algo}.evaluate: episodes", fix="episodes=100")
    check(f"{agent.algo}.evaluate: max_steps", max_steps, Count | None, None, unit="steps per episode")
    created_env: Any = None
    seed = agent.seed if seed is None else resolve_seed(seed)
    environment, place = agent.environment or {}, agent.evaluated_in or EvaluatedIn()
    if env is None:
        if place.env is not None:
            env = place.env
            if place.is_maker:
                created_env = _made(agent, env, seed, min(episodes, MAX_LANES), **place.workers)
        elif not environment.get("id"):
            raise EnvError(
                f"{agent.algo}.evaluate() does not know an environment: the training environment was passed as an "
                "object, which is not saved, or there was none. fix: agent.evaluate(env=my_env)."
            )
        else:
            options = {**dict(environment.get("kwargs") or {}), **place.workers}
            created_env = _made(agent, environment["id"], seed, min(episodes, MAX_LANES), **options)
    step_limit = place.eval_steps if max_steps is None else max_steps
    limit = EpisodeLimit.of(env if created_env is None else created_env, step_limit, place.training)
    start = seeds(seed, Purpose.FINAL_TEST, episodes)

    def play(start: np.ndarray) -> EvaluationResult:
        inner = as_lanes(env) if created_env is None else created_env.replicate(1, reset_ended=False)
        lanes = follow_masks(inner, agent.observation_space)
        try:
            return evaluate_lanes(_GreedyActor(agent), lanes, 1, len(start), start, limit.steps)
        finally:
            if created_env is not None:
                lanes.close()

    can_copy = created_env is not None and not place.workers and place.processes > 1 and start_method() == "fork"
    waves = [start[first : first + MAX_LANES] for first in range(0, episodes, MAX_LANES)]
    parts = np.array_split(np.arange(len(waves)), min(len(waves), place.processes if can_copy else 1))
    before = agent.training
    agent.set_training_mode(False)
    try:
        with one_thread():
            results = map_in_copies(play, [np.concatenate([waves[wave] for wave in part]) for part in parts])
    finally:
        agent.set_training_mode(before)
        if created_env is not None:
            created_env.close()
    returns, lengths, is_cut = (
        np.concatenate([part[0] for part in parts])
        for parts in zip(*((result.returns, result.lengths, result.cut) for result in results), strict=True)
    )
    limit.say(lengths, is_cut)
    return Evaluation.from_returns(returns.tolist())


def _made(agent: foreign.Agent, env: foreign.EnvLike, seed: int, num_envs: int, **kwargs: Any) -> Any:
    """Create environments from an id or a factory, for a single agent or several."""
    vector: Any
    with isolated(seed):
        if hasattr(agent, "agent_ids"):
            vector = make_multi_agent_vect_envs(env, num_envs, **kwargs)
        else:
            maker = {"env_name": env} if isinstance(env, str) else {"make_env": env}
            vector = make_vect_envs(num_envs=num_envs, **maker, **kwargs)
    vector.lane_seed, vector.replacements = seed, MAX_REPLACEMENTS
    return vector


class _GreedyActor:
    """Wrap one agent as the population that `rollouts.evaluate` expects."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.begin_episodes, self.greedy = agent, agent.begin_episodes, greedy_of(agent)
        if agent.end_episodes is not None:
            self.end_episodes = lambda over: agent.end_episodes(over[0])  # multi-agent [1, E, M]

    def act_greedy(self, obs: np.ndarray, mask: Mask = None) -> Any:
        """Map obs [1, E, ...] to actions [1, E, ...], each nested like its space."""
        action = self.greedy(tree.take(obs, 0), None if mask is None else mask[0])
        return tree.map_leaves(lambda x: x[None], action)
