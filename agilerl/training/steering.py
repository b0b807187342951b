"""Applies requests of users to a running population, between two generations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.collect.fitness import MeanReturn
from agilerl.core import foreign
from agilerl.hpo.evolution import Births
from agilerl.hpo.mutation import MutationRecord
from agilerl.hpo.tournament import nan_as_worst
from agilerl.ranks import ONE, Ranks
from agilerl.runs.steering import FOR_ONE, Inbox, Request, Taken
from agilerl.telemetry.record import Birth, Steering

if TYPE_CHECKING:
    from agilerl.algorithms.base.agent import EvolvableAlgorithm

BEFORE_SELECTION = ("protect", "unprotect", "unpin", "remove", "evaluate", "stop")
AFTER_SELECTION = ("set", "pin", "clone")


class _Refused(Exception):
    """A request that cannot be carried out, with the reason."""


def before_selection(requests: Iterable[Taken]) -> list[Taken]:
    """Return the requests that are carried out before selection, in the order of asking."""
    return [taken for taken in requests if taken.request.action in BEFORE_SELECTION]


def after_selection(requests: Iterable[Taken], events: Mapping[str, Steering]) -> list[Taken]:
    """Return the requests that are carried out after selection, in the order of asking.

    An `unpin` comes before selection, so that mutation may change the value at once. One that was asked after a `pin`
    comes again after it.

    Args:
        events: the requests before selection with their results, by id.
    """
    wanted: list[Taken] = []
    for taken in requests:
        action = taken.request.action
        follows_pin = action == "unpin" and any(earlier.request.action == "pin" for earlier in wanted)
        if action in AFTER_SELECTION or (follows_pin and "refused" not in events[taken.id].result):
            wanted.append(taken)
    return wanted


@dataclass
class Members:
    """The population between two generations, while requests are carried out.

    Attributes:
        agents: by slot. generation: the one that trains next. next_id: for newborns.
        selected: births of the selection that has just made this population.
        born: births by requests, by id: one for each member that is there, with all that was changed.
        became: id of a member -> id of the changed copy in its place.
        replaced: by slot, the member that was there before the requests.
    """

    agents: list[Any]
    generation: int
    next_id: int
    selected: Births = ()
    born: dict[int, Birth] = field(default_factory=dict)
    became: dict[int, int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replaced = [int(agent.index) for agent in self.agents]

    @property
    def ids(self) -> list[int]:
        """Ids by slot."""
        return [int(agent.index) for agent in self.agents]

    def slot(self, member: int) -> int:
        """Return the slot of a member; an error if it has none."""
        if member not in self.ids:
            raise _Refused(f"member {member} has left the population")
        return self.ids.index(member)

    def named(self, member: int) -> list[int]:
        """Resolve replaced members to their replacement, and removed members to their children."""
        if member in self.ids:
            return [member]
        children = [birth.id for birth in self.selected if birth.parent == member]
        then = [member] if member in self.replaced else children
        return [now for now in (self.became.get(number, number) for number in then) if now in self.ids]

    def copy(self, slot: int, parent: foreign.Agent) -> int:
        """Put a copy of `parent` into a slot, and return its id."""
        child = self._put(slot, parent)
        self._record(child, self.born[child.index])
        return int(child.index)

    def change(self, slot: int, name: str, value: object) -> int:
        """Give the member in a slot a value, and return its id: of a copy, or of the one that a request has made."""
        agent = self.agents[slot]
        if agent.index not in self.born:
            child = self._put(slot, agent)
            self.became[agent.index] = child.index
            agent = child
        birth, old = self.born[agent.index], getattr(agent, name)
        setattr(agent, name, value)
        self._record(agent, _with_change(birth, name, old, value))
        return int(agent.index)

    def _put(self, slot: int, parent: foreign.Agent) -> Any:
        """Put a copy into a slot; a copy of a newborn of a request shares its birth, since both have one parent."""
        child = _cloneable(parent).clone(index=self.next_id)
        last = float(parent.fitness[-1]) if parent.fitness else None
        birth = Birth(child.index, parent.index, self.generation, "steered", "", None, None, 0.0, last)
        if parent.index in self.born:
            birth = replace(self.born[parent.index], id=child.index)
        self.born.pop(self.agents[slot].index, None)  # it has never trained
        self.agents[slot], self.born[child.index] = child, birth
        self.next_id += 1
        return child

    def _record(self, agent: EvolvableAlgorithm, birth: Birth) -> None:
        self.born[agent.index] = birth
        agent.mut = "steered"
        agent.mutation_record = MutationRecord("steered", birth.path, birth.before, birth.after, 0.0)
        agent.mutation_hook()

    def end(self, slot: int) -> None:
        """Remove the member; later slots shift down."""
        self.born.pop(self.agents[slot].index, None)
        del self.agents[slot], self.replaced[slot]

    def fitness(self) -> list[float]:
        """Return the last fitness by slot; NaN and missing values are the worst."""
        return nan_as_worst([a.fitness[-1] if a.fitness else -np.inf for a in self.agents])


class SteeringWheel:
    """Applies requests between two generations, and remembers those that last.

    Args:
        inbox: of the run. ranks: the main one takes requests for all.

    Attributes:
        pins: member id -> {hyperparameter: value}; descendants inherit them. protected: ids that selection keeps.
    """

    def __init__(self, inbox: Inbox, ranks: Ranks = ONE) -> None:
        self.inbox, self.ranks = inbox, ranks
        self.pins: dict[int, dict[str, Any]] = {}
        self.protected: set[int] = set()

    def take(self, generation: int) -> list[Taken]:
        """Return the requests that take effect before `generation`; the same on all ranks."""
        return self._on_all_ranks(self.inbox.take(generation) if self.ranks.is_main else [])

    def late(self, generation: int, recorded: Collection[str], is_over: bool) -> list[Steering]:
        """Return requests that arrived after the end of the run, marked as refused and added to the lineage.

        Args:
            recorded: ids of requests with a record.
            is_over: whether the run ends now, so that those which still wait are refused; else they are those that it
                had refused when it ended before.
        """
        late: list[Taken] = []
        if self.ranks.is_main:
            if is_over:
                self.inbox.refuse(generation)
            late = self.inbox.refused(generation, recorded)
        events = self.carry_out(self._on_all_ranks(late), Members([], generation, 0))
        if events:
            self.inbox.append_to_lineage(events)
        return events

    def _on_all_ranks(self, taken: list[Taken]) -> list[Taken]:
        """Return the requests that the main rank has taken."""
        if self.ranks.size == 1:
            return taken
        return [Taken.from_dict(plain) for plain in self.ranks.gather_plain([asdict(request) for request in taken])[0]]

    # --- selection -------------------------------------------------------------------------------------------------

    def keep_protected(
        self, before: Sequence[Any], after: Sequence[Any], births: Births, sets_size: bool
    ) -> tuple[list[Any], Births]:
        """Return the population and births of a selection, with removed members restored if protected.

        Each takes the place of the newborn in its slot, or of another one; without newborns, that of the least fit
        other member. Where the number of members follows no plan (`sets_size`), it is added.
        """
        members, remaining = list(after), list(births)
        present = {agent.index for agent in members}
        for slot, agent in enumerate(before):
            if agent.index not in self.protected or agent.index in present:
                continue
            if len(members) < len(before) and not sets_size:
                members.append(agent)
                continue
            newborns = {birth.id for birth in remaining}
            places = [at for at, candidate in enumerate(members) if candidate.index in newborns]
            if not places:
                free = [at for at, candidate in enumerate(members) if candidate.index not in self.protected]
                places = sorted(free, key=lambda at: members[at].fitness[-1] if members[at].fitness else -np.inf)[:1]
            if not places:
                members.append(agent)
                continue
            place = slot if slot in places else places[-1]
            remaining = [birth for birth in remaining if birth.id != members[place].index]
            members[place] = agent
        order = {agent.index: slot for slot, agent in enumerate(before)}
        if len(members) < len(before):  # survivors stay in the order of their slots
            members.sort(key=lambda agent: order.get(agent.index, len(before)))
        return members, tuple(remaining)

    def inherit(self, population: Sequence[Any], births: Births) -> Births:
        """Give newborns the pins of their parents; births then show the pinned values."""
        agents, shown = {agent.index: agent for agent in population}, []
        for birth in births:
            pins = self.pins.get(birth.id if birth.parent is None else birth.parent, {})
            agent = agents.get(birth.id)
            if pins and agent is not None:
                self.pins[birth.id] = dict(pins)
                birth = _with_pins(agent, birth, pins)
            shown.append(birth)
        return tuple(shown)

    def forget_others(self, population: Sequence[Any]) -> None:
        """Drop the state of removed members."""
        ids = {agent.index for agent in population}
        self.pins = {member: pins for member, pins in self.pins.items() if member in ids}
        self.protected &= ids

    # --- requests --------------------------------------------------------------------------------------------------

    def carry_out(
        self,
        requests: Iterable[Taken],
        members: Members,
        *,
        shrinks: bool = False,
        evaluate: Callable[[Any], MeanReturn | None] | None = None,
    ) -> list[Steering]:
        """Carry out requests in order, and return them with their results; `members` changes in place.

        shrinks: whether the population may have fewer members. evaluate: agent -> held-out return, None if there is
            none.
        """
        results: list[tuple[Taken, dict[str, Any]]] = []
        for taken in requests:
            try:
                if taken.refused:
                    raise _Refused(taken.refused)
                result = self._one(taken.request, members, shrinks, evaluate)
            except _Refused as error:
                result = {"refused": str(error)}
            results.append((taken, result))
        events, present = [], members.ids
        for taken, result in results:
            if "born" in result:  # without those whose place a later request has given to a copy
                result["born"] = [member for member in result["born"] if member in present]
            request = asdict(taken.request)
            events.append(Steering(generation=members.generation, request=taken.id, **request, result=result))
        return events

    def _one(
        self, request: Request, members: Members, shrinks: bool, evaluate: Callable[[Any], MeanReturn | None] | None
    ) -> dict[str, Any]:
        if request.action == "stop":
            return {}
        ids = self._meant(request, members)
        if request.action == "evaluate":
            return {"scores": {str(member): _score(evaluate, members.agents[members.slot(member)]) for member in ids}}
        if request.action == "protect":
            self.protected.update(ids)
        elif request.action == "unprotect":
            self.protected.difference_update(ids)
        elif request.action == "unpin":
            for member in ids:
                self.pins.get(member, {}).pop(request.name, None)
        elif request.action == "remove":
            return self._remove(ids[0], members, shrinks)
        elif request.action == "clone":
            return self._clone(ids[0], members)
        else:
            for agent in members.agents:
                _cloneable(agent)
            return {"born": [self._set(member, members, request) for member in ids]}
        return {}

    def _meant(self, request: Request, members: Members) -> list[int]:
        """Return ids of the members that a request names; of the children of an ended one, `clone` takes the first.

        Raises:
            _Refused: there are none.
        """
        if request.member is None:
            return members.ids
        named = members.named(request.member)
        if not named:
            raise _Refused(f"member {request.member} has left the population")
        return named[:1] if request.action in FOR_ONE else named

    def _set(self, member: int, members: Members, request: Request) -> int:
        born = members.change(members.slot(member), request.name, request.value)
        if born != member:
            self._follow(member, born)
        if request.action == "pin":
            self.pins.setdefault(born, {})[request.name] = request.value
        elif request.name in self.pins.get(born, {}):
            self.pins[born][request.name] = request.value
        return born

    def _follow(self, member: int, born: int) -> None:
        """Transfer pins and protection from a member to its replacement."""
        if member in self.pins:
            self.pins[born] = dict(self.pins[member])
        if member in self.protected:
            self.protected = (self.protected - {member}) | {born}

    def _clone(self, member: int, members: Members) -> dict[str, Any]:
        fitness, ids = members.fitness(), members.ids
        others = [slot for slot, other in enumerate(ids) if other != member and other not in self.protected]
        if not others:
            raise _Refused("there is no other member whose place a copy could take")
        worst = min(others, key=lambda slot: fitness[slot])
        return {"born": [self._copy(worst, members.slot(member), members)], "instead_of": members.replaced[worst]}

    def _copy(self, slot: int, source: int, members: Members) -> int:
        """Put a copy of the member in the slot `source` into another slot, with its pins; return its id."""
        member = members.agents[source].index
        born = members.copy(slot, members.agents[source])
        if member in self.pins:
            self.pins[born] = dict(self.pins[member])
        return born

    def _remove(self, member: int, members: Members, shrinks: bool) -> dict[str, Any]:
        slot = members.slot(member)
        if len(members.agents) == 1:
            raise _Refused("it is the only member")
        self.protected.discard(member)
        if shrinks:
            members.end(slot)
            return {}
        fitness = members.fitness()
        best = max((at for at in range(len(fitness)) if at != slot), key=lambda at: fitness[at])
        return {"born": [self._copy(slot, best, members)]}

    def state(self) -> dict[str, Any]:
        """State that the next generation depends on; empty if nothing lasts."""
        if not self.pins and not self.protected:
            return {}
        pins = [[member, dict(values)] for member, values in self.pins.items() if values]
        return {"pins": pins, "protected": sorted(self.protected)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`."""
        self.pins = {int(member): dict(values) for member, values in state.get("pins", ())}
        self.protected = {int(member) for member in state.get("protected", ())}


def described(event: Steering) -> str:
    """A request and its result as one line."""
    who = "" if event.action == "stop" else " of all" if event.member is None else f" of member {event.member}"
    what = " ".join([event.action, event.name]).strip() + who
    what += f" to {event.value}" if event.value is not None else ""
    what += f" ({event.reason})" if event.reason else ""
    result = event.result
    if "refused" in result:
        return f"steering: {what} was refused: {result['refused']}"
    if "scores" in result:
        scores = (
            f"{member}: {'unknown' if s is None else format(s['mean'], '.4g')}"
            for member, s in result["scores"].items()
        )
        return f"steering: {what}: {', '.join(scores)}"
    born = "".join(f", member {member}" for member in result.get("born", ()))
    return f"steering: {what}{born}"


def _with_change(birth: Birth, name: str, old: object, value: object) -> Birth:
    """Return the birth of a changed member with one more change: a value of one name, mappings of several."""
    names = birth.path.split(", ") if birth.path else []
    before, after = birth.before, birth.after
    if len(names) == 1:
        before, after = {names[0]: before}, {names[0]: after}
    before, after = {name: old, **(before or {})}, {**(after or {}), name: value}  # `before` is that of the parent
    if len(after) == 1:
        return replace(birth, path=name, before=before[name], after=after[name])
    return replace(birth, path=", ".join(after), before={key: before[key] for key in after}, after=after)


def _with_pins(agent: EvolvableAlgorithm, birth: Birth, pins: Mapping[str, Any]) -> Birth:
    """Set the pinned values of a newborn, and return its birth with them."""
    moved = {name: value for name, value in pins.items() if getattr(agent, name) != value}
    for name, value in moved.items():
        setattr(agent, name, value)
    if moved:
        agent.mutation_hook()
    if birth.kind == "rl_hp" and isinstance(birth.after, Mapping):  # of several hyperparameters
        before, after = ({n: v for n, v in side.items() if n not in moved} for side in (birth.before, birth.after))
        if after:
            return replace(birth, path=", ".join(after), before=before, after=after)
    elif birth.path not in moved:
        return birth
    return replace(birth, kind="none", path="", before=None, after=None, change=None)  # the pins have undone it


def _cloneable(agent: foreign.Agent) -> Any:
    if not foreign.has_methods(agent, "clone", "mutation_hook"):
        raise _Refused(f"a {type(agent).__name__} has no clone() and mutation_hook()")
    return agent


def _score(evaluate: Callable[[Any], MeanReturn | None] | None, agent: foreign.Agent) -> dict[str, Any] | None:
    score = None if evaluate is None else evaluate(agent)
    return None if score is None else {"mean": score.mean, "error": score.error, "episodes": score.episodes}
