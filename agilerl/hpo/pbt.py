"""Population-based training: bad members are replaced by copies of good ones with other hyperparameters.

Unlike tournaments, which resample the whole population, members that are not replaced stay in their slots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError
from agilerl.hpo.bandit import Trial, gaussian_processes, places_of, propose, values_of
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.mutation import MutationRecord
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.tournament import rank
from agilerl.ranges import DECAYS, has_scale
from agilerl.telemetry.record import Birth, MemberRecord

QUARTER = 4


def successor(parent: Any, index: int, values: Mapping[str, float], generation: int) -> tuple[Any, Birth]:
    """Copy `parent` with new hyperparameters; return the copy and its birth record."""
    child = parent.clone(index=index)
    before = {name: getattr(child, name) for name in values}
    for name, value in values.items():
        setattr(child, name, value)
    path, fitness = ", ".join(values), parent.fitness
    kind = "rl_hp" if values else "none"
    child.mut, child.mutation_record = path or "None", MutationRecord(kind, path, before, dict(values), 0.0)
    child.mutation_hook()
    last = float(fitness[-1]) if fitness else None
    return child, Birth(index, parent.index, generation, kind, path, before, dict(values), 0.0, last)


def _numbers(agent: Any) -> dict[str, Any]:
    """Return the current values of the mutable hyperparameters."""
    return {name: getattr(agent, name) for name in agent.registry.hp_config.names()}


def perturbed(parent: Any, rng: np.random.Generator, *, by_horizon: bool = True) -> dict[str, Any]:
    """Return every mutable hyperparameter of `parent` one step up or down, within its range.

    by_horizon: whether those in `DECAYS` move by the same factors in 1 - x. A horizon of 1 / (1 - gamma) steps has a
        natural scale, and 0.8 times a discount of 0.99 is a horizon of 5 steps.
    """
    values = {}
    for name, parameter in parent.registry.hp_config.copy().items():
        value = getattr(parent, name)
        if by_horizon and name in DECAYS and has_scale(name, parameter.min, parameter.max):
            rest = RLParameter(1 - parameter.max, 1 - parameter.min, parameter.shrink_factor, parameter.grow_factor)
            rest.value = 1 - value
            values[name] = min(max(1 - rest.mutate(rng), parameter.min), parameter.max)
        else:
            parameter.value = value
            values[name] = parameter.mutate(rng)
    return values


class TruncationSelection(Evolution):
    """Replace the worst quarter by copies of the best quarter, every hyperparameter one step up or down (PBT).

    Truncation selection and perturbation of Jaderberg et al. 2017 (arXiv:1711.09846), section 4.1, with quarters for
    its fifths.

    Args:
        interval: generations between two selections. seed: of the draws.
    """

    def __init__(self, interval: int, seed: int) -> None:
        self.interval, self.seed = interval, seed

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        if generation % self.interval:
            return list(population), ()
        rng = stream(self.seed, Purpose.SELECTION, generation)
        count = len(population) // QUARTER or int(len(population) > 1)
        order = [int(slot) for slot in rank([record.fitness for record in records]).argsort()]  # worst first
        after, births, free = list(population), [], max(agent.index for agent in population) + 1
        best = order[-count:]
        for slot in order[:count]:
            parent = population[best[int(rng.integers(len(best)))]]
            after[slot], birth = successor(parent, free, perturbed(parent, rng), generation)
            births.append(birth)
            free += 1
        return after, tuple(births)

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])


class PopulationBandit(Evolution):
    """Replace the worst quarter by copies of the best, with hyperparameters chosen by a bandit (PB2).

    Algorithm 1 of Parker-Holder, Nguyen and Roberts 2020 (arXiv:2002.02518). In each generation, the fitness gain of
    every member is a trial of its hyperparameters. A member of the worst quarter becomes a copy of a random member of
    the best quarter, with the hyperparameters proposed by `hpo.bandit.propose`.

    Args:
        seed: of the draws.
    Attributes:
        trials: so far. before: fitness of each member at the last selection, by id.
    Raises:
        ConfigError: scikit-learn is not installed.
    """

    def __init__(self, seed: int) -> None:
        gaussian_processes()
        self.seed, self.trials = seed, list[Trial]()
        self.before: dict[int, float] = {}

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        ranges = dict(population[0].registry.hp_config.items())
        if not ranges:
            raise ConfigError("evolution.scheme=pb2 chooses hyperparameters: name ranges in mutation.rl_hp_selection.")
        fitness = [record.fitness for record in records]
        # By slot: a healed member has a different id from its record, and its gain is not due to its hyperparameters.
        for agent, value in zip(population, fitness, strict=True):
            gain = value - self.before.get(agent.index, math.nan)
            if math.isfinite(gain):
                self.trials.append(Trial(values_of(agent, ranges), generation, gain))
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

    def renamed(self, ids: Mapping[int, int]) -> None:
        self.before = {ids.get(member, member): value for member, value in self.before.items()}

    def state(self) -> dict[str, Any]:
        trials = [[dict(trial.values), trial.generation, trial.gain] for trial in self.trials]
        return {"seed": self.seed, "trials": trials, "before": dict(self.before)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])
        self.trials = [
            Trial({str(name): float(value) for name, value in values.items()}, int(when), float(gain))
            for values, when, gain in state["trials"]
        ]
        self.before = {int(member): float(value) for member, value in state["before"].items()}


class MultipleFrequencies(Evolution):
    """Sub-populations that evolve at different frequencies, with migration between them (MF-PBT).

    Doulazmi et al. 2025 (arXiv:2506.03225), section 4: part i evolves after every `frequencies[i]`-th generation. Its
    members are ranked and cut into quarters. The best two quarters stay. The last one becomes copies of the first, each
    hyperparameter one step up or down. The third one is replaced by better members of other parts, best first. Migrants
    from a part that evolves less often keep their hyperparameters. Migrants from a part that evolves more often, whose
    hyperparameters are greedy, take those of the receiving part's best member.

    Args:
        frequencies: in generations, one per part. members: size of the whole population. seed: of the draws.
    Raises:
        ConfigError: the members cannot be split into equal parts with quarters.
    """

    def __init__(self, frequencies: Sequence[int], members: int, seed: int) -> None:
        self.frequencies, self.seed = tuple(frequencies), seed
        parts = len(self.frequencies)
        if not parts:
            raise ConfigError(
                "evolution.scheme=mf_pbt: evolution.frequencies must name one or more numbers of generations; got "
                "none. fix: evolution.frequencies=[1, 10]."
            )
        if members % (parts * QUARTER):
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
            if settings is None:  # parent from the part's best quarter: perturb its hyperparameters
                values = perturbed(population[network], rng, by_horizon=False)
            else:
                values = _numbers(population[settings]) if settings != network else {}
            after[slot], birth = successor(population[network], free, values, generation)
            births.append(birth)
            free += 1
        return after, tuple(births)

    def _heirs(self, part: int, fitness: Sequence[float]) -> dict[int, tuple[int, int | None]]:
        """Map replaced slots to (source of networks, source of hyperparameters; None: perturb the source's own)."""
        slots = range(part * self.size, (part + 1) * self.size)
        order = sorted(slots, key=lambda slot: -fitness[slot])
        quarter = self.size // QUARTER
        heirs: dict[int, tuple[int, int | None]] = {
            slot: (best, None) for slot, best in zip(order[-quarter:], order[:quarter], strict=True)
        }
        others = sorted((slot for slot in range(len(fitness)) if slot not in slots), key=lambda slot: -fitness[slot])
        for slot in order[2 * quarter : 3 * quarter]:
            if others and fitness[others[0]] > fitness[slot]:
                migrant = others.pop(0)
                rarer = self.frequencies[migrant // self.size] > self.frequencies[part]
                heirs[slot] = (migrant, migrant if rarer else order[0])
        return heirs

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed, "frequencies": list(self.frequencies)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed, self.frequencies = int(state["seed"]), tuple(state["frequencies"])
