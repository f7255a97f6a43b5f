"""kvbench-py plot error and python/kvbench/tables.py against hand calculations."""

import math
import os
import unittest

from plot_tables import DrawingCase, load
from script_case import call, read_text

from kvbench import command
from kvbench import tables as kt
from kvbench.plot.kinds import error as plot_error

HEADER = ("schema,trace,prompt,layer,q_head,algorithm,params,protocol,seed,budget_requested,"
          "middle_ratio,rel_error,status")


def line(layer=0, head=0, algorithm="balancekv", params="T=1;block=256", seed=0, budget="",
         ratio="0.5", error="0.1", status="ok", schema="1.0", prompt="007"):
    return (f"{schema},t.h5,{prompt},{layer},{head},{algorithm},{params},prefill,{seed},{budget},"
            f"{ratio},{error},{status}")


class PlotErrorTest(DrawingCase):
    def write(self, lines, name="t.csv", header=HEADER):
        return self.write_file(name, "\n".join([header, *lines]) + "\n")

    def run_script(self, *arguments):
        return call(lambda: command.run_main(plot_error.main), "kvbench-py plot error", *arguments)

    def expect_error(self, text, *arguments):
        result = self.run_script(*arguments, "-o", self.path("out"))
        self.assertEqual(result.code, 2, result.err)
        last = result.err.strip().splitlines()[-1]
        self.assertIn(text, last)
        self.assertFalse(os.path.exists(self.path("out.png")))

    def test_mean_and_spread_by_hand(self):
        # Seeds' means over two heads: (0.1+0.3)/2 = 0.2 and (0.2+0.6)/2 = 0.4.
        path = self.write([line(head=0, seed=0, error="0.1"), line(head=1, seed=0, error="0.3"),
                           line(head=0, seed=1, error="0.2"), line(head=1, seed=1, error="0.6")])
        point = load(plot_error, [path], [], "seeds").iloc[0]
        self.assertAlmostEqual(point["mean"], 0.3)
        self.assertAlmostEqual(point["sd"], math.sqrt(2 * 0.1**2))
        self.assertEqual(point["seeds"], 2)
        self.assertEqual(point["T"], 1)
        # Over all rows: deviations -0.2, 0, -0.1, 0.3 from 0.3; squares 0.14; over n - 1 = 3.
        point = load(plot_error, [path], [], "all").iloc[0]
        self.assertAlmostEqual(point["mean"], 0.3)
        self.assertAlmostEqual(point["sd"], math.sqrt(0.14 / 3))

    def test_x_of_a_row(self):
        self.assertEqual(plot_error.halvings("T=3;a=1", math.nan), 3)
        self.assertEqual(plot_error.halvings("T=auto", 0.25), 2)
        self.assertEqual(plot_error.halvings("kernel=5", 0.5), 1)
        self.assertTrue(math.isnan(plot_error.halvings("", math.nan)))

    def test_groups_and_labels(self):
        path = self.write([
            line(), line(params="T=2;block=256"),
            line(algorithm="snapkv", params="T=auto;kernel=5", budget="0.25"),
            line(algorithm="snapkv", params="T=auto;kernel=7", budget="0.25"),
            line(algorithm="exact", params="", error="0"), line(layer=4)])
        table = load(plot_error, [path], [], "seeds")
        self.assertEqual(list(dict.fromkeys(table["label"])),
                         ["balancekv", "snapkv kernel=5", "snapkv kernel=7", "exact"])
        self.assertEqual(sorted(table.loc[table["label"] == "balancekv", "T"]), [1, 1, 2])
        self.assertTrue(table.loc[table["label"] == "exact", "T"].isna().all())
        table = load(plot_error, [path], ["balancekv"], "seeds")
        self.assertEqual(set(table["label"]), {"balancekv"})

    def test_rows_without_measurement_are_left_out(self):
        path = self.write([line(error="0.1"), line(head=1, ratio="", error="",
                                                   status="failed: x")])
        self.assertAlmostEqual(load(plot_error, [path], [], "seeds").iloc[0]["mean"], 0.1)

    def test_nan_is_not_averaged_away(self):
        path = self.write([line(error="0.1"), line(head=1, error="nan", status="ok"),
                           line(layer=1, error="inf"), line(layer=1, head=1, error="1")])
        means = load(plot_error, [path], [], "seeds")["mean"]
        self.assertTrue(math.isnan(means[0]))
        self.assertTrue(math.isinf(means[1]))

    def test_points_of_no_byte_have_a_place(self):
        # `none` holds nothing at T = 2 and 3: dots over a 0 beyond a break, that no line leads to.
        sizes = {"balancekv": (0.5, 0.25, 0.125), "none": (0.5, 0, 0)}
        for layers in ((0,), range(12)):  # a panel, and an overview
            path = self.write([line(layer=layer, algorithm=name, params=f"T={t + 1}", ratio=size,
                                    error=0.1 * (t + 1))
                               for layer in layers for name, held in sizes.items()
                               for t, size in enumerate(held)])
            table = load(plot_error, [path], [], "seeds")
            axes = plot_error.draw(table, x="middle_ratio").axes[0]
            axes.figure.canvas.draw()
            ticks = dict(zip(axes.get_xticks(), (t.get_text() for t in axes.get_xticklabels())))
            self.assertEqual(ticks[0.0625], "0")  # half of the least size
            self.assertEqual(ticks[0.25], "1/4")
            self.assertLess(axes.get_xlim()[1], 0.0625)  # compression grows to the right
            dots = [drawn for drawn in axes.lines if 0.0625 in list(drawn.get_xdata())]
            self.assertEqual([(list(d.get_xdata()), d.get_linestyle()) for d in dots],
                             [([0.0625, 0.0625], "None")])

    def test_bars_are_explained_where_there_are_some(self):
        for seeds, said in ((1, False), (2, True)):
            path = self.write([line(seed=seed, error=0.1 + seed) for seed in range(seeds)])
            result = self.run_script(path, "-o", self.path("a.png"), "--caption", self.path("a.txt"))
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual("Bars: standard deviation" in read_text(self.path("a.txt")), said)

    def test_errors_are_one_line_and_exit_2(self):
        missing = self.path("none.csv")
        self.expect_error("no such file", missing)
        self.expect_error("no rows", self.write([]))
        self.expect_error("column `rel_error` is missing",
                          self.write([line().replace(",0.1,ok", ",ok")], header=HEADER.replace("rel_error,", "")))
        self.expect_error("mixed schemas: 1.0, 1.1",
                          self.write([line(), line(head=1, schema="1.1")]))
        self.expect_error("schema 2.0, expected 1.x", self.write([line(schema="2.0")]))
        self.expect_error("no row has a parameter T", self.write([line(params="a=1")]))
        self.expect_error("got `many`, expected a number", self.write([line(error="many")]))
        self.expect_error("no rows of algorithm nope", self.write([line()]), "--algorithms", "nope")
        self.expect_error("all are degenerate, infeasible or failed",
                          self.write([line(status="failed: x", error="", ratio="")]))
        empty = self.path("empty.csv")
        with open(empty, "w", encoding="utf-8"):
            pass
        self.expect_error("the file is empty", empty)
        result = self.run_script(self.write([line()]), "-o",
                                 self.path("no", "out"))
        self.assertEqual(result.code, 2)
        self.assertIn("cannot be written", result.err)

    def test_a_row_that_stands_twice(self):
        one = self.write([line(seed=0), line(seed=1)], "one.csv")
        two = self.write([line(seed=2), line(seed=1, head=1), line(seed=1)], "two.csv")
        self.expect_error(f"{two}: duplicate row: prompt 007, layer 0, head 0, balancekv: row 3, "
                          f"and row 2 of {one}", one, two)

    def test_text_stays_text(self):
        frame = kt.read_results([self.write([line()])], ["prompt"])
        self.assertEqual(frame["prompt"][0], "007")
        self.assertEqual(kt.parse_params("T=2;a=b=c;odd"), {"T": "2", "a": "b=c", "odd": ""})


if __name__ == "__main__":
    unittest.main()
