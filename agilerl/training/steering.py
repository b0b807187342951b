"""What people ask of a running population, applied between two generations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from agilerl import foreign
from agilerl.hpo.evolution import Births
from agilerl.hpo.mutation import MutationRecord
from agilerl.hpo.tournament import nan_as_worst
from agilerl.runs.steering import FOR_ONE, Inbox, Request, Taken
from agilerl.sources.source import MeanReturn
from agilerl.telemetry.record import Birth, Steering

BEFORE_SELECTION = ("protect", "unprotect", "unpin", "remove", "evaluate")
AFTER_SELECTION = ("set", "pin", "clone")


class _Refused(Exception):
    """A request that cannot be carried out, with the reason."""


@dataclass
class Members:
    """The population between two generations.

    Attributes:
        agents: by slot. births: since the last generation. generation: the one that trains next. next_id: for newborns.
    """

    agents: list[Any]
    generation: int
    next_id: int
    births: list[Birth] = field(default_factory=list)

    def slot(self, member: int) -> int:
        """Return the slot of a member; an error that names what became of it if it has none."""
        for slot, agent in enumerate(self.agents):
            if agent.index == member:
                return slot
        raise _Refused(f"member {member} has left the population")

    def put(self, slot: int, parent: Any, values: Mapping[str, Any]) -> int:
        """Put a copy of `parent` with these hyperparameters into a slot, and return its id."""
        child = parent.clone(index=self.next_id)
        before = {name: getattr(child, name) for name in values}
        for name, value in values.items():
            setattr(child, name, value)
        path, one = ", ".join(values), len(values) == 1
        old, new = (next(iter(before.values())), next(iter(values.values()))) if one else (before or None, None)
        child.mut = "steered"
        child.mutation_record = MutationRecord("steered", path, old, new, 0.0)
        child.mutation_hook()
        last = float(parent.fitness[-1]) if parent.fitness else None
        self.agents[slot] = child
        self.births.append(Birth(self.next_id, parent.index, self.generation, "steered", path, old, new, 0.0, last))
        self.next_id += 1
        return int(child.index)

    def fitness(self) -> list[float]:
        """Return the last fitness by slot; NaN and missing values are the worst."""
        return nan_as_worst([a.fitness[-1] if a.fitness else -np.inf for a in self.agents])


class SteeringWheel:
    """Applies requests between two generations, and remembers those that last.

    Args:
        inbox: of the run.

    Attributes:
        pins: member id -> {hyperparameter: value}; descendants inherit them. protected: ids that selection keeps.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.pins: dict[int, dict[str, Any]] = {}
        self.protected: set[int] = set()

    def take(self, generation: int) -> list[Taken]:
        """Return the requests that take effect before `generation`."""
        return self.inbox.take(generation)

    # --- selection -------------------------------------------------------------------------------------------------

    def keep_protected(
        self, before: Sequence[Any], after: Sequence[Any], births: Births, sets_size: bool
    ) -> tuple[list[Any], Births]:
        """Return the population and births of a selection, with the protected members that it has ended.

        Each takes the place of the newborn in its slot, or of another one; without newborns, that of the least fit
        other member. Where the number of members follows no plan (`sets_size`), it is added.
        """
        members, left = list(after), list(births)
        there = {agent.index for agent in members}
        for slot, agent in enumerate(before):
            if agent.index not in self.protected or agent.index in there:
                continue
            if len(members) < len(before) and not sets_size:
                members.append(agent)
                continue
            newborns = {birth.id for birth in left}
            places = [at for at, each in enumerate(members) if each.index in newborns]
            if not places:
                free = [at for at, each in enumerate(members) if each.index not in self.protected]
                places = sorted(free, key=lambda at: members[at].fitness[-1] if members[at].fitness else -np.inf)[:1]
            if not places:
                members.append(agent)
                continue
            place = slot if slot in places else places[-1]
            left = [birth for birth in left if birth.id != members[place].index]
            members[place] = agent
        order = {agent.index: slot for slot, agent in enumerate(before)}
        if len(members) < len(before):  # survivors stay in the order of their slots
            members.sort(key=lambda agent: order.get(agent.index, len(before)))
        return members, tuple(left)

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
        """Forget members that have left."""
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
        events = []
        for taken in requests:
            try:
                if taken.refused:
                    raise _Refused(taken.refused)
                result = self._one(taken.request, members, shrinks, evaluate)
            except _Refused as error:
                result = {"refused": str(error)}
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
            return {"born": [self._set(member, members, request) for member in ids]}
        return {}

    def _meant(self, request: Request, members: Members) -> list[int]:
        """Return ids of the members that a request names; after selection, the children of one that has left.

        Raises:
            _Refused: there are none, or their class cannot be copied.
        """
        if request.member is None:
            return [agent.index for agent in members.agents]
        ids = {agent.index for agent in members.agents}
        if request.member in ids:
            return [request.member]
        children = [birth.id for birth in members.births if birth.parent == request.member and birth.id in ids]
        if not children or (request.action in FOR_ONE and request.action != "clone"):
            raise _Refused(f"member {request.member} has left the population")
        return children[:1] if request.action == "clone" else children

    def _set(self, member: int, members: Members, request: Request) -> int:
        slot = members.slot(member)
        agent = _cloneable(members.agents[slot])
        born = members.put(slot, agent, {request.name: request.value})
        self._follow(member, born)
        if request.action == "pin":
            self.pins.setdefault(born, {})[request.name] = request.value
        elif request.name in self.pins.get(born, {}):
            self.pins[born][request.name] = request.value
        return born

    def _follow(self, member: int, born: int) -> None:
        """Let a changed copy take over the pins and the protection of the member that it replaces."""
        if member in self.pins:
            self.pins[born] = dict(self.pins[member])
        if member in self.protected:
            self.protected = (self.protected - {member}) | {born}

    def _clone(self, member: int, members: Members) -> dict[str, Any]:
        agent = _cloneable(members.agents[members.slot(member)])
        fitness = members.fitness()
        others = [
            slot
            for slot, each in enumerate(members.agents)
            if each.index != member and each.index not in self.protected
        ]
        if not others:
            raise _Refused("there is no other member whose place a copy could take")
        worst = min(others, key=lambda slot: fitness[slot])
        gone = int(members.agents[worst].index)
        born = members.put(worst, agent, {})
        if member in self.pins:
            self.pins[born] = dict(self.pins[member])
        return {"born": [born], "instead_of": gone}

    def _remove(self, member: int, members: Members, shrinks: bool) -> dict[str, Any]:
        slot = members.slot(member)
        if len(members.agents) == 1:
            raise _Refused("it is the only member")
        self.protected.discard(member)
        if shrinks:
            del members.agents[slot]
            return {}
        fitness = members.fitness()
        best = max((at for at in range(len(fitness)) if at != slot), key=lambda at: fitness[at])
        agent = _cloneable(members.agents[best])
        born = members.put(slot, agent, {})
        if agent.index in self.pins:
            self.pins[born] = dict(self.pins[agent.index])
        return {"born": [born]}

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


def _with_pins(agent: Any, birth: Birth, pins: Mapping[str, Any]) -> Birth:
    """Set the pinned values of a newborn, and return its birth with them."""
    moved = {name: value for name, value in pins.items() if getattr(agent, name) != value}
    for name, value in moved.items():
        setattr(agent, name, value)
    if moved:
        agent.mutation_hook()
    if birth.kind in ("rl_hp", "restart") and isinstance(birth.after, Mapping):  # of several hyperparameters
        before, after = ({n: v for n, v in side.items() if n not in moved} for side in (birth.before, birth.after))
        if after or birth.kind == "restart":
            return replace(birth, path=", ".join(after), before=before, after=after)
    elif birth.path not in moved:
        return birth
    return replace(birth, kind="none", path="", before=None, after=None, change=None)  # the pins have undone it


def _cloneable(agent: Any) -> Any:
    if not foreign.has_methods(agent, "clone", "mutation_hook"):
        raise _Refused(f"a {type(agent).__name__} has no clone() and mutation_hook()")
    return agent


def _score(evaluate: Callable[[Any], MeanReturn | None] | None, agent: Any) -> dict[str, Any] | None:
    score = None if evaluate is None else evaluate(agent)
    return None if score is None else {"mean": score.mean, "error": score.error, "episodes": score.episodes}
