"""Best agent of a run: incumbent by noisy fitness until held-out confirmations decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl.collect.fitness import MeanReturn
from agilerl.core import foreign
from agilerl.errors import AlgorithmError
from agilerl.hpo.screening import recent_returns
from agilerl.training.population import filled


@dataclass(frozen=True)
class Candidate:
    """Copy of an agent, with its fitness, the standard error of the fitness, and the generation of the copy."""

    agent: Any
    fitness: float
    error: float
    generation: int


@dataclass(frozen=True)
class Confirmation:
    """Held-out score of a candidate, and its standard error."""

    candidate: Candidate
    mean: float
    error: float


class BestAgent:
    """Keeps a copy of the best agent of a run; a confirmation overrides fitness, and a better one a worse one.

    The highest fitness over many generations is biased upwards: it is a mean of few episodes, sometimes of a bad agent.
    If two agents differ by less than two standard errors, or are equally fit (as at CartPole's 500), the one with
    the higher training returns is kept. An agent further below the highest fitness so far is never kept, or small
    steps down would add up. Training returns of an exploring policy can mislead too, so the fittest agent is also
    copied, and a confirmation decides between the two.

    A run that continues after a confirmation has missed its target. A later agent whose fitness exceeds the confirmed
    score by two standard errors becomes the incumbent until the next confirmation. Confirmed agents are never
    forgotten.

    Args:
        on_best: callables, each called with the copy of a new best agent.

    Attributes:
        kept: the incumbent, None before the first. fittest: the unconfirmed agent with the highest fitness, if that
            exceeds all confirmations; ties are broken by training returns. confirmed: held-out mean of `kept`, None
            without one. proven: the best confirmation so far.
    """

    def __init__(self, *on_best: Callable[[Any], None] | None) -> None:
        self.on_best = [hear for hear in on_best if hear is not None]
        self.kept: Candidate | None = None
        self.fittest: Candidate | None = None
        self.confirmed: float | None = None
        self.proven: Confirmation | None = None

    @property
    def has_rivals(self) -> bool:
        """Whether there is an agent to confirm."""
        return self.confirmed is None or self.fittest is not None

    @property
    def agent(self) -> Any:
        """Copy of the best agent, None before the first."""
        return None if self.kept is None else self.kept.agent

    def offer(
        self,
        agent: foreign.Agent,
        fitness: float,
        confirmed: MeanReturn | None,
        generation: int,
        error: float = 0.0,
    ) -> None:
        """Keep a copy of `agent` if it is better than the incumbent; agents without `clone` are ignored.

        error: of its fitness. confirmed: its held-out mean; without a standard error, only another confirmation
        overrides it.
        """
        if confirmed is not None:
            is_better, is_fittest = self.proven is None or confirmed.mean > self.proven.mean, False
        else:
            is_fittest = self.proven is None or fitness > self.proven.mean
            is_fittest = is_fittest and (self.fittest is None or _fitter(agent, fitness, self.fittest))
            is_better = self.kept is None or self._is_beaten(agent, fitness, error)
        if not (is_better or is_fittest) or not foreign.has_methods(agent, "clone"):
            return
        twin = agent.clone()
        if twin is None:
            raise AlgorithmError(f"{type(agent).__name__}.clone returned None. fix: return the copy.")
        copy = Candidate(twin, fitness, error, generation)
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
        """Drop rivals whose fitness does not exceed this confirmation."""
        self.proven = proof
        if self.fittest is not None and not self.fittest.fitness > proof.mean:
            self.fittest = None

    def _is_beaten(self, agent: foreign.Agent, fitness: float, error: float) -> bool:
        assert self.kept is not None
        if self.confirmed is not None:
            assert self.proven is not None
            return _is_above(fitness, error, self.proven.mean, self.proven.error)
        returns, incumbent_returns = recent_returns(agent), recent_returns(self.kept.agent)
        if not returns or not incumbent_returns:
            return fitness > self.kept.fitness or (fitness == self.kept.fitness and bool(returns))
        if _is_above(fitness, error, self.kept.fitness, self.kept.error):
            return True
        if self.fittest is not None and _is_above(self.fittest.fitness, self.fittest.error, fitness, error):
            return False
        return float(np.mean(returns)) > float(np.mean(incumbent_returns))

    def confirm(self, play: Callable[[Any], MeanReturn | None], anew: bool = False) -> None:
        """Play held-out episodes with the incumbent and the fittest; keep the best of them and earlier confirmations.

        play: returns the held-out score of an agent, None if unavailable. anew: ignore earlier confirmations, which
        were measured against other opponents.
        """
        if anew:
            self.proven = self.confirmed = None
        rivals = [] if self.confirmed is not None else [self.kept]
        rivals += [] if self.fittest is self.kept else [self.fittest]
        played = [(one, play(one.agent)) for one in rivals if one is not None]
        confirmations = [Confirmation(one, score.mean, math.inf) for one, score in played if score is not None]
        if not confirmations:
            return
        earlier = [] if self.proven is None else [self.proven]
        before, self.proven = self.kept, max([*confirmations, *earlier], key=lambda proof: proof.mean)
        self.kept, self.confirmed, self.fittest = self.proven.candidate, self.proven.mean, None
        if self.kept is not before:
            self.announce()

    def forget(self) -> None:
        """Reset the incumbent: earlier fitness was measured against other opponents."""
        self.kept, self.fittest, self.confirmed, self.proven = None, None, None, None

    def announce(self) -> None:
        """Call `on_best` with the best agent, if there is one."""
        for hear in self.on_best if self.kept is not None else ():
            hear(self.agent)

    def state(self) -> dict[str, Any]:
        """State as plain data."""
        state = {**_tree(self.kept), "confirmed": self.confirmed}
        if self.fittest is not None and self.fittest is not self.kept:
            state["fittest"] = _tree(self.fittest)
        if self.proven is not None:
            proof = self.proven
            other = proof.candidate is not self.kept
            entry = {**_tree(proof.candidate), "fitness_error": float(proof.candidate.error)} if other else {}
            state["proven"] = {**entry, "mean": proof.mean, "error": proof.error}  # `error` is the confirmation's
        return state

    def load_state(self, state: Mapping[str, Any], templates: Mapping[str, Any]) -> None:
        """Restore the output of `state`; `templates`: agents by their class names."""
        self.kept, self.confirmed = _candidate(state, templates), state["confirmed"]
        if "fittest" in state:
            self.fittest = _candidate(state["fittest"], templates)
        elif self.confirmed is None:
            self.fittest = self.kept
        proven = state.get("proven")
        if proven is None:  # earlier versions saved that of the best agent alone, if there was one
            if self.confirmed is not None and self.kept is not None:
                self.proven = Confirmation(self.kept, self.confirmed, math.inf)
            return
        entry = {**proven, "error": proven.get("fitness_error", proven["error"])}  # `error` in earlier versions
        candidate = _candidate(entry, templates) if "agent" in proven else self.kept
        self.proven = None if candidate is None else Confirmation(candidate, proven["mean"], proven["error"])


def _tree(one: Candidate | None) -> dict[str, Any]:
    if one is None:
        return {"agent": None, "fitness": -math.inf, "error": 0.0, "generation": 0}
    numbers = {"fitness": float(one.fitness), "error": float(one.error), "generation": one.generation}
    return {"agent": one.agent.run_state(), **numbers}


def _candidate(tree: Mapping[str, Any], templates: Mapping[str, Any]) -> Candidate | None:
    if tree["agent"] is None:
        return None
    agent = filled(None, templates, tree["agent"])
    return Candidate(agent, tree["fitness"], tree.get("error", 0.0), tree["generation"])


def _fitter(agent: foreign.Agent, fitness: float, other: Candidate) -> bool:
    """Whether `agent` has a higher fitness; ties are broken by training returns."""
    if fitness != other.fitness:
        return fitness > other.fitness
    returns, other_returns = recent_returns(agent), recent_returns(other.agent)
    return bool(returns) and (not other_returns or float(np.mean(returns)) > float(np.mean(other_returns)))


def _is_above(value: float, error: float, other: float, other_error: float) -> bool:
    """Whether `value` is higher by more than two standard errors of the difference."""
    return value != other and value - other > 2 * math.hypot(error, other_error)  # -inf minus -inf is NaN
