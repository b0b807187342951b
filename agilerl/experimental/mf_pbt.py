"""Population-based training at several frequencies (MF-PBT)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.pbt import QUARTER, perturbed, successor
from agilerl.telemetry.record import MemberRecord


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


def _numbers(agent: foreign.Agent) -> dict[str, Any]:
    """Return the current values of the mutable hyperparameters."""
    return {name: getattr(agent, name) for name in agent.registry.hp_config.names()}
