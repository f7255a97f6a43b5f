"""Figures of clusterability and kept tokens against hand calculations."""

import contextlib
import io
import math
import os
import unittest

import numpy as np

from plot_tables import DrawingCase
from script_case import call, missing, program, run_program

from kvbench import command
from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import coverage as plot_coverage
from kvbench.plot import figures as kf
from kvbench.plot import growth as plot_growth
from kvbench.plot import kept_map as plot_kept_map
from kvbench.plot import norms as plot_norms
from kvbench.plot import tsne as plot_tsne

SCRIPTS_TESTED = [plot_coverage, plot_growth, plot_kept_map, plot_norms, plot_tsne]
HEAD = "trace,prompt,layer,kv_head,what,"
COVERAGE = HEAD + "k,radius,radius_rel,center"
DELTA = HEAD + "delta,n_prefix,clusters"
GROWTH = HEAD + "delta,alpha,r2"
NORMS = "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max"
POINTS = HEAD + "token,is_center,kept_by,x0,x1"
KEPT = ("schema,trace,prompt,layer,kv_head,algorithm,params,protocol,sink,recent,scores,device,"
        "seed,n_tokens,budget_requested,step,tokens")
HAS_SKLEARN = not missing("sklearn")
EXACT = 12  # places: sums of a few doubles


def kept_row(step=7, tokens="0-7", label="h2o", params="reduce=mean", budget="0.5", seed=0, layer=0,
             head=0, schema="1.0", protocol="stream", n=8):
    return (f"{schema},t.h5,p,{layer},{head},{label},{params},{protocol},0,2,past,cpu,{seed},{n},"
            f"{budget},{step},{tokens}")


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


class Figures(DrawingCase):
    """A scratch folder, tables in it, and the scripts in this process."""

    def write(self, name, header, lines):
        return self.write_file(name, "\n".join([header, *lines]) + "\n")

    def run_script(self, module, *arguments):
        return call(lambda: command.run_main(module.main), program(module), *arguments)

    def expect_error(self, module, text, *arguments):
        result = self.run_script(module, *arguments, "-o", self.path("out"))
        self.assertEqual(result.code, 2, result.err)
        last = result.err.strip().splitlines()[-1]
        self.assertTrue(last.startswith(program(module) + ": "), last)
        self.assertIn(text, last)
        self.assertFalse(os.path.exists(self.path("out.png")))

    def expect_pictures(self, module, *arguments):
        """Runs twice: PNG and PDF are made, and of the same bytes."""
        contents = []
        for stem in ("first", "second"):
            result = self.run_script(module, *arguments, "-o", self.path(stem))
            self.assertEqual(result.code, 0, result.err)
            with open(self.path(stem) + ".png", "rb") as png, \
                    open(self.path(stem) + ".pdf", "rb") as pdf:
                contents.append((png.read(), pdf.read()))
        self.assertEqual(contents[0][0][:4], b"\x89PNG")
        self.assertEqual(contents[0][1][:4], b"%PDF")
        self.assertTrue(contents[0] == contents[1], "two runs differ")  # no dump of the bytes
        return result


class CoverageTest(Figures):
    def rows(self):
        return ["t,p,0,0,keys,1,8,1,0", "t,p,0,1,keys,1,6,1,0",
                "t,p,0,0,keys,2,4,0.5,3", "t,p,0,1,keys,2,4.2,0.7,9",
                "t,p,0,0,values,1,2,1,0", "t,p,0,0,values,2,1.8,0.9,1",
                "t,p,3,0,keys,1,2,1,0"]

    def test_mean_and_spread_over_heads(self):
        table = plot_coverage.load([self.write("coverage.csv", COVERAGE, self.rows())], [0])
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
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            table = plot_coverage.load([path], [0])
        self.assertIn("only some heads", stderr.getvalue())
        self.assertEqual(table.loc[table["what"] == "keys", "k"].tolist(), [1, 2])

    def test_a_value_that_is_no_number_is_not_averaged_away(self):
        path = self.write("coverage.csv", COVERAGE,
                          ["t,p,0,0,keys,1,8,1,0", "t,p,0,1,keys,1,6,nan,0"])
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            table = plot_coverage.load([path], [])
        self.assertTrue(math.isnan(table["mean"][0]))
        self.assertIn("not a number", stderr.getvalue())

    def test_pictures(self):
        self.write("coverage.csv", COVERAGE, self.rows())
        self.expect_pictures(plot_coverage, self.folder)
        self.expect_pictures(plot_coverage, self.folder, "--log-y", "--layers", "3")

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
        table, alpha, absolute = plot_growth.load([self.tables()], [])
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
        table, alpha, absolute = plot_growth.load([self.tables(deltas=(2, 2))], [])
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
        table = plot_norms.load([self.write("norms.csv", NORMS, self.rows())])
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
        title = plot_norms.draw(plot_norms.load([self.path("a.csv")])).axes[0].get_title()
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
        frame, labels, heads = plot_kept_map.load([path], [], [], [], "")
        self.assertEqual((labels, heads), (["h2o"], [(0, 0)]))
        y, x, share = plot_kept_map.kept_map(frame)
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
        _, x, share = plot_kept_map.kept_map(kcc.read_kept([path]))
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


class TsneTest(Figures):
    def test_selection(self):
        path = self.write("points.csv", POINTS, [row for layer in range(6) for head in (1, 2)
                                                 for row in points_rows(5, layer, head)])
        _, heads = plot_tsne.load(path, ["keys"], [], [], "")
        self.assertEqual(heads, [(0, 1), (2, 1), (3, 1), (5, 1)])  # 4 of 6 layers, the first head
        frame, heads = plot_tsne.load(path, ["values"], [1], [2], "")
        self.assertEqual((len(frame), heads), (5, [(1, 2)]))
        self.assertEqual(set(frame["what"]), {"values"})

    def test_thinning_keeps_the_centres(self):
        path = self.write("points.csv", POINTS, points_rows(12))
        frame, _ = plot_tsne.load(path, ["keys"], [], [], "")
        self.assertEqual(plot_tsne.thin(frame, 4)["token"].tolist(), [0, 3, 5, 6, 9])
        self.assertEqual(len(plot_tsne.thin(frame, 0)), 12)

    def test_centres_and_kept_tokens_are_marked(self):
        path = self.write("points.csv", POINTS, points_rows(12, kept="h2o;snapkv kernel=5"))
        frame, heads = plot_tsne.load(path, ["keys"], [], [], "")
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
        frame, heads = plot_tsne.load(path, ["keys"], [], [], "")
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
        frame, heads = plot_tsne.load(path, ["values"], [], [], "")
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


class ProgramsTest(unittest.TestCase):
    def test_help_of_every_script(self):
        for module in SCRIPTS_TESTED:
            with contextlib.redirect_stdout(io.StringIO()) as text, \
                    self.assertRaises(SystemExit) as end:
                module.parse_arguments(["--help"])
            self.assertEqual(end.exception.code, 0)
            self.assertIn("STEM", text.getvalue())
            self.assertIn(module.__doc__.splitlines()[0], text.getvalue())

    def test_as_a_program(self):
        result = run_program("kvbench-py plot norms", "none.csv", "-o", "x")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "kvbench-py plot norms: none.csv: no such file\n")


if __name__ == "__main__":
    unittest.main()
