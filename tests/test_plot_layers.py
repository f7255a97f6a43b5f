"""Every figure with 4 layers and with 30: legible, and on one page. What overviews of many layers
show (python/kvbench/plot/layers.py), by hand."""

import math
import os
import unittest

from figure_checks import LegibleTest, shown_texts
from plot_tables import FigureTest, np
from script_case import missing

from kvbench import tables as kt
from kvbench.plot import layers as kl
from kvbench.plot import style as ks
from kvbench.plot.kinds import bumblebee_lambda as plot_lambda
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import growth as plot_growth
from kvbench.plot.kinds import heatmap as plot_heatmap

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
            lines = {line.get_color(): line for line in many.axes[0].lines if line.get_marker() not in "_|"}
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

    def test_heatmap(self):
        names = [f"a-long-name-no-{i}" for i in range(34)]
        few, many = self.both(plot_heatmap,
                              lambda layers: [self.write(self.rows(layers, (0.5,), names))])
        for figure, layers in ((few, 4), (many, 30)):
            maps = maps_of(figure)
            self.assertEqual(list(maps), names)
            self.assertEqual(maps[names[0]].shape, (layers, len(HEADS)))


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
