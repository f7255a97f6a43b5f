"""Figures of clusterability and kept tokens against hand calculations. t-SNE: test_plot_tsne.py."""

import contextlib
import io
import math
import os
import unittest

import numpy as np
from cluster_figures import HEAD, Figures
from plot_tables import load

from kvbench import command
from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import growth as plot_growth
from kvbench.plot.kinds import kept_map as plot_kept_map
from kvbench.plot.kinds import norms as plot_norms

COVERAGE = HEAD + "k,radius,radius_rel,center"
DELTA = HEAD + "delta,n_prefix,clusters"
GROWTH = HEAD + "delta,alpha,r2"
NORMS = "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max"
KEPT = ("schema,trace,prompt,layer,kv_head,algorithm,params,protocol,sink,recent,scores,device,"
        "seed,n_tokens,budget_requested,step,tokens")
EXACT = 12  # places: sums of a few doubles


def kept_row(step=7, tokens="0-7", label="h2o", params="reduce=mean", budget="0.5", seed=0, layer=0,
             head=0, schema="1.0", protocol="stream", n=8):
    return (f"{schema},t.h5,p,{layer},{head},{label},{params},{protocol},0,2,past,cpu,{seed},{n},"
            f"{budget},{step},{tokens}")


class CoverageTest(Figures):
    def rows(self):
        return ["t,p,0,0,keys,1,8,1,0", "t,p,0,1,keys,1,6,1,0",
                "t,p,0,0,keys,2,4,0.5,3", "t,p,0,1,keys,2,4.2,0.7,9",
                "t,p,0,0,values,1,2,1,0", "t,p,0,0,values,2,1.8,0.9,1",
                "t,p,3,0,keys,1,2,1,0"]

    def test_mean_and_spread_over_heads(self):
        table = load(plot_coverage, [self.write("coverage.csv", COVERAGE, self.rows())], [0])
        axes = plot_coverage.draw(table).axes[0]
        keys, values = axes.lines[:2]
        np.testing.assert_array_equal(keys.get_xdata(), [1, 2])
        np.testing.assert_allclose(keys.get_ydata(), [1, 0.6], rtol=1e-12)
        np.testing.assert_allclose(values.get_ydata(), [1, 0.9], rtol=1e-12)
        # Deviations of -0.1 and 0.1 over n - 1 = 1: sd = sqrt(0.02).
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        self.assertAlmostEqual(edges.max(), 1.0, EXACT)
        self.assertAlmostEqual(edges.min(), 0.6 - math.sqrt(0.02), EXACT)
        self.assertEqual(len(axes.collections), 1)  # one head of values: no band

    def test_k_of_some_heads_only_is_left_out(self):
        path = self.write("coverage.csv", COVERAGE, self.rows() + ["t,p,0,0,keys,4,1,0.1,3"])
        with contextlib.redirect_stderr(io.StringIO()) as stderr, command.notes_on_stderr():
            table = load(plot_coverage, [path], [0])
        self.assertIn("only some heads", stderr.getvalue())
        self.assertEqual(table.loc[table["what"] == "keys", "k"].tolist(), [1, 2])

    def test_a_value_that_is_no_number_is_not_averaged_away(self):
        path = self.write("coverage.csv", COVERAGE,
                          ["t,p,0,0,keys,1,8,1,0", "t,p,0,1,keys,1,6,nan,0"])
        with contextlib.redirect_stderr(io.StringIO()) as stderr, command.notes_on_stderr():
            table = load(plot_coverage, [path], [])
        self.assertTrue(math.isnan(table["mean"][0]))
        self.assertIn("not a number", stderr.getvalue())

    def test_errors(self):
        good = self.write("coverage.csv", COVERAGE, self.rows())
        self.expect_error(plot_coverage, "no such file", self.path("none.csv"))
        self.expect_error(plot_coverage, "the file is empty", self.empty())
        self.expect_error(plot_coverage, "no rows", self.write("a.csv", COVERAGE, []))
        self.expect_error(plot_coverage, "column `radius_rel` is missing",
                          self.write("a.csv", HEAD + "k,radius", ["t,p,0,0,keys,1,1"]))
        self.expect_error(plot_coverage, "a.csv: row 1: column `k`: got `two`, expected a number",
                          self.write("a.csv", COVERAGE, ["t,p,0,0,keys,two,1,1,0"]))
        self.expect_error(plot_coverage, "got `kv`, expected one of queries, keys, values",
                          self.write("a.csv", COVERAGE, ["t,p,0,0,kv,1,1,1,0"]))
        self.expect_error(plot_coverage, "columns differ", good,
                          self.write("a.csv", COVERAGE + ",more", ["t,p,9,0,keys,1,1,1,0,5"]))
        self.expect_error(plot_coverage, "two rows for trace t, prompt p, layer 0.0", good, good)
        self.expect_error(plot_coverage, "--layers: got 7, which it does not hold; it holds 0, 3",
                          good, "--layers", "7")
        self.expect_error(plot_coverage, "--layers: got `x`", good, "--layers", "x")

    def empty(self):
        with open(self.path("empty.csv"), "w", encoding="utf-8"):
            pass
        return self.path("empty.csv")


class GrowthTest(Figures):
    def tables(self, second_radius=20, deltas=(2, 4)):
        """Two heads of radius 10 and 20, whose deltas are a fifth of these."""
        self.write("coverage.csv", COVERAGE, ["t,p,0,0,keys,1,10,1,0", "t,p,0,0,keys,2,5,0.5,7",
                                              f"t,p,0,1,keys,1,{second_radius},1,0"])
        self.write("delta.csv", DELTA,
                   [f"t,p,0,{h},keys,{d},{n},{m}" for h, d, counts in
                    ((0, deltas[0], (4, 8)), (1, deltas[1], (9, 32)))
                    for n, m in zip((16, 64), counts)])
        self.write("growth.csv", GROWTH, [f"t,p,0,0,keys,{deltas[0]},0.5,1",
                                          f"t,p,0,1,keys,{deltas[1]},0.9,1"])
        return self.folder

    def test_heads_meet_on_delta_over_radius(self):
        table, alpha, absolute = load(plot_growth, [self.tables()], [])
        self.assertFalse(absolute)
        self.assertEqual(plot_growth.shown_deltas(table, []), [0.2])
        axes = plot_growth.draw(table, alpha, absolute, [0.2]).axes[0]
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [16, 64])
        # Geometric means: sqrt(4 * 9) and sqrt(8 * 32).
        np.testing.assert_allclose(axes.lines[0].get_ydata(), [6, 16], rtol=1e-12)
        self.assertEqual(axes.get_legend().get_texts()[0].get_text(), "0.2: 0.70")
        slope_one = axes.lines[1]
        np.testing.assert_array_equal(slope_one.get_xdata(), slope_one.get_ydata())

    def test_absolute_deltas_where_the_heads_share_them(self):
        table, alpha, absolute = load(plot_growth, [self.tables(deltas=(2, 2))], [])
        self.assertTrue(absolute)
        self.assertEqual(table["delta"].unique().tolist(), [2])
        self.assertAlmostEqual(alpha[0, "keys", 2], 0.7, EXACT)

    def test_an_alpha_without_a_fit_shows_as_a_dash(self):
        key = (0, "keys", 0.2)
        self.assertEqual(plot_growth.alpha_text({key: math.nan}, key), "0.2: –")
        self.assertEqual(plot_growth.alpha_text({}, key), "0.2: –")

    def test_pictures_and_errors(self):
        folder = self.tables()
        self.expect_pictures(plot_growth, folder, "--deltas", "0.2")
        self.expect_error(plot_growth, "--deltas: got 0.7, expected some of 0.2", folder,
                          "--deltas", "0.7")
        self.expect_error(plot_growth, "--deltas: got `a`", folder, "--deltas", "a")
        self.expect_error(plot_growth, "no such folder", self.path("delta.csv"))
        os.remove(self.path("growth.csv"))
        self.expect_error(plot_growth, "growth.csv: no such file", folder)


class NormsTest(Figures):
    def rows(self):
        return ["t,p,0,0,queries,1,2,3,4,5,6", "t,p,0,1,queries,1,2,5,6,7,8",
                "t,p,1,0,queries,1,2,3,4,5,7", "t,p,0,0,keys,0,1,2,3,4,5"]

    def test_lines_and_bands(self):
        table = load(plot_norms, [self.write("norms.csv", NORMS, self.rows())])
        figure = plot_norms.draw(table)
        queries, keys = figure.axes
        self.assertEqual(queries.get_title(), "queries, $r$ = 8")
        self.assertEqual(keys.get_title(), "keys, $r$ = 5")
        largest, p95, median = queries.lines
        np.testing.assert_array_equal(largest.get_xdata(), [0, 1])
        np.testing.assert_array_equal(largest.get_ydata(), [7, 7])
        np.testing.assert_array_equal(p95.get_ydata(), [6, 5])
        np.testing.assert_array_equal(median.get_ydata(), [4, 3])
        edges = queries.collections[0].get_paths()[0].vertices[:, 1]
        self.assertEqual((edges.min(), edges.max()), (6, 8))

    def test_pictures_and_errors(self):
        path = self.write("norms.csv", NORMS, self.rows())
        self.expect_pictures(plot_norms, path)
        self.expect_error(plot_norms, "column `p95` is missing",
                          self.write("a.csv", NORMS.replace("p95", "p94"), self.rows()))
        self.expect_error(plot_norms, "no rows", self.write("a.csv", NORMS, []))
        self.write("a.csv", NORMS, ["t,p,0,0,keys,0,1,2,3,4,nan", "t,p,0,1,keys,0,1,2,3,4,5"])
        title = plot_norms.draw(load(plot_norms, [self.path("a.csv")])).axes[0].get_title()
        self.assertEqual(title, "keys, $r$ = not a number")


class KeptMapTest(Figures):
    def test_ranges(self):
        self.assertEqual(kcc.parse_ranges("0-255 300 305-310"), [(0, 255), (300, 300), (305, 310)])
        self.assertEqual(kcc.parse_ranges(""), [])
        for text in ("3-1", "1-", "-1", "2 1", "0-3 3", "a", "1.5"):
            with self.assertRaises(ValueError, msg=text):
                kcc.parse_ranges(text)
        np.testing.assert_array_equal(kcc.held("1-2 4", 5), [False, True, True, False, True])
        with self.assertRaises(kt.CsvError):
            kcc.held("1-5", 5)

    def test_labels_name_what_differs(self):
        path = self.write("a.kept.csv", KEPT, [
            kept_row(), kept_row(label="uniform", params="", seed=0),
            kept_row(label="uniform", params="", seed=1),
            kept_row(label="bumblebee-stream", params="lambda=0.3;sim=relu", budget="0.5"),
            kept_row(label="bumblebee-stream", params="lambda=0;sim=relu", budget="0.25"),
            kept_row(label="bumblebee-stream", params="lambda=1;sim=relu", budget="")])
        self.assertEqual(kcc.read_kept([path])["label"].tolist(), [
            "h2o", "uniform seed=0", "uniform seed=1",
            "bumblebee-stream budget_requested=0.5 lambda=0.3",
            "bumblebee-stream budget_requested=0.25 lambda=0", "bumblebee-stream lambda=1"])

    def test_map_by_hand(self):
        path = self.write("a.kept.csv", KEPT, [
            kept_row(step=7, tokens="0 6-7"), kept_row(step=3, tokens="0-1 3")])
        frame, labels, heads = load(plot_kept_map, [path], [], [], [], "")
        self.assertEqual((labels, heads), (["h2o"], [(0, 0)]))
        y, x, share = plot_kept_map.held_shares(frame)
        np.testing.assert_array_equal(y, [0, 4, 8])
        np.testing.assert_array_equal(x, range(9))
        nan = math.nan
        np.testing.assert_array_equal(share, [[1, 1, 0, 1, nan, nan, nan, nan],
                                              [1, 0, 0, 0, 0, 0, 1, 1]])
        axes = plot_kept_map.draw(frame, labels, heads).axes[0]
        drawn = axes.collections[0].get_array()
        self.assertEqual(drawn.reshape(2, 8)[1].tolist(), [1, 0, 0, 0, 0, 0, 1, 1])
        self.assertEqual(int(np.ma.count_masked(drawn)), 4)
        self.assertEqual(axes.get_ylim(), (8, 0))

    def test_long_streams_show_shares(self):
        path = self.write("a.kept.csv", KEPT, [kept_row(step=2999, tokens="0-1 4 2999", n=3000)])
        _, x, share = plot_kept_map.held_shares(kcc.read_kept([path]))
        self.assertEqual(x[:3].tolist(), [0, 3, 6])  # 3000 tokens in at most 1024 cells
        np.testing.assert_allclose(share[0, :3], [2 / 3, 1 / 3, 0], rtol=1e-12)
        self.assertAlmostEqual(np.nansum(share) * 3, 4, EXACT)

    def test_pictures_and_errors(self):
        rows = [kept_row(step=s, tokens=f"0-{s}", label=a, layer=layer)
                for s in (3, 7) for a in ("h2o", "bumblebee-stream") for layer in (0, 1, 2)]
        path = self.write("a.kept.csv", KEPT, rows)
        self.expect_pictures(plot_kept_map, path)
        self.expect_error(plot_kept_map, "expected some of h2o, bumblebee-stream", path,
                          "--labels", "nope")
        self.expect_error(plot_kept_map, "--prompt: got `x`, expected one of p", path,
                          "--prompt", "x")
        for text, rows in (
                ("mixed schemas: 1.0, 1.1", [kept_row(), kept_row(step=3, schema="1.1")]),
                ("schema 2.0, expected 1.x", [kept_row(schema="2.0")]),
                ("no row of protocol stream", [kept_row(protocol="prefill")]),
                ("got `9-7`, expected ascending ranges within 0-7", [kept_row(tokens="9-7")]),
                ("step 3 holds token 5, which comes after it", [kept_row(step=3, tokens="5")]),
                ("two rows for", [kept_row(), kept_row()])):
            self.expect_error(plot_kept_map, text, self.write("b.kept.csv", KEPT, rows))
        self.expect_error(plot_kept_map, "column `tokens` is missing",
                          self.write("b.kept.csv", KEPT.replace(",tokens", ""),
                                     [kept_row().rpartition(",")[0]]))


if __name__ == "__main__":
    unittest.main()
