"""Convert a training loop between two generations to plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.collector import Collector
from agilerl.collect.determinism import Probe
from agilerl.collect.fitness import FitnessEvaluator
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.core.texts import as_dict
from agilerl.errors import AlgorithmError, ConfigError, RunError
from agilerl.hpo.evolution import Evolution, Family
from agilerl.ranks import Ranks
from agilerl.telemetry.files import jsonable
from agilerl.telemetry.record import Birth, Steering
from agilerl.training.best import BestAgent
from agilerl.training.population import filled
from agilerl.training.result import EvolveResult
from agilerl.training.steering import SteeringWheel

Trees = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""The population, the best agent, and everything else without the rows of replay."""


class Loop(Protocol):
    """What is saved of a training loop (see `TrainingLoop`), and what follows a restored population."""

    population: list[Any]
    collector: Collector
    evaluator: FitnessEvaluator
    options: LoopOptions
    evolution: Evolution
    family: Family
    best: BestAgent
    result: EvolveResult
    steering: SteeringWheel
    probe: Probe
    ranks: Ranks
    seed: int
    env_id: str
    asked_steps: int
    saved_steps: int

    def fit_to_population(self) -> None: ...


class SavableLoop:
    """A training loop that can be saved between two generations, and restored."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    @property
    def generations(self) -> int:
        return self.loop.result.generations

    @property
    def best_generation(self) -> int:
        incumbent = self.loop.best.kept
        return 0 if incumbent is None else incumbent.generation

    def lineage(self) -> str:
        return self.loop.result.lineage()

    def facts(self) -> dict[str, Any]:
        """Settings of the run; those that affect its result must not change on resume."""
        loop, facts = self.loop, self.loop.collector.facts()
        return {
            "seed": loop.seed,
            **{name: facts[name] for name in ("learner", "env_backend", "num_envs")},
            "threads": loop.options.torch_threads,
            **({"kernels": facts["kernels"]} if facts.get("kernels", "torch") != "torch" else {}),
            "env_id": loop.env_id,
            "deterministic": loop.probe.is_deterministic,
            **({"ranks": loop.ranks.size} if loop.ranks.size > 1 else {}),
            "options": {**_deciding(loop.options), "max_steps": loop.asked_steps},
        }

    def usual_options(self) -> dict[str, Any]:
        """The options' defaults: the values of options added after a run was saved."""
        return _deciding(type(self.loop.options)())

    def counters(self) -> dict[str, Any]:
        return dict(jsonable(self.loop.result.counters()))

    def lost(self) -> list[str]:
        return check_savable(self.loop.population)

    def memories(self) -> dict[str, Any]:
        """Replay buffers by name; RunError for a kind that cannot be saved incrementally."""
        memories = dict(self.loop.collector.memories())
        for name, memory in memories.items():
            if not foreign.has_methods(memory, "changes"):
                what = f"{name} is a {type(memory).__name__}, whose contents cannot be saved"
                raise RunError(f"{what}. fix: ReplayBuffer, or train without saving.")
        return memories

    def trees(self) -> Trees:
        loop = self.loop
        rest = {
            "result": loop.result.counters(),
            "history": [[float(value) for value in row] for row in loop.result.history],
            "returns": list(loop.result.returns),
            "births": [jsonable(as_dict(birth)) for birth in loop.result.births],
            "evolution": {**loop.family.state(), **loop.evolution.state()},
            "evaluation_env_steps": loop.evaluator.env_steps,
            "evaluated": float(loop.collector.evaluated),
            "saved_steps": loop.saved_steps,
            **({"by_agent": loop.result.by_agent} if loop.result.by_agent else {}),
            **self._steering(),
            "source": loop.collector.state(),
            "memories": {name: memory.state(rows=False) for name, memory in self.memories().items()},
        }
        return self.population_tree(), loop.best.state(), rest

    def _steering(self) -> dict[str, Any]:
        """Requests of people so far, and what lasts of them; empty without any."""
        loop = self.loop
        if not loop.result.steering:
            return {}
        return {"steering": {**loop.steering.state(), "events": [jsonable(asdict(e)) for e in loop.result.steering]}}

    def population_tree(self) -> dict[str, Any]:
        """State of the members."""
        return {"members": [agent.run_state() for agent in self.loop.population]}

    def load(self, trees: Trees, facts: Mapping[str, Any]) -> None:
        """Restore the run from `trees` and `facts`; the rows of replay follow."""
        loop, (members, best, rest) = self.loop, trees
        templates = {type(agent).__name__: agent for agent in loop.population}
        saved, founders = members["members"], loop.population
        if loop.evolution.shares_budget:  # some founders may have been stopped
            founders = founders[: len(saved)]
        if len(saved) != len(founders):
            raise RunError(f"the run has {len(saved)} members; got a population of {len(founders)}. fix: as many.")
        loop.population = [filled(agent, templates, state) for agent, state in zip(founders, saved, strict=True)]
        loop.best.load_state(best, templates)
        for name, value in rest["result"].items():
            setattr(loop.result, name, value)
        then = facts.get("options") or {}
        stopped_by = {"target": "target", "plateau": "patience"}.get(loop.result.stopped)
        has_its_steps = loop.result.env_steps_member >= (loop.options.stop_after or math.inf)
        is_at_end = loop.result.stopped == "minutes" and has_its_steps
        if not is_at_end and (stopped_by is None or then.get(stopped_by) != vars(loop.options)[stopped_by]):
            loop.result.stopped = "budget"  # the earlier reason no longer applies
        loop.result.best, loop.result.population = loop.best.agent, loop.population
        loop.result.history = [list(row) for row in rest["history"]]
        loop.result.returns = list(
            rest.get("returns", [-math.inf] * len(loop.result.history))
        )  # missing in earlier runs
        loop.result.by_agent = [[list(row) for row in rows] for rows in rest.get("by_agent", [])]
        loop.result.births = [Birth(**birth) for birth in rest["births"]]
        steering = rest.get("steering", {})
        loop.result.steering = [Steering(**event) for event in steering.get("events", ())]
        loop.steering.load_state(steering)
        loop.family.load_state(rest["evolution"])
        loop.evolution.load_state(rest["evolution"])
        loop.evaluator.env_steps, loop.saved_steps = rest["evaluation_env_steps"], rest["saved_steps"]
        loop.collector.evaluated = rest.get("evaluated", 0.0)
        kernels = str(facts.get("kernels", "torch"))  # missing in earlier runs
        loop.collector.load_state({**rest["source"], "kernels": kernels})
        loop.fit_to_population()
        loop.probe = Probe(facts.get("deterministic"))


def check_savable(population: Sequence[Any]) -> list[str]:
    """Return the parts of the agents that will not be saved; AlgorithmError for an agent that cannot be saved."""
    lost: dict[str, None] = {}
    for agent in population:
        if not foreign.has_methods(agent, "run_state", "load_run_state", "clone"):
            raise AlgorithmError(
                f"agent {agent.index} is a {type(agent).__name__} without run_state() and "
                "load_run_state(state), so a run with it cannot be saved. fix: derive it from EvolvableAlgorithm, "
                "or train without saving."
            )
        for name in adapted(agent).unsaved_attributes():
            lost[f"{type(agent).__name__}.{name} is not saved: a resumed run uses the script's value. fix: "
                 "plain data, or state() and load_state(state)."] = None  # fmt: skip
    return list(lost)


def check_portable(population: Sequence[Any]) -> None:
    """Raise an error for agents whose whole state cannot be sent to another process.

    Raises:
        AlgorithmError: no `run_state`. ConfigError: attributes that are not saved.
    """
    lost = check_savable(population)
    if lost:
        what = lost[0].partition(" is not saved")[0]
        raise ConfigError(
            f"shards and workers send agents to other processes, and {what} would stay behind. fix: plain data, "
            "state() and load_state(state), or shards=1 and workers=1."
        )


def is_portable(population: Sequence[Any]) -> bool:
    """Whether `check_portable` passes."""
    try:
        check_portable(population)
    except (AlgorithmError, ConfigError):
        return False
    return True


def _deciding(options: Any) -> dict[str, Any]:
    """Select the options that affect the result."""
    skip = ("checkpoint", "checkpoint_path", "overwrite_checkpoints", "learner", "threads")
    return {name: value for name, value in jsonable(options.as_dict()).items() if name not in skip}
