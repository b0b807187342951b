"""Interface between the training loop and the evaluation of members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from agilerl.core import foreign
from agilerl.envs.protocol import Lanes
from agilerl.rollouts.episodes import Episodes, EvaluationResult

Adopts = Callable[[Sequence[Any]], AbstractContextManager[Any]]
"""Creates a learner for some agents, released on exit."""


class Divider(Protocol):
    """Divides an evaluation among processes; `here` does a part of it in this one."""

    def play(
        self, learner: object, episodes: Episodes, here: Callable[[Episodes], EvaluationResult]
    ) -> EvaluationResult: ...

    def judge(self, agents: Sequence[Any], here: Callable[[Sequence[Any]], list[float]]) -> list[float]: ...


@dataclass(frozen=True)
class PopulationEvaluation:
    """Result of evaluating some members, over all ranks.

    Attributes:
        fitness: one number per member, in order.
        errors: member id -> standard error of its fitness; empty if unknown.
        played: member id -> number of episodes of its fitness; empty if unknown.
        by_agent: member id -> returns per agent; empty if scores are scalars.
        screened_out: ids of the members dropped before all episodes were played.
        env_steps: environment steps of all members. episodes: number played; 0 if not counted.
    """

    fitness: list[float]
    errors: Mapping[int, float] = field(default_factory=dict)
    played: Mapping[int, int] = field(default_factory=dict)
    by_agent: Mapping[int, list[float]] = field(default_factory=dict)
    screened_out: frozenset[int] = frozenset()
    env_steps: int = 0
    episodes: int = 0


@dataclass(frozen=True)
class MeanReturn:
    """Mean return of some episodes, its standard error (None if unknown), and their number (0: not counted)."""

    mean: float
    error: float | None = None
    episodes: int = 0


class FitnessEvaluator(ABC):
    """Measures fitness: by episodes (`collect.evaluator`), from a data set (`collect.fitted`), or on texts.

    Attributes:
        env_steps: environment steps of all evaluations so far.
        lanes: evaluation lanes by number of environment copies; 0 is the environment itself.
        adopts: of the collector, which opens the evaluator.
        divider: divides evaluations among processes; None does all of them here.
        plays_episodes: whether each member is evaluated by episodes, played here. confirms: whether `confirm` plays
            held-out ones.
        is_return: whether fitness is a return, and thus comparable with a target.
        is_relative: whether fitness is only comparable within one generation.
        episodes_are_independent: whether the episodes of an evaluation do not depend on those played with them.
        sum_scores: whether a team's return is the sum of its agents' returns.
        opponents_of: current opponents for the records: "generation:member", or "random" for the random player.
    """

    env_steps = 0
    adopts: Adopts
    divider: Divider | None = None
    plays_episodes = False
    confirms = False
    is_return = True
    is_relative = False
    episodes_are_independent = True
    sum_scores = True
    opponents_of: Sequence[str] = ()

    def __init__(self) -> None:
        self.lanes: dict[int, Lanes] = {}

    @abstractmethod
    def evaluate(self, agents: Sequence[Any], number: int, episodes: int | None = None) -> PopulationEvaluation:
        """Mean return of every member over this generation's episodes, which are the same for all members.

        episodes: of each member; None: `eval_episodes`, or what there are without episodes.
        """

    def rescore(self, agents: Sequence[Any], number: int, episodes: int) -> list[float] | None:
        """Return the fitness of `evaluate` over `episodes` additional episodes; None if unsupported (default)."""
        return None

    def confirm(self, agent: foreign.Agent, number: int, episodes: int | None = None) -> MeanReturn | None:
        """Return over held-out episodes; None if disabled or unsupported (default).

        `episodes`: how many; None: until it is clear whether the target is reached (`rollouts.confirmation`).
        """
        return None

    def close(self) -> None:  # noqa: B027  # optional hook
        """Release resources; nothing by default."""
