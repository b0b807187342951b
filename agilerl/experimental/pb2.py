"""Population-based bandits: hyperparameters from a time-varying Gaussian process over past gains (PB2).

Needs scikit-learn (the extra "bandit").
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import gaussian_process

from agilerl.core import foreign
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError
from agilerl.hpo.evolution import Births, Evolution
from agilerl.hpo.founders import share_at, value_at
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.pbt import QUARTER, successor
from agilerl.hpo.tournament import rank
from agilerl.modules.paths import resolve
from agilerl.telemetry.record import MemberRecord

CANDIDATES = 1_000
MAX_TRIALS = 256  # the newest ones: a fit takes time by their cube, and old ones count little
FAR = 1e6  # length scale of a constant kernel


@dataclass(frozen=True)
class Trial:
    """Fitness gain of a member in one generation.

    Attributes:
        values: of its mutable hyperparameters, by name; their ranges may change with a restart.
        generation: when it trained. gain: fitness minus that of the previous generation; finite.
    """

    values: Mapping[str, float]
    generation: int
    gain: float


def values_of(agent: foreign.Agent, ranges: Mapping[str, RLParameter]) -> dict[str, float]:
    """Return the agent's hyperparameters by name."""
    return {name: float(resolve(agent, name)) for name in ranges}


def shares_of(values: Mapping[str, float], ranges: Mapping[str, RLParameter]) -> tuple[float, ...]:
    """Return values as shares of their ranges, in [0, 1] and in the order of the ranges."""
    return tuple(share_at(name, each, values[name]) for name, each in ranges.items())


def propose(
    trials: Sequence[Trial],
    pending: Sequence[Sequence[float]],
    generation: int,
    ranges: Mapping[str, RLParameter],
    rng: np.random.Generator,
) -> dict[str, float | int]:
    """Return the values that maximise mean + sqrt(beta) * deviation of the expected gain in `generation`.

    Population-based bandits (Parker-Holder, Nguyen and Roberts 2020, arXiv:2002.02518, section 4). The kernel is
    k((x, i), (x', j)) = exp(-|x - x'|^2 / 2 l^2) * (1 - epsilon)^(|i - j| / 2), which discounts old trials. Proposals
    of one generation are spread by computing deviations from a process that includes the earlier ones (`pending`). beta
    = 0.2 ln(0.4 n) after n trials. Length scales, epsilon and the noise maximise the likelihood. Values are random
    until two gains differ.

    Args:
        trials: all trials so far; the last `MAX_TRIALS` of those that have a value of every hyperparameter count.
        pending: shares of the ranges already proposed in this generation.
        ranges: present ranges of the hyperparameters.
    """
    candidates = rng.random((CANDIDATES, len(ranges)))
    trials = [trial for trial in trials if all(name in trial.values for name in ranges)][-MAX_TRIALS:]
    gains = np.array([trial.gain for trial in trials])
    if len(trials) < 2 or gains.std() == 0.0:
        chosen = candidates[0]
    else:
        points = np.array([[*shares_of(trial.values, ranges), trial.generation] for trial in trials])
        chosen = candidates[int(np.argmax(_bounds(points, gains, pending, generation, candidates)))]
    return {name: value_at(name, each, float(x)) for (name, each), x in zip(ranges.items(), chosen, strict=True)}


def _bounds(
    points: NDArray[np.float64],
    gains: NDArray[np.float64],
    pending: Sequence[Sequence[float]],
    generation: int,
    candidates: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the upper confidence bound of the gain of each candidate, in standard deviations of the gains.

    The deviation is that of an observed gain: scikit-learn's `return_std` includes the noise of the `WhiteKernel`,
    where the paper has the deviation of the process alone. The noise is the same for all candidates, so it weakens the
    preference for unknown ones.

    Args:
        points: [N, H + 1] shares of H ranges and the generation of each trial. gains: [N]. candidates: [C, H] shares.

    Returns:
        [C].
    """
    now = np.column_stack([candidates, np.full(len(candidates), generation)])
    process = process_over(points.shape[1] - 1)
    standard = (gains - gains.mean()) / gains.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # length scales at their bounds are expected with few trials
        process.fit(points, standard)
    mean = process.predict(now)
    seen = np.vstack([points, *([*place, generation] for place in pending)])
    process.set_params(optimizer=None, kernel=process.kernel_)
    process.fit(seen, np.zeros(len(seen)))  # deviations do not depend on the gains
    deviation = process.predict(now, return_std=True)[1]
    beta = max(0.0, 0.2 * np.log(0.4 * len(points)))
    return np.asarray(mean + np.sqrt(beta) * deviation)


def process_over(dimensions: int) -> Any:
    """Build an unfitted process over [hyperparameters, generation] columns.

    Each factor of the kernel ignores the other factor's columns, whose length scale is FAR.
    (1 - epsilon)^(d / 2) is exp(-d / l) with l = -2 / ln(1 - epsilon).
    """
    blind, near, decay = (FAR, FAR), (0.05, 2.0), (1.0, 200.0)
    space = gaussian_process.kernels.RBF([0.5] * dimensions + [FAR], [near] * dimensions + [blind])
    time = gaussian_process.kernels.Matern([FAR] * dimensions + [20.0], [blind] * dimensions + [decay], nu=0.5)
    return gaussian_process.GaussianProcessRegressor(
        space * time + gaussian_process.kernels.WhiteKernel(0.1, (1e-3, 2.0))
    )


class PopulationBandit(Evolution):
    """Replace the worst quarter by copies of the best, with hyperparameters chosen by a bandit (PB2).

    Algorithm 1 of Parker-Holder, Nguyen and Roberts 2020 (arXiv:2002.02518). In each generation, the fitness gain of
    every member is a trial of its hyperparameters. A member of the worst quarter becomes a copy of a random member of
    the best quarter, with the hyperparameters proposed by `propose`.

    Args:
        seed: of the draws.
    Attributes:
        trials: so far. before: fitness of each member at the last selection, by id.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.trials = seed, list[Trial]()
        self.before: dict[int, float] = {}

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        ranges = dict(population[0].registry.hp_config.items())
        if not ranges:
            raise ConfigError("evolution.scheme=pb2 chooses hyperparameters. fix: ranges in mutation.rl_hp_selection.")
        fitness = [record.fitness for record in records]
        # By slot: a healed member has a different id from its record, and its gain is not due to its hyperparameters.
        for agent, value in zip(population, fitness, strict=True):
            gain = value - self.before.get(agent.index, math.nan)
            if math.isfinite(gain):
                self.trials.append(Trial(values_of(agent, ranges), generation, gain))
        ranks = rank(fitness)
        count = len(population) // QUARTER or (1 if len(population) > 1 else 0)
        rng = stream(self.seed, Purpose.SELECTION, generation)
        best = [slot for slot in range(len(population)) if ranks[slot] >= len(population) - max(1, count)]
        after, births, free = list(population), [], max(agent.index for agent in population) + 1
        pending: list[tuple[float, ...]] = []
        reached = list(fitness)
        for slot in sorted(range(len(population)), key=lambda slot: int(ranks[slot]))[:count]:
            chosen = best[int(rng.integers(len(best)))]
            values = propose(self.trials, pending, generation + 1, ranges, rng)
            after[slot], birth = successor(population[chosen], free, values, generation)
            pending.append(shares_of(values_of(after[slot], ranges), ranges))
            reached[slot], free = fitness[chosen], free + 1
            births.append(birth)
        self.before = {agent.index: value for agent, value in zip(after, reached, strict=True)}
        return after, tuple(births)

    def renamed(self, ids: Mapping[int, int]) -> None:
        self.before = {ids.get(member, member): value for member, value in self.before.items()}

    def state(self) -> dict[str, Any]:
        trials = [[dict(trial.values), trial.generation, trial.gain] for trial in self.trials]
        return {"seed": self.seed, "trials": trials, "before": dict(self.before)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])
        self.trials = [
            Trial({str(name): float(value) for name, value in values.items()}, int(when), float(gain))
            for values, when, gain in state["trials"]
        ]
        self.before = {int(member): float(value) for member, value in state["before"].items()}
