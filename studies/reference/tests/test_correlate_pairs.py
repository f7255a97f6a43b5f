"""kvbench_study/correlate/pairs.py: rank correlations against scipy's."""

import math
import random
import sys
import unittest

import numpy as np
from study_case import missing

SCIPY = not missing("scipy")
if SCIPY:
    from scipy import stats

    from kvbench_study.correlate import pairs as kr


def of_scipy(x, y):
    """(Spearman, Kendall's tau-b) of one pair of lists; NaN where a side is constant."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan, math.nan
    return stats.spearmanr(x, y)[0], stats.kendalltau(x, y)[0]


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class RanksTest(unittest.TestCase):
    def test_references(self):
        """Random values, many of them equal, and groups of cells."""
        dice = random.Random(1)
        for cells in (3, 4, 9):
            x, y = ([[dice.choice((1, 2, 3, 3.5, 8)) for _ in range(cells)] for _ in range(40)] for _ in range(2))
            pairs = kr.Pairs(cells)
            for members in (list(range(cells)), [0, 2, cells - 1][:cells - 1]):
                group = pairs.group(members)
                a, b = (kr.Ranked(pairs.signs(np.array(v, float)), group) for v in (x, y))
                for one, other, rho, tau, ranks in zip(x, y, kr.spearman(a, b), kr.kendall(a, b), a.ranks):
                    one, other = [one[i] for i in members], [other[i] for i in members]
                    np.testing.assert_allclose((rho, tau), of_scipy(one, other), atol=1e-12)
                    want = stats.rankdata(one) - (len(members) + 1) / 2
                    np.testing.assert_array_equal(ranks, want)

    def test_copies_are_the_expanded_list(self):
        """Cells that stand several times: the figures of the list that holds them as often."""
        dice = random.Random(6)
        for cells, members in ((5, [0, 1, 2, 3, 4]), (7, [1, 2, 4, 6])):
            x, y = ([[dice.choice((1, 2, 3, 3.5, 8)) for _ in range(cells)] for _ in range(60)] for _ in range(2))
            times = [[dice.choice((0, 1, 1, 2, 5)) for _ in range(cells)] for _ in range(60)]
            pairs = kr.Pairs(cells)
            group = pairs.group(members)
            copies = kr.Copies(np.array(times), pairs, members, group)
            a, b = (kr.Ranked(pairs.signs(np.array(v, float)), group, copies) for v in (x, y))
            undefined = 0
            for one, other, many, rho, tau in zip(x, y, times, kr.spearman(a, b), kr.kendall(a, b)):
                lists = [[v[i] for i in members for _ in range(many[i])] for v in (one, other)]
                np.testing.assert_allclose((rho, tau), of_scipy(*lists), atol=1e-12)
                undefined += math.isnan(rho)
            self.assertLess(undefined, 15)

    def test_many_copies_do_not_overflow(self):
        pairs = kr.Pairs(3)
        group = pairs.group([0, 1, 2])
        for times in (11, 12, 182, 50000):
            copies = kr.Copies(np.array([[times, times, 1]]), pairs, [0, 1, 2], group)
            a, b = (kr.Ranked(pairs.signs(np.array([v], float)), group, copies) for v in ([1, 2, 3], [1, 2, 0]))
            # times^2 pairs agree, 2 times disagree.
            np.testing.assert_allclose(kr.kendall(a, b), (times - 2) / (times + 2), rtol=1e-6)

    def test_rounding_is_no_difference(self):
        values = np.array([[0.1 + 0.2, 0.3, 0.3 * (1 + 1e-9), -0.3]])
        self.assertEqual(kr.Pairs(4).signs(values).tolist(), [[0, -1, 1, -1, 1, 1]])
