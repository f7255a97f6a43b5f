"""Rank correlations under resampled prompts and methods, vectorised over resamples.

A row of values [r, c] has one figure per cell. Signs are computed once per pair of cells; Spearman's and Kendall's
correlations follow from the signs. Ties share their mean rank; figures that differ by rounding only are ties.

A row may hold a cell several times (Copies): its pairs are weighted. Copies of one cell tie on both sides and do not
count.

scipy.stats.spearmanr and kendalltau agree (tests/test_correlate_pairs.py), but take neither thousands of rows at
once nor copies.
"""

import numpy as np

# Relative error of a mean under another order of summation.
ROUNDING = 1e-12
BLOCK = 1 << 22  # numbers per block


class Pairs:
    """The pairs i < j of a table's cells, and those within a group of cells."""

    def __init__(self, cells):
        self.cells = cells
        self.i, self.j = np.triu_indices(cells, 1)

    def signs(self, values):
        """Returns [r, pairs] of -1, 0, 1: cell i is below, tied with or above cell j."""
        out = np.empty((len(values), len(self.i)), np.int8)
        step = max(1, BLOCK // max(1, len(self.i)))
        for at in range(0, len(values), step):
            one, other = values[at:at + step, self.i], values[at:at + step, self.j]
            apart, slack = one - other, ROUNDING * (np.abs(one) + np.abs(other))
            out[at:at + step] = (apart > slack).astype(np.int8) - (apart < -slack)
        return out

    def group(self, members):
        """Returns (mask of the pairs within `members`, [pairs, members] that sums signs to ranks)."""
        inside = np.flatnonzero(np.isin(self.i, members) & np.isin(self.j, members))
        place = {cell: at for at, cell in enumerate(members)}
        adds = np.zeros((len(inside), len(members)), np.float32)
        rows = np.arange(len(inside))
        adds[rows, [place[cell] for cell in self.i[inside]]] = 0.5
        adds[rows, [place[cell] for cell in self.j[inside]]] = -0.5
        return inside, adds


class Copies:
    """Multiplicities of cells [r, cells] in a group of Pairs.group. pairs [r, pairs]: of each pair; roots [r,
    members]: 1 / sqrt(copies), 0 without copies.
    """

    def __init__(self, copies, pairs, members, group):
        # Smallest signed type that holds the largest product.
        copies = copies.astype(np.min_scalar_type(-int(copies.max(initial=1))**2 - 1))
        self.pairs = copies[:, pairs.i[group[0]]] * copies[:, pairs.j[group[0]]]
        times = copies[:, members].astype(float)
        self.roots = np.divide(1, np.sqrt(times), out=np.zeros_like(times), where=times > 0)


class Ranked:
    """Signs and ranks of rows of values within a group of cells.

    ranks [r, members] are centred: the smallest of n cells has -(n - 1) / 2. With `copies` they are ranks among all
    copies times the root of the multiplicity, so that a product of two counts every copy.
    """

    def __init__(self, signs, group, copies=None):
        inside, adds = group
        self.signs = signs[:, inside]
        self.copies = copies
        self.ranks = np.concatenate([self.weighted(self.signs[rows], rows) @ adds for rows in self.blocks(512)])
        if copies is not None:
            # Rank times copies so far; keep the root of the copies.
            self.ranks = self.ranks * copies.roots
        self.apart = self.sums(lambda rows: self.signs[rows] != 0)  # pairs that are not tied

    def blocks(self, width):
        step = max(1, BLOCK // max(1, width))
        return [slice(at, at + step) for at in range(0, len(self.signs), step)]

    def weighted(self, values, rows):
        """Returns values [rows, pairs] times the multiplicity of each pair."""
        return (values if self.copies is None else values * self.copies.pairs[rows]).astype(np.float32)

    def sums(self, figure):
        """Returns [r]: the weighted sum over pairs of figure(rows)."""
        return np.concatenate([self.weighted(figure(rows), rows).sum(axis=1, dtype=float)
                               for rows in self.blocks(self.signs.shape[1])])


def ratio(above, one, other):
    """Returns above / sqrt(one other); NaN if a side is constant."""
    below = np.sqrt(one.astype(float) * other)
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def spearman(x, y):
    """Returns [r]: Pearson's correlation of the mean ranks."""
    a, b = x.ranks.astype(float), y.ranks.astype(float)
    return ratio((a * b).sum(axis=1), (a * a).sum(axis=1), (b * b).sum(axis=1))


def kendall(x, y):
    """Returns [r]: tau-b. x and y must have the same copies."""
    return ratio(x.sums(lambda rows: x.signs[rows] * y.signs[rows]), x.apart, y.apart)
