"""Fitness evaluation: full greedy episodes, shared by all members and optionally played in stages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from agilerl.collect.fitness import Adopts, FitnessEvaluator, MeanReturn, PopulationEvaluation
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.core.rng import Purpose, seeds
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.envs.adapters import ChannelsFirstLanes
from agilerl.envs.limits import EpisodeLimit
from agilerl.envs.observed_masks import MaskedObservations, follow_masks
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.envs.returned import short
from agilerl.envs.step import as_lanes
from agilerl.errors import ConfigError
from agilerl.ranks import ONE, Ranks
from agilerl.rollouts.confirmation import SequentialTest, batch_ends
from agilerl.rollouts.episodes import Episodes, EvaluationResult
from agilerl.rollouts.evaluate import contested, evaluate

# Episodes of a confirmation between two decisions, if `confirm_screen` does not say how many.
CONFIRMATION_BATCH = 16

# Seed blocks of `Purpose.EVALUATION` within one generation, so that no two uses share an episode.
_FITNESS, _RESCORE = 0, 1


class CheckedLanes:
    """Wrap lanes to call `check` before every reset and step."""

    def __init__(self, lanes: Lanes, check: Callable[[], None]) -> None:
        self.lanes, self.check = lanes, check
        self.num_lanes, self.backend = lanes.num_lanes, lanes.backend
        self.single_observation_space = lanes.single_observation_space
        self.single_action_space = lanes.single_action_space

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        self.check()
        return self.lanes.reset(seeds)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        self.check()
        return self.lanes.step(actions, active)

    def close(self) -> None:
        self.lanes.close()


def lanes_for(agent: Any, lanes: Lanes, swap_channels: bool = False) -> Lanes:
    """Wrap lanes for an agent: follow masks in observations and move image channels to where the agent reads them.

    Observations are left unchanged for custom agents that do not declare how they read them.
    """
    space = foreign.observation_space(foreign.bare(agent))
    lanes = lanes if space is None else follow_masks(lanes, space)
    return ChannelsFirstLanes(lanes) if swap_channels else lanes


def innermost(lanes: Any) -> Any:
    """Return the lanes that step the environments, below all wrappers."""
    while isinstance(lanes, ChannelsFirstLanes | MaskedObservations):
        lanes = lanes.lanes
    return lanes


class Evaluator(FitnessEvaluator):
    """Evaluate the members of one run by playing episodes.

    Args:
        env: replicated if built by `make_vect_envs`; any other environment evaluates one member at a time.
        check: called between vector steps; an exception it raises aborts the evaluation.
        sum_scores: for teams; False averages over agents instead of summing.
        ranks: each rank plays its share of the episodes with its own seeds; fitness is the mean over all ranks.
        uses_test: whether agents are evaluated by their own `test`.

    Attributes:
        episodes: number played so far.
        by_agent: member id -> returns per agent in the last evaluation, if they are not summed.
        error: standard error of the mean return of the first member in the last evaluation.
        errors: member id -> standard error of its mean in its last evaluation of this generation.
        played: member id -> number of episodes of the evaluation of this generation, over all ranks.
        screened_out: ids of the members dropped before all episodes of the last evaluation were played.
        returns: [N, episodes] of the last evaluation, over all ranks.
        limit: episode limit.
    """

    def __init__(
        self,
        env: Any,
        options: LoopOptions,
        seed: int,
        check: Callable[[], None] | None = None,
        *,
        sum_scores: bool = True,
        ranks: Ranks = ONE,
        uses_test: bool = False,
    ) -> None:
        super().__init__()
        self.episodes = 0
        self.by_agent: dict[int, list[float]] = {}
        self.error = 0.0
        self.errors: dict[int, float] = {}
        self.played: dict[int, int] = {}
        self.screened_out: frozenset[int] = frozenset()
        self.env, self.options, self.seed, self.check = env, options, ranks.seed(seed), check
        self.ranks = ranks
        self.sum_scores = sum_scores
        self.plays_episodes = not uses_test
        self.confirms = not uses_test and options.confirm_episodes > 0
        self._num_envs = foreign.num_envs(env)
        self.limit = EpisodeLimit.of(env, options.eval_steps, options.evo_steps // self._num_envs)
        self._replicable = foreign.can_replicate(env)
        self.returns = np.zeros((0, 0))

    def _lanes_for(self, count: int, members: int, agent: Any = None) -> Lanes:
        """Return lanes for about `count` parallel episodes, equally many per member, in whole environments."""
        if not self._replicable:
            count = 0
        step = members // math.gcd(members, self._num_envs)
        copies = -(-count // (self._num_envs * step)) * step
        if copies not in self.lanes:
            lanes = self.env.replicate(copies, reset_ended=False) if copies else as_lanes(self.env)
            self.lanes[copies] = lanes_for(agent, lanes, self.options.swap_channels)
        return self.lanes[copies]

    def close(self) -> None:
        """Close the replicas; an environment passed by the user stays open."""
        if self._replicable:
            for lanes in self.lanes.values():
                lanes.close()
            self.lanes.clear()

    def _run(self, learner: Learner, episodes: Episodes) -> list[float]:
        members, count = len(learner.agents), len(episodes)
        if not self._replicable and members > 1:
            learners = (Learner([agent], choose([agent], "sequential")) for agent in learner.agents)
            scores = [(self._run(one, episodes)[0], self.returns) for one in learners]
            self.returns = np.concatenate([returns for _, returns in scores])
            return [fitness for fitness, _ in scores]
        play = partial(self.play, learner)
        result = play(episodes) if self.divider is None else self.divider.play(learner, episodes, play)
        self.limit.say(result.lengths, result.cut)
        fitness, rows = self._fitness(result, episodes), None if self.sum_scores else self._rows(result, episodes)
        if self.ranks.size > 1:  # equally many episodes on each
            fitness = self.ranks.average(fitness).tolist()
            rows = None if rows is None else self.ranks.average(rows)
        returns = self.returns = self._each(result, episodes)
        errors = returns.std(1, ddof=1) / math.sqrt(count * self.ranks.size) if count > 1 else np.zeros(members)
        if self.ranks.size > 1:  # must be equal on all ranks
            errors = self.ranks.average(errors)
            self.returns = np.concatenate(self.ranks.gather_rows(returns), 1)
        self.error = float(errors[0])
        self.errors |= {agent.index: float(error) for agent, error in zip(learner.agents, errors, strict=True)}
        self.episodes += members * count * self.ranks.size
        self.env_steps += int(self.ranks.sum(result.env_steps)) if self.ranks.size > 1 else int(result.env_steps)
        if rows is not None:
            self.by_agent |= {agent.index: row for agent, row in zip(learner.agents, rows.tolist(), strict=True)}
        return fitness

    def play(self, learner: Learner, episodes: Episodes) -> EvaluationResult:
        """Play each episode with every member in this process."""
        members = len(learner.agents)
        lanes = self._lanes_for(members * len(episodes), members, learner.agents[0])
        if self.check is not None:
            lanes = CheckedLanes(lanes, self.check)
        return self._play(learner, lanes, episodes)

    def _play(self, learner: Learner, lanes: Lanes, episodes: Episodes) -> EvaluationResult:
        """Play each episode with every member."""
        count, by_agent = len(episodes), not self.sum_scores
        return evaluate(learner, lanes, len(learner.agents), count, episodes.seeds, self.limit.steps, by_agent=by_agent)

    def _each(self, result: EvaluationResult, episodes: Episodes) -> np.ndarray:
        """Scores [N, episodes] that fitness averages."""
        member_returns: np.ndarray = result.returns.reshape(*result.returns.shape[:2], -1).mean(2)
        return member_returns

    def _rows(self, result: EvaluationResult, episodes: Episodes) -> np.ndarray:
        """Mean return [N, M] per agent of every team."""
        rows: np.ndarray = result.returns.mean(1)
        return rows

    def _share_before(self, episodes: Episodes) -> float | np.ndarray:
        """Weight of the earlier episodes in the means of `_rows` after a stage, as a scalar or [M]."""
        return episodes.first / (episodes.first + len(episodes))

    def _fitness(self, result: EvaluationResult, episodes: Episodes) -> list[float]:
        """Fitness of every member."""
        return [float(np.mean(row)) for row in result.returns]

    def evaluate(self, agents: Sequence[Any], number: int, episodes: int | None = None) -> PopulationEvaluation:
        env_steps, played = self.env_steps, self.episodes
        count = self.options.eval_episodes if episodes is None else episodes
        if not self.plays_episodes:
            fitness = [self.one(agent) for agent in agents]
        elif 0 < self.options.eval_screen < count and (len(agents) > 1 or self.options.target is not None):
            fitness = self.staged(self.adopts, agents, number, count)  # a first stage decides who plays the rest
        else:
            with self.adopts(agents) as learner:
                fitness = self.population(learner, number, count)
        return PopulationEvaluation(
            fitness,
            dict(self.errors),
            dict(self.played),
            dict(self.by_agent),
            self.screened_out,
            self.env_steps - env_steps,
            self.episodes - played,
        )

    def population(self, learner: Learner, generation: int, episodes: int | None = None) -> list[float]:
        """Mean return of every member over this generation's episodes; all members get the same seeds."""
        count, self.by_agent, self.errors = self._share(episodes or self.options.eval_episodes), {}, {}
        self.screened_out = frozenset()
        self.played = {agent.index: count * self.ranks.size for agent in learner.agents}
        return self._run(learner, Episodes.of(seeds(self.seed, Purpose.EVALUATION, count, generation, _FITNESS)))

    def staged(
        self, adopted: Adopts, agents: Sequence[Any], generation: int, episodes: int | None = None
    ) -> list[float]:
        """Like `population`, in stages of `eval_screen` episodes each.

        Members significantly behind the leader are dropped; evaluation stops once the leader is clear. A dropped member
        never ranks above one that continued. A single member is evaluated until it is unlikely to reach the target
        (`SequentialTest`): the exact score of one that fails decides nothing.

        adopted: creates a learner for a subset of the agents.
        """
        count = self._share(episodes or self.options.eval_episodes)
        stage = self._share(self.options.eval_screen)
        planned = Episodes.of(seeds(self.seed, Purpose.EVALUATION, count, generation, _FITNESS))
        self.by_agent, self.errors, self.played = {}, {}, {}
        retained, dropped = list(range(len(agents))), []
        means, returns = np.zeros(len(agents)), np.zeros((len(agents), 0))
        target, size = self.options.target, self.ranks.size
        test = None if len(agents) > 1 or target is None else SequentialTest(target, 0.0, count * size, count * size)
        for begin in range(0, count, stage):
            rows, part = dict(self.by_agent), planned.part(begin, begin + stage)
            with adopted([agents[slot] for slot in retained]) as learner:
                self._run(learner, part)
            returns = np.concatenate([returns, self.returns], 1)
            means[retained], errors = returns.mean(1), returns.std(1, ddof=1) / math.sqrt(returns.shape[1])
            share = self._share_before(part)
            for slot, error in zip(retained, errors.tolist(), strict=True):
                number = agents[slot].index
                self.errors[number], self.played[number] = error, returns.shape[1]
                if number in rows:
                    both = share * np.array(rows[number]) + (1 - share) * np.array(self.by_agent[number])
                    self.by_agent[number] = both.tolist()
            if begin + stage >= count or (test is not None and test.decide(returns[0]) is False):
                break
            places = contested(returns)
            dropped.append([slot for place, slot in enumerate(retained) if place not in places])
            retained, returns = [retained[place] for place in places], returns[places]
            if len(retained) == 1 and test is None:
                break
        for slots in reversed(dropped):
            means[slots] = np.minimum(means[slots], means[retained].min())
            retained = retained + slots
        self.screened_out = frozenset(agents[slot].index for slots in dropped for slot in slots)
        return [float(mean) for mean in means]

    def rescore(self, agents: Sequence[Any], number: int, episodes: int) -> list[float] | None:
        if not self.plays_episodes:
            return None
        drawn = seeds(self.seed, Purpose.EVALUATION, self._share(episodes), number, _RESCORE)
        with self.adopts(agents) as learner:
            return self._run(learner, Episodes.of(drawn))

    def confirm(self, agent: foreign.Agent, number: int, episodes: int | None = None) -> MeanReturn | None:
        if not self.confirms:
            return None
        before = self.episodes
        with self.adopts([agent]) as learner:
            mean = self.held_out(learner, number, episodes)
        return MeanReturn(mean, self.error, self.episodes - before)

    def held_out(self, learner: Learner, generation: int, count: int | None = None) -> float:
        """Mean return of one member over held-out episodes; `error` is its standard error.

        `count` sets the number of episodes. By default they are played in batches until a `SequentialTest` decides
        whether the member reaches the target. How many are played depends only on seeds and returns.
        """
        options = self.options
        if count is not None or options.target is None:
            episode_count = self._share(options.confirm_episodes if count is None else count)
            return self._run(learner, Episodes.of(seeds(self.seed, Purpose.CONFIRMATION, episode_count, generation)))[0]
        planned, size = self._share(options.confirm_episodes), self.ranks.size
        max_episodes = max(planned, self._share(options.confirm_most))
        episodes = Episodes(seeds(self.seed, Purpose.CONFIRMATION, max_episodes, generation), 0, planned)
        threshold, returns = options.target + options.stop_margin, np.zeros(0)
        test = SequentialTest(threshold, options.stop_errors, planned * size, max_episodes * size)
        batch = self._share(options.confirm_screen or CONFIRMATION_BATCH)
        for begin, end in itertools.pairwise([0, *batch_ends(planned, max_episodes, batch)]):
            self._run(learner, episodes.part(begin, end))
            returns = np.concatenate([returns, self.returns[0]])
            if test.decide(returns) is not None:
                break
        self.error = float(returns.std(ddof=1)) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
        return float(returns.mean())

    def _share(self, count: int) -> int:
        """Number of the `count` episodes each rank plays; equal on all ranks, so that rank means average correctly."""
        return -(-count // self.ranks.size)

    def one(self, agent: Any) -> float:
        """Evaluate an agent with its own `test`, which appends to its fitness. `check` is only called beforehand."""
        if self.check is not None:
            self.check()
        loop = max(1, self.options.eval_episodes // self._num_envs)
        self.episodes += loop * self._num_envs
        options: dict[str, Any] = {"swap_channels": self.options.swap_channels, "max_steps": self.limit.steps}
        if self.sum_scores:
            fitness = agent.test(self.env, **options, loop=loop)
            if np.size(fitness) != 1 or np.asarray(fitness).dtype.kind not in "biuf":
                raise ConfigError(
                    f"{type(agent).__name__}.test returned {short(fitness)}; expected the mean return. fix: one number."
                )
            return float(fitness)
        row = np.asarray(agent.test(self.env, **options, loop=loop, sum_scores=False), float)
        if row.size != len(agent.agent_ids):
            raise ConfigError(
                f"{type(agent).__name__}.test(sum_scores=False) returned {row.size} numbers for the agents "
                f"{list(agent.agent_ids)}. fix: one for each agent, in their order."
            )
        self.by_agent[agent.index] = row.reshape(-1).tolist()
        return float(row.mean())
