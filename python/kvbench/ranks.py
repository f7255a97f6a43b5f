"""Rank correlations of cells under resampled prompts and methods, all resamples at once.

A row of values [r, c] has a figure for each of c cells. Whether two of them differ is asked once per
pair; Spearman's and Kendall's correlation follow from the signs. Equal values share their mean rank;
figures that differ by rounding only are equal.

A row may hold a cell any number of times (Copies): pairs are then weighted, and no cell is written
twice. Copies of a cell are level on both sides, and pairs that are level count for neither figure.

scipy.stats.spearmanr and kendalltau give the same figures of one row (tests/test_kvbench_ranks.py);
they take neither thousands of rows at once nor copies.
"""

import math

import numpy as np
from scipy import stats

from kvbench import stats as ks

# Means of the same numbers, added in another order, differ by less than this share.
ROUNDING = 1e-12
BLOCK = 1 << 22  # numbers at a time
MIN_SHARE = 0.9  # of resamples that have a correlation, else there is no interval


class Pairs:
    """The pairs i < j of a table's cells, and those within a group of cells."""

    def __init__(self, cells):
        self.cells = cells
        self.i, self.j = np.triu_indices(cells, 1)

    def signs(self, values):
        """[r, pairs] of -1, 0, 1: is cell i below, level with or above cell j?"""
        out = np.empty((len(values), len(self.i)), np.int8)
        step = max(1, BLOCK // max(1, len(self.i)))
        for at in range(0, len(values), step):
            one, other = values[at:at + step, self.i], values[at:at + step, self.j]
            apart, slack = one - other, ROUNDING * (np.abs(one) + np.abs(other))
            out[at:at + step] = (apart > slack).astype(np.int8) - (apart < -slack)
        return out

    def group(self, members):
        """(which pairs are within `members`, [pairs, members] that adds signs up to ranks)."""
        inside = np.flatnonzero(np.isin(self.i, members) & np.isin(self.j, members))
        place = {cell: at for at, cell in enumerate(members)}
        adds = np.zeros((len(inside), len(members)), np.float32)
        rows = np.arange(len(inside))
        adds[rows, [place[cell] for cell in self.i[inside]]] = 0.5
        adds[rows, [place[cell] for cell in self.j[inside]]] = -0.5
        return inside, adds


class Copies:
    """How often each row holds each cell of a group: copies [r, cells], group of Pairs.group.

    pairs [r, pairs]: how often a pair of cells stands there. roots [r, members]: 1 / sqrt(copies), 0
    where there are none.
    """

    def __init__(self, copies, pairs, members, group):
        # The smallest type that holds the largest product, and less a sign.
        copies = copies.astype(np.min_scalar_type(-int(copies.max(initial=1))**2 - 1))
        self.pairs = copies[:, pairs.i[group[0]]] * copies[:, pairs.j[group[0]]]
        times = copies[:, members].astype(float)
        self.roots = np.divide(1, np.sqrt(times), out=np.zeros_like(times), where=times > 0)


class Ranked:
    """Signs and ranks of rows of values, within a group of cells.

    ranks [r, members] have mean 0: the least of n cells has -(n - 1) / 2. With `copies` they are
    ranks among all copies, each times the root of its cell's copies: a product of two such ranks
    counts every copy. They are then not the cell's places.
    """

    def __init__(self, signs, group, copies=None):
        inside, adds = group
        self.signs = signs[:, inside]
        self.copies = copies
        self.ranks = np.concatenate([self.weighted(self.signs[rows], rows) @ adds
                                     for rows in self.blocks(512)])
        if copies is not None:
            # So far the rank times the copies, of which the root shall stay.
            self.ranks = self.ranks * copies.roots
        self.apart = self.sums(lambda rows: self.signs[rows] != 0)  # pairs that differ

    def blocks(self, width):
        step = max(1, BLOCK // max(1, width))
        return [slice(at, at + step) for at in range(0, len(self.signs), step)]

    def weighted(self, values, rows):
        """values [rows, pairs], each as often as its pair stands there."""
        return (values if self.copies is None else values * self.copies.pairs[rows]).astype(np.float32)

    def sums(self, figure):
        """[r]: the sum over pairs of figure(rows), each as often as it stands there."""
        return np.concatenate([self.weighted(figure(rows), rows).sum(axis=1, dtype=float)
                               for rows in self.blocks(self.signs.shape[1])])


def ratio(above, one, other):
    """above / sqrt(one other); NaN where a side is constant."""
    below = np.sqrt(one.astype(float) * other)
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def spearman(x, y):
    """[r]: Pearson's correlation of the ranks, so that ties are counted rightly."""
    a, b = x.ranks.astype(float), y.ranks.astype(float)
    return ratio((a * b).sum(axis=1), (a * a).sum(axis=1), (b * b).sum(axis=1))


def kendall(x, y):
    """[r]: tau-b. x and y have the same copies."""
    return ratio(x.sums(lambda rows: x.signs[rows] * y.signs[rows]), x.apart, y.apart)


def interval(point, resampled, n, level=0.95, bounds=None):
    """(low, high) for a figure from its resampled values [r].

    n: how many prompts were resampled; where methods were too, the fewer of both.

    A normal interval around the figure less the bootstrap's bias, with Student's t and a standard
    deviation over n - 1. Noise of the prompts lowers correlations, and lowers them again in
    resamples: percentiles would lie too low (docs/statistics.md). Values may be NaN, but where too
    few are not, there is no interval. `bounds` cuts its ends.
    """
    values = resampled[~np.isnan(resampled)]
    if n < ks.FEWEST_FOR_INTERVALS or len(values) <= MIN_SHARE * len(resampled):
        return math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, n - 1) * values.std() * math.sqrt(n / (n - 1))
    middle = 2 * point - values.mean()
    ends = middle - half, middle + half
    return tuple(float(end) for end in (ends if bounds is None else np.clip(ends, *bounds)))


def pooled_medians(values, prompts, cells, counts):
    """[r, cells]: the median of all values of a cell, each as often as its prompt is drawn.

    values, prompts, cells [n]: a value, its prompt's and its cell's number; counts [r, prompts].
    """
    out = np.empty((len(counts), cells.max() + 1))
    for cell in range(out.shape[1]):
        mine = np.flatnonzero(cells == cell)
        mine = mine[np.argsort(values[mine], kind="stable")]
        ordered = values[mine]
        # below[v]: how many of the v least values each prompt has.
        below = np.zeros((len(mine) + 1, counts.shape[1]), np.int64)
        np.add.at(below, (np.arange(1, len(mine) + 1), prompts[mine]), 1)
        below = below.cumsum(axis=0)
        total = counts @ below[-1]
        out[:, cell] = (_at_rank(ordered, below, counts, (total + 1) // 2)
                        + _at_rank(ordered, below, counts, total // 2 + 1)) / 2
    return out


def _at_rank(ordered, below, counts, rank):
    """The value of this rank, from 1, in each resample: bisection of how many lie at or below."""
    low, high = np.ones(len(counts), np.int64), np.full(len(counts), len(ordered), np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        enough = (below[middle] * counts).sum(axis=1) >= rank
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle + 1)
    return ordered[low - 1]
