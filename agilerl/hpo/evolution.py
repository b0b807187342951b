"""Selection, mutation and births between two generations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from agilerl.core import foreign
from agilerl.core.env_ids import working_directory
from agilerl.core.signatures import VARIADIC, constructor_arguments, taken_by
from agilerl.envs.returned import short
from agilerl.errors import ConfigError, NotAvailableYetError, RunError
from agilerl.hpo.schemes import Scheme
from agilerl.telemetry.record import Birth, MemberRecord

Births = tuple[Birth, ...]


class Evolution(ABC):
    """Base class: how one population becomes the next.

    Attributes:
        shrinks: whether members may stop early, and leave the population smaller.
        sets_size: whether the number of members follows a plan, so that one more takes the place of another.
    """

    shrinks: bool = False
    sets_size: bool = True

    @property
    def is_on(self) -> bool:
        """Whether evolution is enabled; False keeps every population unchanged."""
        return True

    @property
    def shares_budget(self) -> bool:
        """Whether the environment steps that are left are divided among the members, whose number changes; by default
        if they may stop early (`shrinks`)."""
        return self.shrinks

    def begin_anew(self, env_steps: int) -> None:  # noqa: B027  # optional hook
        """New founders start at `env_steps` steps per member; no-op by default."""

    def budget_left(self, env_steps: int) -> None:  # noqa: B027  # optional hook
        """All members together have `env_steps` steps left, after a selection; no-op by default.

        Only called with `shares_budget`.
        """

    def renamed(self, ids: Mapping[int, int]) -> None:  # noqa: B027  # optional hook
        """Newborns of the last selection have other ids, since theirs had been used (`Family.add`); no-op by default.

        Args:
            ids: id by the id that `next` gave.
        """

    @abstractmethod
    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Return (the population that trains in `generation`, its births).

        Args:
            population: the agents by slot, with their fitness. records: statistics of each member, by slot.
        """

    def next_part(
        self, slots: Sequence[int], population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """Return (the members that train next in these slots, their births), while those of other slots train.

        Args:
            population: the agents by slot, as they were evaluated last. records: see `next`, by slot.
        Raises:
            NotAvailableYetError: the scheme needs all members of a generation (default).
        """
        raise NotAvailableYetError(
            f"{type(self).__name__} compares all members of one generation, and in asynchronous mode others are still "
            "training. fix: evolution.scheme=tournament, or evolution.mode=generations."
        )

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """State that the next generation depends on, as plain data; RunError if it cannot be saved."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`."""


class TournamentEvolution(Evolution):
    """Selection by `tournament`, then `mutation`.

    Args:
        tournament, mutation: objects with `select` and `mutation`; without either there is no evolution.
        keeps_elite_id: whether a mutated elite keeps its id, as in the published functions, where exploration streams
            are keyed by id; its birth then names itself as the parent.
        every: generations between two selections.
    """

    def __init__(
        self, tournament: Any = None, mutation: Any = None, *, keeps_elite_id: bool = True, every: int = 1
    ) -> None:
        self.tournament, self.mutation, self.keeps_elite_id, self.every = tournament, mutation, keeps_elite_id, every

    @property
    def is_on(self) -> bool:
        return self.tournament is not None and self.mutation is not None

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        if generation % self.every:
            return list(population), ()
        chosen = self._selected(population)
        after = self.mutation.mutation(chosen)
        _check_members(after, f"{type(self.mutation).__name__}.mutation(population)", len(chosen))
        return after, self._births(after, population, generation)

    def next_part(
        self, slots: Sequence[int], population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        """See `Evolution.next_part`; the best member of all stays in its slots, and is not mutated there."""
        has_elite, chosen = self.tournament.select_part(population, slots)
        after = self.mutation.mutation_of_part(chosen, has_elite)
        return after, self._births(after, population, generation)

    def _births(self, after: Sequence[Any], population: Sequence[Any], generation: int) -> Births:
        """Return the births of the agents that the tournament has just selected from `population`."""
        before, origin, births = {a.index: a for a in population}, foreign.parents(self.tournament), []
        for slot, agent in enumerate(after):
            if agent.index in before and str(agent.mut) == "None":
                continue  # unchanged elite: no birth
            if agent.index in before and not self.keeps_elite_id:
                agent.index = max(*before, *(other.index for other in after)) + 1
            births.append(_birth_of(agent, origin[slot] if slot < len(origin) else None, before, generation))
        return tuple(births)

    def _selected(self, population: Sequence[Any]) -> list[Any]:
        """Return the next generation as the tournament selects it.

        Raises:
            ConfigError: something other than (elite, agents).
        """
        selected, call = self.tournament.select(population), f"{type(self.tournament).__name__}.select(population)"
        if not isinstance(selected, tuple) or len(selected) != 2:
            raise ConfigError(f"{call} must return (elite, agents); it returned {short(selected)}. fix: return both.")
        _check_members(selected[1], call, len(population))
        return list(selected[1])

    def _parts(self) -> dict[str, Any]:
        return {"tournament": self.tournament, "mutation": self.mutation}

    def state(self) -> dict[str, Any]:
        return {name: _state_of(name, part) for name, part in self._parts().items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, part in self._parts().items():
            if (part is None) != (state[name] is None):
                current = "none" if part is None else f"a {type(part).__name__}"
                raise RunError(f"the run was saved with{'' if part is None else 'out'} a {name}; got {current}.")
            if part is not None:
                part.load_state(state[name])


def _check_members(members: Any, call: str, count: int) -> None:
    """Raise ConfigError unless `members` is a list of `count` agents."""
    is_list = isinstance(members, Sequence) and not isinstance(members, str)
    if is_list and len(members) == count and all(hasattr(agent, "index") for agent in members):
        return
    returned = f"{len(members)} entries, {short(members)}" if is_list else short(members)
    raise ConfigError(f"{call} must return a list of {count} agents; it returned {returned}. fix: one for each member.")


def evolution_of(scheme: Scheme, arguments: Mapping[str, Any]) -> Evolution:
    """Import a scheme and construct it with those of the arguments that its constructor takes by name.

    Raises:
        ConfigError: it cannot be imported, is no `Evolution`, or requires other arguments.
    """
    cls: Any = None
    try:
        with working_directory():
            cls = resolve_name(scheme.path)
        problem = "" if isinstance(cls, type) and issubclass(cls, Evolution) else f"it is {cls!r}"
    except (ImportError, AttributeError) as error:
        problem = str(error)
        if scheme.extra and isinstance(error, ImportError):
            raise ConfigError(
                f"{scheme.name} (evolution.scheme): {error.name} is not installed. "
                f'fix: pip install "agilerl[{scheme.extra}]"'
            ) from None
    if not problem:
        required = [p for p in constructor_arguments(cls).values() if p.default is p.empty and p.kind not in VARIADIC]
        missing = [p.name for p in required if p.name not in arguments]
        problem = f"its constructor requires {', '.join(missing)}" if missing else ""
    if problem:
        raise ConfigError(
            f"{scheme.name} (evolution.scheme) must name a subclass of agilerl.hpo.evolution.Evolution whose "
            f"constructor takes any of {', '.join(arguments)}; {problem}. "
            "fix: evolution.scheme=my_module:MyScheme, with --import my_module.py."
        )
    evolution: Evolution = cls(**taken_by(cls, arguments))
    return evolution


class Family:
    """Lineage of the members.

    Attributes:
        parents, labels: by member id: the parent's id, and the mutation at birth.
    """

    def __init__(self, founders: Sequence[Any]) -> None:
        self.parents: dict[int, int | None] = {agent.index: None for agent in founders}
        self.labels: dict[int, str] = {}

    @property
    def next_id(self) -> int:
        """Return an id above all ids used so far."""
        return max(self.parents) + 1

    def add(self, births: Sequence[Birth], population: Sequence[Any], before: Sequence[int] = ()) -> Births:
        """Record births, labelling each with the newborn's `mut`; return them.

        Reused ids are replaced by new ones, in `population` too: after members have stopped, ids above those of the
        population may be taken.

        Args:
            before: ids of the previous population; a changed survivor may keep its id.
        """
        members = {agent.index: agent for agent in population}
        added, unused = [], max(self.next_id, *(birth.id + 1 for birth in births), 0)
        for birth in births:
            newborn = members[birth.id]
            if birth.id in self.parents and birth.id not in before:
                newborn.index, unused = unused, unused + 1
                birth = replace(birth, id=newborn.index)
            self.parents[birth.id] = birth.parent
            self.labels[birth.id] = birth.kind if birth.kind in ("healed", "steered") else str(newborn.mut)
            added.append(birth)
        return tuple(added)

    def state(self) -> dict[str, Any]:
        return {"parents": dict(self.parents), "labels": dict(self.labels)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.parents, self.labels = dict(state["parents"]), dict(state["labels"])


def add_births(
    evolution: Evolution, family: Family, births: Births, population: Sequence[Any], before: Sequence[int] = ()
) -> Births:
    """Record the births of a selection in the family (`Family.add`), and tell the evolution of other ids."""
    added = family.add(births, population, before)
    ids = {birth.id: other.id for birth, other in zip(births, added, strict=True) if birth.id != other.id}
    if ids:
        evolution.renamed(ids)
    return added


def _birth_of(agent: foreign.Agent, parent: int | None, parents: dict[int, Any], generation: int) -> Birth:
    """Return the birth of `agent`: its parent's id and its mutation."""
    record = foreign.mutation_record(agent)
    fitness = parents[parent].fitness[-1] if parent in parents and parents[parent].fitness else None
    if record is None:
        return Birth(agent.index, parent, generation, "none", parent_fitness=fitness)
    return Birth(agent.index, parent, generation, **vars(record), parent_fitness=fitness)


def _state_of(name: str, part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    if not foreign.has_methods(part, "state", "load_state"):
        what = f"{name}: a {type(part).__name__} has no state() and load_state(state), so a run with it cannot be saved"
        raise RunError(f"{what}. fix: add them, or train without saving.")
    return dict(part.state())
