"""Selection, mutation and births between two generations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agilerl import foreign
from agilerl.errors import RunError
from agilerl.telemetry.record import Birth, MemberRecord

Births = tuple[Birth, ...]


class Evolution(ABC):
    """How one population becomes the next.

    Attributes:
        shrinks: whether members end before the run does, and leave their environment steps to the others.
    """

    shrinks: bool = False

    @property
    def is_on(self) -> bool:
        """Whether there is any; False leaves every population as it is."""
        return True

    def begin_anew(self, env_steps: int) -> None:  # noqa: B027  # a default, not a hole
        """New founders begin when a member has made so many steps; nothing depends on it by default."""

    @abstractmethod
    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """(the population that trains in `generation`, who was born in it).

        Args:
            population: the agents, slot by slot, with their fitness. records: what each did, slot by slot.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What the next generation depends on, as plain data; RunError where it cannot be saved."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""


class TournamentEvolution(Evolution):
    """Selection by `tournament`, then `mutation`.

    Args:
        tournament, mutation: objects with `select` and `mutation`; without either nothing evolves.
        keeps_elite_id: whether an elite that mutates keeps its id, as in the published functions, where others' streams
            of exploration follow from their ids; its birth names itself as the parent then.
    """

    def __init__(self, tournament: Any = None, mutation: Any = None, *, keeps_elite_id: bool = True) -> None:
        self.tournament, self.mutation, self.keeps_elite_id = tournament, mutation, keeps_elite_id

    @property
    def is_on(self) -> bool:
        return self.tournament is not None and self.mutation is not None

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        before = {agent.index: agent for agent in population}
        _, chosen = self.tournament.select(population)
        origin = foreign.parents(self.tournament)
        after = self.mutation.mutation(chosen)
        births = []
        for slot, agent in enumerate(after):
            if agent.index in before and str(agent.mut) == "None":
                continue  # the elite lives on; nothing was born
            if agent.index in before and not self.keeps_elite_id:
                agent.index = max(*before, *(other.index for other in after)) + 1
            births.append(_birth_of(agent, origin[slot] if slot < len(origin) else None, before, generation))
        return after, tuple(births)

    def _parts(self) -> dict[str, Any]:
        return {"tournament": self.tournament, "mutation": self.mutation}

    def state(self) -> dict[str, Any]:
        return {name: _state_of(name, part) for name, part in self._parts().items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts().items():
            if (part is None) != (state[name] is None):
                given = "none" if part is None else f"a {type(part).__name__}"
                raise RunError(f"the run was saved with{'' if part is None else 'out'} a {name}; got {given}.")
            if part is not None:
                part.load_state(state[name])


class EveryFew(Evolution):
    """Another evolution, after every `every`-th generation alone."""

    def __init__(self, inner: Evolution, every: int) -> None:
        self.inner, self.every = inner, every

    @property
    def is_on(self) -> bool:
        return self.inner.is_on

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        return (list(population), ()) if generation % self.every else self.inner.next(population, records, generation)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state(state)


class Family:
    """Where members come from.

    Attributes:
        parents, labels: by member id: the parent's id, and what the birth did.
    """

    def __init__(self, founders: Sequence[Any]) -> None:
        self.parents: dict[int, int | None] = {agent.index: None for agent in founders}
        self.labels: dict[int, str] = {}

    @property
    def next_id(self) -> int:
        """An id above all that members have had."""
        return max(self.parents) + 1

    def add(self, births: Sequence[Birth], population: Sequence[Any], before: Sequence[int] = ()) -> Births:
        """Record the births, each newborn's `mut` as the label of what its birth did; returns them.

        An id that another member has had becomes a new one, in `population` too: where members have ended, ids above
        those of the population may be theirs.

        Args:
            before: ids of the population until then; who has changed and lives on may keep its own.
        """
        members = {agent.index: agent for agent in population}
        added, unused = [], max(self.next_id, *(birth.id + 1 for birth in births), 0)
        for birth in births:
            newborn = members[birth.id]
            if birth.id in self.parents and birth.id not in before:
                newborn.index, unused = unused, unused + 1
                birth = replace(birth, id=newborn.index)
            self.parents[birth.id] = birth.parent
            self.labels[birth.id] = birth.kind if birth.kind == "healed" else str(newborn.mut)
            added.append(birth)
        return tuple(added)

    def state(self) -> dict[str, Any]:
        return {"parents": dict(self.parents), "labels": dict(self.labels)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.parents, self.labels = dict(state["parents"]), dict(state["labels"])


def _birth_of(agent: Any, parent: int | None, parents: dict[int, Any], generation: int) -> Birth:
    """How `agent` came to be: its parent's id and what mutation did to it."""
    record = foreign.mutation_record(agent)
    fitness = parents[parent].fitness[-1] if parent in parents and parents[parent].fitness else None
    if record is None:
        return Birth(agent.index, parent, generation, "none", parent_fitness=fitness)
    return Birth(
        agent.index, parent, generation, record.kind, record.path, record.before, record.after, record.change, fitness
    )


def _state_of(name: str, part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    if not foreign.has_methods(part, "state", "load_state"):
        raise RunError(
            f"{name}: a {type(part).__name__} has no state() and load_state(state), so a run with it cannot be saved. "
            "fix: add them, or train without saving."
        )
    return dict(part.state())
