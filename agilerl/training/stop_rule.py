"""Whether a run may stop, and which of its agents is the best, decided after every generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl.collect.fitness import FitnessEvaluator, MeanReturn, PopulationEvaluation
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.hpo.screening import MIN_EPISODES, has_plateaued, shrink, still_learns
from agilerl.hpo.tournament import nan_as_worst
from agilerl.training.best import BestAgent
from agilerl.training.deadline import Pace, TimeIsUp
from agilerl.training.result import EvolveResult

# Without a confirmation by a target, the leaders of this many final generations are confirmed, with the best and the
# fittest agent before them, on at most this share of the training steps (docs/decisions.md).
CONFIRMED_GENERATIONS, CONFIRMED_SHARE = 3, 0.2

# A candidate for a stop is confirmed if its shrunken mean return, plus this many of its standard errors, reaches the
# target (docs/decisions.md).
WORTH_A_CONFIRMATION = 0.5


def recent_fitness(agent: foreign.Agent, window: int) -> float:
    """Mean of an agent's last `window` fitness values."""
    return float(np.mean(agent.fitness[-window:]))


@dataclass(frozen=True)
class Evaluated:
    """Members of a generation after their evaluation.

    Attributes:
        number: of the generation. population: all members. options: of the run, as they are now.
        evaluation: of those that have played. in_full: ids of members whose evaluation of this generation is complete:
            they were neither dropped after the first episodes nor have they diverged.
    """

    number: int
    population: Sequence[Any]
    options: LoopOptions
    evaluation: PopulationEvaluation
    in_full: Set[int]

    def fitness(self, agent: foreign.Agent) -> float:
        """Mean of a member's last `fitness_window` evaluations."""
        return recent_fitness(agent, self.options.fitness_window)

    def error(self, agent: foreign.Agent) -> float:
        """Standard error of `fitness`; 0 if unknown."""
        error = self.evaluation.errors.get(agent.index, 0.0)
        return float(error / np.sqrt(self._averaged(agent)))

    def episodes(self, agent: foreign.Agent) -> int:
        """Episodes that `fitness` is a mean of."""
        return int(self.evaluation.played[agent.index] * self._averaged(agent))

    def _averaged(self, agent: foreign.Agent) -> int:
        return min(self.options.fitness_window, len(agent.fitness))


class StopRule:
    """Decides whether a run may stop, and which agent is its best so far.

    Fitness is a mean of few episodes, so its maximum over members and generations is biased upwards. A target counts as
    reached, and the best agent is settled, by held-out episodes that no selection has seen.

    Args:
        evaluator: plays held-out episodes. best: takes the agents. pace: knows how many episodes there is time for.
        result: counts confirmations and their seconds. rounded: `Collector.steps_of_generation`.
        shards: that are evaluated in turn, one in each generation.

    Attributes:
        episode_length: mean length of the last evaluation's episodes, in environment steps.
    """

    def __init__(
        self,
        evaluator: FitnessEvaluator,
        best: BestAgent,
        pace: Pace,
        result: EvolveResult,
        rounded: Callable[[int], int],
        shards: int = 1,
    ) -> None:
        self.evaluator, self.best, self.pace, self.result = evaluator, best, pace, result
        self.rounded, self.shards, self.episode_length = rounded, shards, 0.0

    def decide(self, now: Evaluated, is_last: bool) -> tuple[MeanReturn | None, bool]:
        """Return (the confirmation, if any; whether to stop), and update the best agent and `result.stopped`.

        Args:
            is_last: whether the run ends after this generation whatever is confirmed.
        """
        values, target = nan_as_worst([now.fitness(a) for a in now.population]), self._target(now.options)
        value = max(values)
        fittest = [agent for agent, fitness in zip(now.population, values, strict=True) if fitness == value]
        leader = max(fittest, key=lambda agent: agent.index in now.in_full)  # prefer evaluated members
        is_reached = target is not None and value >= target
        is_over = target is None and not self.evaluator.is_relative
        is_over = is_over and self._has_settled(now.options.patience)
        candidate = self._candidate(now, leader, target) if is_reached and target is not None else None
        tried = leader if candidate is None else candidate
        if candidate is not None:
            confirmed = self._confirm(candidate, now)
        else:
            confirmed = self._confirm_late(now, leader, is_over or is_last)
        if self.evaluator.is_relative and self.best.confirmed is None:
            self.best.forget()  # earlier fitness was measured against other opponents
        is_confirmed = candidate is not None and self._is_confirmed(confirmed, now.options)
        self.best.offer(tried, now.fitness(tried), confirmed, now.number, now.error(tried))
        if tried is not leader and not is_confirmed:
            self.best.offer(leader, value, None, now.number, now.error(leader))
        self.result.note(self.best)
        if is_over:
            self.result.stopped = "plateau"
        elif is_last and not is_confirmed:
            self.result.stopped = "minutes"
        return confirmed, is_over or is_confirmed

    def closing_episodes(self, options: LoopOptions, members: int) -> int:
        """Return how many held-out episodes will confirm the best agents at the end of the run."""
        candidates = 3 if self.best.has_rivals else 1  # the leader, the best and the fittest before it
        return candidates * self._late_episodes(options, members) if options.confirm_episodes else 0

    def _target(self, options: LoopOptions) -> float | None:
        """Target return; None without a target, or if fitness is not a return."""
        return options.target if self.evaluator.is_return else None

    def _has_settled(self, patience: int | None) -> bool:
        """Whether neither fitness nor training returns have improved for `patience` generations of every shard."""
        patience = None if patience is None else patience * self.shards
        return has_plateaued(self.result.history, patience) and not still_learns(self.result.returns, patience or 0)

    def _candidate(self, now: Evaluated, leader: foreign.Agent, target: float) -> Any:
        """Return the member to confirm, None if no member is worth it.

        The highest of several means is biased upwards, so the candidate has the highest shrunken mean, and its
        confirmation is played only if that nearly reaches the target. Without held-out episodes, or if the errors of
        the means are unknown, it is the leader.
        """
        if not now.in_full:
            return None  # the shards of all candidates had their turn
        evaluation = now.evaluation
        evaluated = [agent for agent in now.population if agent.index in evaluation.errors]
        if (
            not self.evaluator.confirms
            or leader not in evaluated
            or any(agent.index not in evaluation.played for agent in evaluated)
        ):
            return leader
        fitness = [now.fitness(agent) for agent in evaluated]
        if not np.isfinite(fitness).all():
            return leader
        counts = [now.episodes(agent) for agent in evaluated]
        estimates, errors = shrink(fitness, [now.error(agent) for agent in evaluated], counts)
        eligible = [slot for slot, agent in enumerate(evaluated) if agent.index in now.in_full]
        best = max(eligible, key=lambda slot: (estimates[slot], fitness[slot]))
        return evaluated[best] if estimates[best] + WORTH_A_CONFIRMATION * errors[best] >= target else None

    def _confirm(self, agent: foreign.Agent, now: Evaluated, episodes: int | None = None) -> MeanReturn | None:
        """Held-out return of an agent, counted in the result."""
        start = time.perf_counter()
        if episodes is None:  # those of the end have been reckoned with
            episodes = self._in_time(now.options.confirm_episodes)
        try:
            confirmed = None if episodes == 0 else self.evaluator.confirm(agent, now.number, episodes)
        except TimeIsUp:
            return None
        if confirmed is not None:
            seconds = time.perf_counter() - start
            self.result.time.evaluation += seconds
            self.pace.confirmed(seconds, confirmed.episodes)
            self.result.confirmations += 1
            self.result.confirmation_episodes += confirmed.episodes
        return confirmed

    def _in_time(self, most: int) -> int | None:
        """Return how many held-out episodes a budget in minutes leaves time for, if it is fewer than `most`."""
        if not self.evaluator.confirms:
            return None
        fitting = self.pace.fitting(most)
        return None if fitting == most else fitting

    def _is_confirmed(self, confirmed: MeanReturn | None, options: LoopOptions) -> bool:
        """Whether held-out episodes reach the target too, if there are any."""
        target = self._target(options)
        if confirmed is None or target is None:
            return not self.evaluator.confirms or target is None
        margin = options.stop_margin + options.stop_errors * (confirmed.error or 0.0)
        return confirmed.mean >= target + margin

    def _confirm_late(self, now: Evaluated, leader: foreign.Agent, is_over: bool) -> MeanReturn | None:
        """Held-out return of `leader` in the last generations of a run that has not reached a target; else None.

        The best agent until then, and each later leader, is scored on held-out episodes, and those scores decide.

        Args:
            is_over: whether this is the last generation, whatever the remaining budget.
        """
        options = now.options
        if self.shards > 1 and not is_over and leader.index not in now.in_full:
            return None  # it had its turn
        remaining = options.max_steps - max(agent.steps[-1] for agent in now.population)
        per_generation = self.rounded(options.evo_steps)
        if not options.confirm_episodes or (remaining >= CONFIRMED_GENERATIONS * per_generation and not is_over):
            return None
        episodes = self._late_episodes(options, len(now.population))
        is_relative = self.evaluator.is_relative
        if self.best.has_rivals or is_relative:
            self.best.confirm(lambda agent: self._confirm(agent, now, episodes), anew=is_relative)
        return self._confirm(leader, now, episodes)

    def _late_episodes(self, options: LoopOptions, members: int) -> int:
        """Episodes per candidate at the end of a run without a confirmed target.

        With `eval_share` they follow the steps made so far, since a run in minutes may end long before `max_steps`.
        """
        is_bounded = options.eval_share is not None
        steps = self.result.env_steps_population if is_bounded else options.max_steps * members
        share = CONFIRMED_SHARE * steps / (CONFIRMED_GENERATIONS + 2)
        least = min(options.confirm_episodes, MIN_EPISODES if is_bounded else options.eval_episodes)
        return min(options.confirm_episodes, max(least, int(share / max(self.episode_length, 1.0))))
