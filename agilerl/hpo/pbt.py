"""Populations of constant size in which copies of good members, with other hyperparameters, take the places of others.

Unlike tournaments, which draw the whole next population, these leave every member in its place that is not replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.errors import ConfigError
from agilerl.hpo.bandit import Trial, gaussian_processes, places_of, propose
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.mutation import MutationRecord
from agilerl.hpo.tournament import rank
from agilerl.rng import Purpose, stream
from agilerl.telemetry.record import Birth, MemberRecord

QUARTER = 4


def successor(parent: Any, index: int, values: Mapping[str, float], generation: int) -> tuple[Any, Birth]:
    """A copy of `parent` with hyperparameters of its own, and the record of its birth."""
    child = parent.clone(index=index)
    before = {name: getattr(child, name) for name in values}
    for name, value in values.items():
        setattr(child, name, value)
    path, kind, fitness = ", ".join(values), "rl_hp" if values else "none", parent.fitness
    child.mut, child.mutation_record = path or "None", MutationRecord(kind, path, before, dict(values), 0.0)
    child.mutation_hook()
    last = float(fitness[-1]) if fitness else None
    return child, Birth(index, parent.index, generation, kind, path, before, dict(values), 0.0, last)


def _numbers(agent: Any) -> dict[str, Any]:
    """The hyperparameters that may change, as they are."""
    return {name: getattr(agent, name) for name in agent.registry.hp_config.names()}


class PopulationBandit(Evolution):
    """The worst quarter makes place for copies of the best, whose hyperparameters a bandit chooses (PB2).

    Algorithm 1 of Parker-Holder, Nguyen and Roberts 2020 (arXiv:2002.02518): in each generation the gain in fitness of
    every member is a trial of its hyperparameters; a member of the worst quarter becomes a copy of one of the best
    quarter, drawn at random, with the hyperparameters that `hpo.bandit.propose` names.

    Args:
        seed: of the draws.
    Raises:
        ConfigError: scikit-learn is not installed.
    """

    def __init__(self, seed: int) -> None:
        gaussian_processes()
        self.seed = seed
        self.trials: list[Trial] = []
        self.before: dict[int, float] = {}  # by member: fitness a generation ago

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        ranges = dict(population[0].registry.hp_config.items())
        if not ranges:
            raise ConfigError("evolution.scheme=pb2 chooses hyperparameters: name ranges in mutation.rl_hp_selection.")
        # By slot: a member that was healed has another id than its record, and its gain is not that of its place.
        fitness = [record.fitness for record in records]
        for agent, value in zip(population, fitness, strict=True):
            gain = value - self.before.get(agent.index, math.nan)
            if math.isfinite(gain):
                self.trials.append(Trial(places_of(agent, ranges), generation, gain))
        ranks = rank(fitness)
        count = len(population) // QUARTER or (1 if len(population) > 1 else 0)
        rng = stream(self.seed, Purpose.SELECTION, generation)
        best = [slot for slot in range(len(population)) if ranks[slot] >= len(population) - max(1, count)]
        after, births, free = list(population), [], max(agent.index for agent in population) + 1
        pending: list[tuple[float, ...]] = []
        reached = list(fitness)
        for slot in sorted(range(len(population)), key=lambda slot: int(ranks[slot]))[:count]:
            chosen = best[int(rng.integers(len(best)))]
            values = propose(self.trials, pending, generation + 1, ranges, rng)
            after[slot], birth = successor(population[chosen], free, values, generation)
            pending.append(places_of(after[slot], ranges))
            reached[slot], free = fitness[chosen], free + 1
            births.append(birth)
        self.before = {agent.index: value for agent, value in zip(after, reached, strict=True)}
        return after, tuple(births)

    def state(self) -> dict[str, Any]:
        trials = [[list(trial.places), trial.generation, trial.gain] for trial in self.trials]
        return {"seed": self.seed, "trials": trials, "before": dict(self.before)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])
        self.trials = [Trial(tuple(places), int(when), float(gain)) for places, when, gain in state["trials"]]
        self.before = {int(member): float(value) for member, value in state["before"].items()}


class MultipleFrequencies(Evolution):
    """Parts of the population evolve at paces of their own, and migrants pass from one to another (MF-PBT).

    Doulazmi et al. 2025 (arXiv:2506.03225), section 4: part i evolves after every `frequencies[i]`-th generation. Its
    members, ranked, are cut into quarters. The best two stay. The last one becomes copies of the first, each
    hyperparameter one step up or down. The third one gives way to better members of other parts, the best first: from
    a part that evolves more rarely they come with their hyperparameters; from one that evolves more often, whose
    hyperparameters are greedy, they take those of the receiving part's best member.

    Args:
        frequencies: in generations, one a part. members: of the whole population. seed: of the draws.
    Raises:
        ConfigError: the members do not make parts of equal size that have quarters.
    """

    def __init__(self, frequencies: Sequence[int], members: int, seed: int) -> None:
        self.frequencies, self.seed = tuple(frequencies), seed
        parts = len(self.frequencies)
        if not parts or members % (parts * QUARTER):
            fits = parts * QUARTER * max(1, round(members / (parts * QUARTER)))
            raise ConfigError(
                f"evolution.scheme=mf_pbt: {parts} frequencies make parts of equal size, each of which has quarters; "
                f"expected a multiple of {parts * QUARTER} members, got {members}. fix: training.pop_size={fits}, or "
                "other evolution.frequencies."
            )
        self.size = members // parts

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        fitness = [-math.inf if math.isnan(record.fitness) else record.fitness for record in records]
        due = [part for part, every in enumerate(self.frequencies) if generation % every == 0]
        heirs = {slot: heir for part in due for slot, heir in self._heirs(part, fitness).items()}
        rng = stream(self.seed, Purpose.MUTATION, generation)
        after, births, free = list(population), [], max(agent.index for agent in population) + 1
        for slot, (network, settings) in sorted(heirs.items()):
            if settings is None:  # of the part's best quarter: explore from what its parent has
                values = self._explored(population[network], rng)
            else:
                values = _numbers(population[settings]) if settings != network else {}
            after[slot], birth = successor(population[network], free, values, generation)
            births.append(birth)
            free += 1
        return after, tuple(births)

    def _heirs(self, part: int, fitness: Sequence[float]) -> dict[int, tuple[int, int | None]]:
        """By slot that is replaced: (whose networks, whose hyperparameters; None: those of the networks, explored)."""
        own = range(part * self.size, (part + 1) * self.size)
        order = sorted(own, key=lambda slot: -fitness[slot])
        quarter = self.size // QUARTER
        heirs: dict[int, tuple[int, int | None]] = {
            slot: (best, None) for slot, best in zip(order[-quarter:], order[:quarter], strict=True)
        }
        others = sorted((slot for slot in range(len(fitness)) if slot not in own), key=lambda slot: -fitness[slot])
        for slot in order[2 * quarter : 3 * quarter]:
            if others and fitness[others[0]] > fitness[slot]:
                migrant = others.pop(0)
                rarer = self.frequencies[migrant // self.size] > self.frequencies[part]
                heirs[slot] = (migrant, migrant if rarer else order[0])
        return heirs

    def _explored(self, parent: Any, rng: np.random.Generator) -> dict[str, Any]:
        values = {}
        for name, parameter in parent.registry.hp_config.copy().items():
            parameter.value = getattr(parent, name)
            values[name] = parameter.mutate(rng)
        return values

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed, "frequencies": list(self.frequencies)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed, self.frequencies = int(state["seed"]), tuple(state["frequencies"])
