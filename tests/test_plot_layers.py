"""Every figure with 4 layers and with 30: legible, and on one page. What overviews of many layers
show (python/kvbench/plot/layers.py), by hand."""

import math
import os
import unittest

from figure_checks import LegibleTest, shown_texts
from plot_tables import DIAG, STEP_COLUMNS, FigureTest, np
from script_case import missing

from kvbench import tables as kt
from kvbench.plot import layers as kl
from kvbench.plot import style as ks
from kvbench.plot.kinds import amnesia as plot_amnesia
from kvbench.plot.kinds import bumblebee_lambda as plot_lambda
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import growth as plot_growth
from kvbench.plot.kinds import heatmap as plot_heatmap
from kvbench.plot.kinds import kept_map as plot_kept_map
from kvbench.plot.kinds import norms as plot_norms
from kvbench.plot.kinds import offset as plot_offset
from kvbench.plot.kinds import pareto as plot_pareto
from kvbench.plot.kinds import reconstruction as plot_reconstruction
from kvbench.plot.kinds import stream as plot_stream
from kvbench.plot.kinds import tsne as plot_tsne

HAS_SKLEARN = not missing("sklearn")
HEADS = (0, 4)
HEAD = "trace,prompt,layer,kv_head,what,"
DELTAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
KEPT = ("schema,trace,prompt,layer,kv_head,algorithm,params,protocol,sink,recent,scores,device,"
        "seed,n_tokens,budget_requested,step,tokens")


def error(layer, size, scale=1.0):
    """Differs by layer and size, and is no multiple of one by the other."""
    return scale * (0.02 + 0.01 * (layer % 7)) * size + 0.001 * layer


def maps_of(figure):
    """{title: cells} of the visible maps, in order."""
    return {a.get_title(): np.ma.filled(a.images[0].get_array(), np.nan)
            for a in figure.axes if a.images and a.get_visible() and a.get_title()}


class ReplayTest(LegibleTest):
    names = ("h2o", "uniform", "snapkv")

    def rows(self, layers, sizes=(0.5, 0.25, 0.125), names=names):
        return [{"layer": layer, "q_head": head, "algorithm": name, "budget_requested": size,
                 "middle_ratio": size, "ratio": size, "tokens_kept": 20 + 80 * size,
                 "amnesia_count": 5 + layer % 3, "amnesia_mass": 0.01 * (1 + layer % 5),
                 "rel_error": error(layer, 1 / size, 1 + i)}
                for layer in layers for head in HEADS for i, name in enumerate(names)
                for size in sizes]

    def make(self, layers):
        return [self.write(self.rows(layers))]

    def test_error(self):
        for options in ([], ["--x", "budget", "--log-y"], ["--x", "middle_ratio"]):
            few, many = self.both(plot_error, self.make, *options)
            self.assertEqual([a.get_title() for a in few.axes], [f"layer {i}" for i in range(4)])
            maps = maps_of(many)
            self.assertEqual(list(maps), list(self.names))
            # T = 1, 2, 3 is a size of 2, 4, 8.
            self.near(maps["uniform"], [[error(i, 2.0**t, 2) for t in (1, 2, 3)]
                                        for i in range(30)])
            lines = {line.get_color(): line for line in many.axes[0].lines}
            means = [np.mean([error(i, 2.0**t, 2) for i in range(30)]) for t in (1, 2, 3)]
            self.near(sorted(lines[ks.styles(["uniform"])["uniform"]["color"]].get_ydata()), means)  # bytes fall with T

    def test_exact_is_a_level_without_a_map(self):
        rows = self.rows(range(12)) + [{"layer": layer, "q_head": head, "algorithm": "exact",
                                        "budget_requested": "", "rel_error": 1e-16}
                                       for layer in range(12) for head in HEADS]
        figure, size = self.picture(plot_error, self.write(rows))
        self.check(figure, size)
        self.assertEqual(list(maps_of(figure)), list(self.names))
        self.assertIn("exact", [t.get_text() for t in figure.legends[0].get_texts()])

    def test_as_many_layers_as_have_a_panel_each(self):
        for count, panels in ((kl.MAX_PANELS, kl.MAX_PANELS), (kl.MAX_PANELS + 1, 1)):
            figure, size = self.picture(plot_error, *self.make(range(count)))
            self.check(figure, size)
            self.assertEqual(len([a for a in figure.axes if a.lines]), panels)

    def test_more_lines_than_maps_fit(self):
        names = [f"method-number-{i}" for i in range(60)]
        path = self.write(self.rows(range(10), (0.5,), names))
        code, said = self.run_script(plot_error, path, "--all", "-o", self.path("out"))
        self.assertEqual(code, 2)
        self.assertIn("maps of 10 layers: got 60 lines, expected at most ", said)
        self.assertIn("choose fewer with --algorithms or --highlight", said)
        most = int(said.split("at most ")[1].split()[0])
        figure, size = self.picture(plot_error, self.write(self.rows(range(10), (0.5,),
                                                                     names[:most])), "--all")
        self.check(figure, size)

    def test_lambda(self):
        def make(layers):
            return [self.write(
                [{"layer": layer, "algorithm": "bumblebee", "params": f"lambda={at};phi={phi}",
                  "budget_requested": budget,
                  "rel_error": 0.1 + layer / 100 + (at - layer / 29)**2 / (8 * budget)}
                 for layer in layers for at in (0, 0.5, 1) for phi in ("log", "power")
                 for budget in (0.2, 0.1)]
                + [{"layer": layer, "budget_requested": budget, "rel_error": 0.2}
                   for layer in layers for budget in (0.2, 0.1)])]

        few, many = self.both(plot_lambda, make, "--by-layer")
        self.assertEqual(len([a for a in few.axes if a.get_visible()]), 8)
        dotted = [a for a in many.axes if a.images and a.get_title()]
        self.assertEqual(len(dotted), 4)
        for axes in dotted:  # the least is at 0, then 0.5, then 1: the nearest to layer / 29
            np.testing.assert_array_equal(axes.lines[0].get_xdata(),
                                          [0] * 8 + [1] * 14 + [2] * 8)
        self.both(plot_lambda, make)

    def test_amnesia(self):
        few, many = self.both(plot_amnesia, self.make, "--by-layer")
        self.assertEqual(len(few.axes), 8)
        counts = maps_of(many)["h2o"]  # of the last block: attention
        self.near(counts[:, 0], [0.01 * (1 + layer % 5) for layer in range(30)])
        self.assertEqual(len([a for a in many.axes if a.images and a.get_title()]), 6)

    def test_offset(self):
        def make(layers):
            return [self.write([{**row, "offset": offset, "rel_error": row["rel_error"] + offset}
                                for row in self.rows(layers, (0.5,)) for offset in range(4)],
                               "t.queries.csv")]

        few, many = self.both(plot_offset, make, "--by", "layer")
        self.assertEqual([a.get_title() for a in few.axes], [f"layer {i}" for i in range(4)])
        self.near(maps_of(many)["h2o"], [[error(i, 2) + at for at in range(4)]
                                         for i in range(30)])
        self.both(plot_offset, make)

    def test_heatmap(self):
        names = [f"a-long-name-no-{i}" for i in range(34)]
        few, many = self.both(plot_heatmap,
                              lambda layers: [self.write(self.rows(layers, (0.5,), names))])
        for figure, layers in ((few, 4), (many, 30)):
            maps = maps_of(figure)
            self.assertEqual(list(maps), names)
            self.assertEqual(maps[names[0]].shape, (layers, len(HEADS)))

    def test_heatmap_of_one_head(self):
        rows = [row for row in self.rows(range(30)) if row["q_head"] == HEADS[1]]
        figure, size = self.picture(plot_heatmap, self.write(rows), "--budget", "0.5")
        self.check(figure, size)
        axes = figure.axes[0]
        self.assertEqual([t.get_text() for t in axes.get_xticklabels()], ["4"])
        self.assertEqual([t.get_text() for t in axes.get_yticklabels()], ["0", "8", "16", "24"])

    def test_pareto(self):
        names = [f"method-number-{i}" for i in range(34)]
        few, many = self.both(plot_pareto, lambda layers: [
            self.write(self.rows(layers, (0.5, 0.25, 0.125, 0.0625), names)), "--all"])
        for figure in (few, many):
            named = {t.get_text() for t in shown_texts(figure)}
            self.assertLessEqual(set(names), named)

    def test_pareto_has_two_numbers_on_either_axis(self):
        for sizes in ((0.5,), (0.25, 0.125), (0.5, 0.0625)):
            figure, size = self.picture(plot_pareto, self.write(self.rows(range(4), sizes)))
            self.check(figure, size)
            axes = figure.axes[0]
            for axis in (axes.xaxis, axes.yaxis):
                shown = [t for t in axis.get_ticklabels() if t in shown_texts(figure)]
                self.assertGreaterEqual(len(shown), 2)

    def test_stream(self):
        names = [f"method-number-{i}" for i in range(14)]

        def make(layers):
            rows = [{"layer": layer, "algorithm": name, "protocol": "stream", "sink": 0,
                     "budget_requested": budget} for layer in layers for name in names
                    for budget in (0.5, 0.25, 0.2)]
            path = self.write(rows)
            self.write([{**row, "step": step, "bytes": 1024 * (1 + step) * 4,
                         "rel_error": 1e-6 if step == 9 and i % 42 == 0
                         else 0.01 * step * (1 + i % 14)}
                        for i, row in enumerate(rows) for step in range(9, 100, 10)],
                       "t.steps.csv", columns=STEP_COLUMNS)
            return [path]

        for figure in self.both(plot_stream, make):
            # The first errors alone are far below all others: they do not get the axis.
            self.assertGreater(figure.axes[0].get_ylim()[0], 1e-6)

    def test_reconstruction(self):
        def make(layers):
            return [self.write(
                [{"layer": layer, "algorithm": "kvreviver", "budget_requested": budget,
                  "diag": DIAG.format(a=30, n=15, ke=1 + layer, kb=math.pi, ve=2, vb=math.pi),
                  "params": f"candidate_ratio={(1 - v) / 2:g};estimate={name};"
                            f"recent_ratio={(1 - v) / 2:g};vague_ratio={v}"}
                 for layer in layers for budget in (0.5, 0.25, 0.125) for name in ("sum", "mean")
                 for v in (0.1, 0.2, 0.4)])]

        self.both(plot_reconstruction, make)


class ClusterTest(LegibleTest):
    def table(self, folder, name, header, lines):
        os.makedirs(self.path(folder), exist_ok=True)
        with open(os.path.join(self.path(folder), name), "w", encoding="utf-8") as file:
            file.write("\n".join([header, *lines]) + "\n")

    def make(self, layers):
        """A folder as of kvbench cluster; 4096 tokens, three KV heads. Rows of keys have
        radius_rel (k + layer)^-0.1 and alpha min(1, 0.01 layer + 1 - delta)."""
        folder = f"c{len(layers)}"
        heads = [(layer, head, what) for layer in layers for head in range(3)
                 for what in ("keys", "values")]
        self.table(folder, "coverage.csv", HEAD + "k,radius,radius_rel,center",
                   [f"t,p,{a},{h},{w},{2**i},{10 * self.radius(a, 2**i)},{self.radius(a, 2**i)},0"
                    for a, h, w in heads for i in range(12)])
        self.table(folder, "delta.csv", HEAD + "delta,n_prefix,clusters",
                   [f"t,p,{a},{h},{w},{10 * self.radius(a, 1) * d},{2**n},{2**(n / 2)}"
                    for a, h, w in heads for d in DELTAS for n in range(4, 13)])
        self.table(folder, "growth.csv", HEAD + "delta,alpha,r2",
                   [f"t,p,{a},{h},{w},{10 * self.radius(a, 1) * d},{self.alpha(a, d)},1"
                    for a, h, w in heads for d in DELTAS])
        self.table(folder, "norms.csv", "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max",
                   [f"t,p,{a},{h},{w},1,2,{3 + a},4,{5 + a},{6 + a + h}" for a, h, w in heads])
        return [self.path(folder)]

    @staticmethod
    def radius(layer, k):
        return (k / (1 + layer / 100))**-0.1

    @staticmethod
    def alpha(layer, delta):
        return min(1, 0.01 * layer + 1 - delta)

    def test_coverage(self):
        few, many = self.both(plot_coverage, self.make)
        self.assertEqual([a.get_title() for a in few.axes], [f"layer {i}" for i in range(4)])
        maps = maps_of(many)
        self.assertEqual(list(maps), ["keys", "values"])
        self.near(maps["keys"], [[self.radius(a, 2**i) for i in range(12)] for a in range(30)])

    def test_growth(self):
        few, many = self.both(plot_growth, self.make)
        self.assertEqual(len(few.axes), 8)
        self.assertEqual(maps_of(few), {})
        curves = [a.get_title() for a in many.axes if a.lines]
        self.assertEqual(curves, [f"{what}, layer {i}" for what in ("keys", "values")
                                  for i in (0, 10, 19, 29)])
        maps = maps_of(many)
        self.assertEqual(list(maps), ["keys", "values"])
        self.near(maps["values"], [[self.alpha(a, d) for d in DELTAS] for a in range(30)])
        self.assertTrue(any("4 of 30 layers" in t.get_text() for t in shown_texts(many)))

    def test_norms(self):
        few, many = self.both(plot_norms, self.make)
        for figure, layers in ((few, 4), (many, 30)):
            np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), range(layers))

    def test_kept_map(self):
        def make(layers):
            self.table("k", "t.kept.csv", KEPT,
                       [f"1.0,t.h5,p,{layer},{head},{name},,stream,0,2,past,cpu,0,2048,0.5,{step},"
                        f"0-{step}" for layer in layers for head in (0, 1)
                        for name in ("h2o", "bumblebee-stream", "tova", "local")
                        for step in (511, 1023, 2047)])
            return [os.path.join(self.path("k"), "t.kept.csv")]

        for figure in self.both(plot_kept_map, make):
            self.assertEqual(len(figure.axes), 8)  # the first and the last layer
        figure, size = self.picture(plot_kept_map, *make(range(30)), "--layers", "0,14,29",
                                    "--kv-heads", "0,1")
        self.check(figure, size)

    @unittest.skipUnless(HAS_SKLEARN, "no scikit-learn")
    def test_tsne(self):
        def make(layers):
            self.table("p", "points.csv", HEAD + "token,is_center,kept_by,x0,x1",
                       [f"t,p,{layer},0,{what},{i},{int(i == 0)},{'h2o' if i % 2 else ''},"
                        f"{i * layer % 7},{i}" for layer in layers for what in ("keys", "values")
                        for i in range(12)])
            return [self.path("p"), "--jobs", "1", "--perplexity", "3"]

        for figure, layers in zip(self.both(plot_tsne, make), ((0, 1, 2, 3), (0, 10, 19, 29))):
            self.assertEqual([a.get_title() for a in figure.axes[:4]],
                             [f"layer {i}, KV head 0" for i in layers])
        figure, size = self.picture(plot_tsne, *make(range(30)), "--layers",
                                    "0,4,8,12,16,20,24,29", "--kept", "h2o")
        self.check(figure, size)


class SharedTest(FigureTest):
    def frame(self, rows):
        return kt.pd.DataFrame(rows, columns=["label", "layer", "x", "mean"])

    def test_means_and_quartiles_over_layers(self):
        rows = self.frame([("a", layer, x, value * x) for x in (1, 2)
                           for layer, value in enumerate((1, 2, 3, 4, 10))])
        out, said = self.quiet(kl.over_layers, rows)
        self.assertEqual(said, "")
        self.near(out[["x", "at", "mean", "low", "high"]],
                  [[1, 1, 4, 2, 4], [2, 2, 8, 4, 8]])

    def test_a_layer_that_lacks_a_point(self):
        rows = self.frame([("a", 0, 1, 1), ("a", 1, 1, 3), ("b", 0, 1, 1)])
        out, said = self.quiet(kl.over_layers, rows)
        self.assertEqual(out["label"].tolist(), ["a"])
        self.assertIn("note: b: the mean over layers is not drawn", said)

    def test_levels_have_no_x(self):
        rows = self.frame([("a", layer, math.nan, 1 + layer) for layer in (0, 1)])
        out, _ = self.quiet(kl.over_layers, rows)
        self.near(out["mean"], [1.5])
        self.assertTrue(out["x"].isna().all())

    def test_scales_leave_out_few_cells(self):
        values = [*np.linspace(1, 2, 198), 1e-3, 1e3]
        norm, extend = kl.colour_scale(values, log=True)
        self.assertEqual(extend, "both")
        self.assertTrue(1 <= norm.vmin < 1.02 and 1.98 < norm.vmax <= 2)
        norm, extend = kl.colour_scale([0.1, 0.2, 1e-12, math.nan, math.inf], log=True)
        self.near([norm.vmin, norm.vmax], [0.1, 0.2])  # few cells: none is left out
        self.assertEqual(extend, "neither")
        norm, _ = kl.colour_scale([0.0, 5.0], log=False)
        self.near([norm.vmin, norm.vmax], [0, 5])
        norm, _ = kl.colour_scale([3.0, 3.0], log=True)
        self.assertTrue(norm.vmin < 3 < norm.vmax)

    def test_rows_of_panels_are_of_nearly_one_length(self):
        for count, rows in ((1, [1]), (4, [4]), (5, [3, 2]), (8, [4, 4]), (9, [3, 3, 3])):
            _, panels = kl.facets([list(range(count))])
            places = [round(a.get_position().y0, 3) for a in panels.values()]
            self.assertEqual([places.count(y) for y in dict.fromkeys(places)], rows)


if __name__ == "__main__":
    unittest.main()
