"""Figures and means of clusterability, figures of kept tokens and t-SNE against hand calculations."""

import math
import os
import unittest

import numpy as np
from plot_tables import FigureTest, kept_row, load, points_rows
from script_case import missing

from kvbench import tables as kt
from kvbench.cluster import summary
from kvbench.cluster import tables as kcc
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import growth as plot_growth
from kvbench.plot.kinds import kept_map as plot_kept_map
from kvbench.plot.kinds import norms as plot_norms
from kvbench.plot.kinds import tsne as plot_tsne

COVERAGE = ["t,p,0,0,keys,1,8,1,0", "t,p,0,1,keys,1,6,1,0", "t,p,0,0,keys,2,4,0.5,3", "t,p,0,1,keys,2,4.2,0.7,9",
            "t,p,0,0,values,1,2,1,0", "t,p,0,0,values,2,1.8,0.9,1", "t,p,3,0,keys,1,2,1,0"]
NORMS = ["t,p,0,0,queries,1,2,3,4,5,6", "t,p,0,1,queries,1,2,5,6,7,8", "t,p,1,0,queries,1,2,3,4,5,7",
         "t,p,0,0,keys,0,1,2,3,4,5"]

# By (prompt, layer, head): radius of 1 and of 2 centres, alpha at delta .5 of the first, p50.
HEADS = {("a", 0, 0): (4.0, 2.0, 0.5, 1.0), ("a", 0, 1): (8.0, 2.0, 0.7, 3.0),
         ("a", 3, 0): (1.0, 1.0, 1.0, 5.0), ("a", 3, 1): (1.0, 0.5, 1.0, 7.0),
         ("b", 0, 0): (2.0, 0.5, 0.2, 2.0), ("b", 0, 1): (2.0, 0.5, 0.4, 2.0),
         ("b", 3, 0): (2.0, 2.0, float("nan"), 8.0), ("b", 3, 1): (2.0, 1.0, 1.0, 8.0)}


class CoverageTest(FigureTest):
    def test_mean_and_spread_over_heads(self):
        table = load(plot_coverage, self.lines("coverage", COVERAGE), [0]).set_index(["what", "k"])
        self.near(table["mean"], [1, 0.6, 1, 0.9])
        # Deviations of -0.1 and 0.1 over n - 1 = 1: sd = sqrt(0.02). One head of values.
        self.near(table.loc["keys", "sd"], [0, math.sqrt(0.02)])
        self.assertEqual({*table["heads"]}, {1, 2})

    def test_what_is_left_out_and_what_is_not_averaged_away(self):
        path = self.lines("coverage", [*COVERAGE, "t,p,0,0,keys,4,1,0.1,3"])
        table, said = self.quiet(load, plot_coverage, path, [0])
        self.assertIn("only some heads", said)
        self.assertEqual(table.loc[table["what"] == "keys", "k"].tolist(), [1, 2])
        path = self.lines("coverage", [COVERAGE[0], "t,p,0,1,keys,1,6,nan,0"])
        table, said = self.quiet(load, plot_coverage, path, [])
        self.assertTrue(math.isnan(table["mean"][0]))
        self.assertIn("not a number", said)

    def test_columns_that_differ(self):
        other = self.lines("coverage", ["t,p,9,0,keys,1,1,1,0,5"], "a.csv",
                           "trace,prompt,layer,kv_head,what,k,radius,radius_rel,center,more")
        self.refused("columns differ", plot_coverage, self.lines("coverage", COVERAGE), other)


class GrowthTest(FigureTest):
    def tables(self, deltas=(2, 4), more=()):
        """Two heads of radius 10 and 20, whose deltas are a fifth of these."""
        self.lines("coverage", ["t,p,0,0,keys,1,10,1,0", "t,p,0,0,keys,2,5,0.5,7", "t,p,0,1,keys,1,20,1,0"])
        counts = ((0, deltas[0], (4, 8)), (1, deltas[1], (9, 32)))
        self.lines("delta", [*(f"t,p,0,{head},keys,{delta},{n},{m}" for head, delta, found in counts
                               for n, m in zip((16, 64), found)), *more])
        self.lines("growth", [f"t,p,0,0,keys,{deltas[0]},0.5,1", f"t,p,0,1,keys,{deltas[1]},0.9,1"])
        return self.folder

    def test_heads_meet_on_delta_over_radius(self):
        longer = self.tables(more=["t,p,0,0,keys,2,128,20"])  # of one head
        (table, alpha, absolute), said = self.quiet(load, plot_growth, [longer], [])
        self.assertIn("prefixes that only some heads have are left out", said)
        self.assertFalse(absolute)
        self.assertEqual(plot_growth.shown_deltas(table, []), [0.2])
        axes = plot_growth.draw(table, alpha, absolute, [0.2]).axes[0]
        self.near(axes.lines[0].get_xydata(), [(16, 6), (64, 16)])  # geometric means: sqrt(4 * 9), sqrt(8 * 32)
        self.assertEqual(axes.get_legend().get_texts()[0].get_text(), "0.2: 0.70")
        np.testing.assert_array_equal(axes.lines[1].get_xdata(), axes.lines[1].get_ydata())
        for deltas, text in (("0.7", "--deltas: got 0.7, expected some of 0.2"), ("a", "--deltas: got `a`")):
            self.refused(text, plot_growth, self.folder, "--deltas", deltas)

    def test_absolute_deltas_where_the_heads_share_them(self):
        table, alpha, absolute = load(plot_growth, [self.tables(deltas=(2, 2))], [])
        self.assertTrue(absolute)
        self.assertEqual(table["delta"].unique().tolist(), [2])
        self.near(alpha[0, "keys", 2], 0.7)
        # An alpha without a fit shows as a dash.
        key = (0, "keys", 0.2)
        self.assertEqual({plot_growth.alpha_text(one, key) for one in ({key: math.nan}, {})}, {"0.2: –"})


class NormsTest(FigureTest):
    def test_lines_and_bands(self):
        table = load(plot_norms, self.lines("norms", NORMS))
        lines = table[table["what"] == "queries"].set_index(["label", "layer"])[["mean", "low", "high"]]
        for name, expected in (("max", [(7, 6, 8), (7, 7, 7)]), ("p95", [(6, 5, 7), (5, 5, 5)]),
                               ("p50", [(4, 3, 5), (3, 3, 3)])):
            self.near(lines.loc[plot_norms.QUANTILES[name]], expected)
        self.assertEqual([plot_norms.largest_of(table[table["what"] == what]) for what in ("queries", "keys")], [8, 5])
        self.lines("norms", ["t,p,0,0,keys,0,1,2,3,4,nan", "t,p,0,1,keys,0,1,2,3,4,5"])
        table = load(plot_norms, self.path("norms.csv"))
        self.assertTrue(math.isnan(plot_norms.largest_of(table)))
        self.picture(plot_norms, self.path("norms.csv"))


class KeptMapTest(FigureTest):
    def test_labels_name_what_differs(self):
        path = self.lines("kept", [
            kept_row(), *(kept_row(label="uniform", params="", seed=seed) for seed in (0, 1)),
            *(kept_row(label="bumblebee-stream", params=params, budget=budget) for params, budget in (
                ("lambda=0.3;sim=relu", "0.5"), ("lambda=0;sim=relu", "0.25"), ("lambda=1;sim=relu", "")))])
        self.assertEqual(kcc.kept_of(*plot_kept_map.read([path]))["label"].tolist(), [
            "h2o", "uniform seed=0", "uniform seed=1",
            "bumblebee-stream budget_requested=0.5 lambda=0.3",
            "bumblebee-stream budget_requested=0.25 lambda=0", "bumblebee-stream lambda=1"])

    def test_map_by_hand(self):
        path = self.lines("kept", [kept_row(step=7, tokens="0 6-7"), kept_row(step=3, tokens="0-1 3")])
        frame, labels, heads = load(plot_kept_map, path, [], [], [], "")
        self.assertEqual((labels, heads), (["h2o"], [(0, 0)]))
        y, x, share = plot_kept_map.held_shares(frame)
        self.assertEqual((list(y), list(x)), ([0, 4, 8], [*range(9)]))
        nan = math.nan
        np.testing.assert_array_equal(share, [[1, 1, 0, 1, nan, nan, nan, nan], [1, 0, 0, 0, 0, 0, 1, 1]])

    def test_long_streams_show_shares(self):
        path = self.lines("kept", [kept_row(step=2999, tokens="0-1 4 2999", n=3000)])
        _, x, share = plot_kept_map.held_shares(kcc.kept_of(*plot_kept_map.read([path])))
        self.assertEqual(x[:3].tolist(), [0, 3, 6])  # 3000 tokens in at most 1024 cells
        self.near(share[0, :3], [2 / 3, 1 / 3, 0])
        self.near(np.nansum(share) * 3, 4)


class TsneTest(FigureTest):
    def load(self, rows, *options):
        """The frame and the heads of points.csv."""
        return load(plot_tsne, self.lines("points", rows), *options)

    def test_selection(self):
        _, heads = self.load([row for layer in range(6) for head in (1, 2) for row in points_rows(5, layer, head)],
                             ["keys"], [], [], "")
        self.assertEqual(heads, [(0, 1), (2, 1), (3, 1), (5, 1)])  # 4 of 6 layers, the first head
        points = kt.read_table([self.path("points.csv")], [], kcc.TEXT)
        frame, heads = plot_tsne.load(points, ["values"], [1], [2])
        self.assertEqual((len(frame), heads, set(frame["what"])), (5, [(1, 2)], {"values"}))
        self.lines("points", [*points_rows(12), *points_rows(12, prompt="q")])
        _, said = self.quiet(load, plot_tsne, self.folder, ["keys"], [], [], "")
        self.assertIn("2 prompts; prompt p of t.h5 is shown", said)

    def test_thinning_keeps_the_centres(self):
        frame, _ = self.load(points_rows(12), ["keys"], [], [], "")
        self.assertEqual(plot_tsne.thin(frame, 4)["token"].tolist(), [0, 3, 5, 6, 9])
        self.assertEqual(len(plot_tsne.thin(frame, 0)), 12)

    def test_centres_kept_tokens_and_positions_are_marked(self):
        frame, heads = self.load(points_rows(12, kept="h2o;snapkv kernel=5"), ["keys"], [], [], "")
        pictures = {(0, 0, "keys"): (frame, np.column_stack([np.arange(12), np.zeros(12)]))}
        for kept, drawn in (([], [[1, 2, 3, 4, 6, 7, 8, 9, 10, 11], [0, 5]]),
                            (["snapkv kernel=5"], [[1, 2, 4, 5, 7, 8, 10, 11], [0, 3, 6, 9]])):
            for color_by in ("kind", "position"):
                figure = plot_tsne.draw(pictures, heads, ["keys"], kept, color_by)
                dots = figure.axes[0].collections[:2]
                self.assertEqual([list(one.get_offsets()[:, 0]) for one in dots], drawn)
                for one, tokens in zip(dots[1 if kept else 0:], drawn[1 if kept else 0:]):  # evicted ones stay grey
                    colors = one.get_array()
                    self.assertEqual(None if colors is None else colors.tolist(),
                                     tokens if color_by == "position" else None)

    def test_distances_to_centres_by_hand(self):
        # Values lie on a line, centres 0 and 5: distances 0 1 2 2 1 0 1 2 3 4 5 6, mean 27 / 12.
        frame, heads = self.load(points_rows(12), ["values"], [], [], "")
        text = plot_tsne.measured({(*heads[0], "values"): (frame, None)}, ["values"], [])
        spread = math.sqrt(sum((i - 5.5)**2 for i in range(12)) / 12)
        self.assertIn(f"values {27 / 12 / spread:.3g}.", text)

    @unittest.skipIf(missing("sklearn"), "no scikit-learn")
    def test_embedding(self):
        from kvbench.plot import embedding as tsne
        rng = np.random.default_rng(0)
        sets = [np.concatenate([rng.normal(size=(15, 8)), rng.normal(size=(15, 8)) + 50]), rng.normal(size=(20, 4))]
        once, other = tsne.embed_all(sets, 1)
        for got, expected in zip((once, other, once), (*tsne.embed_all(sets, 2), tsne.embed(sets[0]))):
            np.testing.assert_array_equal(got, expected)  # to the bit, also of two processes
        # Two clusters 50 sd apart: every point's nearest neighbour is of its own cluster.
        apart = np.linalg.norm(once[:, None] - once[None], axis=2) + np.diag(np.full(30, np.inf))
        np.testing.assert_array_equal(apart.argmin(axis=1) < 15, np.arange(30) < 15)
        np.testing.assert_array_equal(tsne.embed(np.ones((9, 3))), np.zeros((9, 2)))
        for bad, text in ((np.ones((4, 2)), "got 4 points, expected at least 5"),
                          (np.full((9, 2), np.nan), "not finite")):
            with self.assertRaisesRegex(kt.CsvError, text):
                tsne.embed(bad)


class SummaryTest(FigureTest):
    """kvbench-py cluster."""

    def setUp(self):
        super().setUp()
        for prompt in "ab":
            at = [(f"{p}.h5,{p},{layer},{head},", value) for (p, layer, head), value in HEADS.items() if p == prompt]
            self.lines("coverage", [f"{key}keys,{k},{value[k - 1]},{value[k - 1] / value[0]},0"
                                    for key, value in at for k in (1, 2)], f"{prompt}/coverage.csv")
            self.lines("growth", [f"{key}keys,{value[0] / 2},{value[2]},1" for key, value in at],
                       f"{prompt}/growth.csv")
            self.lines("norms", [f"{key}queries,0,0,{value[3]},9,10,{value[3] * 4}" for key, value in at],
                       f"{prompt}/norms.csv")

    def test_by_hand(self):
        _, said = self.must(summary, self.path("a"), self.path("b"), "-o", self.path("out.csv"))
        self.assertEqual(said, "")
        found = {(r["figure"], r["what"], r["x"], r["layer"]): r for r in self.table("out.csv")}
        for key, mean, sd in (
                # a: (.5 + .25)/2 = .375; b: .25.
                (("radius_rel", "keys", "2", "0"), 0.3125, 0.125 / 2**0.5),
                # a: (.375 + .75)/2 = .5625; b: (.25 + .75)/2 = .5.
                (("radius_rel", "keys", "2", "all"), 0.53125, 0.0625 / 2**0.5),
                (("alpha", "keys", "0.5", "0"), 0.45, 0.3 / 2**0.5),  # .6 and .3
                (("norm_p50", "queries", "", "0"), 2.0, 0.0),
                (("norm_p50", "queries", "", "all"), 4.5, 1 / 2**0.5),  # 4 and 5
                (("norm_max", "queries", "", "3"), 28.0, 8 / 2**0.5)):  # 24 and 32
            with self.subTest(key=key):
                row = found[key]
                self.assertEqual(row["prompts"], "2")
                # Six digits are written.
                self.assertAlmostEqual(float(row["mean"]), mean, delta=2e-6 * mean)
                self.assertAlmostEqual(float(row["sd"]), sd, delta=2e-6 * max(sd, 1))
        # One head of b has no exponent: neither has a mean over it.
        for layer in ("3", "all"):
            self.assertEqual((found["alpha", "keys", "0.5", layer]["mean"],
                              found["alpha", "keys", "0.5", layer]["sd"]), ("", ""))

    def test_an_output_that_is_a_folder(self):
        os.mkdir(self.path("out.csv"))
        _, said = self.must(summary, self.path("a"), "-o", self.path("out.csv"), code=2)
        self.assertEqual(said.count("\n"), 1)

    def test_an_output_that_is_an_input(self):
        _, said = self.must(summary, self.path("a"), "-o", self.path("a", "norms.csv"), code=2)
        self.assertIn("norms.csv: is also an input", said)
