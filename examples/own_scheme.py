"""A scheme of evolution of your own: every few generations the worst member becomes a copy of the best.

agilerl train CartPole-v1 --import examples/own_scheme.py --set evolution.scheme=own_scheme:CopyBest
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.pbt import successor
from agilerl.telemetry.record import MemberRecord


class CopyBest(Evolution):
    """Replace the worst member by a copy of the best.

    Args:
        interval: generations between two copies (`evolution.interval`).
    """

    def __init__(self, interval: int) -> None:
        self.interval, self.copies = interval, 0

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        if generation % self.interval or len(population) < 2:
            return list(population), ()
        worst, *_, best = sorted(range(len(population)), key=lambda slot: records[slot].fitness)
        new_id = max(agent.index for agent in population) + 1
        after = list(population)
        after[worst], birth = successor(population[best], new_id, {}, generation)
        self.copies += 1
        return after, (birth,)

    def state(self) -> dict[str, Any]:
        return {"copies": self.copies}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.copies = int(state["copies"])
