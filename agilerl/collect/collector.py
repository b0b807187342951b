"""Interface between the training loop and collectors of experience; one generation is a function of a shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.fitness import FitnessEvaluator
from agilerl.core import foreign
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.core.tree import Tree
from agilerl.envs.protocol import Lanes
from agilerl.ranks import ONE, Ranks
from agilerl.rollouts.off_policy import EpisodeTracker, Finished

if TYPE_CHECKING:
    from agilerl.collect.teams.idle_agents import IdleAgents

CARRIED_NOTE = (
    "carry_envs: episodes continue across generations. A resumed run restarts them, so it equals an uninterrupted run "
    "statistically, not bit for bit"
)
ASYNCHRONOUS_NOTE = (
    "environment.asynchronous: lanes do not wait for each other. The result depends on how long steps take, so that no "
    "run has the bits of another, and members whose lanes are faster make more steps"
)


@dataclass
class Running:
    """State of the lanes between two vector steps.

    Attributes:
        obs: [L, ...] next observations to act on. info: their infos.
        tracker: scores of the running episodes.
        is_new: whether the lanes have just been reset.
        hidden: for recurrent members, by id: the slot of their lanes and their hidden states, key -> [layers, E,
            units].
        waiting: of teams: which agents wait, and their last actions.
    """

    obs: Any
    info: dict[str, Any]
    tracker: EpisodeTracker
    is_new: bool = True
    hidden: dict[int, tuple[int, dict[str, Tensor]]] = field(default_factory=dict)
    waiting: Any = None

    @classmethod
    def begin(cls, shard: Shard, lanes: Lanes) -> Running:
        """Continue the running episodes in `lanes`; if there are none, reset with the shard's seeds."""
        if shard.shared.running is not None:
            return shard.shared.running
        obs, info = lanes.reset(shard.lane_seeds(lanes.num_lanes // len(shard.agents)))
        if "action_mask" in info:
            trained_with_masks(shard.agents)
        return cls(obs, info, EpisodeTracker(lanes.num_lanes))

    def going_on(
        self,
        obs: Tree,
        info: dict[str, Any],
        hidden: Mapping[int, tuple[int, dict[str, Tensor]]] | None = None,
        waiting: IdleAgents | None = None,
    ) -> Running:
        """Return the state at the end of a generation; scores of finished episodes are dropped."""
        tracker = EpisodeTracker(self.tracker.num_lanes)
        tracker.returns, tracker.lengths = self.tracker.returns, self.tracker.lengths
        return Running(obs, info, tracker, is_new=False, hidden=dict(hidden or {}), waiting=waiting)

    def hidden_of(self, member: int, slot: int, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Hidden states of the member, if it still acts in the same lanes and they fit its network; else None.

        Args:
            like: key -> [layers, E, units], the shapes of the current network.
        """
        stored_slot, hidden = self.hidden.get(member, (-1, {}))
        fits = hidden.keys() == like.keys() and all(hidden[key].shape == part.shape for key, part in like.items())
        return hidden if stored_slot == slot and fits else None


def trained_with_masks(agents: Sequence[Any]) -> None:
    """Mark agents as trained with masks of legal actions: stored in their files, and required when they act."""
    for agent in agents:
        inner = foreign.bare(agent)
        if not adapted(inner).action_masks:
            inner.action_masks = True


def lanes_of(members: Sequence[int], num_envs: int) -> np.ndarray:
    """Lane numbers of some members, [len(members) * num_envs]."""
    return (np.asarray(members, dtype=np.int64)[:, None] * num_envs + np.arange(num_envs)).ravel()


@dataclass
class Tally:
    """Counters of one member in one generation.

    `fault` is the reason for its quarantine (see `training.quarantine`). `by_agent` holds one row [M] per finished
    episode of a team. `details` sums further counters of a collector.
    """

    env_steps: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    scores: list[float] = field(default_factory=list)
    fault: str | None = None
    by_agent: list[list[float]] = field(default_factory=list)
    details: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """Mean loss over the generation's updates, None without updates."""
        return self.loss_sum / self.updates if self.updates else None


def agreed(tallies: Sequence[Tally], ranks: Ranks, adds_up: bool) -> list[Tally]:
    """Combine tallies of all ranks: a fault on any rank counts for all, losses are averaged.

    Args:
        adds_up: whether ranks make separate environment steps, which add up, or all make the same ones.
    """
    if ranks.size == 1:
        return list(tallies)
    combined = []
    for rank_tallies in zip(*ranks.gather_plain([vars(tally) for tally in tallies]), strict=True):
        fault = next((one["fault"] for one in rank_tallies if one["fault"] is not None), None)
        combined.append(
            Tally(
                env_steps=sum(one["env_steps"] for one in rank_tallies) if adds_up else rank_tallies[0]["env_steps"],
                updates=rank_tallies[0]["updates"],
                loss_sum=sum(one["loss_sum"] for one in rank_tallies) / ranks.size,
                scores=[score for one in rank_tallies for score in one["scores"]],
                fault=fault,
                by_agent=[row for one in rank_tallies for row in one["by_agent"]],
                details={
                    name: sum(one["details"][name] for one in rank_tallies) for name in rank_tallies[0]["details"]
                },
            )
        )
    return combined


def keep_finished(tallies: Sequence[Tally], finished: Finished, num_envs: int) -> None:
    """Add the returns of finished episodes to the tallies of the members that played them (E lanes each)."""
    for lane, score in zip(finished.lanes.tolist(), finished.returns.tolist(), strict=True):
        tallies[lane // num_envs].scores.append(score)
    if finished.by_agent is not None:
        for lane, row in zip(finished.lanes.tolist(), finished.by_agent.tolist(), strict=True):
            tallies[lane // num_envs].by_agent.append(row)


@dataclass
class Seconds:
    """Wall seconds of training in this process, for the report; those of workers are not included.

    Attributes:
        collecting: acting, and waiting for environments. learning: updates.
    """

    collecting: float = 0.0
    learning: float = 0.0


@dataclass(frozen=True)
class Shared:
    """State shared by the members of a shard and updated by a generation.

    Attributes:
        epsilon: exploration rate of the next vector step; None for an algorithm without one.
        rewards: statistics of `RewardScale` for members that have none yet; None without reward scaling.
        statistics: `ObservationStatistics`; None if not used.
        running: episodes that continue across the end of a generation; None starts new ones.
        memories: replay buffers by name. The only mutable part: a generation writes to them.
    """

    epsilon: float | None = None
    rewards: Mapping[str, Any] | None = None
    statistics: Mapping[str, Any] | None = None
    running: Running | None = None
    memories: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """Inputs of one generation of some members.

    Attributes:
        agents: the members. slots: their slots in the population (keys of their random streams).
        run_seed, number: keys of the random streams; `number` counts generations from 0.
        begun: environment steps per member before this generation.
        vector_steps: number of vector steps to make.
        shared: initial state shared by the members.
        ranks: processes that run this generation of the same members in parallel, each with separate lanes; `run_seed`
            differs between ranks.
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
        """Return one generator per member."""
        return [stream(self.run_seed, purpose, self.number, slot) for slot in self.slots]

    def lane_seeds(self, num_envs: int) -> np.ndarray:
        """Environment seeds for the start of the generation, [len(agents) * num_envs]."""
        slot_seeds = (seeds(self.run_seed, Purpose.ENVIRONMENT, num_envs, self.number, slot) for slot in self.slots)
        return np.concatenate(list(slot_seeds))


@dataclass(frozen=True)
class GenerationPlan:
    """What all shards of a generation have in common.

    Attributes:
        number: generation, counted from 0. begun: environment steps per member before it.
        length: vector steps (iterations of a language collector) of each member.
        members: size of the population. max_steps: budget of a member.
        learner: name of the learner that was chosen for the whole population. kernels: that update members.
        common: further plain state that all shards start from.
    """

    number: int
    begun: int
    length: int
    members: int
    max_steps: int
    learner: str
    kernels: str = ""
    common: Mapping[str, Any] = field(default_factory=dict)


def cut(members: int, shards: int) -> list[list[int]]:
    """Cut the slots 0 .. members - 1 into shards of consecutive slots, the larger ones first.

    With fewer members than shards, as after a race has stopped some, there is one shard for each member.
    """
    return [part.tolist() for part in np.array_split(np.arange(members), min(shards, members))]


@dataclass(frozen=True)
class ShardResult:
    """Output of a generation.

    Attributes:
        tallies: by slot. shared: initial state of the next generation.
    """

    tallies: Mapping[int, Tally]
    shared: Shared


Steps = Generator[int, None, ShardResult]
"""A generation of a shard: yields the environment steps of all its members after each vector step."""


class Collector(ABC):
    """Collects experience and learns from it, one generation at a time.

    A collector owns its lanes, data or prompts. The loop only sees environment steps and tallies.

    Attributes:
        options: of the run; replaced by the loop when stopped members release steps to the others.
        notes: choices made, with reasons. evaluator: of the same members, created by `open`.
        seconds: of training in this process; zeros if unknown.
        probed: environments on which results depend, which are checked to be deterministic; None without them.
        evaluated: environment steps per member in the evaluation before the next generation; set by the loop.
        ranks: processes that train the same members; set before `open`. Results are combined over all ranks.
        has_own_memories: whether each shard has separate replay buffers.
        is_repeatable: whether results depend on seeds alone, and not on timing.
        shards: number of parts of the population, each trained separately for a generation; set by `open`.
        acts: whether members act in environments while they train.
        steps_add_up: whether every rank makes separate environment steps.
    """

    options: Any
    notes: list[str]
    evaluator: FitnessEvaluator
    seconds: Seconds
    probed: Any = None
    ranks: Ranks = ONE
    evaluated: float = 0.0
    has_own_memories: bool = False
    is_repeatable: bool = True
    shards: int = 1
    acts: bool = False
    steps_add_up: bool = True

    @property
    def epsilon(self) -> float | None:
        """Exploration rate of the next vector step, for the records; None for an algorithm without one."""
        return None

    @abstractmethod
    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        """Create everything needed to train and evaluate these members.

        Args:
            check: called between the steps of an evaluation; an exception it raises aborts the evaluation.
            shards: number of parts of the population, split by slot. They share replay from one generation to
                the next, and are otherwise independent during a generation.

        Raises:
            ConfigError: incompatible options.
        """

    @abstractmethod
    def fit(self, population: Sequence[Any]) -> str | None:
        """Adapt to a changed population: the number of members or their networks may have changed.

        Returns:
            A note for the log, or None.
        """

    def foresee(self, population: Sequence[Any]) -> None:  # noqa: B027  # optional hook
        """Warn of members that will make no update within the budget; ignored by default."""

    def why_apart(self, population: Sequence[Any]) -> str:
        """Why the policies of these agents have no mean (`networks.ensemble`), or "" if they have one."""
        return "members do not learn from one replay"

    def kernel_threads(self, count: int) -> AbstractContextManager[None]:
        """Context manager: kernels run members on up to `count` threads. No effect without kernels."""
        return nullcontext()

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts for the records: learner, env_backend, num_envs (per member), lockstep.

        Additional keys are written to run.json too. The first three must not change on resume.
        """

    @abstractmethod
    def steps_of_generation(self, evo_steps: int) -> int:
        """Environment steps per member in a generation of about `evo_steps`."""

    @abstractmethod
    def plan(self, population: Sequence[Any], number: int, env_steps_before: int) -> GenerationPlan:
        """Plan one generation of this population.

        number: counted from 0. env_steps_before: environment steps per member before it.
        """

    @abstractmethod
    def run_shard(
        self, plan: GenerationPlan, shard: int, agents: Sequence[Any], slots: Sequence[int]
    ) -> Generator[int, None, list[Tally]]:
        """Run the plan for one shard; a function of its members, `shard_state` and what all shards have written before.

        Yields the environment steps (of all its members) made since the last yield; returns one tally per member.
        """

    def follow(self, plan: GenerationPlan) -> None:
        """Adopt the plan of this run's collector in another process, before `run_shard`."""
        self.options = replace(self.options, max_steps=plan.max_steps)

    def shard_state(self, shard: int) -> dict[str, Any]:
        """State of one shard that its next generation depends on, as plain data; empty by default."""
        return {}

    def load_shard_state(self, shard: int, state: Mapping[str, Any]) -> None:  # noqa: B027  # optional hook
        """Restore the output of `shard_state`; nothing by default."""

    def take_written(self, shard: int) -> dict[str, Any] | None:
        """Return what the shard that has just run wrote for all, as plain data; None by default."""
        return None

    def write(self, shard: int, written: dict[str, Any] | None) -> None:  # noqa: B027  # optional hook
        """Write what a shard wrote in a generation, after the shards before it; nothing by default."""

    def combined(self, tallies: Sequence[Tally]) -> list[Tally]:
        """Combine the tallies of all members with those of other ranks."""
        return agreed(tallies, self.ranks, self.steps_add_up)

    def faults(self) -> list[str]:
        """Return one line per environment replaced since the last call; none by default."""
        return []

    def memories(self) -> Mapping[str, Any]:
        """Replay buffers by name, logged row by row in checkpoints; empty if nothing is kept between generations."""
        return {}

    def memories_of(self, shard: int) -> Mapping[str, Any]:
        """Replay buffers by name that the members of a shard learn from; empty by default."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Additional state that the next generation depends on, as plain numbers."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`, and "kernels", the name of those that updated members before, if there is one.

        Raises:
            RunError: kernels that this machine does not have.
        """

    @abstractmethod
    def close(self) -> None:
        """Release resources created by the collector; those passed by the user stay open."""
