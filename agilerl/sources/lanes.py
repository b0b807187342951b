"""What sources that step environments have in common: lanes, a learner, an evaluator, fitted to a population."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from agilerl.engine.choose import Choice, choose
from agilerl.engine.learner import Learner
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.step import Lanes, VectorLanes, as_lanes
from agilerl.envs.swapped import ChannelsFirstLanes
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.options import LoopOptions
from agilerl.sources.determinism import Probe, probe_determinism
from agilerl.sources.episodes import CARRIED_NOTE
from agilerl.sources.evaluation import Evaluator
from agilerl.sources.own_learn import OwnLearn, brings_own_learn
from agilerl.sources.rewards import check_learns_here
from agilerl.sources.source import Shard, Shared, Steps, Tally

Options = TypeVar("Options", bound=LoopOptions)


class LaneSource(Generic[Options]):
    """A source whose members act in lanes; what it does with a shard is said by `run` and `run_own`.

    What `make_vect_envs` built is replicated, so that all members act at the same time; any other environment is
    shared, and members train one after another.

    Args:
        env: to train in. options: of the run. shared: with what the first generation begins.
        eval_env: to evaluate in; `env` by default.

    Attributes:
        lanes: those that members act in: of all of them in lockstep, else of one.
        num_envs: lanes of one member. lockstep: whether members act at the same time.
        learner: "fused", "sequential", or "agents" where agents bring their own `learn`.
        notes: the choices with their reasons.
    """

    alone = ""  # why members train one after another and by themselves; empty where they need not

    def __init__(self, env: Any, options: Options, shared: Shared, eval_env: Any = None) -> None:
        self.env, self.options, self.shared = env, options, shared
        self.eval_env = env if eval_env is None else eval_env
        self.num_envs = max(1, int(getattr(env, "num_envs", 1)))
        self.notes: list[str] = []
        self._is_replicable = callable(getattr(env, "replicate", None))
        self._said: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    # -- to be said by each source -----------------------------------------------------------------------------------

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """One generation of members whose tensors `learner` holds."""
        raise NotImplementedError

    def run_own(self, shard: Shard, lanes: Lanes) -> Steps:
        """One generation of one agent that brings its own `learn`."""
        raise NotImplementedError

    # -- fitted to a population --------------------------------------------------------------------------------------

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        """Lanes, learner and evaluator for these members.

        Raises:
            ConfigError: `carry_envs` where lanes are shared or cannot rest. NotAvailableYetError: more than one shard.
        """
        if shards != 1:
            raise NotAvailableYetError(f"a generation runs in one shard yet; got shards={shards}. fix: shards=1.")
        self.run_seed = run_seed
        self._choice = self._choose(population)
        self.notes.append(f"learner: {self.learner} ({self._choice.reason})")
        self.lockstep = self._choose_lockstep()
        self.lanes = self._make_lanes(len(population))
        self.evaluator = Evaluator(self.eval_env, self.options, run_seed, check)
        if self.options.carry_envs:
            self._check_carrying()
            self.notes.append(CARRIED_NOTE)

    def _choose(self, population: Sequence[Any]) -> Choice:
        if self.alone:
            return Choice(OwnLearn.name, self.alone)
        own = next((agent for agent in population if brings_own_learn(agent)), None)
        if own is not None:
            return Choice(OwnLearn.name, f"agent {own.index} brings its own learn()")
        return choose(population, self.options.learner)

    @property
    def learner(self) -> str:
        """Name of the learner, for the records."""
        return self._choice.name

    def _choose_lockstep(self) -> bool:
        if not self.options.lockstep:
            return False
        if self.learner == OwnLearn.name:
            self.notes.append(f"one member trains at a time: {self.alone or 'an algorithm brings its own learn()'}")
            return False
        if not self._is_replicable:
            self.notes.append("one member trains at a time: only environments of make_vect_envs can be replicated")
            return False
        return True

    def _check_carrying(self) -> None:
        """ConfigError where episodes cannot go on over the end of a generation."""
        if not self.lockstep:
            reason = "lockstep=False" if not self.options.lockstep else self.notes[-1]
            raise ConfigError(
                "carry_envs=True needs lanes that no evaluation and no other member uses, so members that act at the "
                f"same time; here {reason}. fix: an environment of make_vect_envs with lockstep=True, or "
                "carry_envs=False."
            )
        inner = self.lanes.lanes if isinstance(self.lanes, ChannelsFirstLanes) else self.lanes
        if isinstance(inner, VectorLanes | EnvPoolLanes):
            raise ConfigError(
                "carry_envs=True needs lanes that can rest while other members' rollouts go on; those of "
                f"{inner.backend} all step together. fix: leave backend and should_async_vector out, or "
                "carry_envs=False."
            )

    def _make_lanes(self, members: int) -> Lanes:
        lanes: Lanes = self.env.replicate(members) if self.lockstep else as_lanes(self.env)
        return ChannelsFirstLanes(lanes) if self.options.swap_channels else lanes

    def fit(self, population: Sequence[Any]) -> str | None:
        """Choose for these members: their number, or what fits their networks, may have changed.

        Returns:
            What is to be said about it.
        """
        if self.lockstep and len(population) * self.num_envs != self.lanes.num_lanes:
            self.lanes.close()
            self.lanes = self._make_lanes(len(population))
            self.shared = replace(self.shared, running=None)
        if self.learner == OwnLearn.name:
            return None
        before, self._choice = self._choice, choose(population, self.options.learner)
        if self._choice.name == before.name:
            return None
        return f"learner: {self.learner} ({self._choice.reason})"  # a mutated network may not stack

    @contextlib.contextmanager
    def _adopted(self, agents: Sequence[Any]) -> Iterator[Any]:
        """A learner that holds the agents' tensors in rows until the block ends, also by an error."""
        own = self.learner == OwnLearn.name
        learner: Any = OwnLearn(agents) if own else Learner(agents, choose(agents, self.learner))
        try:
            yield learner
        finally:
            learner.release()

    # -- one generation ----------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        """Exploration rate of the next generation's first vector step; None without one."""
        return self.shared.epsilon

    def steps_of_generation(self, evo_steps: int) -> int:
        """As many whole vector steps as fit, but at least one, in environment steps of one member."""
        return max(1, evo_steps // self.num_envs) * self.num_envs

    def generation(self, population: Sequence[Any], number: int, begun: int) -> Generator[int, None, list[Tally]]:
        """All shards: one of all members in lockstep, else one a member, each of which begins with the same epsilon."""
        slots = list(range(len(population)))
        tallies: dict[int, Tally] = {}
        first = self.shared
        for group in [slots] if self.lockstep else [[slot] for slot in slots]:
            agents = [population[slot] for slot in group]
            shard = Shard(
                agents=agents,
                slots=group,
                run_seed=self.run_seed,
                number=number,
                begun=begun,
                vector_steps=self.steps_of_generation(self.options.evo_steps) // self.num_envs,
                shared=replace(self.shared, epsilon=first.epsilon, statistics=self.statistics(agents)),
            )
            with self._adopted(agents) as learner:
                if learner.name == OwnLearn.name:
                    check_learns_here(agents[0], self.shared.rewards is not None)
                    result = yield from self.run_own(shard, self.lanes)
                else:
                    result = yield from self.run(shard, self.lanes, learner)
            self.shared, tallies = result.shared, {**tallies, **result.tallies}
        return [tallies[slot] for slot in slots]

    def statistics(self, agents: Sequence[Any]) -> Mapping[str, Any] | None:
        """Running statistics of observations that a shard of these members begins with; None where none are kept."""
        return None

    # -- evaluation --------------------------------------------------------------------------------------------------

    @property
    def evaluation_env_steps(self) -> int:
        """Environment steps of all evaluations so far."""
        return self.evaluator.env_steps

    @evaluation_env_steps.setter
    def evaluation_env_steps(self, env_steps: int) -> None:
        self.evaluator.env_steps = env_steps

    def evaluate(self, agents: Sequence[Any], number: int) -> list[float]:
        """Mean return of every member over this generation's episodes, or what its own `test` says."""
        with self._adopted(agents) as learner:
            if learner.name == OwnLearn.name:
                return [self.evaluator.one(agent) for agent in agents]
            return self.evaluator.population(learner, number)

    def rescore(self, agents: Sequence[Any], number: int, episodes: int) -> list[float] | None:
        """Mean return of every member over further episodes; None for agents with a `test` of their own."""
        if self.learner == OwnLearn.name:
            return None
        with self._adopted(agents) as learner:
            return self.evaluator.rescore(learner, number, episodes)

    def confirm(self, agent: Any, number: int) -> float | None:
        """Mean return over fresh episodes; None where none are asked for, or the agent has a `test` of its own."""
        if not self.options.confirm_episodes or self.learner == OwnLearn.name:
            return None
        with self._adopted([agent]) as learner:
            return self.evaluator.confirm(learner, number)

    # -- for the records ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What it trains with: decides, with seed and options, the result of a run."""
        return {
            "learner": self.learner,
            "env_backend": self.lanes.backend,
            "num_envs": self.num_envs,
            "lockstep": self.lockstep,
        }

    def faults(self) -> list[str]:
        """One line for each environment that was replaced since the last call, by lanes that heal themselves."""
        found = []
        for lanes in (self.lanes, *self.evaluator.lanes):
            inner: Any = getattr(lanes, "lanes", lanes)  # lanes with swapped channels wrap others
            faults = getattr(inner, "faults", [])
            for number in range(self._said.get(inner, 0), len(faults)):
                found.append(f"environment replaced ({number + 1} of at most {inner.max_restarts}): {faults[number]}")
            if faults:
                self._said[inner] = len(faults)
        return found

    def probe(self, agent: Any, budget: int, check: Callable[[], None] | None = None) -> Probe:
        """Whether two copies of the environment do the same; see `probe_determinism`."""
        return probe_determinism(self.env, agent, self.run_seed, budget, check)

    def memories(self) -> Mapping[str, Any]:
        """The replay buffers, if there are any."""
        return self.shared.memories

    def state(self) -> dict[str, Any]:
        """The scale of rewards, where there is one."""
        return {} if self.shared.rewards is None else {"rewards": dict(self.shared.rewards)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        epsilon = float(state["epsilon"]) if "epsilon" in state else self.shared.epsilon
        rewards = None if self.shared.rewards is None else state["rewards"]
        self.shared = replace(self.shared, epsilon=epsilon, rewards=rewards)

    def close(self) -> None:
        """Close the replicas, which are the source's own; an environment that was handed over stays open."""
        if self._is_replicable:
            self.lanes.close()
        self.evaluator.close()
