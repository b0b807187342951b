"""Propose hyperparameters with a time-varying Gaussian process over past gains (PB2)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agilerl.errors import ConfigError
from agilerl.hpo.founders import share_at, value_at
from agilerl.hpo.operators import RLParameter
from agilerl.modules.paths import resolve

CANDIDATES = 1_000
MOST_TRIALS = 256  # the newest ones: a fit takes time by their cube, and old ones count little
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


def values_of(agent: Any, ranges: Mapping[str, RLParameter]) -> dict[str, float]:
    """Return the agent's hyperparameters by name."""
    return {name: float(resolve(agent, name)) for name in ranges}


def shares_of(values: Mapping[str, float], ranges: Mapping[str, RLParameter]) -> tuple[float, ...]:
    """Return values as shares of their ranges, in [0, 1] and in the order of the ranges."""
    return tuple(share_at(name, each, values[name]) for name, each in ranges.items())


def places_of(agent: Any, ranges: Mapping[str, RLParameter]) -> tuple[float, ...]:
    """Return the agent's hyperparameters as shares of their ranges (`shares_of`)."""
    return shares_of(values_of(agent, ranges), ranges)


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
        trials: all trials so far; the last `MOST_TRIALS` of those that have a value of every hyperparameter count.
        pending: shares of the ranges already proposed in this generation.
        ranges: present ranges of the hyperparameters.
    Raises:
        ConfigError: scikit-learn is not installed.
    """
    candidates = rng.random((CANDIDATES, len(ranges)))
    trials = [trial for trial in trials if all(name in trial.values for name in ranges)][-MOST_TRIALS:]
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


def gaussian_processes() -> Any:
    """Import scikit-learn's Gaussian processes; ConfigError if it is not installed."""
    try:
        from sklearn import gaussian_process
    except ImportError:
        raise ConfigError(
            'pb2 (evolution.scheme): scikit-learn is not installed. fix: pip install "agilerl[bandit]"'
        ) from None
    return gaussian_process


def process_over(dimensions: int) -> Any:
    """Build an unfitted process over [hyperparameters, generation] columns.

    Each factor of the kernel ignores the other factor's columns, whose length scale is FAR.
    (1 - epsilon)^(d / 2) is exp(-d / l) with l = -2 / ln(1 - epsilon).
    """
    library = gaussian_processes()
    blind, near, decay = (FAR, FAR), (0.05, 2.0), (1.0, 200.0)
    space = library.kernels.RBF([0.5] * dimensions + [FAR], [near] * dimensions + [blind])
    time = library.kernels.Matern([FAR] * dimensions + [20.0], [blind] * dimensions + [decay], nu=0.5)
    return library.GaussianProcessRegressor(space * time + library.kernels.WhiteKernel(0.1, (1e-3, 2.0)))
