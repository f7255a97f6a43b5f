"""kvbench-py plot error and python/kvbench/tables.py against hand calculations."""

import math

from plot_tables import FigureTest, load

from kvbench.plot.kinds import error as plot_error


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
        for x, lines, maps, ticks in (
                ("middle_ratio", "middle_ratio", "budget", ["1/4", "1/8"]),
                ("budget", "budget", "budget", ["1/4", "1/8"]), ("T", "log2", "log2", ["2", "3"])):
            top, bottom = self.picture(plot_error, path, "--x", x).subfigs
            self.assertEqual(top.axes[0].get_xlabel(), plot_error.AXIS_LABELS[lines])
            self.assertEqual(bottom._supxlabel.get_text(), plot_error.AXIS_LABELS[maps])
            self.assertEqual([t.get_text() for t in bottom.axes[0].get_xticklabels()], ticks)

    def test_a_row_that_stands_twice(self):
        one = self.write([line(seed=0), line(seed=1)], "one.csv")
        two = self.write([line(seed=2), line(seed=1, head=1), line(seed=1)], "two.csv")
        self.refused(f"{two}: duplicate row: prompt 007, layer 0, head 0, balancekv: row 3, "
                     f"and row 2 of {one}", plot_error, one, two)
