"""Where experience comes from: what the loop asks of a source, and one generation as a function of a shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.envs.step import Lanes
from agilerl.ranks import ONE, Ranks
from agilerl.rng import Purpose, seeds, stream
from agilerl.rollouts.off_policy import EpisodeTracker, Finished
from agilerl.sources.determinism import Probe

CARRIED_NOTE = (
    "carry_envs: episodes go on over the end of a generation. A resumed run begins them anew, so it equals one that "
    "never stopped only statistically, not bit for bit"
)


@dataclass
class Running:
    """What the lanes show between two vector steps.

    Attributes:
        obs: [L, ...] what is acted on next. info: of it.
        tracker: scores of the running episodes.
        is_new: whether the lanes have just been reset.
        hidden: of recurrent members, by id: hidden states, key -> [layers, E, units], and the slot of their lanes.
    """

    obs: Any
    info: dict[str, Any]
    tracker: EpisodeTracker
    is_new: bool = True
    hidden: dict[int, tuple[int, dict[str, Tensor]]] = field(default_factory=dict)

    @classmethod
    def begin(cls, shard: Shard, lanes: Lanes) -> Running:
        """The episodes that go on in `lanes`; where there are none, new ones from the shard's seeds."""
        if shard.shared.running is not None:
            return shard.shared.running
        obs, info = lanes.reset(shard.lane_seeds(lanes.num_lanes // len(shard.agents)))
        if "action_mask" in info:
            trained_with_masks(shard.agents)
        return cls(obs, info, EpisodeTracker(lanes.num_lanes))

    def going_on(
        self, obs: Any, info: dict[str, Any], hidden: Mapping[int, tuple[int, dict[str, Tensor]]] | None = None
    ) -> Running:
        """As the lanes stand at the end of a generation; scores of ended episodes are forgotten."""
        tracker = EpisodeTracker(self.tracker.num_lanes)
        tracker.returns, tracker.lengths = self.tracker.returns, self.tracker.lengths
        return Running(obs, info, tracker, is_new=False, hidden=dict(hidden or {}))

    def hidden_of(self, member: int, slot: int, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Hidden states of the member, if it acts in the lanes that they are of, and they fit its network.

        Args:
            like: key -> [layers, E, units], as the network has them now.
        """
        then, known = self.hidden.get(member, (-1, {}))
        fits = known.keys() == like.keys() and all(known[key].shape == part.shape for key, part in like.items())
        return known if then == slot and fits else None


def trained_with_masks(agents: Sequence[Any]) -> None:
    """Note that agents have met masks of legal actions: their files say so, and they ask for one when they act."""
    for agent in agents:
        inner = unwrapped(agent)
        if not adapted(inner).action_masks:
            inner.action_masks = True


def lanes_of(members: Sequence[int], num_envs: int) -> np.ndarray:
    """The numbers of the lanes of some members, [len(members) * num_envs]."""
    return (np.asarray(members, dtype=np.int64)[:, None] * num_envs + np.arange(num_envs)).ravel()


@dataclass
class Tally:
    """What one member did in one generation; `fault` says why it was quarantined (see `training.quarantine`),
    `by_agent` gives the rows [M] of a team's finished episodes, `details` sums of what else a source counts."""

    env_steps: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    scores: list[float] = field(default_factory=list)
    fault: str | None = None
    by_agent: list[list[float]] = field(default_factory=list)
    details: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """Mean loss of the generation's updates, None without any."""
        return self.loss_sum / self.updates if self.updates else None


def agreed(tallies: Sequence[Tally], ranks: Ranks, adds_up: bool) -> list[Tally]:
    """What members did on all ranks together: a fault of one rank is everybody's, losses are means.

    Args:
        adds_up: whether each rank made environment steps of its own, or all of them the same ones.
    """
    if ranks.size == 1:
        return list(tallies)
    found = []
    for each in zip(*ranks.gather_plain([vars(tally) for tally in tallies]), strict=True):
        fault = next((one["fault"] for one in each if one["fault"] is not None), None)
        found.append(
            Tally(
                env_steps=sum(one["env_steps"] for one in each) if adds_up else each[0]["env_steps"],
                updates=each[0]["updates"],
                loss_sum=sum(one["loss_sum"] for one in each) / ranks.size,
                scores=[score for one in each for score in one["scores"]],
                fault=fault,
                by_agent=[row for one in each for row in one["by_agent"]],
                details={name: sum(one["details"][name] for one in each) for name in each[0]["details"]},
            )
        )
    return found


def keep_finished(tallies: Sequence[Tally], finished: Finished, num_envs: int) -> None:
    """Note the returns of episodes that have ended, with the members in whose lanes they ran (E lanes each)."""
    for lane, score in zip(finished.lanes.tolist(), finished.returns.tolist(), strict=True):
        tallies[lane // num_envs].scores.append(score)
    if finished.by_agent is not None:
        for lane, row in zip(finished.lanes.tolist(), finished.by_agent.tolist(), strict=True):
            tallies[lane // num_envs].by_agent.append(row)


@dataclass(frozen=True)
class Shared:
    """What the members of a shard have in common and a generation moves on.

    Attributes:
        epsilon: exploration rate of the next vector step; None for an algorithm without one.
        rewards: `RewardScale.state()`; None where rewards are not divided by a scale.
        statistics: `RunningMeanStd.state()` of observations; None where none are kept.
        running: the episodes that go on over the end of a generation; None begins new ones.
        memories: replay buffers by name. The only part that is not a value: a generation writes into them.
    """

    epsilon: float | None = None
    rewards: Mapping[str, Any] | None = None
    statistics: Mapping[str, Any] | None = None
    running: Running | None = None
    memories: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """What one generation of some members is a function of.

    Attributes:
        agents: the members. slots: their slots in the population (keys of their random streams).
        run_seed, number: keys of the random streams; `number` counts generations from 0.
        begun: environment steps of one member before this generation.
        vector_steps: how many to make.
        shared: what they have in common.
        ranks: processes that run this generation of the same members beside each other, each with lanes of its own;
            `run_seed` is this rank's own.
    """

    agents: list[Any]
    slots: list[int]
    run_seed: int
    number: int
    begun: int
    vector_steps: int
    shared: Shared
    ranks: Ranks = ONE

    def streams(self, purpose: Purpose) -> list[np.random.Generator]:
        """One generator for each member."""
        return [stream(self.run_seed, purpose, self.number, slot) for slot in self.slots]

    def lane_seeds(self, num_envs: int) -> np.ndarray:
        """With what the lanes start the generation [len(agents) * num_envs]."""
        each = (seeds(self.run_seed, Purpose.ENVIRONMENT, num_envs, self.number, slot) for slot in self.slots)
        return np.concatenate(list(each))


@dataclass(frozen=True)
class ShardResult:
    """What a generation gives back.

    Attributes:
        tallies: by slot. shared: with what the next generation begins.
    """

    tallies: Mapping[int, Tally]
    shared: Shared


Steps = Generator[int, None, ShardResult]
"""A generation of a shard: yields the environment steps of all its members after each vector step."""


@dataclass(frozen=True)
class PopulationEvaluation:
    """What the evaluation of some members found, on all ranks together.

    Attributes:
        fitness: one number a member, in their order.
        errors: id of a member -> standard error of its fitness; empty where it is not known.
        by_agent: id of a member -> returns of its agents; empty where a score is one number.
        screened_out: ids of the members that were found behind before all episodes had been played.
        env_steps: environment steps of all members. episodes: that were played; 0 where they are not counted.
    """

    fitness: list[float]
    errors: Mapping[int, float] = field(default_factory=dict)
    by_agent: Mapping[int, list[float]] = field(default_factory=dict)
    screened_out: frozenset[int] = frozenset()
    env_steps: int = 0
    episodes: int = 0


@dataclass(frozen=True)
class MeanReturn:
    """The mean return of some episodes, and its standard error; None where that is not known."""

    mean: float
    error: float | None = None


class Source(ABC):
    """Collects experience and learns from it, one generation at a time, and evaluates members.

    It owns whatever that takes: lanes, data or prompts. The loop sees environment steps and tallies.

    Attributes:
        options: of the run; the loop replaces them where members that end leave their steps to the others.
        notes: what was chosen, with reasons. evaluation_env_steps: environment steps of all evaluations so far.
        evaluated: environment steps of each member in the evaluation before the next generation; the loop sets it.
        ranks: processes that train the same members; set before `open`. What is returned is of all of them together.
        sum_scores: whether a team's return is the sum of its agents' returns.
        fitness_is_relative: whether fitness compares the members of one generation, and not those of two.
    """

    options: Any
    notes: list[str]
    ranks: Ranks = ONE
    evaluated: float = 0.0
    evaluation_env_steps: int
    sum_scores: bool = True
    fitness_is_relative: bool = False

    @property
    def epsilon(self) -> float | None:
        """Exploration rate of the next vector step, for the records; None for an algorithm without one."""
        return None

    @property
    def fitness_is_return(self) -> bool:
        """Whether a target, which is a return, can be compared with fitness."""
        return True

    @property
    def opponents_of(self) -> Sequence[str]:
        """For the records: "generation:member" of each opponent that is played, "random" for the random player."""
        return ()

    @abstractmethod
    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        """Make what these members train and are evaluated with.

        Args:
            check: called between the steps of an evaluation; what it raises ends the evaluation there.
            shards: into how many parts a generation is cut that run beside each other.

        Raises:
            ConfigError: the run asks for what does not go together. NotAvailableYetError: more than one shard.
        """

    @abstractmethod
    def fit(self, population: Sequence[Any]) -> str | None:
        """Choose again for these members: their number, or what fits their networks, may have changed.

        Returns:
            What is to be said about it.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """For the records: learner, env_backend, num_envs (of one member), lockstep.

        What is added here stands in run.json too; the first three must be the same when a run goes on.
        """

    @abstractmethod
    def steps_of_generation(self, evo_steps: int) -> int:
        """Environment steps of one member in a generation of about `evo_steps`."""

    @abstractmethod
    def generation(self, population: Sequence[Any], number: int, begun: int) -> Generator[int, None, list[Tally]]:
        """One generation: yields the environment steps (of all members) made since the last time.

        Args:
            number: counts generations from 0. begun: environment steps of one member before it.

        Returns:
            One tally a member.
        """

    @abstractmethod
    def evaluate(self, agents: Sequence[Any], number: int) -> PopulationEvaluation:
        """Mean return of every member over this generation's episodes, the same for all of them."""

    def rescore(self, agents: Sequence[Any], number: int, episodes: int) -> list[float] | None:
        """The fitness of `evaluate` over `episodes` further ones; None where there are none, as by default."""
        return None

    def confirm(self, agent: Any, number: int, episodes: int | None = None) -> MeanReturn | None:
        """Return over fresh episodes that chose nothing; None where none are asked for or possible, as by default.

        `episodes`: how many; None: as many as tell whether it reaches the target, `confirm_episodes` at first.
        """
        return None

    def faults(self) -> list[str]:
        """One line for each environment that was replaced since the last call; none by default."""
        return []

    def probe(self, agent: Any, budget: int, check: Callable[[], None] | None = None) -> Probe:
        """Whether its environments do the same for the same seed and actions, which is not known by default.

        `budget`: steps of the whole run.
        """
        return Probe(None)

    def memories(self) -> Mapping[str, Any]:
        """Replay buffers by name, which checkpoints log row by row; none where nothing is kept between generations."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What else the next generation depends on: plain numbers."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""

    @abstractmethod
    def close(self) -> None:
        """Release what the source has made; what was handed over stays open."""
