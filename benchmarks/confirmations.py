"""Stops of a run: how often a confirmation is right, and how many episodes it plays, by two ways of confirming.

Started by `python benchmarks/choices.py --confirmations`; a line per row in results/confirmations.jsonl. Training does
not depend on confirmations, so a run is replayed exactly from the return distributions of its members: in each
generation all members play an evaluation in stages, one of them is a candidate, and its confirmation stops the replay
or not.

* `choices`: how often the highest mean and the highest shrunken mean name the best member, as `choices.judged` counts.
* `means`: confirmations of policies with known mean returns, drawn like those of LunarLander-v3: landings of about 255,
  and a heavy lower tail of crashes and hovering. Also normal returns.
* `recorded`: the generations of results/choices-*.jsonl; a member's 64 recorded episodes are its distribution.
* `curves`: simulated runs of four members whose mean returns rise towards 215 to 248, slowly or fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from runner import RESULTS, read_lines

from agilerl.collect.evaluator import CONFIRMATION_BATCH
from agilerl.hpo.screening import shrink
from agilerl.rollouts.confirmation import SequentialTest, batch_ends
from agilerl.rollouts.evaluate import contested
from agilerl.training.stop_rule import WORTH_A_CONFIRMATION

PATH = RESULTS / "confirmations.jsonl"
TARGET, MARGIN, ERRORS = 200.0, 10.0, 2.0  # of the presets of LunarLander-v3, as the numbers of episodes
EPISODES, SCREEN, MAX_EPISODES = 100, 32, 300
STAGE, MAX_EVALUATION = 4, 16

Sampler = Callable[[np.random.Generator, int], np.ndarray]  # draws so many returns


def confirm_in_parts(returns: np.ndarray) -> tuple[bool, int]:
    """(Does it pass, episodes) by 32, 100, 168, 236, 300 episodes: confirmations before the sequential test."""
    mean, error, end = 0.0, 0.0, 0
    for end in (SCREEN, *range(EPISODES, MAX_EPISODES, EPISODES - SCREEN), MAX_EPISODES):
        mean, error = float(returns[:end].mean()), float(returns[:end].std(ddof=1)) / math.sqrt(end)
        is_hopeless = end < EPISODES and mean + error < TARGET
        is_undecided = TARGET + MARGIN <= mean < TARGET + MARGIN + ERRORS * error
        if is_hopeless or (end >= EPISODES and not is_undecided):
            break
    return mean >= TARGET + MARGIN + ERRORS * error, end


def confirm_sequentially(returns: np.ndarray) -> tuple[bool, int]:
    """(Does it pass, episodes) by the package's test."""
    test = SequentialTest(TARGET + MARGIN, ERRORS, EPISODES, MAX_EPISODES)
    for end in batch_ends(EPISODES, MAX_EPISODES, CONFIRMATION_BATCH):
        decision = test.decide(returns[:end])
        if decision is not None:
            return decision, end
    raise AssertionError("a test decides at its end")


@dataclass(frozen=True)
class Scheme:
    """Way of confirming; `bound`: standard errors added to the shrunken mean of a candidate, None: the highest mean."""

    name: str
    confirm: Callable[[np.ndarray], tuple[bool, int]]
    bound: float | None = None

    def candidate(
        self, means: np.ndarray, errors: np.ndarray, counts: np.ndarray, eligible: Sequence[int]
    ) -> int | None:
        """Slot of the member to confirm, if any; `means` [N] of `counts` episodes each."""
        if means.max() < TARGET:
            return None
        if self.bound is None:
            return int(means.argmax())
        estimates, spreads = shrink(means, errors, counts)
        slot = max(eligible, key=lambda one: (estimates[one], means[one]))
        return slot if estimates[slot] + self.bound * spreads[slot] >= TARGET else None


SCHEMES = (
    Scheme("32, 100, ..., 300 episodes of the highest mean", confirm_in_parts),
    Scheme("sequential, of the highest mean", confirm_sequentially),
    Scheme("sequential, shrunken mean", confirm_sequentially, 0.0),
    Scheme("sequential, shrunken mean + half an error", confirm_sequentially, WORTH_A_CONFIRMATION),
    Scheme("sequential, shrunken mean + one error", confirm_sequentially, 1.0),
)


def landings(mean: float) -> Sampler:
    """Returns like LunarLander-v3's, with this mean: N(255, 22), else two crashes N(-60, 70) for each N(60, 40)."""
    share = (mean + 20) / 275

    def draw(generator: np.random.Generator, count: int) -> np.ndarray:
        others = np.where(
            generator.random(count) < 2 / 3, generator.normal(-60, 70, count), generator.normal(60, 40, count)
        )
        return np.where(generator.random(count) < share, generator.normal(255, 22, count), others)

    return draw


def normal(mean: float) -> Sampler:
    return lambda generator, count: generator.normal(mean, 60, count)


def recorded(returns: Sequence[float]) -> Sampler:
    values = np.asarray(returns)
    return lambda generator, count: generator.choice(values, count)


@dataclass(frozen=True)
class Member:
    """Returns of a member in one generation, and their mean."""

    draw: Sampler
    mean: float


def evaluation(members: Sequence[Member], generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Means, their errors and numbers of episodes [N] of an evaluation in stages, and the slots that ended it."""
    returns = np.stack([member.draw(generator, MAX_EVALUATION) for member in members])
    slots, counts = list(range(len(members))), np.zeros(len(members), int)
    for begin, end in pairwise(range(0, MAX_EVALUATION + 1, STAGE)):
        if begin and len(slots) > 1:
            slots = [slots[place] for place in contested(returns[slots, :begin])]
        if not begin or len(slots) > 1:
            counts[slots] = end
    means = np.array([row[:count].mean() for row, count in zip(returns, counts, strict=True)])
    errors = np.array([row[:n].std(ddof=1) / math.sqrt(n) for row, n in zip(returns, counts, strict=True)])
    others = [slot for slot in range(len(members)) if slot not in slots]
    means[others] = np.minimum(means[others], means[slots].min())
    return means, errors, counts, np.array(slots)


def replay(run: Sequence[Sequence[Member]], key: Sequence[int]) -> list[tuple[float, ...]]:
    """(episodes, confirmations, generations, mean return of the stop or NaN) by scheme, with equal evaluations."""
    totals = [[0, 0, len(run), math.nan] for _ in SCHEMES]
    waiting = list(range(len(SCHEMES)))
    for number, members in enumerate(run):
        means, errors, counts, eligible = evaluation(members, np.random.default_rng([*key, number]))
        for index in list(waiting):
            slot = SCHEMES[index].candidate(means, errors, counts, eligible.tolist())
            if slot is None:
                continue
            returns = members[slot].draw(np.random.default_rng([*key, number, slot]), MAX_EPISODES)
            passes, played = SCHEMES[index].confirm(returns)
            totals[index][0] += played
            totals[index][1] += 1
            if passes:
                totals[index][2:] = [number, members[slot].mean]
                waiting.remove(index)
    return [tuple(row) for row in totals]


def summaries(
    kind: str, name: str, runs: Sequence[Sequence[Sequence[Member]]], repeats: int
) -> Iterator[dict[str, Any]]:
    rows = np.array([replay(run, (index, repeat)) for index, run in enumerate(runs) for repeat in range(repeats)])
    for index, scheme in enumerate(SCHEMES):
        episodes, tries, generations, means = rows[:, index].T
        stops = means[~np.isnan(means)]
        yield {
            "kind": kind, "name": name, "scheme": scheme.name, "replays": len(rows),
            "episodes": round(float(episodes.mean()), 1), "confirmations": round(float(tries.mean()), 2),
            "generations": round(float(generations.mean()), 2), "stopped": round(len(stops) / len(rows), 3),
            "mean_of_stops": round(float(stops.mean()), 1),
            "below_target": round(float((stops < TARGET).mean()), 4),
            "below_margin": round(float((stops < TARGET + MARGIN).mean()), 4),
        }  # fmt: skip


def rows_of_choices(task: str) -> Iterator[dict[str, Any]]:
    """Right choices in the recorded generations: the best member in the other episodes, or within a standard error."""
    right: dict[str, list[bool]] = {"highest mean": [], "highest shrunken mean": []}
    bias: dict[str, list[float]] = {name: [] for name in right}
    for line in read_lines(RESULTS / f"choices-{task}.jsonl"):
        for truth in (np.array(generation["truth"]) for generation in line["generations"]):
            for begin in range(0, truth.shape[1], MAX_EVALUATION):
                block, rest = truth[:, begin : begin + MAX_EVALUATION], np.delete(truth, range(begin, begin + 16), 1)
                members = [Member(lambda generator, count, row=row: row, 0.0) for row in block]
                means, errors, counts, eligible = evaluation(members, np.random.default_rng(0))
                for name, values in zip(right, (means, shrink(means, errors, counts)[0]), strict=True):
                    slot = max(eligible, key=lambda one: (values[one], means[one]))
                    gaps = rest[rest.mean(1).argmax()] - rest[slot]
                    right[name].append(bool(gaps.mean() <= gaps.std(ddof=1) / math.sqrt(len(gaps))))
                    bias[name].append(float(values[slot] - rest[slot].mean()))
    for name in right:
        squares = float(np.mean(np.square(bias[name])))
        yield {
            "kind": "choices", "name": task, "scheme": name, "choices": len(right[name]),
            "right": round(float(np.mean(right[name])), 4), "bias": round(float(np.mean(bias[name])), 2),
            "rmse": round(math.sqrt(squares), 2),
        }  # fmt: skip


def rows_of_means(name: str, draw: Callable[[float], Sampler], repeats: int) -> Iterator[dict[str, Any]]:
    for mean in (150, 170, 185, 195, 200, 205, 210, 220, 230, 240):
        returns = [draw(mean)(np.random.default_rng([mean, repeat]), MAX_EPISODES) for repeat in range(repeats)]
        for scheme in SCHEMES[:2]:
            passed, played = zip(*map(scheme.confirm, returns), strict=True)
            yield {
                "kind": "means", "name": name, "scheme": scheme.name, "mean": mean, "replays": repeats,
                "passed": round(float(np.mean(passed)), 4), "episodes": round(float(np.mean(played)), 1),
            }  # fmt: skip


def recorded_runs(task: str) -> list[list[list[Member]]]:
    lines = read_lines(RESULTS / f"choices-{task}.jsonl")
    return [
        [
            [Member(recorded(one), float(np.mean(one))) for one in generation["truth"]]
            for generation in line["generations"]
        ]
        for line in lines
    ]


def curves(runs: int, generations: int, slowness: float) -> list[list[list[Member]]]:
    """Runs whose members lie below a rising mean return by a number that changes slowly."""
    generator, made = np.random.default_rng(0), []
    for _ in range(runs):
        top, lag, run = generator.uniform(215, 248), np.zeros(4), []
        for number in range(generations):
            lag = 0.5 * lag + generator.normal(0, 30, 4)
            means = top - 150 * math.exp(-number / slowness) - np.abs(lag)
            run.append([Member(landings(float(mean)), float(mean)) for mean in means])
        made.append(run)
    return made


def write_table(repeats: int) -> None:
    """Print every row and write them all."""
    tasks = ("lunarlander-v3-ppo", "lunarlander-v3-dqn")
    rows = [
        *(row for task in tasks for row in rows_of_choices(task)),
        *rows_of_means("landings", landings, 20 * repeats),
        *rows_of_means("normal", normal, 20 * repeats),
        *(row for task in tasks for row in summaries("recorded", task, recorded_runs(task), repeats)),
        *(
            row
            for slowness in (3.0, 8.0)
            for row in summaries("curves", f"slowness {slowness:g}", curves(3 * repeats, 40, slowness), 1)
        ),
    ]
    for row in rows:
        print(json.dumps(row))
    PATH.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
