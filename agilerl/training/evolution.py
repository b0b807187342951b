"""Selection, mutation and births between two generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.errors import RunError
from agilerl.telemetry.record import Birth
from agilerl.training.records import birth_of


class Evolution:
    """Makes the next population, and remembers where its members come from.

    Args:
        tournament, mutation: objects with `select` and `mutation`; without either nothing evolves.

    Attributes:
        parents, labels: by member id: the parent's id, and what the birth did.
    """

    def __init__(self, tournament: Any, mutation: Any, founders: Sequence[Any]) -> None:
        self.tournament, self.mutation = tournament, mutation
        self.parents: dict[int, int | None] = {agent.index: None for agent in founders}
        self.labels: dict[int, str] = {}

    @property
    def is_on(self) -> bool:
        """Whether there is selection and mutation."""
        return self.tournament is not None and self.mutation is not None

    def next(self, population: Sequence[Any], generation: int) -> tuple[list[Any], tuple[Birth, ...]]:
        """(the population that trains in `generation`, its births)."""
        before = {agent.index: agent for agent in population}
        _, chosen = self.tournament.select(population)
        origin = getattr(self.tournament, "parents", [])
        after = self.mutation.mutation(chosen)
        births = []
        for slot, agent in enumerate(after):
            parent = origin[slot] if slot < len(origin) else None
            if agent.index in before and str(agent.mut) == "None":
                continue  # the elite lives on; nothing was born
            births.append(birth_of(agent, parent, before, generation))
            self.parents[agent.index] = parent
            self.labels[agent.index] = str(agent.mut)
        return after, tuple(births)

    def state(self) -> dict[str, Any]:
        """What the next generation's selection and mutation depend on, and the family so far."""
        parts = {"tournament": self.tournament, "mutation": self.mutation}
        return {
            "parents": dict(self.parents),
            "labels": dict(self.labels),
            **{name: _state_of(name, part) for name, part in parts.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self.parents, self.labels = dict(state["parents"]), dict(state["labels"])
        for name, part in (("tournament", self.tournament), ("mutation", self.mutation)):
            if (part is None) != (state[name] is None):
                given = "none" if part is None else f"a {type(part).__name__}"
                raise RunError(f"the run was saved with{'' if part is None else 'out'} a {name}; got {given}.")
            if part is not None:
                part.load_state(state[name])


def _state_of(name: str, part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    if not callable(getattr(part, "state", None)) or not callable(getattr(part, "load_state", None)):
        raise RunError(
            f"{name}: a {type(part).__name__} has no state() and load_state(state), so a run with it cannot be saved. "
            "fix: add them, or train without saving."
        )
    return dict(part.state())


def two_fittest(population: Sequence[Any], values: Sequence[float]) -> list[Any]:
    """The two members with the highest `values`; a tie goes to the lower slot."""
    order = np.argsort([-value for value in values], kind="stable")[:2]
    return [population[int(i)] for i in order]
