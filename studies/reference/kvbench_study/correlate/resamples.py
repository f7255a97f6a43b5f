"""Resampled inputs of kvbench-study correlate: figures with prompts and methods drawn, by groups of
cells.
"""

from dataclasses import dataclass

import numpy as np

from kvbench import stats as ks
from kvbench_study.correlate import pairs as kr
from kvbench_study.correlate.cells import FEWEST_CELLS
from kvbench_study.correlate.medians import pooled_medians

ACROSS, WITHIN = "all", "within"
BOTH, PROMPTS = "both", "prompts"  # what is resampled


class Rows:
    """Composition of each row of figures: the data, each prompt alone, the resamples, and the data
    without each method.

    units [r, n], methods [r, methods]: multiplicities of prompts and methods (with all budgets) by
    row. Both are drawn independently; with PROMPTS every resample holds every method once.
    """

    def __init__(self, n, methods, resamples, seed, resample):
        drawn = ks.resample_counts(n, resamples, seed)
        # Another stream: with as many methods as prompts the draws would coincide.
        with_methods = (ks.resample_counts(methods, resamples, [seed, 1]) if resample == BOTH else
                        np.ones((resamples, methods), int))
        self.n = n
        self.ends = np.cumsum([1, n, resamples])
        self.units = np.concatenate([np.ones((1, n), int), np.eye(n, dtype=int), drawn,
                                     np.ones((methods, n), int)])
        self.methods = np.concatenate([np.ones((1 + n, methods), int), with_methods,
                                       1 - np.eye(methods, dtype=int)])

    def split(self, values):
        """Splits values [r]: (the data's, [n] of each prompt, [resamples], [methods] without
        each).
        """
        point, *rest = np.split(values, self.ends)
        return point[0], *rest


@dataclass
class Side:
    """A metric or a score. data [cells]; ranked {scope: Ranked} with copies of methods; ranks
    {budget: [r, members]} without copies.
    """
    data: np.ndarray
    ranked: dict
    ranks: dict


class Scopes:
    """Groups of correlated cells: all, and those of each budget."""

    def __init__(self, table):
        self.pairs = kr.Pairs(len(table.cells))
        self.methods = list(dict.fromkeys(label for _, label in table.cells))
        self.owners = np.array([self.methods.index(label) for _, label in table.cells])
        self.members = {ACROSS: table.members()}
        budgets = table.budgets()
        self.small = [b for b in budgets if len(table.members(b)) < FEWEST_CELLS]
        self.budgets = [b for b in budgets if b not in self.small]
        self.members.update({b: table.members(b) for b in self.budgets})
        self.groups = {name: self.pairs.group(cells) for name, cells in self.members.items()}

    def copies(self, methods):
        """Returns {scope: Copies} of rows with these multiplicities of methods [r, methods]."""
        of_cells = methods[:, self.owners]
        return {name: kr.Copies(of_cells, self.pairs, cells, self.groups[name])
                for name, cells in self.members.items()}

    def side(self, values, copies):
        """Returns a Side: values [r, cells] ranked, with the copies of each row."""
        signs = self.pairs.signs(values)
        return Side(values[0],
                    {name: kr.Ranked(signs, group, copies[name]) for name, group in
                     self.groups.items()},
                    {name: kr.Ranked(signs, self.groups[name]).ranks for name in self.budgets})

    def informative(self, y):
        """Returns budgets at which a score differs between cells, for the mean over budgets."""
        return [budget for budget in self.budgets if y.ranked[budget].signs[0].any()]

    def correlations(self, x, y, measure):
        """Returns {scope: [r]}, including the mean over budgets (WITHIN)."""
        out = {name: measure(x.ranked[name], y.ranked[name]) for name in self.members}
        if self.informative(y):
            out[WITHIN] = np.mean([out[b] for b in self.informative(y)], axis=0)
        return out

    def cells(self, scope, y):
        names = self.informative(y) if scope == WITHIN else [scope]
        return [i for name in names for i in self.members[name]]

    def methods_of(self, scope, y):
        """Returns indices of the methods of a scope's cells, in order."""
        return sorted({int(self.owners[i]) for i in self.cells(scope, y)})

    def extreme(self, scope, y):
        """Returns the index of the method with the highest mean score over its cells of the
        scope.
        """
        cells = self.cells(scope, y)
        means = {method: np.mean([y.data[i] for i in cells if self.owners[i] == method])
                 for method in self.methods_of(scope, y)}
        return max(means, key=means.get)

    def rank_offsets(self, x, y):
        """Returns {method: (its budgets, [r]: rank of x minus rank of y, mean over these)}."""
        found = {}
        for budget in self.informative(y):
            apart = x.ranks[budget] - y.ranks[budget]
            for at, i in enumerate(self.members[budget]):
                found.setdefault(self.methods[self.owners[i]], []).append(apart[:, at])
        return {method: (len(parts), np.mean(parts, axis=0)) for method, parts in found.items()}


def predictors(table, used, counts):
    """Yields ((level, metric, reduction), [r, cells]) of prompts `used`, resampled as counts [r,
    used].
    """
    n = counts.sum(axis=1, keepdims=True)
    for level in table.levels:
        mine = np.isin(level.prompts, used)
        prompts = np.searchsorted(used, level.prompts[mine])
        cells = level.cells[mine]
        order = np.lexsort((prompts, cells))
        ends = np.flatnonzero(np.diff(cells[order] * len(used) + prompts[order])) + 1
        for metric, values in zip(level.metrics, level.values[mine].T):
            parts = np.split(values[order], ends)
            for name, reduce in (("mean", np.mean), ("prompt_median", np.median)):
                # Cells and prompts are sorted: every cell has every prompt.
                by_prompt = np.reshape([reduce(part) for part in parts], (-1, len(used))).T
                yield (level.name, metric, name), counts @ by_prompt / n
            yield ((level.name, metric, "median"),
                   pooled_medians(values, prompts, cells, counts))
