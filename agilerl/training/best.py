"""The best agent of a run: who is kept while nothing but noisy fitness is known, and who a confirmation chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl import foreign
from agilerl.hpo.screening import recent_returns
from agilerl.sources.source import MeanReturn


@dataclass(frozen=True)
class Candidate:
    """A copy of an agent: its fitness with the standard error of that, and the generation in which it was copied."""

    agent: Any
    fitness: float
    error: float
    generation: int


@dataclass(frozen=True)
class Confirmation:
    """What a confirmation has found: the mean of a candidate in episodes that chose nothing, and its standard error."""

    candidate: Candidate
    mean: float
    error: float


class BestAgent:
    """Keeps a copy of the best agent of a run: a confirmation beats fitness, a better one beats a worse one.

    The highest fitness of many generations is a lucky one: of a few episodes, at times of an agent that is no good. So
    where two agents are no further apart than two standard errors of their difference, and where they are equally fit,
    as at CartPole's 500, the one with the higher training returns is kept. Nobody is kept who lies further than that
    below the highest fitness so far, or small steps down would add up. Returns of a policy that explores may mislead
    too, so the fittest is copied beside it, and a confirmation decides between them.

    A run that goes on after a confirmation has missed its target: who is later fitter than that agent was confirmed to
    be, by two standard errors, is kept instead, until a confirmation decides; nobody who was confirmed is forgotten.

    Args:
        on_best: each is called with the copy whenever there is a better one.

    Attributes:
        kept: the best one, None before the first. fittest: the one with the highest fitness, above all confirmations,
            that nothing has confirmed yet; of equals the one with the higher training returns. confirmed: mean of the
            confirmation of `kept`, None without one. proven: the best confirmation so far.
    """

    def __init__(self, *on_best: Callable[[Any], None] | None) -> None:
        self.on_best = [hear for hear in on_best if hear is not None]
        self.kept: Candidate | None = None
        self.fittest: Candidate | None = None
        self.confirmed: float | None = None
        self.proven: Confirmation | None = None

    @property
    def has_rivals(self) -> bool:
        """Whether there is somebody to confirm."""
        return self.confirmed is None or self.fittest is not None

    @property
    def agent(self) -> Any:
        """The copy of the best one, None before the first."""
        return None if self.kept is None else self.kept.agent

    def offer(
        self,
        agent: Any,
        fitness: float,
        confirmed: MeanReturn | None,
        generation: int,
        error: float = 0.0,
    ) -> None:
        """Keep a copy of `agent` if it is better; agents without `clone` are never kept.

        error: of its fitness. confirmed: what it has reached in fresh episodes; where that has no error, only another
        confirmation beats it.
        """
        if confirmed is not None:
            is_better, is_fittest = self.proven is None or confirmed.mean > self.proven.mean, False
        else:
            is_fittest = self.proven is None or fitness > self.proven.mean
            is_fittest = is_fittest and (self.fittest is None or _fitter(agent, fitness, self.fittest))
            is_better = self.kept is None or self._is_beaten(agent, fitness, error)
        if not (is_better or is_fittest) or not foreign.has_methods(agent, "clone"):
            return
        copy = Candidate(agent.clone(), fitness, error, generation)
        if is_fittest:
            self.fittest = copy
        if is_better:
            self.kept, self.confirmed = copy, None
            if confirmed is not None:
                self.confirmed = confirmed.mean
                self._prove(
                    Confirmation(copy, confirmed.mean, math.inf if confirmed.error is None else confirmed.error)
                )
            self.announce()

    def _prove(self, proof: Confirmation) -> None:
        """From now on nobody is a rival who is no fitter than that."""
        self.proven = proof
        if self.fittest is not None and not self.fittest.fitness > proof.mean:
            self.fittest = None

    def _is_beaten(self, agent: Any, fitness: float, error: float) -> bool:
        assert self.kept is not None
        if self.confirmed is not None:
            assert self.proven is not None
            return _is_above(fitness, error, self.proven.mean, self.proven.error)
        own, known = recent_returns(agent), recent_returns(self.kept.agent)
        if not own or not known:
            return fitness > self.kept.fitness or (fitness == self.kept.fitness and bool(own))
        if _is_above(fitness, error, self.kept.fitness, self.kept.error):
            return True
        if self.fittest is not None and _is_above(self.fittest.fitness, self.fittest.error, fitness, error):
            return False
        return float(np.mean(own)) > float(np.mean(known))

    def confirm(self, play: Callable[[Any], MeanReturn | None], anew: bool = False) -> None:
        """Let the best one and the fittest play episodes that chose nothing, and keep the best of them and of those who
        have been confirmed.

        play: the return of an agent in such episodes, None where there are none. anew: earlier confirmations do
        not count, they were against others.
        """
        if anew:
            self.proven = self.confirmed = None
        rivals = [] if self.confirmed is not None else [self.kept]
        rivals += [] if self.fittest is self.kept else [self.fittest]
        played = [(one, play(one.agent)) for one in rivals if one is not None]
        found = [Confirmation(one, score.mean, math.inf) for one, score in played if score is not None]
        if not found:
            return
        known = [] if self.proven is None else [self.proven]
        before, self.proven = self.kept, max([*found, *known], key=lambda proof: proof.mean)
        self.kept, self.confirmed, self.fittest = self.proven.candidate, self.proven.mean, None
        if self.kept is not before:
            self.announce()

    def forget(self) -> None:
        """Let whoever is offered next be better: the fitness of those before was so against others."""
        self.kept, self.fittest, self.confirmed, self.proven = None, None, None, None

    def announce(self) -> None:
        """Tell `on_best` of the copy, if there is one."""
        for hear in self.on_best if self.kept is not None else ():
            hear(self.agent)


def _fitter(agent: Any, fitness: float, other: Candidate) -> bool:
    """Whether `agent` has the higher fitness, or of equal ones the higher training returns."""
    if fitness != other.fitness:
        return fitness > other.fitness
    own, known = recent_returns(agent), recent_returns(other.agent)
    return bool(own) and (not known or float(np.mean(own)) > float(np.mean(known)))


def _is_above(value: float, error: float, other: float, other_error: float) -> bool:
    """Whether `value` is higher by more than two standard errors of the difference."""
    return value != other and value - other > 2 * math.hypot(error, other_error)  # two of -inf differ by NaN
