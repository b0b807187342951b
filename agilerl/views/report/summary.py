"""Closing summary of a run in one paragraph: result, best agent, next step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agilerl.core.texts import count, number
from agilerl.telemetry.evaluation import Baseline, Evaluation, Verdict
from agilerl.telemetry.record import Birth

FEW, LONG = 3, 8  # minimum number of generations for a conclusion, and for advice to change what learns
RISING = 0.05  # share of the total gain: more than this in the last quarter of a run counts as still improving
FLAT = 0.05  # share of the total gain: generations that differ by less are on a plateau
MEASURES = {"completions": "reward", "preferences": "preference margin", "examples": "log-probability of a token"}
"""The score of language policies, by the kind of their experience."""


def measure_of(algorithm: Any) -> str | None:
    """The score of a language policy of this class; None for any other agent, whose score is a return."""
    return MEASURES.get(algorithm.experience.name) if algorithm.learns_language else None


@dataclass(frozen=True)
class Ended:
    """Facts of a finished run.

    Attributes:
        algo, env: names. steps: unit of its budget.
        go_on: how to train it for longer: a command, a call, or words.
        target: the return to reach. score: mean return of the final evaluation, else of the confirmation, else the best
            fitness, else None. is_fitness: whether it is the best fitness.
        stopped: "target", "budget", "minutes", "plateau" or another reason.
        made: steps of all members.
        history: fitness by generation, then member. lineage: every birth. members: at the start.
        best: id of the best agent, None without one. together: members in the best ensemble, 1 for one agent.
        values: its hyperparameters by name.
        ranges: hyperparameter -> (min, max) of evolution. seed: of the run.
        others: alternative algorithms, in words.
        error: standard error of `score`, 0 if unknown. random_play: score of uniformly random play.
        is_self_play: whether fitness compares members of one generation only.
        updates: optimiser steps, None where unknown. unchanged: whether no weight has changed in the whole run.
        diverged: number of diverged members that were replaced.
        from_replay: whether members learn from single steps in a replay memory.
        measure: score of a language policy; None if scores are returns.
        before, after: scores by episode of the final evaluation, or by item on the report split; None without one.
        time: where the time went, in words; "" if not worth saying.
    """

    algo: str
    env: str
    steps: str
    go_on: str
    target: float | None
    score: float | None
    stopped: str
    made: int
    history: Sequence[Sequence[float]]
    lineage: Sequence[Birth]
    members: int
    best: int | None
    together: int
    values: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    others: str
    seed: int
    is_fitness: bool = False
    error: float = 0.0
    random_play: Baseline | None = None
    is_self_play: bool = False
    updates: int | None = None
    unchanged: bool = False
    diverged: int = 0
    from_replay: bool = False
    measure: str | None = None
    before: Evaluation | None = None
    after: Evaluation | None = None
    time: str = ""

    @property
    def rarely_updated(self) -> bool:
        """Whether members learned from replay at most once per generation.

        A generation begins with an update for any `learn_step`.
        """
        return self.from_replay and 0 < (self.updates or 0) <= sum(map(len, self.history))

    @property
    def verdict(self) -> Verdict | None:
        """`Baseline.verdict` of the score; None if either is unknown."""
        if self.score is None or self.random_play is None:
            return None
        returns = () if self.after is None else self.after.returns
        return self.random_play.verdict(self.score, self.error, returns)

    @property
    def reached(self) -> bool:
        """Whether the score has reached the target."""
        return self.score is not None and self.target is not None and self.score >= self.target


def in_words(run: Ended) -> str:
    """The summary in three or four sentences."""
    outcome, going_on = (_outcome, _next) if run.measure is None else (_outcome_of_texts, _next_of_texts)
    parts = outcome(run), _best_agent(run), _trouble(run), run.time, going_on(run)
    return " ".join(part for part in parts if part)


def _outcome_of_texts(run: Ended) -> str:
    """The score of a language policy, before and after training."""
    about, cost = f"{run.algo} on {run.env}", f"{count(run.made)} {run.steps} of all members together"
    if run.score is None:
        return f"{about} ended after {cost}; nothing has been scored."
    if run.after is None:
        result = f"a mean {run.measure} of {number(run.score)} on the test split, which also chose the agent"
        return f"{about} came to {result}, in {cost}."
    result = f"a mean {run.measure} of {number(run.after.mean)} over {len(run.after.returns)} {run.after.of}"
    if run.before is not None:
        verdict = {1: "", 0: ": no clear change", -1: ": worse than that"}[_verdict_of_texts(run)]
        result += f" (before training {number(run.before.mean)}{verdict})"
    if run.target is None:
        return f"{about} came to {result}, in {cost}."
    begin = "reached" if run.reached else "did not reach"
    return f"{about} {begin} its target of {number(run.target)}: {result}, in {cost}."


def _verdict_of_texts(run: Ended) -> int:
    """1 or -1 if training changed the scores of the same items by more than two standard errors, else 0.

    Also 1 if either is unknown.
    """
    if run.before is None or run.after is None or len(run.before.returns) != len(run.after.returns):
        return 1
    moved = Evaluation.from_returns([b - a for a, b in zip(run.before.returns, run.after.returns, strict=True)])
    return 0 if abs(moved.mean) <= 2 * moved.error else int(math.copysign(1, moved.mean))


def _next_of_texts(run: Ended) -> str:
    silent = run.updates == 0 or run.unchanged
    if silent and run.measure == MEASURES["completions"]:
        return "Next: a base that earns a reward now and then, an easier task, or rewards for parts of it."
    if silent:
        return "Next: a higher learning rate."
    if run.reached:
        return f"Next: another seed (--seed {run.seed + 1}) shows whether it was luck."
    verdict = _verdict_of_texts(run)
    if verdict < 0:
        return "Next: a smaller learning rate."
    if len(run.history) < FEW:
        many = "One generation says" if len(run.history) == 1 else f"{len(run.history)} generations say"
        return f"{many} little of what can be learned. Next: {run.go_on}."
    return f"Next: {run.go_on}{', or a higher learning rate' if verdict == 0 else ''}."


def _outcome(run: Ended) -> str:
    about = f"{run.algo} on {run.env}"
    cost = f"{count(run.made)} {run.steps} of all members together"
    if run.score is None:
        return f"{about} ended after {cost}; nothing has been scored."
    result = f"a mean return of {number(run.score)}"
    if run.is_fitness:  # the best of many noisy means
        result = f"a fitness of {number(run.score)}, which also chose the agent, so that fresh episodes may give less"
    result += _beside_random(run)
    if run.target is None:
        why = " and had stopped getting better" if run.stopped == "plateau" else ""
        return f"{about} came to {result}{',' if run.is_fitness else ''} in {cost}{why}."
    if run.reached:
        return f"{about} reached its target of {number(run.target)}: {result}, in {cost}."
    if run.stopped == "target":
        return (
            f"{about} stopped at its target of {number(run.target)}, but fresh episodes give {result}: it is at the "
            f"target within the noise of its episodes, after {cost}."
        )
    return f"{about} did not reach its target of {number(run.target)}: {result}, in {cost}."


def _beside_random(run: Ended) -> str:
    """The score of random play, and the conclusion if the run is no better."""
    if run.verdict is None or run.random_play is None or run.random_play.score is None:
        return ""
    level = number(run.random_play.score.mean)
    if run.verdict == "unclear":
        return f" (random play {level} in {len(run.random_play.score.returns)} episodes: too few to compare)"
    if run.verdict == "better":
        return f" (random play {level})"
    if run.reached:
        return f" (random play {level}: it reaches the target too)"
    return f" (random play {level}: {'nothing was learned' if run.verdict == 'no better' else 'worse than that'})"


def _best_agent(run: Ended) -> str:
    if run.best is None:
        return ""
    line = _line(run)
    moved = [birth for birth in line if birth.kind == "rl_hp"]
    grown = sum(birth.kind == "architecture" for birth in line)
    named = ", ".join(f"{name} {number(run.values[name])}" for name in run.ranges if name in run.values)
    more = [f"{len(moved)} change{'s' if len(moved) > 1 else ''} of hyperparameters"] if moved else []
    more += [f"{grown} of its network"] if grown else []
    steered = sum(birth.kind == "steered" for birth in line)
    more += [f"{steered} by request"] if steered else []
    came = f", after {' and '.join(more)}" if more else ""
    who = "The best agent"
    if run.together > 1:
        who = f"The best agent is the mean of {run.together} members' policies, whose leader"
    if named:
        edge = [name for name, ends in run.ranges.items() if name in run.values and _is_at_edge(run.values[name], ends)]
        advice = f" {_all(edge)} stands at the edge of its range: widen it." if edge else ""
        return f"{who} has {named}{came}.{advice}"
    return f"{who} came{came[1:]}." if more else ""


def _trouble(run: Ended) -> str:
    """Learning problems indicated by the run's counters."""
    if run.updates == 0:
        return "No update was made, so nothing was learned."
    if run.rarely_updated:
        updates = "Only one update was" if run.updates == 1 else f"Only {run.updates} updates were"
        return f"{updates} made, at most one of each member in a generation, so next to nothing was learned."
    if run.diverged:
        many = "Once a member" if run.diverged == 1 else f"{run.diverged} times a member"
        return f"{many} diverged and was replaced: a smaller lr may prevent that."
    return ""


def _next(run: Ended) -> str:
    if run.updates == 0 and run.steps == "updates":  # offline: there is no learn_step or delay
        return "Next: more data, or a smaller batch_size."
    if run.updates == 0 or run.rarely_updated:
        return "Next: a smaller learn_step, learning_delay or batch_size."
    if run.unchanged:
        return "No weight has changed, so nothing was learned. Next: a higher learning rate."
    go_on = run.go_on
    if run.reached:
        return f"Next: another seed (--seed {run.seed + 1}) shows whether it was luck."
    if run.is_self_play:
        return f"Fitness in self-play compares members of one generation and need not rise. Next: {go_on}."
    if run.random_play is not None and run.random_play.is_zero_sum:
        return (
            "Its two agents gain what the other one loses, so every team's return is 0 and selection has no signal. "
            'Next: --opponents self (opponents="self") with IPPO or MAPPO.'
        )
    if len(run.history) < FEW and run.stopped in ("budget", "minutes"):
        many = "One generation says" if len(run.history) == 1 else f"{len(run.history)} generations say"
        return f"{many} little of what can be learned. Next: {go_on}."
    other = f"another algorithm ({run.others})"
    gained, late = _gains(run)
    if run.verdict in ("no better", "worse"):
        return f"Next: {other}, {go_on}, or look whether rewards differ."
    if gained <= 0:
        nothing = "It scores no more than the first generation did."
        return f"{nothing} Next, if that is not the most there is: {other}, or look whether rewards differ."
    if run.stopped in ("budget", "minutes") and late > RISING * gained:
        return f"It was still getting better. Next: {go_on}."
    flat = _flat(run, gained)
    change = f"{other}, a larger network (--set network.latent_dim=128), or a larger population"
    change = change if flat >= LONG else go_on
    if flat >= FEW:
        stayed = f"Its best fitness has stayed at about {number(_best(run)[-1])} for {flat} generations"
        return f"{stayed}, which may be the most there is. Next, if it is not: {change}."
    return f"Next: {change}."


def _line(run: Ended) -> list[Birth]:
    """The births of the best agent and its ancestors."""
    by_id, line, at = {birth.id: birth for birth in run.lineage}, [], run.best
    while at is not None and at in by_id and by_id[at] not in line:  # in old records a mutated elite kept its id
        line.append(by_id[at])
        at = by_id[at].parent
    return line


def _best(run: Ended) -> list[float]:
    """The best fitness of every generation that has one."""
    rows = ([f for f in row if math.isfinite(f)] for row in run.history)
    return [max(row) for row in rows if row]


def _gains(run: Ended) -> tuple[float, float]:
    """(gain of the score over random play, else over the first generation; gain in the last quarter).

    Both compare means of whole generations: the best fitness of several members over few episodes is biased upwards.
    """
    rows = [[f for f in row if math.isfinite(f)] for row in run.history]
    means = [sum(row) / len(row) for row in rows if row]
    if not means or run.score is None:
        return 0.0, 0.0
    baseline = None if run.random_play is None else run.random_play.score
    gained = run.score - (means[0] if baseline is None else baseline.mean)
    late = means[max(1, len(means) * 3 // 4) :]
    before = means[: len(means) - len(late)][-len(late) :] if late else []
    return gained, (sum(late) / len(late) - sum(before) / len(before)) if late and before else 0.0


def _flat(run: Ended, gained: float) -> int:
    """Number of last generations with the same best fitness, up to `FLAT` of the gain."""
    best = _best(run)
    return next((n for n, value in enumerate(reversed(best)) if abs(value - best[-1]) > FLAT * gained), len(best))


def _is_at_edge(value: float, ends: tuple[float, float]) -> bool:
    return any(math.isclose(value, end, rel_tol=1e-6) for end in ends)


def _all(names: Sequence[Any]) -> str:
    return " and ".join(map(str, names))
