"""Population-based training: bad members are replaced by copies of good ones with other hyperparameters.

Unlike tournaments, which resample the whole population, members that are not replaced stay in their slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.mutation import MutationRecord
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.scales import DECAYS, has_scale
from agilerl.hpo.tournament import rank
from agilerl.telemetry.record import Birth, MemberRecord

QUARTER = 4


def successor(parent: foreign.Agent, index: int, values: Mapping[str, float], generation: int) -> tuple[Any, Birth]:
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


def perturbed(parent: foreign.Agent, rng: np.random.Generator, *, by_horizon: bool = True) -> dict[str, Any]:
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
