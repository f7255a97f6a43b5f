"""Statistics of methods measured on the same prompts. The unit is the prompt.

values [prompts, methods]: one figure per prompt and method. Prompts are independent draws;
comparisons are within prompts. Tests as in Demsar, Statistical Comparisons of Classifiers over
Multiple Data Sets, JMLR 7 (2006). docs/statistics.md says when to use which. Needs scipy.
"""

import math

import numpy as np
from scipy import stats

RESAMPLES = 10000
INTERVALS = ("t", "bca")
# With fewer, one resample in fifty holds a single prompt and the interval is unbounded.
FEWEST_FOR_INTERVALS = 4
MIN_SHARE = 0.9  # share of resamples that must have a correlation for an interval


def bootstrap_intervals(values, level=0.95, kind="t", resamples=RESAMPLES, seed=0):
    """Returns intervals [m, 2] of the means over prompts of `values` [n, m]; NaN if n < 4.

    Prompts are drawn with replacement, the same for all columns. kind:
    t    studentised (bootstrap-t; Hall 1988). Keeps its level with ten or twenty prompts, unlike bca.
    bca  bias-corrected and accelerated (Efron 1987).
    Equal values give an interval of one point.
    """
    values = np.asarray(values, float)
    n, columns = values.shape
    if n < FEWEST_FOR_INTERVALS:
        return np.full((columns, 2), math.nan)
    mean, apart, square, equal = deviations(values)
    draws = resample_counts(n, resamples, seed)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if kind == "t":
        ts, error = studentised(apart, square, draws)
        # inverted_cdf returns a resample's value, never a mean with infinity.
        at = np.quantile(ts, tails[::-1], axis=0, method="inverted_cdf")
        out = mean - at * error
    else:
        moves = draws @ apart / n
        below = (np.sum(moves < 0, axis=0) + np.sum(moves == 0, axis=0) / 2) / resamples
        bias = stats.norm.ppf(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples))
        acceleration = (apart**3).sum(axis=0) / (6 * square**1.5)
        z = bias + stats.norm.ppf(tails)[:, None]
        places = stats.norm.cdf(bias + z / (1 - acceleration * z))
        out = mean + np.array([np.quantile(moves[:, j], places[:, j]) for j in range(columns)]).T
    out[:, equal] = mean[equal]
    return out.T


def deviations(values):
    """Returns (mean, deviations, their sum of squares, whether all are equal) by column."""
    mean = values.mean(axis=0)
    apart = values - mean
    square = (apart**2).sum(axis=0)
    # Equal values may differ from their rounded mean.
    equal = np.ptp(values, axis=0) <= 1e-14 * np.abs(values).max(axis=0)
    square[equal] = 1.0
    return mean, apart, square, equal


def resample_counts(n, resamples, seed):
    """Returns [resamples, n]: how often each resample holds each prompt."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def studentised(apart, square, draws):
    """Returns (t of each resample [resamples, m], standard errors of the data [m])."""
    n = len(apart)
    moves = draws @ apart / n
    spread = np.sqrt(np.maximum(draws @ apart**2 / n - moves**2, 0) / (n - 1))
    # A resample of a single prompt has no spread: t is infinite.
    alone = spread <= 1e-9 * np.sqrt(square / n)
    ts = moves / np.where(alone, 1, spread)
    near = np.abs(moves) <= 1e-12 * np.sqrt(square / n)
    ts[alone] = np.copysign(np.inf, ts[alone])
    ts[alone & near] = 0
    return ts, np.sqrt(square / (n * (n - 1)))


def correlation_interval(point, resampled, n, level=0.95, bounds=None):
    """Returns (low, high) of a correlation from its resampled values [r].

    n: number of resampled prompts; if methods were resampled too, the smaller count. bounds: clips the ends.

    A normal interval around the bias-corrected figure, with Student's t and a standard deviation over n - 1. Noise
    lowers correlations again in resamples, so percentiles would be biased (studies/reference/commands.md). Returns NaN
    if too few values are finite.
    """
    values = resampled[~np.isnan(resampled)]
    if n < FEWEST_FOR_INTERVALS or len(values) <= MIN_SHARE * len(resampled):
        return math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, n - 1) * values.std() * math.sqrt(n / (n - 1))
    middle = 2 * point - values.mean()
    ends = middle - half, middle + half
    return tuple(float(end) for end in (ends if bounds is None else np.clip(ends, *bounds)))


def signed_rank_test(differences):
    """Returns (p, sign) of Wilcoxon's signed-rank test: two-sided, exact with ties and zeros.

    sign is 1 if positive ranks weigh more. Ties share their mean rank; sizes that agree in 12 digits of the largest
    are ties, since the last digits of a mean depend on the release of pandas. Zeros are ranked, then dropped (Pratt
    1959). scipy.stats.wilcoxon(method="exact") agrees without ties and zeros, with which it is not exact.
    """
    differences = np.asarray(differences, float)
    largest = np.abs(differences).max(initial=0.0)
    if largest > 0:
        differences = np.round(differences / largest, 12)
    ranks = np.rint(2 * stats.rankdata(np.abs(differences))).astype(int)[differences != 0]
    signs = differences[differences != 0] > 0
    if not len(ranks):
        return 1.0, 0
    chances = np.zeros(ranks.sum() + 1)
    chances[0] = 1.0
    for rank in ranks:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[:len(chances) - rank]
        chances = (chances + moved) / 2
    positive = ranks[signs].sum()
    rest = ranks.sum() - positive
    p = min(1.0, 2 * float(chances[:min(positive, rest) + 1].sum()))
    return p, int(np.sign(positive - rest))


def min_p(n):
    """Returns the smallest p of the signed-rank test with n prompts."""
    return min(1.0, 2.0**(1 - n))


def prompts_to_compare(comparisons, alpha):
    """Returns the fewest prompts with which the smallest p can pass Holm's rule."""
    n = 1
    while comparisons * min_p(n) > alpha:
        n += 1
    return n


def holm(ps):
    """Returns p adjusted by Holm's step-down rule, in the order of `ps`; NaN stays NaN. scipy lacks it."""
    ps = np.asarray(ps, float)
    out = np.full(len(ps), math.nan)
    order = [i for i in np.argsort(ps, kind="stable") if not math.isnan(ps[i])]
    so_far = 0.0
    for at, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(order) - at) * ps[i]))
        out[i] = so_far
    return out


def ranks_of(values, higher_better=False):
    """Returns ranks within each row of [prompts, methods]: 1 is the best, ties share the mean."""
    return stats.rankdata(-values if higher_better else values, axis=1)


def friedman(ranks):
    """Returns {chi2, f, p_chi2, p} of Friedman's test on ranks [prompts, methods].

    chi2 as Friedman (1937) and Demsar (2006) define it, without a correction for ties (conservative); f and p as Iman
    and Davenport; report p. NaN for fewer than two prompts or methods. If all prompts rank alike, f is infinite and p
    is that of chi2. scipy.stats.friedmanchisquare corrects for ties, and divides by 0 if all methods are equal.
    """
    n, k = ranks.shape
    if n < 2 or k < 2:
        return dict.fromkeys(("chi2", "f", "p_chi2", "p"), math.nan)
    chi2 = 12 * n / (k * (k + 1)) * ((ranks.mean(axis=0)**2).sum() - k * (k + 1)**2 / 4)
    chi2 = max(0.0, chi2)
    p_chi2 = float(stats.chi2.sf(chi2, k - 1))
    rest = n * (k - 1) - chi2
    if rest <= 1e-9 * n * (k - 1):
        return {"chi2": chi2, "f": math.inf, "p_chi2": p_chi2, "p": p_chi2}
    f = (n - 1) * chi2 / rest
    return {"chi2": chi2, "f": f, "p_chi2": p_chi2, "p": float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))}


def critical_difference(methods, prompts, alpha=0.05):
    """Returns Nemenyi's critical difference of mean ranks, over all pairs."""
    q = stats.studentized_range.ppf(1 - alpha, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * prompts)))


def prompts_to_rank(methods, alpha=0.05):
    """Returns the fewest prompts with which Nemenyi's test can tell methods apart: ranks differ by methods - 1."""
    n = 2
    one = critical_difference(methods, 1, alpha)
    while one / math.sqrt(n) >= methods - 1:
        n += 1
    return n


def groups_alike(mean_ranks, difference):
    """Returns [(first, last)]: maximal runs of sorted mean ranks within the difference."""
    out = []
    last_end = -1
    for first in range(len(mean_ranks)):
        last = first
        while last + 1 < len(mean_ranks) and mean_ranks[last + 1] - mean_ranks[first] <= difference:
            last += 1
        if last > first and last > last_end:
            out.append((first, last))
            last_end = last
    return out


def win_counts(values, higher_better=False):
    """Returns the number of prompts at which each method is the best; ties share the win."""
    best = (values.max(axis=1) if higher_better else values.min(axis=1))[:, None]
    first = values == best
    return (first / first.sum(axis=1, keepdims=True)).sum(axis=0)
