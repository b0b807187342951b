"""Importance of hyperparameters and mutations, from the lineages of one or more runs.

A trial is a life: a member with constant hyperparameters, from its birth to its end. Its value is its mean relative
gain: in each generation, the gains of fitness (over the member's own, or its parent's, in the generation before) are
ranked among the members of that generation, from 0 (lowest) to 1. Fitness itself would credit hyperparameters with
what their lineage had learned before, and gains of different generations, environments and rewards have different
scales, which ranks do not.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl.errors import ConfigError
from agilerl.hpo.scales import has_scale, to_scale
from agilerl.runs.records import Member, RunRecords
from agilerl.telemetry.record import Birth
from agilerl.views.report.score import UNMUTATED, mutation_name
from agilerl.views.report.text import tidy

MIN_LIVES = 40  # with different hyperparameters; with 20, PED-ANOVA finds no effect that is there (docs/decisions.md)
MIN_VALUES = 4  # different values of a hyperparameter
MIN_BIRTHS = 10  # by a mutation, next to unmutated siblings
MIN_RUNS = 6  # from which on whole runs are drawn, not members
# PED-ANOVA compares the better half with all lives: a quarter needs twice as many (docs/decisions.md).
QUANTILE = 0.5
REPLICATES = 200  # of half samples and of permutations
MAX_LIVES = 2000  # of more, a random part is taken
REPORT_REPLICATES, REPORT_MAX_LIVES = 20, 500  # in a report, where seconds count
GENERATIONS_LATER = 3  # when descendants are counted
RESAMPLES = 2000


@dataclass(frozen=True)
class Life:
    """A member with constant hyperparameters.

    Attributes:
        run: number of its run. values: hyperparameters by name. gain: mean relative gain, from 0 to 1.
    """

    run: int
    values: Mapping[str, float]
    gain: float


@dataclass(frozen=True)
class Hyperparameter:
    """Importance of one hyperparameter.

    Attributes:
        share: of the sum of importances. ci95: its interval, by half samples.
        low, high: range of its values in all lives. best: middle half of its values in the better half of lives.
        matters: whether its importance exceeds what chance gives (95 % quantile of the largest over permuted gains).
    """

    name: str
    share: float
    ci95: tuple[float, float]
    low: float
    high: float
    best: tuple[float, float]
    matters: bool


@dataclass(frozen=True)
class Effect:
    """Descendants of mutated members, less those of unmutated siblings.

    Attributes:
        births: with unmutated siblings, same parent and generation. descendants, siblings: alive after
            `GENERATIONS_LATER` generations, on average. difference, ci95: of the two, with its 95 % bootstrap interval.
    """

    name: str
    births: int
    descendants: float
    siblings: float
    difference: float
    ci95: tuple[float, float]

    @property
    def sign(self) -> int:
        """1 or -1 if the interval lies on one side of zero, else 0."""
        return 1 if self.ci95[0] > 0 else -1 if self.ci95[1] < 0 else 0


@dataclass(frozen=True)
class Importance:
    """Importance of hyperparameters and mutations in some runs.

    Attributes:
        runs, lives: number of each. lives_in_all: before a random part was drawn.
        hyperparameters: most important first; empty if none stands out. silence: the reason, else empty.
        mutations: the best first.
    """

    runs: int
    lives: int
    lives_in_all: int
    hyperparameters: tuple[Hyperparameter, ...]
    silence: str
    mutations: tuple[Effect, ...]

    def lines(self) -> list[str]:
        """Return two tables as text."""
        part = f" (drawn from {self.lives_in_all})" if self.lives_in_all > self.lives else ""
        lives = f"{self.lives} lives{part} of {self.runs} {'run' if self.runs == 1 else 'runs'}"
        lines = [f"hyperparameters: share of the importance for being in the better half of {lives}"]
        for each in self.hyperparameters:
            chance = "" if each.matters else "   not told from chance"
            lines.append(
                f"  {each.name:<16} {each.share:4.2f}   95% CI {each.ci95[0]:.2f}..{each.ci95[1]:.2f}   better half "
                f"{tidy(each.best[0])}..{tidy(each.best[1])} of {tidy(each.low)}..{tidy(each.high)}{chance}"
            )
        if not self.hyperparameters:
            lines = [f"hyperparameters: {self.silence}"]
        if not self.mutations:
            return [*lines, f"mutations: too little data; one needs {MIN_BIRTHS} births next to unmutated siblings"]
        lines.append(f"mutations: descendants after {GENERATIONS_LATER} generations, less those of unmutated siblings")
        for effect in self.mutations:
            clear = {1: "more", -1: "fewer", 0: "no clear difference"}[effect.sign]
            low, high = effect.ci95
            lines.append(
                f"  {effect.name:<24} {effect.difference:+.2f}   95% CI {low:+.2f}..{high:+.2f}   "
                f"{effect.births} births   {clear}"
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "runs": self.runs,
            "lives": self.lives,
            "lives_in_all": self.lives_in_all,
            "hyperparameters": [
                {**vars(each), "ci95": list(each.ci95), "best": list(each.best)} for each in self.hyperparameters
            ],
            "silence": self.silence,
            "mutations": [{**vars(effect), "ci95": list(effect.ci95)} for effect in self.mutations],
        }


def is_available() -> bool:
    """Whether Optuna, which estimates importances, is installed."""
    return importlib.util.find_spec("optuna") is not None


def check_installed() -> None:
    """Raise ConfigError if Optuna is not installed."""
    if not is_available():
        raise ConfigError('the importance of hyperparameters needs Optuna. fix: pip install "agilerl[optuna]".')


def importance(runs: Sequence[RunRecords], replicates: int = REPLICATES, max_lives: int = MAX_LIVES) -> Importance:
    """Measure the importance of hyperparameters and mutations in runs.

    Args:
        replicates: half samples for the intervals, and permutations for the level of chance.
        max_lives: a random part of the lives is used if there are more.

    Raises:
        ConfigError: Optuna is not installed, and there is enough data for it.
    """
    lives = [life for number, run in enumerate(runs) for life in lives_of(run, number)]
    total = len(lives)
    if total > max_lives:
        drawn = np.random.default_rng(0).permutation(total)[:max_lives]
        lives = [lives[place] for place in sorted(drawn.tolist())]
    ranked, silence = _hyperparameters(lives, replicates)
    return Importance(len(runs), len(lives), total, ranked, silence, effects_of(runs))


# -- lives ---------------------------------------------------------------------------------------------------------


def of_report(run: RunRecords) -> Importance | None:
    """Return the importances of a report; None without Optuna or without a clear effect."""
    if not is_available():
        return None
    result = importance([run], REPORT_REPLICATES, REPORT_MAX_LIVES)
    return result if result.hyperparameters or any(effect.sign for effect in result.mutations) else None


def lives_of(run: RunRecords, number: int = 0) -> list[Life]:
    """Return the lives of a run that have a gain; `number`: of the run."""
    ranks: dict[tuple[int, tuple[tuple[str, float], ...]], list[float]] = defaultdict(list)
    trained: dict[int, float] = {}  # fitness after the last round of each member so far
    for members in run.rounds:
        before = {member.id: _fitness_before(run, member, trained) for member in members}
        for member, rank in _ranked_gains(members, before):
            ranks[member.id, tuple(sorted(member.hyperparameters.items()))].append(rank)
        trained |= {member.id: member.fitness for member in members}
    return [Life(number, dict(values), float(np.mean(gains))) for (_, values), gains in ranks.items()]


def _fitness_before(run: RunRecords, member: Member, trained: Mapping[int, float]) -> float | None:
    """Fitness of a member, or of its parent at its birth, when its round began; None for a founder's first round."""
    if member.id in trained:
        return trained[member.id]
    source, birth = run.source(member.id), run.births_by_id.get(member.id)
    if source is None:
        return None
    begun = member.generation if birth is None else birth.generation
    earlier = [row for row in run.rows.get(source, ()) if row.generation < begun]
    return earlier[-1].fitness if earlier else math.nan


def _ranked_gains(generation: Sequence[Member], before: Mapping[int, float | None]) -> Iterator[tuple[Member, float]]:
    """Yield members with the rank of their gain, from 0 to 1.

    Founders are ranked by their fitness among themselves: all begin untrained. A member that diverged, whose fitness is
    −∞, ranks last: without it, the settings that made it diverge would go unpunished. A member whose parent diverged or
    was not evaluated has no gain.

    Args:
        before: see `_fitness_before`, by id.
    """
    gains: dict[bool, list[tuple[Member, float]]] = {True: [], False: []}
    for member in generation:
        start = before[member.id]
        is_founder, baseline = start is None, 0.0 if start is None else start
        if math.isfinite(baseline) and member.fitness < math.inf:  # not NaN
            gains[is_founder].append((member, member.fitness - baseline))
    for group in gains.values():
        values = [gain for _, gain in group]
        if len(values) > 1:
            yield from zip((member for member, _ in group), relative_ranks(values).tolist(), strict=True)


def relative_ranks(values: Sequence[float]) -> np.ndarray:
    """Return the rank of each value [N], N > 1, from 0 (lowest) to 1; equal values share their mean rank."""
    x = np.asarray(values, dtype=np.float64)
    below = (x[None, :] < x[:, None]).sum(axis=1)
    equal = (x[None, :] == x[:, None]).sum(axis=1) - 1
    ranks: np.ndarray = (below + equal / 2) / (len(x) - 1)
    return ranks


# -- hyperparameters -----------------------------------------------------------------------------------------------


def _hyperparameters(lives: Sequence[Life], replicates: int) -> tuple[tuple[Hyperparameter, ...], str]:
    """Return (hyperparameters by importance, the reason if there are none)."""
    names = sorted(set.intersection(*(set(life.values) for life in lives))) if lives else []
    names = [name for name in names if len({life.values[name] for life in lives}) >= MIN_VALUES]
    settings = len({tuple(life.values[name] for name in names) for life in lives}) if names else 0
    if len(names) < 2:
        who = "none has" if not names else f"only {names[0]} has"
        return (), f"too little data: {who} {MIN_VALUES} different values, and importance compares two or more"
    if settings < MIN_LIVES:
        return (), f"too little data: {settings} lives with different hyperparameters; {MIN_LIVES} are needed"
    values = np.array([[life.values[name] for name in names] for life in lives])
    gains = np.array([life.gain for life in lives])
    evaluate = _evaluator(names, values)
    raw = evaluate(gains)
    rng = np.random.default_rng(0)
    chance = np.quantile([evaluate(rng.permutation(gains)).max() for _ in range(replicates)], 0.95, method="higher")
    halves = _half_samples([life.run for life in lives], replicates, rng)
    shares = np.array([_shares(evaluate(np.where(half, gains, np.nan))) for half in halves])
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    order = np.argsort(-raw, kind="stable")
    # Chance alone is exceeded once in twenty times; an interval that holds the equal share tells nothing apart.
    if raw[order[0]] <= chance or low[order[0]] <= 1 / len(names):
        return (), f"no hyperparameter stands out from chance in {len(lives)} lives"
    best = gains >= np.quantile(gains, 1 - QUANTILE)
    ranked = []
    for place in order.tolist():
        column, share = values[:, place], float(_shares(raw)[place])
        middle = np.quantile(column[best], [0.25, 0.75])
        ranked.append(
            Hyperparameter(
                names[place], share, (float(low[place]), float(high[place])), float(column.min()), float(column.max()),
                (float(middle[0]), float(middle[1])), bool(raw[place] > chance),
            )
        )  # fmt: skip
    return tuple(ranked), ""


def _shares(raw: np.ndarray) -> np.ndarray:
    total = raw.sum()
    return raw / total if total > 0 else np.full(len(raw), 1 / len(raw))


def _half_samples(runs: Sequence[int], count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield random halves [N] of the lives, or with `MIN_RUNS` runs the lives of half of the runs.

    Estimates from halves without replacement spread like those of a bootstrap (Shao and Wu 1989, delete-half
    jackknife), and need no new trials.
    """
    of_run, is_by_run = np.asarray(runs), len(set(runs)) >= MIN_RUNS
    units = np.unique(of_run) if is_by_run else np.arange(len(of_run))
    for _ in range(count):
        drawn = rng.permutation(units)[: (len(units) + 1) // 2]
        yield np.isin(of_run, drawn) if is_by_run else np.isin(units, drawn)


def _evaluator(names: Sequence[str], values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from gains [N], NaN for lives left out, to the importance of each hyperparameter [K].

    PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255) as Optuna implements it: the Pearson divergence between the
    density of a hyperparameter in the best lives and in all. Values are on the scale of `ranges.to_scale`.
    """
    check_installed()
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator

    scaled = np.column_stack([_scaled(name, values[:, k]) for k, name in enumerate(names)])
    ranges: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(float(column.min()), float(column.max()))
        for name, column in zip(names, scaled.T, strict=True)
    }
    is_older = "target_quantile" not in inspect.signature(PedAnovaImportanceEvaluator).parameters
    quantile: dict[str, Any] = {"baseline_quantile" if is_older else "target_quantile": QUANTILE}
    with _quiet(optuna):
        study = optuna.create_study()
        study.add_trials(
            [
                optuna.trial.create_trial(params=dict(zip(names, row, strict=True)), distributions=ranges, value=0.0)
                for row in scaled.tolist()
            ]
        )
        ped_anova = PedAnovaImportanceEvaluator(**quantile)

    def evaluate(gains: np.ndarray) -> np.ndarray:
        losses = (-gains).tolist()  # it explains low values, and leaves out those that are not finite
        with _quiet(optuna):
            divergences = ped_anova.evaluate(study, params=list(names), target=lambda trial: losses[trial.number])
        return np.array([divergences[name] for name in names])

    return evaluate


def _scaled(name: str, column: np.ndarray) -> np.ndarray:
    low, high = float(column.min()), float(column.max())
    return np.array([to_scale(name, x) for x in column.tolist()]) if has_scale(name, low, high) else column


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's notes about studies and targets."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


# -- mutations -----------------------------------------------------------------------------------------------------


def effects_of(runs: Sequence[RunRecords]) -> tuple[Effect, ...]:
    """Return the effect of each mutation with at least `MIN_BIRTHS` births next to unmutated siblings, best first."""
    pairs: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for number, run in enumerate(runs):
        for name, descendants, siblings in _compared(run):
            pairs[name].append((number, descendants, siblings))
    effects = [_effect(name, births) for name, births in pairs.items() if len(births) >= MIN_BIRTHS]
    return tuple(sorted(effects, key=lambda effect: (-effect.difference, effect.name)))


def _effect(name: str, births: Sequence[tuple[int, float, float]]) -> Effect:
    runs = np.array([run for run, _, _ in births])
    ours, theirs = (np.array([birth[place] for birth in births]) for place in (1, 2))
    gaps, rng = ours - theirs, np.random.default_rng(0)
    units = np.unique(runs)
    if len(units) >= MIN_RUNS:
        sums = np.array([gaps[runs == run].sum() for run in units])
        counts = np.array([(runs == run).sum() for run in units])
        drawn = rng.integers(len(units), size=(RESAMPLES, len(units)))
        means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    else:
        means = gaps[rng.integers(len(gaps), size=(RESAMPLES, len(gaps)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    difference = float(gaps.mean())
    return Effect(name, len(births), float(ours.mean()), float(theirs.mean()), difference, (float(low), float(high)))


def _compared(run: RunRecords) -> Iterator[tuple[str, float, float]]:
    """Yield (mutation, descendants, mean descendants of unmutated siblings) of each birth that has such siblings.

    Descendants are counted `GENERATIONS_LATER` generations after the first one, of an asynchronous run generations of
    their shard, or in the last generation. A surviving parent counts as a sibling.
    """
    numbers = [generation[0].generation for generation in run.generations]
    place_of = {number: place for place, number in enumerate(numbers)}
    trained: dict[int, dict[int, Member]] = defaultdict(dict)  # generation -> id -> its row
    rows: dict[int, list[int]] = defaultdict(list)  # id -> generations in which it trained
    of_slot: dict[int, list[int]] = defaultdict(list)  # likewise
    for member in (member for members in run.rounds for member in members):
        trained[member.generation][member.id] = member
        rows[member.id].append(member.generation)
        of_slot[member.slot].append(member.generation)
    together: dict[tuple[int, int], list[Birth]] = defaultdict(list)  # by generation of the birth and of its first row
    for birth in run.births:
        first = next((number for number in rows.get(birth.id, ()) if number >= birth.generation), None)
        if first is not None and birth.parent is not None and birth.kind not in ("healed", "steered"):
            together[birth.generation, first].append(birth)
    for (_, number), births in sorted(together.items(), key=lambda each: each[0]):
        there = trained[number]
        after = numbers[place_of[number] + 1 :]
        if run.is_asynchronous:
            after = [later for later in of_slot[there[births[0].id].slot] if later > number]
        if not after:
            continue
        later = after[GENERATIONS_LATER - 1] if len(after) >= GENERATIONS_LATER else numbers[-1]
        counts = _holders(run, run.generations[place_of[later]], run.generations[place_of[number]])
        unmutated: dict[int | None, list[int]] = defaultdict(list)
        for birth in births:
            if birth.kind in UNMUTATED:
                unmutated[birth.parent].append(birth.id)
        for birth in births:
            if birth.kind in UNMUTATED:
                continue
            siblings = list(unmutated[birth.parent])
            if birth.parent in there and birth.parent != birth.id:
                siblings.append(birth.parent)
            if siblings:
                theirs = [counts[sibling] for sibling in siblings]
                yield mutation_name(birth), float(counts[birth.id]), sum(theirs) / len(theirs)


def _holders(run: RunRecords, members: Sequence[Member], ancestors: Sequence[Member]) -> dict[int, int]:
    """Return how many of `members` descend from each of `ancestors`, by its youngest ancestor among them.

    Of an asynchronous run, members of other shards that were born by then and have no row yet are ancestors too.
    """
    ids, number = {member.id for member in ancestors}, ancestors[0].generation

    def is_ancestor(id: int) -> bool:
        birth = run.births_by_id.get(id) if run.is_asynchronous else None
        return id in ids or (birth is not None and birth.generation <= number)

    counts: dict[int, int] = defaultdict(int)
    for member in members:
        at: int | None = member.id
        seen = set()
        while at is not None and not is_ancestor(at) and at not in seen:
            seen.add(at)
            at = run.parent(at)
        if at is not None and is_ancestor(at):
            counts[at] += 1
    return counts
