"""kvbench-py plot tsne against hand calculations."""

import math
import unittest

import numpy as np
from cluster_figures import HEAD, Figures
from plot_tables import load
from script_case import missing

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot.kinds import tsne as plot_tsne

POINTS = HEAD + "token,is_center,kept_by,x0,x1"
HAS_SKLEARN = not missing("sklearn")


def points_rows(n=12, layer=0, head=0, kept="", prompt="p"):
    """A ring of n keys, and n values on a line; tokens 0 and 5 are centres."""
    out = []
    for i in range(n):
        angle = 2 * math.pi * i / n
        label = kept if i % 3 == 0 else ""
        flag = int(i in (0, 5))
        out.append(f"t.h5,{prompt},{layer},{head},keys,{i},{flag},{label},"
                   f"{math.cos(angle)!r},{math.sin(angle)!r}")
        out.append(f"t.h5,{prompt},{layer},{head},values,{i},{flag},,{i},")  # d = 1: x1 is empty
    return out


class TsneTest(Figures):
    def test_selection(self):
        path = self.write("points.csv", POINTS, [row for layer in range(6) for head in (1, 2)
                                                 for row in points_rows(5, layer, head)])
        _, heads = load(plot_tsne, path, ["keys"], [], [], "")
        self.assertEqual(heads, [(0, 1), (2, 1), (3, 1), (5, 1)])  # 4 of 6 layers, the first head
        points = kt.read_table([path], [], kcc.TEXT)
        frame, heads = plot_tsne.load(points, ["values"], [1], [2])
        self.assertEqual((len(frame), heads), (5, [(1, 2)]))
        self.assertEqual(set(frame["what"]), {"values"})

    def test_thinning_keeps_the_centres(self):
        path = self.write("points.csv", POINTS, points_rows(12))
        frame, _ = load(plot_tsne, path, ["keys"], [], [], "")
        self.assertEqual(plot_tsne.thin(frame, 4)["token"].tolist(), [0, 3, 5, 6, 9])
        self.assertEqual(len(plot_tsne.thin(frame, 0)), 12)

    def test_centres_and_kept_tokens_are_marked(self):
        path = self.write("points.csv", POINTS, points_rows(12, kept="h2o;snapkv kernel=5"))
        frame, heads = load(plot_tsne, path, ["keys"], [], [], "")
        xy = np.column_stack([np.arange(12), np.zeros(12)])
        pictures = {(0, 0, "keys"): (frame, xy)}
        tokens, centres = plot_tsne.draw(pictures, heads, ["keys"], []).axes[0].collections[:2]
        self.assertEqual(centres.get_offsets()[:, 0].tolist(), [0, 5])
        self.assertEqual(len(tokens.get_offsets()), 10)
        figure = plot_tsne.draw(pictures, heads, ["keys"], ["snapkv kernel=5"])
        evicted, kept = figure.axes[0].collections[:2]
        self.assertEqual(kept.get_offsets()[:, 0].tolist(), [0, 3, 6, 9])
        self.assertEqual(len(evicted.get_offsets()), 8)

    def test_colours_by_position(self):
        path = self.write("points.csv", POINTS, points_rows(12, kept="h2o"))
        frame, heads = load(plot_tsne, path, ["keys"], [], [], "")
        pictures = {(0, 0, "keys"): (frame, np.zeros((12, 2)))}
        for kept, drawn in (([], [[1, 2, 3, 4, 6, 7, 8, 9, 10, 11], [0, 5]]),
                            (["h2o"], [None, [0, 3, 6, 9]])):
            figure = plot_tsne.draw(pictures, heads, ["keys"], kept, "position")
            for dots, tokens in zip(figure.axes[0].collections, drawn):
                if tokens is None:
                    self.assertIsNone(dots.get_array())  # evicted ones stay grey
                    continue
                self.assertEqual(dots.get_array().tolist(), tokens)
                self.assertEqual((dots.norm.vmin, dots.norm.vmax), (0, 11))
            self.assertEqual(figure.axes[1].get_ylabel(), "position of the token")

    def test_distances_to_centres_by_hand(self):
        # Values lie on a line, centres 0 and 5: distances 0 1 2 2 1 0 1 2 3 4 5 6, mean 27 / 12.
        path = self.write("points.csv", POINTS, points_rows(12))
        frame, heads = load(plot_tsne, path, ["values"], [], [], "")
        text = plot_tsne.measured({(*heads[0], "values"): (frame, None)}, ["values"], [])
        spread = math.sqrt(sum((i - 5.5)**2 for i in range(12)) / 12)
        self.assertIn(f"values {27 / 12 / spread:.3g}.", text)

    @unittest.skipUnless(HAS_SKLEARN, "no scikit-learn")
    def test_embedding(self):
        from kvbench.plot import embedding as tsne
        rng = np.random.default_rng(0)
        points = np.concatenate([rng.normal(size=(15, 8)), rng.normal(size=(15, 8)) + 50])
        once, = tsne.embed_all([points], 1)
        np.testing.assert_array_equal(once, tsne.embed(points))  # to the bit
        # Two clusters 50 sd apart: every point's nearest neighbour is of its own cluster.
        apart = np.linalg.norm(once[:, None] - once[None], axis=2) + np.diag(np.full(30, np.inf))
        nearest = apart.argmin(axis=1)
        np.testing.assert_array_equal(nearest < 15, np.arange(30) < 15)
        np.testing.assert_array_equal(tsne.embed(np.ones((9, 3))), np.zeros((9, 2)))
        for bad, text in ((np.ones((4, 2)), "got 4 points, expected at least 5"),
                          (np.full((9, 2), np.nan), "not finite")):
            with self.assertRaisesRegex(kt.CsvError, text):
                tsne.embed(bad)

    @unittest.skipUnless(HAS_SKLEARN, "no scikit-learn")
    def test_jobs_do_not_change_the_picture(self):
        from kvbench.plot import embedding as tsne
        sets = [np.random.default_rng(seed).normal(size=(20, 4)) for seed in (1, 2)]
        for one, two in zip(tsne.embed_all(sets, 1), tsne.embed_all(sets, 2)):
            np.testing.assert_array_equal(one, two)

    @unittest.skipUnless(HAS_SKLEARN, "no scikit-learn")
    def test_pictures_and_errors(self):
        path = self.write("points.csv", POINTS, points_rows(12, kept="h2o")
                          + points_rows(12, layer=1) + points_rows(12, prompt="q"))
        result = self.expect_pictures(plot_tsne, path, "--jobs", "1")
        self.assertIn("2 prompts; prompt p of t.h5 is shown", result.err)
        self.expect_pictures(plot_tsne, self.folder, "--jobs", "1", "--kept", "h2o",
                             "--prompt", "p")
        self.expect_error(plot_tsne, "--kept: got `nope`, which kept none of these tokens; it "
                          "holds h2o", path, "--kept", "nope", "--prompt", "p")
        self.expect_error(plot_tsne, "--what: got `queries`", path, "--what", "queries")
        self.expect_error(plot_tsne, "--kv-heads: got 4", path, "--kv-heads", "4")
        self.expect_error(plot_tsne, "expected at least 5", self.write("a.csv", POINTS,
                                                                       points_rows(4)))
        self.expect_error(plot_tsne, "no rows", self.write("a.csv", POINTS, []))
        self.expect_error(plot_tsne, "column `x0` is missing",
                          self.write("a.csv", POINTS.replace("x0", "y0"), points_rows()))
        self.expect_error(plot_tsne, "column `x0`: got `far`, expected a number",
                          self.write("a.csv", POINTS, points_rows() + [
                              "t.h5,p,0,0,keys,99,0,,far,1"]))


if __name__ == "__main__":
    unittest.main()
