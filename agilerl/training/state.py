"""Convert a training loop between two generations to plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agilerl.algorithms.base.adapted import adapted
from agilerl.core import foreign
from agilerl.errors import AlgorithmError, ConfigError, RunError
from agilerl.sources.determinism import Probe
from agilerl.telemetry.files import jsonable
from agilerl.telemetry.record import Birth, Steering, as_dict
from agilerl.training.best import BestAgent, Candidate, Confirmation
from agilerl.training.store import Trees

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop


# Reason for stopping -> argument.
WORDS = {"target": "target", "plateau": "patience", "budget": "max_steps", "minutes": "stop_after"}


class SavableLoop:
    """Adapter of a `TrainingLoop` to `store.Savable`."""

    def __init__(self, loop: TrainingLoop) -> None:
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
        loop, facts = self.loop, self.loop.source.facts()
        return {
            "seed": loop.seed,
            **{name: facts[name] for name in ("learner", "env_backend", "num_envs")},
            "threads": loop.options.threads,
            **({"kernels": facts["kernels"]} if facts.get("kernels", "torch") != "torch" else {}),
            "env_id": loop.env_id,
            "deterministic": loop.probe.is_deterministic,
            **({"ranks": loop.ranks.size} if loop.ranks.size > 1 else {}),
            "options": {**_deciding(loop.options), "max_steps": loop.asked_steps},
        }

    def usual_options(self) -> dict[str, Any]:
        return _deciding(type(self.loop.options)())

    def counters(self) -> dict[str, Any]:
        return dict(jsonable(self.loop.result.counters()))

    def lost(self) -> list[str]:
        return check_savable(self.loop.population)

    def memories(self) -> dict[str, Any]:
        memories = dict(self.loop.source.memories())
        for name, memory in memories.items():
            if not foreign.has_methods(memory, "changes"):
                raise RunError(
                    f"{name} is a {type(memory).__name__}, whose contents cannot be saved. fix: ReplayBuffer, or train "
                    "without saving."
                )
        return memories

    def trees(self) -> Trees:
        loop, best = self.loop, self.loop.best
        best_tree = {**_tree(best.kept), "confirmed": best.confirmed}
        if best.fittest is not None and best.fittest is not best.kept:
            best_tree["fittest"] = _tree(best.fittest)
        if best.proven is not None:
            proof = best.proven
            other = proof.candidate is not best.kept
            entry = {**_tree(proof.candidate), "fitness_error": float(proof.candidate.error)} if other else {}
            best_tree["proven"] = {**entry, "mean": proof.mean, "error": proof.error}  # `error` is the confirmation's
        rest = {
            "result": loop.result.counters(),
            "history": [[float(value) for value in row] for row in loop.result.history],
            "returns": list(loop.result.returns),
            "births": [jsonable(as_dict(birth)) for birth in loop.result.births],
            "evolution": {**loop.family.state(), **loop.evolution.state()},
            "evaluation_env_steps": loop.evaluator.env_steps,
            "evaluated": float(loop.source.evaluated),
            "saved_steps": loop.saved_steps,
            **({} if loop.resets is None else {"resets": loop.resets.state()}),
            **({"by_agent": loop.result.by_agent} if loop.result.by_agent else {}),
            **self._steering(),
            "source": loop.source.state(),
            "memories": {name: memory.state(rows=False) for name, memory in self.memories().items()},
        }
        return self.population_tree(), best_tree, rest

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
        loop, (members, best, rest) = self.loop, trees
        templates = {type(agent).__name__: agent for agent in loop.population}
        saved, founders = members["members"], loop.population
        if loop.evolution.shares_budget:  # some founders may have been stopped
            founders = founders[: len(saved)]
        if len(saved) != len(founders):
            raise RunError(
                f"the run has {len(saved)} members, the population given has {len(founders)}. fix: the same number."
            )
        loop.population = [filled(agent, templates, state) for agent, state in zip(founders, saved, strict=True)]
        loop.best.kept, loop.best.confirmed = _candidate(best, templates), best["confirmed"]
        if "fittest" in best:
            loop.best.fittest = _candidate(best["fittest"], templates)
        elif loop.best.confirmed is None:
            loop.best.fittest = loop.best.kept
        loop.best.proven = _proof(best, loop.best, templates)
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
        if loop.resets is not None:
            loop.resets.load_state(rest.get("resets", {}))  # missing if they are new in this run
        loop.evaluator.env_steps, loop.saved_steps = rest["evaluation_env_steps"], rest["saved_steps"]
        loop.source.evaluated = rest.get("evaluated", 0.0)
        kernels = str(facts.get("kernels", "torch"))  # missing in earlier runs
        loop.source.load_state({**rest["source"], "kernels": kernels})
        loop.share_budget()
        loop.fit_to_population()
        loop.probe = Probe(facts.get("deterministic"))


def resumed_notes(loop: TrainingLoop) -> list[str]:
    """Describe the progress of a resumed run; for an ended one, why it ended and how to continue."""
    episodes = ", with new episodes" if loop.options.carry_envs else ""
    count = loop.result.generations
    notes = [f"continues after {count} {'generation' if count == 1 else 'generations'}{episodes}"]
    done = max(agent.steps[-1] for agent in loop.population)
    if loop.result.stopped == "target":
        why, words = f"it has reached its target of {loop.options.target:g}", ("--set", "training.target_score=null")
    elif loop.result.stopped == "plateau":
        why = f"nothing had improved for {loop.options.patience} generations"
        words = ("--set", "training.patience=null")
    elif loop.result.stopped == "minutes":
        why, words = f"it has made its {loop.options.stop_after:,} steps", ("--set", "training.stop_after=null")
    elif done >= loop.options.max_steps:
        why, words = f"it has used its budget ({done:,} steps of one member)", ("--steps", str(2 * done))
    else:
        return notes
    resume_command = None if loop.store is None else loop.store.way_on(*words)
    next_step = f"another value of {WORDS[loop.result.stopped]}" if resume_command is None else f"`{resume_command}`"
    return [*notes, f"finished: {why}; {next_step} goes on"]


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


def filled(agent: Any, templates: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
    """Return an agent with this state: `agent` itself if the class matches, else a copy of a matching template."""
    kind = str(state["class"])
    if type(agent).__name__ != kind:
        if kind not in templates:
            raise RunError(f"the run has a {kind}; the population given has {sorted(templates)}. fix: the same script.")
        agent = templates[kind].clone()
    agent.load_run_state(state)
    return agent


def _tree(one: Candidate | None) -> dict[str, Any]:
    if one is None:
        return {"agent": None, "fitness": -math.inf, "error": 0.0, "generation": 0}
    return {
        "agent": one.agent.run_state(),
        "fitness": float(one.fitness),
        "error": float(one.error),
        "generation": one.generation,
    }


def _candidate(tree: Mapping[str, Any], templates: Mapping[str, Any]) -> Candidate | None:
    if tree["agent"] is None:
        return None
    agent = filled(None, templates, tree["agent"])
    return Candidate(agent, tree["fitness"], tree.get("error", 0.0), tree["generation"])


def _proof(tree: Mapping[str, Any], best: BestAgent, templates: Mapping[str, Any]) -> Confirmation | None:
    """Load the best confirmation; earlier versions only saved that of the best agent."""
    proven = tree.get("proven")
    if proven is not None:
        entry = {**proven, "error": proven.get("fitness_error", proven["error"])}  # `error` in earlier versions
        candidate = _candidate(entry, templates) if "agent" in proven else best.kept
        return None if candidate is None else Confirmation(candidate, proven["mean"], proven["error"])
    if best.confirmed is None or best.kept is None:
        return None
    return Confirmation(best.kept, best.confirmed, math.inf)


def _deciding(options: Any) -> dict[str, Any]:
    """Select the options that affect the result."""
    skip = ("checkpoint", "checkpoint_path", "overwrite_checkpoints", "learner", "threads")
    return {name: value for name, value in jsonable(options.as_dict()).items() if name not in skip}
