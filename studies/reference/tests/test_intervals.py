"""kvbench_study/intervals.py against single intervals, slow references, and simulated prompts."""

import math
import unittest

import numpy as np
import study_case  # noqa: F401  (finds kvbench_study)
from scipy import stats

from kvbench import stats as ks
from kvbench_study import intervals as ki


class SharesTest(unittest.TestCase):
    def test_shares(self):
        for n in (1, 5, 12):
            for right in range(n + 1):
                low, high = ki.binomial_interval(right, n, 0.9)  # by the beta distribution
                self.assertAlmostEqual(low, stats.beta.ppf(0.05, right, n - right + 1) if right else 0, 9)
                self.assertAlmostEqual(high, stats.beta.ppf(0.95, right + 1, n - right) if right < n else 1, 9)
                coins = sum(math.comb(n, i) for i in range(right, n + 1)) / 2**n
                self.assertAlmostEqual(ki.sign_test(right, n - right), coins, 12)
        self.assertTrue(all(map(math.isnan, ki.binomial_interval(0, 0))))
        self.assertEqual(ki.sign_test(0, 0), 1.0)


class HolmIntervals(unittest.TestCase):
    ALPHA = 0.05

    def columns(self, shifts, n=10, seed=2):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(n) + shift for shift in shifts]

    def test_each_is_an_interval_of_its_level(self):
        """Holm's levels in order of p: alpha/m, alpha/(m-1), ... until one fails, then no more."""
        columns = self.columns((3, 0.1, 2, -2.5, 0.2))
        found = ki.holm_intervals(columns, self.ALPHA)
        order = np.argsort([p for _, _, p in found], kind="stable")
        passed = [found[i][2] <= self.ALPHA for i in order]
        self.assertEqual(passed, [True, True, True, False, False])
        for place, i in enumerate(order):
            level = self.ALPHA / (len(columns) - min(place, sum(passed)))
            low, high = ks.bootstrap_intervals(columns[i][:, None], 1 - level)[0]
            with self.subTest(column=i):
                np.testing.assert_allclose(found[i][:2], [low, high], rtol=1e-12)
                self.assertEqual(found[i][0] > 0 or found[i][1] < 0, passed[place])

    def test_alone_it_is_the_interval(self):
        values = self.columns((0.7,))[0]
        low, high, p = ki.holm_intervals([values], self.ALPHA)[0]
        np.testing.assert_allclose([low, high], ks.bootstrap_intervals(values[:, None])[0], rtol=1e-12)
        # p is the level whose interval ends at 0.
        for level, without in ((p * 1.05, True), (p * 0.95, False)):
            ends = ks.bootstrap_intervals(values[:, None], 1 - level)[0]
            self.assertEqual(ends[0] > 0 or ends[1] < 0, without)

    def test_few_and_equal_values(self):
        columns = [np.ones(3), np.full(6, 2.0), np.zeros(6), np.arange(6) - 30.0, np.empty(0)]
        found = ki.holm_intervals(columns, self.ALPHA)
        for i in (0, 4):
            self.assertTrue(all(math.isnan(value) for value in found[i]))
        self.assertEqual(found[1][:2], (2.0, 2.0))
        self.assertEqual(found[2], (0.0, 0.0, 1.0))
        self.assertTrue(found[1][2] <= self.ALPHA and found[3][1] < 0)
        # Columns without a test cost nothing.
        self.assertEqual(found[3], ki.holm_intervals(columns[1:4], self.ALPHA)[2])

    def test_chance_of_any_false_one(self):
        """Five true hypotheses among six, normal figures of eight prompts that share a part."""
        rng = np.random.default_rng(9)
        runs, wrong, right = 300, 0, 0
        for _ in range(runs):
            shared = rng.standard_normal(8)
            columns = [shared + rng.standard_normal(8) for _ in range(6)]
            columns[3] = columns[3] + 8
            found = ki.holm_intervals(columns, 0.2, resamples=1000)
            apart = [low > 0 or high < 0 for low, high, _ in found]
            right += apart[3]
            wrong += any(apart[:3] + apart[4:])
        # Four standard deviations of a share of .2.
        self.assertLessEqual(wrong / runs, 0.2 + 4 * math.sqrt(0.2 * 0.8 / runs))
        self.assertGreater(wrong, 0)
        self.assertGreater(right / runs, 0.9)


if __name__ == "__main__":
    unittest.main()
