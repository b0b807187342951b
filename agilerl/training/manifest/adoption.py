"""Start a new run from the agents of an old one: their origin, compatibility, and the state that is kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.algorithms.base.wrapped import AgentWrapper, unwrapped
from agilerl.config import Manifest, preset_for
from agilerl.core import foreign
from agilerl.core.checkpoint import decode_tree
from agilerl.core.foreign import SPACES
from agilerl.core.hostile import malformed
from agilerl.core.rng import restored_generator
from agilerl.core.spaces import differ
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, RunError
from agilerl.networks.specs import check_sizes
from agilerl.runs.checkpoints import BEST, POPULATION, Saved, generations, read_checkpoint
from agilerl.telemetry.files import jsonable
from agilerl.training.run import Run

if TYPE_CHECKING:
    from agilerl.algorithms.base.agent import EvolvableAlgorithm


@dataclass(frozen=True)
class Ancestors:
    """Agents that a new run starts from.

    Attributes:
        agents: not modified; the run trains copies.
        run: path of the run that they come from, None if unknown.
        manifest: settings of that run, the basis of the new run's settings; None if unavailable.
        changed: hyperparameters explicitly set for the new run; the others keep their evolved values.
    """

    agents: Sequence[Any]
    run: str | None = None
    manifest: Manifest | None = None
    changed: tuple[str, ...] = ()

    def parent(self) -> dict[str, Any]:
        """Entry for run.json."""
        return {"run": self.run, "members": [int(agent.index) for agent in self.agents]}

    def adopt(self, population: Sequence[Any]) -> list[Any]:
        """Return copies of the agents, in place of a new run's founders.

        A copy keeps networks, optimiser moments and hyperparameters. Its index, seed, mutation ranges and counters are
        those of the founder that it replaces. If there are more agents than founders, the fittest are used; if fewer,
        they are repeated.

        Raises:
            AlgorithmError: the agents have another algorithm or other spaces.
        """
        chosen = self._chosen(len(population))
        return [self._copy(chosen[slot % len(chosen)], founder) for slot, founder in enumerate(population)]

    def _chosen(self, count: int) -> list[Any]:
        if len(self.agents) <= count:
            return list(self.agents)
        order = sorted(range(len(self.agents)), key=lambda slot: -_fitness(self.agents[slot]))
        return [self.agents[slot] for slot in sorted(order[:count])]

    def _copy(self, agent: EvolvableAlgorithm, founder: EvolvableAlgorithm) -> Any:
        _check_fit(agent, founder)
        generators = {k: v.bit_generator.state for k, v in vars(founder).items() if isinstance(v, np.random.Generator)}
        attributes = {
            name: getattr(founder, name) for name in (*self.changed, "index", "seed") if hasattr(founder, name)
        }
        ranges = founder.hp_config
        founder.load_run_state(agent.clone().run_state())  # of a clone: moments must not be shared
        founder.registry.hp_config = ranges
        for name, value in {**attributes, "steps": [0], "scores": [], "fitness": [], "mut": None}.items():
            setattr(founder, name, value)
        for name, stream in generators.items():  # streams of the new run, so that exploration does not repeat
            object.__setattr__(founder, name, restored_generator(stream))
        for name in ("mutation_record", "_reward_statistics"):  # of a birth in the other run, and of its rewards
            founder.__dict__.pop(name, None)
        founder.origin = f"{'agents that were handed over' if self.run is None else self.run}, member {agent.index}"
        return founder


def ancestors_of(agents: object) -> Ancestors:
    """Return the agents of a run or of a list.

    Raises:
        RunError: there are none. ConfigError: an unsupported type.
    """
    if isinstance(agents, Run):
        return Ancestors(_some(agents.population), None if agents.path is None else str(agents.path), agents.manifest)
    wrapped = next((a for a in agents if isinstance(a, AgentWrapper)), None) if isinstance(agents, Sequence) else None
    if wrapped is not None:
        raise ConfigError(
            f"agents= takes agents without wrappers; got {wrapped!r}. fix: agents=[a.agent for a in agents], with the "
            "same transform of the observations in the environment."
        )
    if isinstance(agents, Sequence) and all(foreign.has_methods(agent, "run_state") for agent in agents):
        return Ancestors(_some(agents))
    raise ConfigError(
        f"agents must be a run, the path of one, or a list of agents; got {type(agents).__name__}. "
        "fix: agents=run.population."
    )


def algorithm_of(ancestors: Ancestors) -> Any:
    """Return the name of the agents' algorithm, or their class if it is not a registered one."""
    agent = ancestors.agents[0]
    return str(agent.algo) if str(agent.algo) in available() else type(agent)


def structure_of(ancestors: Ancestors) -> dict[str, Any]:
    """Return the options that decide which networks the agents have, as keys of `train`."""
    agent = ancestors.agents[0]
    names = agent.structure & set(hyperparameters(type(agent)))
    return {f"algorithm.{name}": vars(agent)[name] for name in sorted(names) if name in vars(agent)}


def with_changes(ancestors: Ancestors, manifest: Manifest, named: Iterable[str]) -> Ancestors:
    """Determine which hyperparameters of `manifest` override those of the agents: named ones, and changed values.

    Args:
        named: dotted keys that were set explicitly.

    Raises:
        ConfigError: another architecture, which is fixed by the agents.
    """
    base = (
        ancestors.manifest
        if ancestors.manifest is not None
        else preset_for(manifest.environment.name, manifest.algorithm.name)
    )
    if manifest.network != base.network or any(name.startswith("network.") for name in named):
        raise ConfigError("network settings are not for agents that have their networks. fix: leave them out.")
    values, before = manifest.algorithm.hyperparameters, base.algorithm.hyperparameters
    asked = {name.removeprefix("algorithm.") for name in named}
    return replace(ancestors, changed=tuple(n for n in values if n in asked or values[n] != before.get(n)))


def saved_population(folder: Path, device: str) -> list[Any]:
    """Load the members of the newest readable checkpoint, [] without one; warns about damaged ones.

    No file is renamed, as the run may still be training.
    """
    members, damaged = _newest(folder, lambda saved: _members(saved, device))
    if damaged:
        text = f"{folder}: no checkpoint can be read ({damaged}); the run's population is its best agent alone."
        warnings.warn(text, AgileRLWarning, stacklevel=4)
    return members or []


def saved_best(folder: Path, spec: Mapping[str, Any], weights: Mapping[str, Any], device: str) -> Any:
    """Load the best agent of the newest readable checkpoint, None without one.

    It is for algorithms whose policy file alone does not suffice. The agent acts with the weights of that file, which
    the end of a run may have written after the checkpoint.

    Args:
        spec, weights: content of the policy file.
    """
    best, _ = _newest(folder, lambda saved: _best(saved, spec, weights, device))
    return best


def _newest(folder: Path, read: Callable[[Saved], Any]) -> tuple[Any, str]:
    """Return (what `read` gives of the newest checkpoint that it can read, None without one; the first problem)."""
    damaged = []
    for path in reversed(generations(folder / "checkpoints")):
        try:
            return read(read_checkpoint(path)), ""
        except RunError as error:
            damaged.append(str(error))
    return None, damaged[0] if damaged else ""


def _members(saved: Saved, device: str) -> list[Any]:
    with malformed(saved.path):
        tree = decode_tree(saved.files[POPULATION], str(saved.path / POPULATION))
        return [_agent(state, device, saved.path) for state in tree["members"]]


def _best(saved: Saved, spec: Mapping[str, Any], weights: Mapping[str, Any], device: str) -> Any:
    with malformed(saved.path):
        tree = decode_tree(saved.files[BEST], str(saved.path / BEST))
        candidates = [
            entry["agent"] for entry in (tree, tree.get("fittest", {}), tree.get("proven", {})) if "agent" in entry
        ]
        agents = [_agent(state, device, saved.path) for state in candidates if state is not None]
        for agent in agents:
            if jsonable(agent.policy_spec()["network"]) == jsonable(spec["network"]):
                agent.policy_module().load_state_dict(dict(weights))
                agent.environment = spec.get("environment")
                agent.set_training_mode(False)
                return agent
    return None


def _agent(state: Mapping[str, Any], device: str, path: Path) -> Any:
    if "wrapper" in state:
        raise RunError(f"{path} holds agents in wrappers. fix: the script that made them, with resume=.")
    check_sizes(state["networks"], str(path))
    cls: Any = find_algorithm(str(state["class"]))
    agent = cls._blank(state, device, None)
    agent.load_run_state(state, str(path))
    return agent


def check_algorithm(ancestors: Ancestors, name: str) -> None:
    """Raise AlgorithmError if the agents' algorithm differs from the requested one."""
    cls, agent = find_algorithm(name), ancestors.agents[0]
    mine = type(unwrapped(agent))
    if mine is not cls:
        raise AlgorithmError(_other_algorithm(mine.__name__, cls.__name__))


def check_same_algorithm(ancestors: Ancestors, name: object, new_run: str) -> None:
    """Raise AlgorithmError for a setting `algorithm.name` that differs from the agents' algorithm.

    Args:
        name: value of the setting; None if it is absent. new_run: call or command of a run with that algorithm.
    """
    mine = type(unwrapped(ancestors.agents[0]))
    if isinstance(name, str) and find_algorithm(name) is not mine:
        raise AlgorithmError(
            f"a continued run keeps the algorithm of its agents, {mine.__name__}; got algorithm.name={name}. "
            f"fix: leave it out, or train new agents with {new_run}."
        )


def _other_algorithm(mine: str, theirs: str) -> str:
    return f"the agents are {mine}, the new run trains {theirs}. fix: algo={mine!r}, or leave it out."


def _check_fit(agent: EvolvableAlgorithm, founder: EvolvableAlgorithm) -> None:
    """Raise AlgorithmError if the agent is incompatible with the founder."""
    if type(agent) is not type(founder):
        raise AlgorithmError(_other_algorithm(type(agent).__name__, type(founder).__name__))
    for name, ask in () if founder.learns_language else SPACES:
        has, needs = ask(agent), ask(founder)
        if differ(has, needs):
            raise AlgorithmError(
                f"the agents were built for the {name.replace('_', ' ')} {has}; the environment has {needs}. "
                "fix: an environment with the same spaces, or new agents (leave agents out)."
            )


def _some(agents: Sequence[Any]) -> Sequence[Any]:
    candidates = [agent for agent in agents if agent is not None]
    if not candidates:
        raise RunError("there are no agents to start from. fix: name a run that has finished a generation.")
    return candidates


def _fitness(agent: foreign.Agent) -> float:
    value = float(agent.fitness[-1]) if agent.fitness else -math.inf
    return value if value == value else -math.inf
