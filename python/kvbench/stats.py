"""Statistics of methods measured on the same prompts: the unit is the prompt.

values [prompts, methods]: one figure per prompt and method, such as a mean over layers, heads and
seeds. Rows are taken as independent draws; all comparisons are within prompts. Tests as in Demsar,
Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7 (2006). docs/statistics.md
says when to use what. Needs scipy.
"""

import math

import numpy as np
from scipy import stats

RESAMPLES = 10000
INTERVALS = ("t", "bca", "percentile")
# With fewer prompts one in fifty resamples is of one prompt alone, and the interval has no end.
FEWEST_FOR_INTERVALS = 4


def counted(units, what="prompt"):
    return f"{units} {what}" + ("s" if units != 1 else "")


def bootstrap_intervals(values, level=0.95, kind="t", resamples=RESAMPLES, seed=0):
    """Intervals for the means over prompts of `values` [n, m]: [m, 2]; NaN with n below 4.

    Prompts are drawn with replacement, the same for all columns. Kinds:
    t           studentised (bootstrap-t; Hall 1988): quantiles of (resampled mean - mean) over the
                resample's own standard error. For ten or twenty prompts it holds its level, which
                the others do not (docs/statistics.md has the measured coverage).
    bca         bias-corrected and accelerated (Efron 1987).
    percentile  quantiles of the resampled means.
    Equal values have an interval of one point.
    """
    values = np.asarray(values, float)
    n, columns = values.shape
    if n < FEWEST_FOR_INTERVALS:
        return np.full((columns, 2), math.nan)
    mean, apart, square, equal = _apart(values)
    draws = resample_counts(n, resamples, seed)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if kind == "t":
        ts, error = _studentised(apart, square, draws)
        # inverted_cdf: a resample's own value, never a mean of one and infinity.
        at = np.quantile(ts, tails[::-1], axis=0, method="inverted_cdf")
        out = mean - at * error
    else:
        moves = draws @ apart / n
        if kind == "percentile":
            out = mean + np.quantile(moves, tails, axis=0)
        else:
            below = (np.sum(moves < 0, axis=0) + np.sum(moves == 0, axis=0) / 2) / resamples
            bias = stats.norm.ppf(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples))
            acceleration = (apart**3).sum(axis=0) / (6 * square**1.5)
            z = bias + stats.norm.ppf(tails)[:, None]
            places = stats.norm.cdf(bias + z / (1 - acceleration * z))
            out = mean + np.array([np.quantile(moves[:, j], places[:, j])
                                   for j in range(columns)]).T
    out[:, equal] = mean[equal]
    return out.T


def _apart(values):
    """(mean, distances from it, their sum of squares, whether all are equal) by column."""
    mean = values.mean(axis=0)
    apart = values - mean
    square = (apart**2).sum(axis=0)
    # Equal values whose mean was rounded are equal.
    equal = np.ptp(values, axis=0) <= 1e-14 * np.abs(values).max(axis=0)
    square[equal] = 1.0
    return mean, apart, square, equal


def resample_counts(n, resamples, seed):
    """How often each resample holds each prompt: [resamples, n]."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def _studentised(apart, square, draws):
    """(t of each resample [resamples, m], the data's standard errors [m])."""
    n = len(apart)
    moves = draws @ apart / n
    spread = np.sqrt(np.maximum(draws @ apart**2 / n - moves**2, 0) / (n - 1))
    # A resample of one prompt alone has no spread: as far out as can be.
    alone = spread <= 1e-9 * np.sqrt(square / n)
    ts = moves / np.where(alone, 1, spread)
    near = np.abs(moves) <= 1e-12 * np.sqrt(square / n)
    ts[alone] = np.copysign(np.inf, ts[alone])
    ts[alone & near] = 0
    return ts, np.sqrt(square / (n * (n - 1)))


def holm_intervals(columns, alpha=0.05, resamples=RESAMPLES, seed=0):
    """[(low, high, adjusted p)] for the means of `columns`: which are below 0, which above?

    columns: one array per question, a figure per prompt, lengths may differ. p of a column is the
    level at which its studentised bootstrap interval (bootstrap_intervals) meets 0; Holm's rule
    adjusts them, and the interval of a column is that of the level at which the rule looked at it.
    So with chance 1 - alpha no column whose interval leaves out 0 does so wrongly, and an interval
    leaves out 0 where the adjusted p is at most alpha. NaN with fewer than 4 prompts; such a column
    is no test and takes nothing from the others. There are at least 40 / alpha resamples a test.
    """
    tests = [i for i, values in enumerate(columns) if len(values) >= FEWEST_FOR_INTERVALS]
    resamples = max(resamples, math.ceil(40 * len(tests) / alpha))
    found = {}
    for n in sorted({len(columns[i]) for i in tests}):
        draws = resample_counts(n, resamples, seed)
        for i in (i for i in tests if len(columns[i]) == n):
            mean, apart, square, equal = _apart(np.asarray(columns[i], float)[:, None])
            ts, error = _studentised(apart, square, draws)
            ts, at = np.sort(ts[:, 0]), mean[0] / error[0]
            # Resamples at least as far out, on the side that counts against the mean's sign.
            above = resamples - np.searchsorted(ts, at, side="left")
            below = np.searchsorted(ts, at, side="right")
            p = min(1.0, 2 * max(min(above, below), 1) / resamples)
            if equal[0]:
                ts, p = np.zeros(1), (2 / resamples if mean[0] else 1.0)
            found[i] = (p, mean[0], error[0], ts)
    order = sorted(tests, key=lambda i: found[i][0])
    adjusted = dict(zip(order, holm([found[i][0] for i in order])))
    out = [(math.nan, math.nan, math.nan)] * len(columns)
    rank = 0
    for i in order:
        p, mean, error, ts = found[i]
        # The last level that was reached is everybody's who did not pass.
        level = alpha / (len(tests) - rank)
        inside = 1 - level
        tail = np.quantile(ts, [(1 + inside) / 2, (1 - inside) / 2], method="inverted_cdf")
        low, high = mean - tail * error
        out[i] = (float(low), float(high), float(adjusted[i]))
        if p <= level and rank < len(tests) - 1:
            rank += 1
    return out


def signed_rank_test(differences):
    """(p, sign) of Wilcoxon's signed-rank test, two-sided and exact, with ties and zeros too.

    scipy.stats.wilcoxon(method="exact") gives the same p without ties and zeros. With ties its p is
    not the exact one (scipy 1.10, sizes 1, 1, 2, -2, -3, 4, 5: .469; of 128 choices of signs 54 are as
    extreme: .422), and with zeros it takes a normal approximation, so the p is counted here.

    The sign of each rank is a fair coin under the null hypothesis. Equal sizes share their mean
    rank; zeros take part in the ranking and then leave (Pratt 1959). The distribution is counted,
    not approximated: ranks are whole numbers of halves. sign: 1 where positive ranks weigh more.
    Sizes that agree in 12 digits of the largest are equal: the last digits of a mean depend on the
    order of its sum, and so on the release of pandas.
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


def binomial_interval(right, n, level=0.95):
    """(low, high) of a share of which `right` of n were seen: Clopper and Pearson's exact interval.

    It holds its level whatever the share; NaN where n is 0.
    """
    if n == 0:
        return math.nan, math.nan
    low, high = stats.binomtest(right, n).proportion_ci(level, "exact")
    return float(low), float(high)


def sign_test(better, worse):
    """p of the one-sided sign test: so many of better + worse fair coins, or more, fall on `better`."""
    n = better + worse
    return float(stats.binomtest(better, n, alternative="greater").pvalue) if n else 1.0


def min_p(n):
    """The smallest p that the signed-rank test can give with n prompts: all differ one way."""
    return min(1.0, 2.0**(1 - n))


def prompts_to_compare(comparisons, alpha):
    """The fewest prompts with which the smallest of so many p can pass Holm's rule."""
    n = 1
    while comparisons * min_p(n) > alpha:
        n += 1
    return n


def holm(ps):
    """Adjusted p of Holm's step-down rule, in the order of `ps`; NaN where p is NaN.

    scipy has no such function, and statsmodels would be a dependency for these lines alone.
    """
    ps = np.asarray(ps, float)
    out = np.full(len(ps), math.nan)
    order = [i for i in np.argsort(ps, kind="stable") if not math.isnan(ps[i])]
    so_far = 0.0
    for at, i in enumerate(order):
        so_far = max(so_far, min(1.0, (len(order) - at) * ps[i]))
        out[i] = so_far
    return out


def ranks_of(values, higher_better=False):
    """Ranks within each row of [prompts, methods]: 1 is the best, equal values share the mean."""
    return stats.rankdata(-values if higher_better else values, axis=1)


def friedman(ranks):
    """{chi2, f, p_chi2, p}: do the methods' mean ranks differ at all? ranks [prompts, methods].

    chi2 as Friedman (1937) and Demsar (2006) have it, without a correction for ties (which errs on the
    safe side), and Iman and Davenport's F from it, whose p is the one to report. NaN for fewer than two
    prompts or methods. Where all prompts rank alike, F has no bound and p is chi2's.
    scipy.stats.friedmanchisquare gives the same chi2 without ties. With ties it corrects chi2, which is
    then not Demsar's, and where all methods are equal it divides by 0.
    """
    n, k = ranks.shape
    if n < 2 or k < 2:
        return dict.fromkeys(("chi2", "f", "p_chi2", "p"), math.nan)
    chi2 = 12 * n / (k * (k + 1)) * ((ranks.mean(axis=0)**2).sum() - k * (k + 1)**2 / 4)
    chi2 = max(0.0, chi2)  # rounding
    p_chi2 = float(stats.chi2.sf(chi2, k - 1))
    rest = n * (k - 1) - chi2
    if rest <= 1e-9 * n * (k - 1):
        return {"chi2": chi2, "f": math.inf, "p_chi2": p_chi2, "p": p_chi2}
    f = (n - 1) * chi2 / rest
    return {"chi2": chi2, "f": f, "p_chi2": p_chi2,
            "p": float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))}


def critical_difference(methods, prompts, alpha=0.05):
    """Nemenyi's: mean ranks that differ by more than this differ, all pairs tested at once."""
    q = stats.studentized_range.ppf(1 - alpha, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * prompts)))


def prompts_to_rank(methods, alpha=0.05):
    """The fewest prompts with which any two of so many methods can differ by Nemenyi's test.

    Mean ranks differ by methods - 1 at most: a larger critical difference is never exceeded.
    """
    n = 2
    one = critical_difference(methods, 1, alpha)
    while one / math.sqrt(n) >= methods - 1:
        n += 1
    return n


def groups_alike(mean_ranks, difference):
    """[(first, last)]: the longest runs of sorted mean ranks that lie within the difference."""
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
    """At how many prompts each method is the best; methods that share the best share the win."""
    best = (values.max(axis=1) if higher_better else values.min(axis=1))[:, None]
    first = values == best
    return (first / first.sum(axis=1, keepdims=True)).sum(axis=0)
