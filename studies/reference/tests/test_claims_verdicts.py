"""The rules of kvbench-study claims: shares of cells and means with intervals, words, counts, the page."""

import math
import sys
import unittest
from types import SimpleNamespace

import numpy as np
from study_case import missing

SCIPY = not missing("scipy", "pandas")
if SCIPY:
    import pandas as pd

    from kvbench import stats as ks
    from kvbench_study.claims import page
    from kvbench_study.claims import verdicts as cv

NAN = float("nan")
OPTIONS = SimpleNamespace(alpha=0.05, resamples=2000, seed=0, by="source")


def grid(levels, units=8, noise=0.1, seed=1):
    """[units, cells]: the levels with noise."""
    rng = np.random.default_rng(seed)
    values = np.asarray(levels, float) + noise * rng.standard_normal((units, len(levels)))
    return pd.DataFrame(values, [f"s{i}" for i in range(units)], range(len(levels)))


def claim_of(*grids, **fields):
    out = cv.Claim("c", "Paper", "section 1", "It is less", "protocol", "figure", 0.0, **fields)
    for number, one in enumerate(grids):
        out.add(one, f"k={number}" if len(grids) > 1 else "")
    return out


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class VerdictTest(unittest.TestCase):
    def judged(self, *grids, **fields):
        return cv.decide([claim_of(*grids, **fields)], OPTIONS)[0]

    def test_one_cell_no_longer_decides(self):
        """All but one cell are on the claim's side, that one clearly on the other; and the reverse."""
        for sign, word, share in ((-1, cv.HOLDS, 15 / 16), (1, cv.FAILS, 1 / 16)):
            found = self.judged(grid(sign * np.r_[np.ones(15), -0.5]))
            self.assertEqual((found.verdict, found.decide, found.prompts), (word, "", 8))
            self.assertEqual(found.share, share)
            self.assertEqual((found.share_low, found.share_high), (share, share))
            sides = [found.count(side) for side in ("for", "against", "open")]
            self.assertEqual(sides, [15, 1, 0] if sign < 0 else [1, 15, 0])
            self.assertAlmostEqual(found.value, sign * 14.5 / 16, delta=0.05)
            self.assertTrue(found.low < found.value < found.high)

    def test_both_intervals_must_say_it(self):
        few_far = grid(np.r_[np.full(10, -0.5), np.full(6, 4.0)])  # most cells below, the mean above
        found = self.judged(few_far)
        self.assertEqual((found.verdict, found.share), (cv.UNDECIDED, 10 / 16))
        self.assertGreater(found.low, 0)
        self.assertEqual(found.decide, "share and mean say opposite things")
        half = self.judged(grid(np.r_[np.full(8, -1.0), np.full(8, 0.5)]))  # the mean is below
        self.assertEqual((half.verdict, half.share, half.share_low), (cv.UNDECIDED, 0.5, 0.5))
        self.assertLess(half.high, 0)
        self.assertEqual(half.decide, "the share's interval holds 1/2")
        # Each cell clear, the mean not: units differ by more.
        wide = grid(np.r_[np.full(15, -0.1), 0.2], noise=0.0)
        wide[15] += np.r_[9.0, -9, 9, -9, 9, -9, 9, -9]
        found = self.judged(wide)
        self.assertEqual((found.verdict, found.share_low > 0.5), (cv.UNDECIDED, True))
        self.assertRegex(found.decide, r"^the mean's interval holds 0, and would leave it out with about "
                                       r"\d+ sources if it stays as it is$")

    def test_noise_is_not_decided(self):
        found = [self.judged(grid(np.zeros(12), noise=1, seed=seed)) for seed in range(20)]
        self.assertLess(sum(one.verdict != cv.UNDECIDED for one in found), 4)
        self.assertGreater(np.mean([one.share_high - one.share_low for one in found]), 0.3)

    def test_exactly_the_reference_is_not_below(self):
        found = self.judged(grid(np.zeros(4), noise=0))
        self.assertEqual((found.verdict, found.share, found.count("against")), (cv.FAILS, 0.0, 4))

    def test_too_few_units_get_no_word(self):
        for units, word in ((7, cv.NONE), (8, cv.HOLDS)):
            found = self.judged(grid(np.full(5, -1.0), units))
            self.assertEqual((found.verdict, found.prompts), (word, units))
            self.assertAlmostEqual(found.value, -1, delta=0.1)
            self.assertLess(found.high, 0)  # estimates stay
        self.assertEqual(self.judged(grid(np.full(5, -1.0), 7)).decide,
                         "at least 8 sources: got 7 of 7 with all cells")
        found = self.judged(grid(np.full(5, -1.0), 3))
        self.assertTrue(math.isnan(found.low) and math.isnan(found.share_low))
        self.assertEqual((found.verdict, found.share), (cv.NONE, 1.0))
        self.assertEqual(self.judged().verdict, cv.NONE)

    def test_an_estimate_never_gets_a_word(self):
        for level in (-1.0, 1.0):
            found = self.judged(grid(np.full(5, level)), judged=False)
            self.assertEqual((found.verdict, found.decide), (cv.ESTIMATE, ""))
            self.assertTrue(math.isfinite(found.low) and math.isnan(found.p_holm))

    def test_a_unit_counts_with_all_cells_or_not_at_all(self):
        values = grid(np.full(4, -1.0), 10)
        values.loc["s0"] = 5.0  # a hard unit, which one cell lacks
        values.loc["s0", 2] = NAN
        values.loc["s1", 3] = math.inf
        found = self.judged(values)
        self.assertEqual((found.verdict, found.prompts, found.units), (cv.HOLDS, 8, 10))
        self.assertEqual({len(cell.finite) for cell in found.tested}, {8})
        self.assertLess(found.value, -0.9)

    def test_a_cell_without_figures_leaves_it_open(self):
        values = grid(np.full(4, -1.0))
        values[1] = NAN
        found = self.judged(values)
        self.assertEqual((found.verdict, found.prompts, found.share), (cv.UNDECIDED, 8, 1.0))
        self.assertEqual(found.decide, "measurements of 1 of 4 cells that no source has whole (first: layer 1)")

    def test_units_belong_to_cells(self):
        """Kinds of text: each source has the cells of its kind, and the overall mean is over sources."""
        one, two = grid([-1.0], 9, 0.01), grid([-3.0], 3, 0.01)
        two.index = ["t0", "t1", "t2"]
        found = self.judged(one, two)
        self.assertEqual((found.prompts, found.units, found.verdict), (12, 12, cv.HOLDS))
        self.assertAlmostEqual(found.value, -(9 + 9) / 12, delta=0.01)
        self.assertEqual([len(cell.finite) for cell in found.tested], [9, 3])
        # One of two cells; resamples without its three sources have the other alone.
        two += 4
        found = self.judged(one, two)
        self.assertEqual((found.share, found.share_low, found.share_high), (0.5, 0.5, 1.0))

    def test_the_share_in_resamples(self):
        """Against a loop over the same draws."""
        values = grid([-0.2, 0.1, 0.0, -0.1, 0.3], 6, 0.5).to_numpy()
        values[0, 3] = NAN
        claim = claim_of()
        cv.share_of_cells(claim, values, OPTIONS)
        shares = []
        for count in ks.resample_counts(6, OPTIONS.resamples, OPTIONS.seed):
            drawn = np.repeat(values, count, axis=0)
            means = [np.nanmean(column) for column in drawn.T if np.isfinite(column).any()]
            shares.append(np.mean(np.array(means) < 0))
        want = np.quantile(shares, [0.025, 0.975], method="inverted_cdf")
        np.testing.assert_allclose([claim.share_low, claim.share_high], want, rtol=1e-12)
        self.assertEqual(claim.share, np.mean(np.nanmean(values, axis=0) < 0))

    def test_p_over_claims(self):
        """2^(1-n) where all units lie on one side, by Holm's rule over the claims that can get a word."""
        claims = [claim_of(grid(np.full(3, -1.0))), claim_of(grid(np.full(3, -1.0))),
                  claim_of(grid(np.full(3, -1.0)), judged=False), claim_of(grid(np.full(3, -1.0), 5))]
        cv.decide(claims, OPTIONS)
        self.assertEqual([claim.p for claim in claims], [2**-7, 2**-7, 2**-7, 2**-4])
        self.assertEqual([claim.p_holm for claim in claims[:2]], [2**-6, 2**-6])
        self.assertTrue(all(math.isnan(claim.p_holm) for claim in claims[2:]))

    def test_ratios_are_shown_as_ratios(self):
        claim = cv.Claim("c", "P", "s", "t", "p", "f", 2.0, True)
        claim.add(grid(np.full(3, math.log(0.5)), noise=0.01))
        cv.decide([claim], OPTIONS)
        self.assertAlmostEqual(claim.value, 0.5, delta=0.01)
        self.assertEqual((claim.verdict, claim.threshold), (cv.HOLDS, math.log(2)))
        self.assertTrue(0 < claim.low < 0.5 < claim.high < 2)

    # ----------------------------------------------------------------------------------- the page

    def page(self, *claims):
        return page.markdown(cv.decide(list(claims), OPTIONS), OPTIONS)

    def test_what_can_be_reached(self):
        text = self.page(claim_of(grid(np.full(3, -1.0))), claim_of(grid(np.full(32, -1.0))))
        self.assertIn("Reach. 8 sources: the least p of a claim is 0.0078, 0.016 corrected over 2 claims; of a "
                      "cell by the same test, corrected over 3 cells 0.023, 32 cells 0.25.", text)
        text = self.page(claim_of(grid(np.full(3, -1.0), 5)))
        self.assertIn("Reach. 1 claim with fewer than 8 sources: estimates, no verdicts.", text)
        for word in (cv.HOLDS, cv.FAILS, cv.UNDECIDED):  # in the explanation alone
            self.assertEqual(text.count(word), 1)
        self.assertIn("Reach. No claim here can get a verdict.",
                      self.page(claim_of(grid(np.full(3, -1.0)), judged=False)))

    def test_the_page_says_what_differs_and_what_is_left_out(self):
        values = grid(np.r_[np.full(15, -1.0), 0.5], 9)
        values.loc["s3", 0] = NAN
        text = self.page(claim_of(values, differs="the texts", label=cv.ADAPTED, method="m"))
        self.assertIn("- `c` (m, protocol): It is less. Differs: the texts.\n", text)
        self.assertIn("- `c` (m, protocol): 1 of 9.\n", text)
        self.assertRegex(text, r"\| `c` \(m, protocol\) \| Paper, section 1 \| adapted \| figure < 0 \| -0\.\d+ "
                               r"\[-\d\.?\d*, -0\.\d+\] \| 0\.938 \[0\.938, 0\.938\] \| 15 / 1 / 0 \| 8 \| 0\.00781 "
                               r"\| holds here \|")
        self.assertIn("Cells against, the strongest first:\n\n- `c` (m, protocol): layer 15: 0.", text)
        for word in ("confirm", "refut", "prove", "undecided"):
            self.assertNotIn(word, text)


if __name__ == "__main__":
    unittest.main()
