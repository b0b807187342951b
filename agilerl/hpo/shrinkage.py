"""Shrunken estimates of mean returns: the highest of several noisy means is biased upwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shrink(means: Sequence[float], errors: Sequence[float], episodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Shrink the mean returns of N members towards their common mean; return ([N] estimates, [N] standard errors).

    James and Stein's estimator in Lindley's form (Efron and Morris 1975, "Data analysis using Stein's estimator and
    its generalizations"), with the positive part:

        estimate_i = m + (1 - B_i) (mean_i - m),    B_i = min(1, (N - 3) V_i / sum_j (mean_j - m)^2),

    m the mean of the means, V_i = s^2 / n_i with the variance s^2 of a return pooled over all members: few episodes
    of one member estimate its variance poorly. The standard error is that of the empirical Bayes posterior,
    sqrt((1 - B_i) V_i). Fewer than four members are not shrunk.

    Args:
        means: [N] of `episodes` returns each. errors: [N] standard errors of the means.
    """
    values, counts = np.asarray(means, float), np.asarray(episodes, float)
    degrees = np.maximum(counts - 1, 0)
    within = float((degrees * np.square(errors) * counts).sum() / max(1.0, degrees.sum()))
    variances = within / counts
    center = values.mean()
    between = float(np.square(values - center).sum())
    weights = np.zeros_like(values)
    if len(values) > 3:
        weights = np.minimum(1, (len(values) - 3) * variances / between) if between > 0 else np.ones_like(values)
    return values - weights * (values - center), np.sqrt((1 - weights) * variances)
