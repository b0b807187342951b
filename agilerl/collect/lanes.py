"""Base class of collectors that step environments: owns the lanes and the learner of a population."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agilerl.algorithms import DEFAULT_FOR_TEAMS
from agilerl.algorithms.base.actions import range_of
from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import TRANSITIONS
from agilerl.algorithms.base.wrapped import overrides
from agilerl.collect.collector import (
    ASYNCHRONOUS_NOTE,
    CARRIED_NOTE,
    Collector,
    GenerationPlan,
    Seconds,
    Shard,
    Shared,
    Steps,
    Tally,
    cut,
)
from agilerl.collect.custom.calls import check_calls
from agilerl.collect.custom.member import CustomLearner, reason_to_run_alone, warn_of_uncalled
from agilerl.collect.evaluator import Evaluator, innermost, lanes_for
from agilerl.collect.fitness import FitnessEvaluator
from agilerl.core import foreign
from agilerl.core.compatibility import OF_RUNS, RUN_DEFAULTS, enforce
from agilerl.core.env_ids import is_team_id
from agilerl.core.options import LoopOptions
from agilerl.core.spaces import without_texts
from agilerl.engine.choose import Choice, choose
from agilerl.engine.learner import Learner, check_learns
from agilerl.engine.rows.native import available_kernels, kernels_named
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import name_of
from agilerl.envs.limits import time_limit
from agilerl.envs.observed_masks import without_mask
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.readable import readable
from agilerl.envs.replacing import ReplacingLanes
from agilerl.envs.step import Lanes, as_lanes
from agilerl.envs.team import Team
from agilerl.envs.vector import HealingVectEnv, Replicable, make_vect_envs
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.native.threads import kernel_threads
from agilerl.networks.base import EvolvableNetwork

if TYPE_CHECKING:
    from agilerl.envs.argument import Factory

Options = TypeVar("Options", bound=LoopOptions)


def several_agents(name: str) -> str:
    """Error message for a multi-agent environment given to a single-agent algorithm."""
    return (
        f"{name} has several agents, and the algorithm trains one. fix: algo={DEFAULT_FOR_TEAMS!r} "
        "(train_multi_agent_off_policy), or an environment of one agent."
    )


class LaneCollector(Collector, Generic[Options]):
    """A `Collector` whose members act in lanes; subclasses implement `run`.

    Environments built by `make_vect_envs` are replicated, so that all members act in lockstep. Any other environment is
    shared, and members train one after another.

    Args:
        env: training environment. options: of the run. shared: state that the first generation starts from.
        eval_env: evaluation environment; `env` by default.

    Attributes:
        shared: of each shard. They have the same memories, or each its own (see `OffPolicyOptions.share`).
        lanes: training lanes, of all members of the first shard in lockstep, else of one member.
        num_envs: lanes per member. lockstep: whether members act at the same time.
        learner: "fused", "sequential", or "agents" if agents bring their own `learn` or `get_action`.
        notes: the choices made, with reasons.
        kernels: run and move members that share rows.
        ranks: processes that train the same members; set before `open`.
        is_asynchronous: whether members train in lanes that do not wait for each other.
    """

    evaluating: type[Evaluator] = Evaluator
    sum_scores = True
    acts = True  # so that an overridden get_action() is called
    waits_for_lanes = "it acts in all lanes at once"  # reason why lanes wait for each other; empty if they need not
    _apart = ""  # reason why one member trains at a time
    carries = True  # whether episodes can continue across generations
    alone = ""  # reason for training members one at a time with their own learn(); empty if not required
    team: Team | None = None  # of the environment, for teams

    def __init__(self, env: Any, options: Options, shared: Shared, eval_env: foreign.Env | None = None) -> None:
        self.env, self.options, self.shared = env, options, [shared]
        self.probed = env
        self.eval_env = env if eval_env is None else eval_env
        self.num_envs = foreign.num_envs(env)
        self.notes: list[str] = []
        self.seconds = Seconds()
        self._replaced = 0  # number of environments, in training and evaluation
        self.kernels = available_kernels()
        self._is_replicable = foreign.can_replicate(env)
        self.is_asynchronous = isinstance(env, HealingVectEnv) and env.asynchronous
        self._smaller_lanes: Lanes | None = None
        self._written: dict[int, dict[str, Any]] = {}  # by shard, see `take_written`
        self._said: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    # -- environments ------------------------------------------------------------------------------------------------

    @staticmethod
    def make_envs(name: str | None, num_envs: int = 1, *, make_env: Factory | None = None, **options: Any) -> Any:
        """Create a vector environment from an id or a factory; see `make_vect_envs`."""
        if make_env is None and name is not None and is_team_id(name):
            raise AlgorithmError(several_agents(name))
        return make_vect_envs(None if make_env is not None else name, num_envs, make_env=make_env, **options)

    @staticmethod
    def spaces(env: foreign.Env) -> tuple[Any, Any]:
        """Return (observation space, action space) of one environment, without the mask part of observations."""
        if foreign.possible_agents(env) is not None:
            raise AlgorithmError(several_agents(name_of(env)))
        space = foreign.observation_space(env, "single_")
        if space is None:
            space = foreign.observation_space(readable(env))
        actions = foreign.action_space(env, "single_") or foreign.action_space(env)
        return without_mask(without_texts(space), actions), actions

    # -- implemented by each collector ---------------------------------------------------------------------------------

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """Run one generation of members whose tensors are held by `learner`, or of one `CustomMember`."""
        raise NotImplementedError

    # -- fitted to a population --------------------------------------------------------------------------------------

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        """See `Collector.open`; raises ConfigError too for `carry_envs` if the lanes are shared or cannot be paused."""
        self.run_seed, self.shards = run_seed, shards
        self.shared = self.shared[:1] * shards
        self._choice = self._choose(population)
        own_tests = any(overrides(agent, "test", "get_action", "_greedy") for agent in population)
        self._tests = own_tests or self.learner == CustomLearner.name
        for agent in population:
            if isinstance(agent, EvolvableAlgorithm):
                check_learns(agent)
            warn_of_uncalled(agent, self.learner)
            check_calls(agent, "update", "greedy", "explore", "get_action", *(("test",) if self._tests else ()))
        self.notes.append(f"learner: {self.learner} ({self._choice.reason})")
        for option in ("eval_screen", "eval_share"):
            if vars(self.options)[option] and self._tests:
                reason = "agents with custom methods play whole evaluations, whose steps are unknown"
                self.notes.append(f"{option} is ignored: {reason}")
        self.lockstep = self._choose_lockstep()
        self._reader = population[0]
        enforce(OF_RUNS, {**self.facts_of_run(population[0]), "pop_size": len(population)}, RUN_DEFAULTS)
        if not self.is_repeatable:
            self.notes.append(ASYNCHRONOUS_NOTE)
        self.lanes = self._make_lanes(len(cut(len(population), shards)[0]))
        if self.lanes.backend == EnvPoolLanes.backend:
            self.notes.append("lanes: EnvPool, whose episodes are not those of Gymnasium with the same seed")
        self.evaluator = self._make_evaluator(population, check)
        self.evaluator.adopts = self.adopted
        if self.options.carry_envs:
            self.notes.append(CARRIED_NOTE)
        elif (note := self._note_of_cut_episodes()) is not None:
            self.notes.append(note)

    def _note_of_cut_episodes(self) -> str | None:
        """Return a note if generations are shorter than half an episode, whose end is then never trained on."""
        limit, options = time_limit(self.env), self.options
        steps = max(1, options.evo_steps // self.env_steps_at_once)
        if limit is None or 2 * steps >= limit or not self.acts or options.eval_share is not None:
            return None
        return (
            f"training sees the first {steps} of up to {limit} steps of an episode, which begins anew with each "
            f"generation; generations of whole episodes are training.evo_steps={limit * self.env_steps_at_once}"
        )

    def _make_evaluator(self, population: Sequence[Any], check: Callable[[], None] | None) -> FitnessEvaluator:
        """Create the fitness evaluator."""
        shared: dict[str, Any] = {"sum_scores": self.sum_scores, "ranks": self.ranks, "uses_test": self._tests}
        return self.evaluating(self.eval_env, self.options, self.run_seed, check, **shared)

    def facts_of_run(self, lead: foreign.Agent) -> dict[str, Any]:
        """Facts of `core.compatibility.OF_RUNS`; lead: the first agent."""
        envs, memories = (self.env, self.eval_env), self.memories()
        alone = self._choice.reason if self.learner == CustomLearner.name else ""
        others = (
            type(memory).__name__ for memory in memories.values()
            if not foreign.has_methods(memory, "savepoint", "rollback", "written", "write_rows")
        )  # fmt: skip
        return {
            "algo": str(adapted(lead).algo),
            "environment.asynchronous": self.is_asynchronous,
            "backend": next((str(env.backend) for env in envs if isinstance(env, Replicable)), ""),
            "carries": self.carries,
            "carry_envs": self.options.carry_envs,
            "is_recurrent": adapted(lead).is_recurrent,
            "learns_alone": alone,
            "one_at_a_time": "" if self.lockstep else self._apart or self._choice.reason,
            "other_memory": next(others, ""),
            "plays_itself": self._tests,
            "ranks": self.ranks.size,
            "shards": self.shards,
            "waits_for_lanes": self.waits_for_lanes,
            "writes_alone": alone if self.shared[0].memories else "",
        }

    @property
    def env_steps_at_once(self) -> int:
        """Environment steps per member and vector step, over all ranks."""
        return self.num_envs * (self.ranks.size if self.steps_add_up else 1)

    def _choose(self, population: Sequence[Any]) -> Choice:
        if self.alone:
            return Choice(CustomLearner.name, self.alone)
        for agent in population:
            if (reason := reason_to_run_alone(agent, self.acts)) is not None:
                if self.options.learner == "fused":
                    raise ConfigError(
                        f"learner='fused' is not possible: agent {agent.index} {reason}. fix: learner='auto'."
                    )
                return Choice(CustomLearner.name, f"agent {agent.index} {reason}")
        return choose(population, self.options.learner)

    @property
    def learner(self) -> str:
        return self._choice.name

    def _choose_lockstep(self) -> bool:
        self._apart = "" if self._is_replicable else "only environments of make_vect_envs can be replicated"
        if self.learner == CustomLearner.name:
            self._apart = self._choice.reason
        if not self.options.lockstep:
            self._apart = "lockstep=False"
        elif self._apart:
            self.notes.append(f"one member trains at a time: {self._apart}")
        return not self._apart

    @classmethod
    def refuse_asynchronous(cls, algo: str) -> None:
        """Raise NotAvailableYetError if members of this algorithm cannot train in lanes that do not wait."""
        enforce(OF_RUNS, {"environment.asynchronous": True, "waits_for_lanes": cls.waits_for_lanes, "algo": algo}, {})

    def _make_lanes(self, members: int) -> Lanes:
        lanes: Lanes
        if self.is_asynchronous:
            lanes = self.env.replicate_asynchronous(members)
        else:
            lanes = self.env.replicate(members) if self.lockstep else as_lanes(self.env)
        return lanes_for(self._reader, lanes, self.options.swap_channels)

    def _lanes_of(self, members: int) -> Lanes:
        """Return lanes for a shard of this many members; the shards of a population have at most two sizes."""
        if not self.lockstep or not self.acts or members * self.num_envs == self.lanes.num_lanes:
            return self.lanes
        if self._smaller_lanes is None or self._smaller_lanes.num_lanes != members * self.num_envs:
            self._close_smaller()
            self._smaller_lanes = self._make_lanes(members)
        return self._smaller_lanes

    def _close_smaller(self) -> None:
        if self._smaller_lanes is not None:
            self._smaller_lanes.close()
            self._smaller_lanes = None

    def fit(self, population: Sequence[Any]) -> str | None:
        members = len(cut(len(population), self.shards)[0])
        if self.lockstep and members * self.num_envs != self.lanes.num_lanes:
            self.lanes.close()
            self.lanes = self._make_lanes(members)
            self.shared = [replace(shared, running=None) for shared in self.shared]
        if self.learner == CustomLearner.name:
            return None
        before, self._choice = self._choice, choose(population, self.options.learner)
        if self._choice.name == before.name:
            return None
        return f"learner: {self.learner} ({self._choice.reason})"  # a mutated network may not stack

    @contextlib.contextmanager
    def adopted(self, agents: Sequence[Any]) -> Iterator[Any]:
        """Yield a learner that holds the agents' tensors in rows; they are released on exit, also on failure."""
        if self.learner == CustomLearner.name:
            learner: Learner = CustomLearner(agents, self.team)
        else:
            wanted = "auto" if self.learner == "fused" else self.learner  # an ensemble of members in rows is no row
            learner = Learner(agents, choose(agents, wanted), self.kernels, self.ranks)
        try:
            yield learner
        finally:
            learner.release()

    def why_apart(self, population: Sequence[Any]) -> str:
        kinds: dict[Any, str] = {}
        for agent in population:
            if not isinstance(agent, EvolvableAlgorithm) or agent.experience is not TRANSITIONS:
                return f"members of {type(agent).__name__} do not learn from one replay"
            if self._tests:
                return "an agent brings its own learn(), get_action() or test()"
            policy = agent.policy_module()
            if not isinstance(policy, EvolvableNetwork):
                return f"the policy is a {type(policy).__name__}"
            if agent.registry.encoder_sources:
                return "critics read the features of the policy (share_encoders)"
            kinds[type(agent), type(policy), range_of(policy)] = type(agent).__name__
        names = ", ".join(kinds.values())
        return f"members differ in class or in the range of their actions ({names})" if len(kinds) > 1 else ""

    # -- one generation ----------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float | None:
        return self.shared[0].epsilon

    def steps_of_generation(self, evo_steps: int) -> int:
        """Round down to whole vector steps, at least one; in environment steps per member."""
        return self._vector_steps(evo_steps) * self.env_steps_at_once

    def _vector_steps(self, evo_steps: int) -> int:
        return max(1, evo_steps // self.env_steps_at_once)

    def plan(self, population: Sequence[Any], number: int, env_steps_before: int) -> GenerationPlan:
        env_steps = min(int(agent.steps[-1]) for agent in population)  # of the member furthest behind
        at_once = self.env_steps_at_once
        remaining = -(-(self.options.max_steps - env_steps) // at_once)  # in vector steps; shortens the last generation
        evo_steps = self.options.generation_steps(env_steps_before, self.evaluated)
        vector_steps = max(1, min(self._vector_steps(evo_steps), remaining))
        members, kernels = len(population), self.kernels.name
        return GenerationPlan(
            number, env_steps_before, vector_steps, members, self.options.max_steps, self.learner, kernels
        )

    def follow(self, plan: GenerationPlan) -> None:
        super().follow(plan)
        if plan.kernels != self.kernels.name:
            self.kernels = kernels_named(plan.kernels)
        self._choice = Choice(plan.learner, self._choice.reason)  # type: ignore[arg-type]  # the name of a choice

    def run_shard(
        self, plan: GenerationPlan, shard: int, agents: Sequence[Any], slots: Sequence[int]
    ) -> Generator[int, None, list[Tally]]:
        """Run the members of a shard in lockstep, else one after another; all start from the same epsilon.

        Of several shards each sees the replay as it was before this generation, and its own rows.
        """
        run = self._run_apart if self.shards > 1 and self.memories_of(shard) else self._run_members
        return run(plan, shard, agents, slots)

    def _run_apart(
        self, plan: GenerationPlan, shard: int, agents: Sequence[Any], slots: Sequence[int]
    ) -> Generator[int, None, list[Tally]]:
        """Run a shard and take what it has written out of the memories again, for `take_written`."""
        memories = self.memories_of(shard)
        for memory in memories.values():
            memory.savepoint()
        try:
            tallies = yield from self._run_members(plan, shard, agents, slots)
            self._written[shard] = {name: memory.written() for name, memory in memories.items()}
            return tallies
        finally:
            for memory in memories.values():
                memory.rollback()

    def take_written(self, shard: int) -> dict[str, Any] | None:
        return self._written.pop(shard, None)

    def write(self, shard: int, written: dict[str, Any] | None) -> None:
        for name, rows in (written or {}).items():
            self.memories_of(shard)[name].write_rows(rows)

    def _run_members(
        self, plan: GenerationPlan, shard: int, agents: Sequence[Any], slots: Sequence[int]
    ) -> Generator[int, None, list[Tally]]:
        tallies: dict[int, Tally] = {}
        epsilon, seed = self.shared[shard].epsilon, self.ranks.seed(self.run_seed)
        places = list(range(len(agents)))
        for group in [places] if self.lockstep else [[place] for place in places]:
            members = [agents[place] for place in group]
            shared = replace(self.shared[shard], epsilon=epsilon, statistics=self.statistics(members))
            lanes = self._lanes_of(len(members))
            with self.adopted(members) as learner:
                is_custom = isinstance(learner, CustomLearner)
                if is_custom and shared.rewards is not None:
                    raise ConfigError(
                        "training.normalize_rewards is for the algorithms of this package; "
                        f"{type(members[0]).__name__} brings its own learn. fix: normalize_rewards=false, and "
                        "gymnasium.wrappers.TransformReward around the environment."
                    )
                part = Shard(
                    learner.members if is_custom else members, [slots[place] for place in group], seed, plan.number,
                    plan.begun, plan.length, shared, self.ranks,
                )  # fmt: skip
                start, before = time.perf_counter(), self.seconds.learning
                result = yield from self.run(part, lanes, learner)
                learning = self.seconds.learning - before
                self.seconds.collecting += time.perf_counter() - start - learning
            self.shared[shard], tallies = result.shared, {**tallies, **result.tallies}
        return [tallies[slot] for slot in slots]

    def statistics(self, agents: Sequence[Any]) -> Mapping[str, Any] | None:
        """Running observation statistics that a shard of these members starts from; None if not used."""
        return None

    # -- for the records ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        lanes = {"env_backend": self.lanes.backend, "num_envs": self.num_envs}
        return {"learner": self.learner, **lanes, "lockstep": self.lockstep, "kernels": self.kernels.name}

    def faults(self) -> list[str]:
        """Return one line per environment replaced since the last call (self-healing lanes only)."""
        messages = []
        for use, lanes in [("training", self.lanes), *(("evaluation", one) for one in self.evaluator.lanes.values())]:
            inner: Any = innermost(lanes)
            faults = inner.faults if isinstance(inner, HealingLanes | ReplacingLanes) else []
            for number in range(self._said.get(inner, 0), len(faults)):
                self._replaced += 1
                messages.append(
                    f"environment replaced ({self._replaced} so far; in {use} {number + 1} of at most "
                    f"{inner.max_restarts}): {faults[number]}"
                )
            if faults:
                self._said[inner] = len(faults)
        return messages

    def kernel_threads(self, count: int) -> contextlib.AbstractContextManager[None]:
        return kernel_threads(count)

    def memories(self) -> Mapping[str, Any]:
        named: dict[str, Any] = {}
        for shard in range(self.shards if self.has_own_memories else 1):
            named |= {f"{name}-{shard}" if shard else name: m for name, m in self.shared[shard].memories.items()}
        return named

    def memories_of(self, shard: int) -> Mapping[str, Any]:
        return self.shared[shard].memories

    def shard_state(self, shard: int) -> dict[str, Any]:
        shared = self.shared[shard]
        return {
            **({} if shared.epsilon is None else {"epsilon": shared.epsilon}),
            **({} if shared.rewards is None else {"rewards": dict(shared.rewards)}),
        }

    def load_shard_state(self, shard: int, state: Mapping[str, Any]) -> None:
        shared = self.shared[shard]
        epsilon = float(state["epsilon"]) if "epsilon" in state else shared.epsilon
        rewards = None if shared.rewards is None else state.get("rewards", shared.rewards)  # new in this run
        self.shared[shard] = replace(shared, epsilon=epsilon, rewards=rewards)

    def state(self) -> dict[str, Any]:
        first, *others = [self.shard_state(shard) for shard in range(self.shards)]
        return {**first, "shards": others} if others else first

    def load_state(self, state: Mapping[str, Any]) -> None:
        for shard, of_shard in enumerate([state, *state.get("shards", ())]):
            self.load_shard_state(shard, of_shard)
        if "kernels" in state:
            self.kernels = kernels_named(state["kernels"])

    def close(self) -> None:
        """Close the replicas owned by the collector; an environment passed by the user stays open."""
        if self._is_replicable:
            self.lanes.close()
            self._close_smaller()
        self.evaluator.close()
