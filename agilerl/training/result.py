"""What a run returns, the best agent that it keeps for that, and the records that the sinks get."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.sources.source import Tally
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan
from agilerl.training.evolution import Births
from agilerl.training.screening import recent_returns

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop

Members = tuple[MemberRecord, ...]


@dataclass
class EvolveResult:
    """What a run returns.

    Attributes:
        population: the agents after the last generation (after evolution if one followed).
        best: an independent copy of the best agent: the one with the best confirmation, else as `BestAgent` says.
        best_member, best_generation, best_fitness: its id, when it was found, and the fitness it had then.
        history: `history[generation][member]` fitness.
        births: every birth, founders first.
        env_steps_member, env_steps_population: training steps of the furthest member, and of all members.
        evaluation_env_steps: steps of all evaluations, confirmations included.
        confirmed: mean of the confirmation that `best` has, None without one.
        stopped: "target", "budget", "interrupted", or "callback <name of the hook>".
        restarts: workers of self-healing environments that were replaced, those of evaluations included.
        action_masks: whether the environment gives masks of legal actions, which the agents need then to act.
        by_agent: `by_agent[generation][member]` returns of a team's agents, where they are not summed; NaN of a member
            that was not evaluated.
        quarantined: members that had diverged at the end of a generation and were kept out of selection.
        test: of a language policy, the best agent's score on the report split, which chose nothing.
    """

    population: list[Any]
    best: Any
    history: list[list[float]] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    generations: int = 0
    env_steps_member: int = 0
    env_steps_population: int = 0
    evaluation_env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    best_member: int | None = None
    best_generation: int | None = None
    best_fitness: float | None = None
    confirmed: float | None = None
    stopped: str = "budget"
    restarts: int = 0
    quarantined: int = 0
    action_masks: bool = False
    by_agent: list[list[list[float]]] = field(default_factory=list)
    test: Evaluation | None = None

    def counters(self) -> dict[str, Any]:
        """All plain numbers and words, from `generations` on."""
        skip = (
            "population",
            "best",
            "history",
            "births",
            "by_agent",
            "test",
            *(() if self.action_masks else ("action_masks",)),
        )
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}


class BestAgent:
    """Keeps a copy of the best agent of a run: a confirmation beats fitness, a better one beats a worse one.

    The highest fitness of many generations is a lucky one: of a few episodes, at times of an agent that is no good. So
    where two agents are no further apart than two standard errors of their difference, and where they are equally fit,
    as at CartPole's 500, the one with the higher training returns is kept. Nobody is kept who lies further than that
    below the highest fitness so far, or small steps down would add up.

    Args:
        on_best: each is called with the copy whenever there is a better one.

    Attributes:
        agent: the copy, None before the first. fitness: that it was kept for. error: its standard error.
        highest, highest_error: fitness of the fittest that was offered, kept or not, since the last `forget`.
        confirmed: mean of its confirmation, None without one. generation: in which it was found.
    """

    def __init__(self, *on_best: Callable[[Any], None] | None) -> None:
        self.on_best = [hear for hear in on_best if hear is not None]
        self.agent: Any = None
        self.fitness, self.error = -np.inf, 0.0
        self.highest, self.highest_error = -np.inf, 0.0
        self.confirmed: float | None = None
        self.generation = 0

    def offer(self, agent: Any, fitness: float, confirmed: float | None, generation: int, error: float = 0.0) -> None:
        """Keep a copy of `agent` if it is better; agents without `clone` are never kept. error: of its fitness."""
        if confirmed is not None:
            better = self.confirmed is None or confirmed > self.confirmed
        else:
            better = self.confirmed is None and (self.agent is None or self._is_beaten(agent, fitness, error))
        if better and callable(getattr(agent, "clone", None)):
            self.agent, self.confirmed, self.generation = agent.clone(), confirmed, generation
            self.fitness, self.error = fitness, error
            self.announce()
        if fitness > self.highest:
            self.highest, self.highest_error = fitness, error

    def forget(self) -> None:
        """Let whoever is offered next be better than the copy: its fitness was so against others."""
        self.fitness = self.highest = -np.inf

    def _is_beaten(self, agent: Any, fitness: float, error: float) -> bool:
        own, known = recent_returns(agent), recent_returns(self.agent)
        if not own or not known:
            return fitness > self.fitness or (fitness == self.fitness and bool(own))
        if _is_above(fitness, error, self.fitness, self.error):
            return True
        if _is_above(self.highest, self.highest_error, fitness, error):
            return False
        return float(np.mean(own)) > float(np.mean(known))

    def tell(self, result: EvolveResult) -> None:
        """Write down which agent is the best."""
        result.best, result.confirmed = self.agent, self.confirmed
        if self.agent is not None:
            result.best_member, result.best_generation = getattr(self.agent, "index", None), self.generation
            result.best_fitness = float(self.fitness) if math.isfinite(self.fitness) else None

    def announce(self) -> None:
        """Tell `on_best` of the copy, if there is one."""
        for hear in self.on_best if self.agent is not None else ():
            hear(self.agent)

    def or_fittest(self, population: Sequence[Any], fitness: Sequence[float]) -> Any:
        """The copy; where none could be kept the fittest member stands, else the first."""
        if self.agent is not None or not population:
            return self.agent
        return population[int(np.argmax(ranked(fitness)))]


def _is_above(value: float, error: float, other: float, other_error: float) -> bool:
    """Whether `value` is higher by more than two standard errors of the difference."""
    return value != other and value - other > 2 * math.hypot(error, other_error)  # two of -inf differ by NaN


def ranked(fitness: Sequence[float]) -> list[float]:
    """Fitness for a ranking: a NaN is the worst."""
    return [value if value == value else -np.inf for value in fitness]


def run_plan(loop: TrainingLoop) -> RunPlan:
    """What is about to run."""
    lead, options, facts = loop.population[0], loop.options, dict(loop.source.facts())
    named = {name: facts.pop(name) for name in ("learner", "env_backend", "num_envs")}
    is_exact = not options.carry_envs and loop.probe.is_deterministic is not False
    more = {"deterministic": loop.probe.is_deterministic, "exact_resume": is_exact}
    return RunPlan(
        algo=str(lead.algo),
        env_id=loop.env_id,
        population=len(loop.population),
        max_env_steps=options.max_steps,
        evo_steps=options.evo_steps,
        seed=loop.seed,
        device=str(getattr(lead, "device", "cpu")),
        **named,
        threads=options.threads,
        target=options.target,
        notes=tuple(loop.notes),
        extra={**facts, **more, "options": options.as_dict()},
        steps=getattr(getattr(lead, "experience", None), "steps", "env steps"),
    )


def generation_record(
    loop: TrainingLoop, number: int, members: Members, births: Births, confirmation: float | None, seconds: float
) -> GenerationRecord:
    """One generation: its members before selection, the births after it, and how far the run is."""
    return GenerationRecord(
        generation=number,
        generations=loop.options.generations(loop.source.steps_of_generation),
        members=members,
        env_steps=loop.result.env_steps_member,
        max_env_steps=loop.options.max_steps,
        population_env_steps=loop.result.env_steps_population,
        evaluation_env_steps=loop.source.evaluation_env_steps,
        updates=loop.result.updates,
        seconds=seconds,
        epsilon=loop.source.epsilon,
        births=births,
        confirmation=confirmation,
        opponents=tuple(getattr(loop.source, "opponents_of", ())),
        members_left=len(loop.population) if len(loop.population) != len(members) else None,
    )


def member_records(loop: TrainingLoop, fitness: Sequence[float], tallies: Sequence[Tally]) -> Members:
    """One record a member, before selection; the fittest is marked (a NaN never is)."""
    leader = int(np.argmax(ranked(fitness)))
    return tuple(
        MemberRecord(
            id=agent.index,
            slot=slot,
            parent=loop.family.parents.get(agent.index),
            fitness=fitness[slot],
            agents=_by_agent(loop, agent),
            agent_scores=_scores_by_agent(loop, agent, tally),
            score=float(np.mean(tally.scores)) if tally.scores else None,
            env_steps=agent.steps[-1],
            updates=tally.updates,
            loss=tally.loss,
            mutation=loop.family.labels.get(agent.index, "founder"),
            hyperparameters=_hyperparameters(agent),
            network=_architecture(agent),
            is_best=slot == leader,
            details=dict(tally.details),
        )
        for slot, (agent, tally) in enumerate(zip(loop.population, tallies, strict=True))
    )


def _by_agent(loop: TrainingLoop, agent: Any) -> dict[str, float]:
    """Returns of a team's agents by their ids, where they are not summed."""
    row = getattr(loop.source, "by_agent", {}).get(agent.index)
    return {} if row is None else dict(zip(agent.agent_ids, row, strict=True))


def _scores_by_agent(loop: TrainingLoop, agent: Any, tally: Tally) -> dict[str, float]:
    """Mean training returns of a team's agents in this generation, where they are not summed."""
    if getattr(loop.source, "sum_scores", True) or not tally.by_agent:
        return {}
    return dict(zip(agent.agent_ids, np.mean(tally.by_agent, axis=0).tolist(), strict=True))


def _hyperparameters(agent: Any) -> dict[str, float]:
    read = getattr(agent, "hyperparameters", None)
    if callable(read):
        return dict(read())
    return {name: getattr(agent, name) for name in ("lr", "batch_size", "learn_step") if hasattr(agent, name)}


def _architecture(agent: Any) -> str:
    policy = getattr(agent, "policy_module", None)
    describe = getattr(policy(), "describe", None) if callable(policy) else None
    return str(describe()) if callable(describe) else ""
