"""The end of a run in one paragraph of plain words: what was found, what won, what to try next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agilerl.telemetry.console import count, number
from agilerl.telemetry.record import Birth

FEW = 3  # generations at least, from which something can be said
RISING = 0.05  # of all that was gained: more than this in the last quarter of a run is still getting better


@dataclass(frozen=True)
class Ended:
    """What is known of a run that has ended.

    Attributes:
        algo, env: names. steps: what its budget counts. path: its directory, None without one.
        target: the return to reach. score: mean return of the closing test, else of the confirmation, else the best
            fitness, else None. is_fitness: whether it is the last of these.
        stopped: "target", "budget", "plateau" or what else ended it.
        made: steps of all members. budget: steps of one member, as configured.
        history: fitness by generation, then member. lineage: every birth. members: at the start.
        best: id of the best agent, None where there is none. values: its hyperparameters by name.
        ranges: hyperparameter -> (least, most) that evolution may use. seed: of the run.
        others: algorithms that may learn where this one has not, in words.
        updates: of all members, None where it is not known. unchanged: whether no weight has changed in the whole run.
    """

    algo: str
    env: str
    steps: str
    path: str | None
    target: float | None
    score: float | None
    stopped: str
    made: int
    budget: int
    history: Sequence[Sequence[float]]
    lineage: Sequence[Birth]
    members: int
    best: int | None
    values: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    others: str
    seed: int
    is_fitness: bool = False
    updates: int | None = None
    unchanged: bool = False


def in_words(run: Ended) -> str:
    """Three sentences or four."""
    return " ".join(part for part in (_found(run), _won(run), _next(run)) if part)


def _found(run: Ended) -> str:
    about = f"{run.algo} on {run.env}"
    made = f"{count(run.made)} {run.steps} of all members together"
    if run.score is None:
        return f"{about} ended after {made}; nothing has been scored."
    came = f"a mean return of {number(run.score)}"
    if run.is_fitness:  # the best of many noisy means
        came = f"a fitness of {number(run.score)}, which also chose the agent, so that fresh episodes may give less"
    if run.target is None:
        why = " and had stopped getting better" if run.stopped == "plateau" else ""
        return f"{about} came to {came}{',' if run.is_fitness else ''} in {made}{why}."
    if run.score >= run.target:
        return f"{about} reached its target of {number(run.target)}: {came}, in {made}."
    if run.stopped == "target":
        return (
            f"{about} stopped at its target of {number(run.target)}, but fresh episodes give {came}: it is at the "
            f"target within the noise of its episodes, after {made}."
        )
    return f"{about} did not reach its target of {number(run.target)}: {came}, in {made}."


def _won(run: Ended) -> str:
    if run.best is None:
        return ""
    line = _line(run)
    moved = [birth for birth in line if birth.kind == "rl_hp"]
    grown = sum(birth.kind == "architecture" for birth in line)
    named = ", ".join(f"{name} {number(run.values[name])}" for name in run.ranges if name in run.values)
    more = [f"{len(moved)} change{'s' if len(moved) > 1 else ''} of hyperparameters"] if moved else []
    more += [f"{grown} of its network"] if grown else []
    came = f", after {' and '.join(more)}" if more else ""
    if named:
        edge = [name for name, ends in run.ranges.items() if name in run.values and _is_at_edge(run.values[name], ends)]
        said = f" {_all(edge)} stands at the edge of its range: widen it." if edge else ""
        return f"The best agent has {named}{came}.{said}"
    return f"The best agent came{came[1:]}." if more else ""


def _next(run: Ended) -> str:
    if run.updates == 0:
        return "No update was made, so nothing was learned. Next: a smaller learn_step, learning_delay or batch_size."
    if run.unchanged:
        return "No weight has changed, so nothing was learned. Next: a higher learning rate."
    go_on = "more steps" if run.path is None else f"agilerl resume {run.path} --steps {2 * run.budget}"
    if run.score is not None and run.target is not None and run.score >= run.target:
        return f"Next: another seed (--seed {run.seed + 1}) shows whether it was luck."
    if len(run.history) < FEW and run.stopped == "budget":
        many = "One generation says" if len(run.history) == 1 else f"{len(run.history)} generations say"
        return f"{many} little of what can be learned. Next: {go_on}."
    other = f"another algorithm ({run.others})"
    gained, late = _gains(run.history)
    if gained <= 0:
        nothing = "Its fitness has not risen since the first generation."
        return f"{nothing} Next, if that is not the most there is: {other}, or look whether rewards differ."
    if run.stopped == "budget" and late > RISING * gained:
        return f"It was still getting better. Next: {go_on}."
    return f"Next: {other}, a larger network (--set network.latent_dim=128), or a larger population."


def _line(run: Ended) -> list[Birth]:
    """The births of the best agent and its ancestors."""
    by_id, found, at = {birth.id: birth for birth in run.lineage}, [], run.best
    while at is not None and at in by_id and by_id[at] not in found:  # records of before: a mutated elite kept its id
        found.append(by_id[at])
        at = by_id[at].parent
    return found


def _gains(history: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(how much the best fitness has risen over the run, over its last quarter)."""
    best = [max((f for f in row if math.isfinite(f)), default=-math.inf) for row in history]
    best = [value for value in best if math.isfinite(value)]
    if len(best) < 2:
        return 0.0, 0.0
    cut = max(1, len(best) * 3 // 4)
    return max(best) - best[0], max(best[cut:], default=-math.inf) - max(best[:cut])


def _is_at_edge(value: float, ends: tuple[float, float]) -> bool:
    return any(math.isclose(value, end, rel_tol=1e-6) for end in ends)


def _all(names: Sequence[Any]) -> str:
    return " and ".join(map(str, names))
