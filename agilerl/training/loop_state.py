"""A training loop between two generations as plain data, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agilerl.errors import AlgorithmError, RunError
from agilerl.telemetry.files import jsonable
from agilerl.telemetry.record import Birth

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop

_COUNTERS = (
    "generations", "env_steps_member", "env_steps_population", "evaluation_env_steps", "updates", "seconds",
    "cpu_seconds", "confirmed", "stopped", "restarts", "quarantined",
)  # fmt: skip


def check_savable(population: Sequence[Any]) -> list[str]:
    """What of the agents will not be saved; AlgorithmError for an agent that cannot be saved at all."""
    lost: dict[str, None] = {}
    for agent in population:
        if not all(callable(getattr(agent, name, None)) for name in ("run_state", "load_run_state", "clone")):
            raise AlgorithmError(
                f"agent {getattr(agent, 'index', agent)} is a {type(agent).__name__} without run_state() and "
                "load_run_state(state), so a run with it cannot be saved. fix: derive it from EvolvableAlgorithm, "
                "or train without saving."
            )
        for name in getattr(agent, "unsaved_attributes", list)():
            lost[f"{type(agent).__name__}.{name} is not saved: a resumed run has what the script makes. fix: plain "
                 "data, or state() and load_state(state)."] = None  # fmt: skip
    return list(lost)


def members_of(loop: TrainingLoop) -> dict[str, Any]:
    """The population."""
    return {"members": [agent.run_state() for agent in loop.population]}


def best_of(loop: TrainingLoop) -> dict[str, Any]:
    """The best agent so far."""
    best = loop.best
    return {
        "agent": None if best.agent is None else best.agent.run_state(),
        "fitness": float(best.fitness),
        "confirmed": best.confirmed,
        "generation": best.generation,
    }


def counters_of(loop: TrainingLoop) -> dict[str, Any]:
    """How far the run is, as JSON values."""
    return {name: jsonable(getattr(loop.result, name)) for name in _COUNTERS}


def rest_of(loop: TrainingLoop, memories: Mapping[str, Any]) -> dict[str, Any]:
    """Everything else, without the rows of the replay `memories`."""
    return {
        "result": {name: getattr(loop.result, name) for name in _COUNTERS},
        "history": [[float(value) for value in row] for row in loop.result.history],
        "births": [birth_fields(birth) for birth in loop.result.births],
        "evolution": loop.evolution.state(),
        "evaluation_env_steps": loop.evaluator.env_steps,
        "saved_steps": loop.saved_steps,
        "source": loop.source.state(),
        "memories": {name: memory.state(rows=False) for name, memory in memories.items()},
    }


def restore(loop: TrainingLoop, members: Mapping[str, Any], best: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
    """Put the loop where the three trees were taken; the replay's rows follow."""
    templates = {type(agent).__name__: agent for agent in loop.population}
    saved = members["members"]
    if len(saved) != len(loop.population):
        raise RunError(
            f"the run has {len(saved)} members, the population given has {len(loop.population)}. fix: make as many."
        )
    given = loop.population
    loop.population = [_filled(given[slot], templates, state) for slot, state in enumerate(saved)]
    if best["agent"] is not None:
        lead = _filled(None, templates, best["agent"])
        loop.best.agent, loop.best.fitness, loop.best.confirmed = lead, best["fitness"], best["confirmed"]
        loop.best.generation = best["generation"]
    for name, value in rest["result"].items():
        setattr(loop.result, name, value)
    loop.result.best, loop.result.population = loop.best.agent, loop.population
    loop.result.history = [list(row) for row in rest["history"]]
    loop.result.births = [Birth(**birth) for birth in rest["births"]]
    loop.evolution.load_state(rest["evolution"])
    loop.evaluator.env_steps, loop.saved_steps = rest["evaluation_env_steps"], rest["saved_steps"]
    loop.source.load_state(rest["source"])
    loop.fit_to_population()


def _filled(agent: Any, templates: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
    """An agent with that state: `agent` itself if it is of the same class, else a copy of one that is."""
    kind = str(state["class"])
    if type(agent).__name__ != kind:
        if kind not in templates:
            raise RunError(f"the run has a {kind}; the population given has {sorted(templates)}. fix: the same script.")
        agent = templates[kind].clone()
    agent.load_run_state(state)
    return agent


def birth_fields(birth: Birth) -> dict[str, Any]:
    """A birth as JSON values, as its line in the lineage has them."""
    fields: dict[str, Any] = jsonable(asdict(birth))
    return fields


def each_memory(loop: TrainingLoop, change: Callable[[str, Any], None]) -> dict[str, Any]:
    """The loop's replay buffers by name, after `change` of each.

    Raises:
        RunError: a buffer of a kind that cannot be saved piece by piece.
    """
    memories = dict(loop.source.memories())
    for name, memory in memories.items():
        if not callable(getattr(memory, "changes", None)):
            raise RunError(
                f"{name} is a {type(memory).__name__}, whose contents cannot be saved. fix: ReplayBuffer, or train "
                "without saving."
            )
        change(name, memory)
    return memories
