"""What kvbench-py plot error and overviews of many layers (python/kvbench/plot/layers.py) show, by hand."""

import math

from plot_tables import DELTAS, NAMES, FigureTest, alpha, cluster_tables, load, np, radius, replay

from kvbench import tables as kt
from kvbench.plot import layers as kl
from kvbench.plot.kinds import bumblebee_lambda as plot_lambda
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import growth as plot_growth


def error(layer, size, scale=1.0):
    """That of plot_tables.replay."""
    return scale * (0.02 + 0.01 * (layer % 7)) * size + 0.001 * layer


def maps_of(figure):
    """{title: cells} of the visible maps, in order."""
    return {a.get_title(): np.ma.filled(a.images[0].get_array(), np.nan)
            for a in figure.axes if a.images and a.get_visible() and a.get_title()}


class ReplayTest(FigureTest):
    def test_error(self):
        exact = [{"layer": layer, "q_head": head, "algorithm": "exact", "budget_requested": "", "rel_error": 1e-16}
                 for layer in range(30) for head in (0, 4)]
        figure = self.picture(plot_error, self.write([*replay(range(30)), *exact]))
        maps = maps_of(figure)
        self.assertEqual(list(maps), list(NAMES))  # exact is a level without a map
        self.assertIn("exact", [t.get_text() for t in figure.legends[0].get_texts()])
        # T = 1, 2, 3 is a size of 2, 4, 8.
        self.near(maps["uniform"], [[error(i, 2.0**t, 2) for t in (1, 2, 3)] for i in range(30)])

    def test_as_many_layers_as_have_a_panel_each(self):
        for count, panels in ((4, 4), (kl.MAX_PANELS, kl.MAX_PANELS), (kl.MAX_PANELS + 1, 1)):
            figure = self.picture(plot_error, self.write(replay(range(count))))
            self.assertEqual(len([a for a in figure.axes if a.lines]), panels)

    def test_lambda(self):
        path = self.write({"layer": layer, "algorithm": "bumblebee", "params": f"lambda={at};phi={phi}",
                           "budget_requested": budget,
                           "rel_error": 0.1 + layer / 100 + (at - layer / 29)**2 / (8 * budget)}
                          for layer in range(30) for at in (0, 0.5, 1) for phi in ("log", "power")
                          for budget in (0.2, 0.1))
        dotted = [a for a in self.picture(plot_lambda, path, "--by-layer").axes if a.images and a.get_title()]
        self.assertEqual(len(dotted), 4)
        for axes in dotted:  # the least is at 0, then 0.5, then 1: the nearest to layer / 29
            np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0] * 8 + [1] * 14 + [2] * 8)


class ClusterTest(FigureTest):
    def test_coverage(self):
        figure = self.picture(plot_coverage, cluster_tables(self, range(30)))
        maps = maps_of(figure)
        self.assertEqual(list(maps), ["keys", "values"])
        self.near(maps["keys"], [[radius(a, 2**i) for i in range(12)] for a in range(30)])
        table = load(plot_coverage, self.folder, mean_over_layers=True)
        self.near(table.loc[table["what"] == "keys", "mean"],
                  [np.mean([radius(a, 2**i) for a in range(30)]) for i in range(12)])

    def test_growth(self):
        figure = self.picture(plot_growth, cluster_tables(self, range(4)))
        self.assertEqual((len(figure.axes), maps_of(figure)), (8, {}))
        figure = self.picture(plot_growth, cluster_tables(self, range(30)))
        self.assertEqual(len([a for a in figure.axes if a.lines]), 2 * 4)  # keys and values, some layers
        maps = maps_of(figure)
        self.assertEqual(list(maps), ["keys", "values"])
        self.near(maps["values"], [[alpha(a, d) for d in DELTAS] for a in range(30)])


class SharedTest(FigureTest):
    def over(self, *rows):
        return self.quiet(kl.over_layers, kt.pd.DataFrame(rows, columns=["label", "layer", "x", "mean"]))

    def test_means_and_quartiles_over_layers(self):
        out, said = self.over(*(("a", layer, x, value * x) for x in (1, 2)
                                for layer, value in enumerate((1, 2, 3, 4, 10))))
        self.assertEqual(said, "")
        self.near(out[["x", "at", "mean", "low", "high"]], [[1, 1, 4, 2, 4], [2, 2, 8, 4, 8]])
        # A layer lacks a point of b, and has none that is finite of c.
        out, said = self.over(("a", 0, 1, 1), ("a", 1, 1, 3), ("b", 0, 1, 1), ("c", 0, 1, 1), ("c", 1, 1, math.nan))
        self.assertEqual(out["label"].tolist(), ["a"])
        for label in "bc":
            self.assertIn(f"note: {label}: the mean over layers is not drawn", said)
        out, _ = self.over(*(("a", layer, math.nan, 1 + layer) for layer in (0, 1)))  # levels have no x
        self.near(out["mean"], [1.5])
        self.assertTrue(out["x"].isna().all())

    def test_scales_leave_out_few_cells(self):
        norm, extend = kl.colour_scale([*np.linspace(1, 2, 198), 1e-3, 1e3], log=True)
        self.assertEqual(extend, "both")
        self.assertTrue(1 <= norm.vmin < 1.02 and 1.98 < norm.vmax <= 2)
        norm, extend = kl.colour_scale([0.1, 0.2, 1e-12, math.nan, math.inf], log=True)
        self.near([norm.vmin, norm.vmax], [0.1, 0.2])  # few cells: none is left out
        self.assertEqual(extend, "neither")
        norm, _ = kl.colour_scale([0.0, 5.0], log=False)
        self.near([norm.vmin, norm.vmax], [0, 5])
        norm, _ = kl.colour_scale([3.0, 3.0], log=True)
        self.assertTrue(norm.vmin < 3 < norm.vmax)


def line(layer=0, head=0, algorithm="balancekv", params="T=1;block=256", seed=0, budget="", ratio=0.5, error=0.1,
         **more):
    return {"layer": layer, "q_head": head, "algorithm": algorithm, "params": params, "seed": seed,
            "budget_requested": budget, "middle_ratio": ratio, "rel_error": error, **more}


class PlotErrorTest(FigureTest):
    def load(self, *rows, algorithms=(), spread="seeds"):
        return load(plot_error, [self.write(rows)], algorithms, spread)

    def test_mean_and_spread_by_hand(self):
        # Seeds' means over two heads: (0.1+0.3)/2 = 0.2 and (0.2+0.6)/2 = 0.4.
        rows = [line(head=head, seed=seed, error=error)
                for head, seed, error in ((0, 0, 0.1), (1, 0, 0.3), (0, 1, 0.2), (1, 1, 0.6))]
        self.near(self.load(*rows).iloc[0][["mean", "sd", "seeds", "T"]], [0.3, math.sqrt(2 * 0.1**2), 2, 1])
        # Over all rows: deviations -0.2, 0, -0.1, 0.3 from 0.3; squares 0.14; over n - 1 = 3.
        self.near(self.load(*rows, spread="all").iloc[0][["mean", "sd"]], [0.3, math.sqrt(0.14 / 3)])
        for some, said in ((rows[:2], False), (rows, True)):
            self.assertEqual("Bars: standard deviation" in self.caption(plot_error, self.write(some)), said)

    def test_groups_and_labels(self):
        rows = [line(), line(params="T=2;block=256"), *(line(algorithm="snapkv", params=f"T=auto;kernel={kernel}",
                                                             budget=0.25) for kernel in (5, 7)),
                line(algorithm="exact", params="", error=0), line(layer=4)]
        table = self.load(*rows)
        self.assertEqual(list(dict.fromkeys(table["label"])),
                         ["balancekv", "snapkv kernel=5", "snapkv kernel=7", "exact"])
        self.assertEqual(sorted(table.loc[table["label"] == "balancekv", "T"]), [1, 1, 2])
        self.assertTrue(table.loc[table["label"] == "exact", "T"].isna().all())
        self.assertEqual(set(self.load(*rows, algorithms=["balancekv"])["label"]), {"balancekv"})

    def test_what_is_not_measured_is_left_out_and_nan_is_not_averaged_away(self):
        means = self.load(line(), line(head=1, ratio="", error="", status="failed: x"))["mean"]
        self.near(means, [0.1])
        means = self.load(line(), line(head=1, error="nan"), line(layer=1, error="inf"),
                          line(layer=1, head=1, error=1))["mean"]
        self.assertTrue(math.isnan(means[0]) and math.isinf(means[1]))

    def test_points_of_no_byte_have_a_place(self):
        # `none` holds nothing at T = 2 and 3: dots over a 0 beyond a break, that no line leads to.
        sizes = {"balancekv": (0.5, 0.25, 0.125), "none": (0.5, 0, 0)}
        for layers in ((0,), range(12)):  # a panel, and an overview
            table = self.load(*(line(layer, 0, name, f"T={t + 1}", ratio=size, error=0.1 * (t + 1))
                                for layer in layers for name, held in sizes.items() for t, size in enumerate(held)))
            axes = plot_error.draw(table, x="middle_ratio").axes[0]
            axes.figure.canvas.draw()
            ticks = dict(zip(axes.get_xticks(), (t.get_text() for t in axes.get_xticklabels())))
            self.assertEqual((ticks[0.0625], ticks[0.25]), ("0", "1/4"))  # half of the least size
            self.assertLess(axes.get_xlim()[1], 0.0625)  # compression grows to the right
            dots = [drawn for drawn in axes.lines if 0.0625 in list(drawn.get_xdata())]
            self.assertEqual([(list(d.get_xdata()), d.get_linestyle()) for d in dots], [([0.0625, 0.0625], "None")])

    def test_places_over_layers_are_sums_of_bytes_over_sums_of_bytes(self):
        table = self.load(*(line(layer, params=f"T={t}", ratio=held, error=t, full_bytes=full, bytes=held * full)
                            for layer in range(12) for t, share in ((1, 0.5), (2, 0.25))
                            for full, held in [(8000, share) if layer == 0 else (1000, 0.1)]))
        axes = plot_error.draw(table, x="middle_ratio").axes[0]
        places = sorted({x for drawn in axes.lines for x in drawn.get_xdata() if len(drawn.get_xdata()) == 2})
        self.near(places, [(2000 + 1100) / 19000, (4000 + 1100) / 19000])

    def test_maps_below_lines_over_bytes_are_over_budgets(self):
        path = self.write(line(layer, 0, name, "", budget=budget, ratio=budget * share, error=0.1 / budget)
                          for layer in range(12) for name, share in (("a", 1), ("b", 0.97)) for budget in (0.25, 0.125))
        for x, ticks in (("middle_ratio", ["1/4", "1/8"]), ("budget", ["1/4", "1/8"]), ("T", ["2", "3"])):
            _, bottom = self.picture(plot_error, path, "--x", x).subfigs
            self.assertEqual([t.get_text() for t in bottom.axes[0].get_xticklabels()], ticks)

    def test_a_row_that_stands_twice(self):
        one = self.write([line(seed=0), line(seed=1)], "one.csv")
        two = self.write([line(seed=2), line(seed=1, head=1), line(seed=1)], "two.csv")
        self.refused(f"{two}: duplicate row: prompt 007, layer 0, head 0, balancekv: row 3, "
                     f"and row 2 of {one}", plot_error, one, two)
