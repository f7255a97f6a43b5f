"""Intervals and tests of the study beside those of kvbench.stats."""

import math

import numpy as np
from scipy import stats

from kvbench import stats as ks


def holm_intervals(columns, alpha=0.05, resamples=ks.RESAMPLES, seed=0):
    """Returns [(low, high, adjusted p)] of the means of `columns`, tested against 0.

    columns: one array per test, a figure per prompt; lengths may differ. The p of a column is the level at which its
    studentised bootstrap interval meets 0, adjusted by Holm's rule. Its interval has the level at which Holm's rule
    tested it. The family-wise error is alpha, and an interval excludes 0 where the adjusted p is at most alpha. NaN
    with fewer than 4 prompts; such columns are not tests. At least 40 / alpha resamples are drawn per test.
    """
    tests = [i for i, values in enumerate(columns) if len(values) >= ks.FEWEST_FOR_INTERVALS]
    resamples = max(resamples, math.ceil(40 * len(tests) / alpha))
    found = {}
    for n in sorted({len(columns[i]) for i in tests}):
        draws = ks.resample_counts(n, resamples, seed)
        for i in (i for i in tests if len(columns[i]) == n):
            mean, apart, square, equal = ks.deviations(np.asarray(columns[i], float)[:, None])
            ts, error = ks.studentised(apart, square, draws)
            ts, at = np.sort(ts[:, 0]), mean[0] / error[0]
            # Resamples at least as far out on the side opposite to the mean.
            above = resamples - np.searchsorted(ts, at, side="left")
            below = np.searchsorted(ts, at, side="right")
            p = min(1.0, 2 * max(min(above, below), 1) / resamples)
            if equal[0]:
                ts, p = np.zeros(1), (2 / resamples if mean[0] else 1.0)
            found[i] = (p, mean[0], error[0], ts)
    order = sorted(tests, key=lambda i: found[i][0])
    adjusted = dict(zip(order, ks.holm([found[i][0] for i in order])))
    out = [(math.nan, math.nan, math.nan)] * len(columns)
    rank = 0
    for i in order:
        p, mean, error, ts = found[i]
        # Columns that did not pass share the last level reached.
        level = alpha / (len(tests) - rank)
        inside = 1 - level
        tail = np.quantile(ts, [(1 + inside) / 2, (1 - inside) / 2], method="inverted_cdf")
        low, high = mean - tail * error
        out[i] = (float(low), float(high), float(adjusted[i]))
        if p <= level and rank < len(tests) - 1:
            rank += 1
    return out


def binomial_interval(right, n, level=0.95):
    """Returns (low, high) of a share: Clopper and Pearson's exact interval for `right` of n; NaN if n is 0."""
    if n == 0:
        return math.nan, math.nan
    low, high = stats.binomtest(right, n).proportion_ci(level, "exact")
    return float(low), float(high)


def sign_test(better, worse):
    """Returns p of the one-sided sign test: at least `better` of better + worse fair coins."""
    n = better + worse
    return float(stats.binomtest(better, n, alternative="greater").pvalue) if n else 1.0
