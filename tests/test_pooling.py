"""Rows of several models, element types or protocols in one figure or mean: refused without --pool, by
every script that takes several tables."""

import os
import unittest

from plot_tables import CLUSTER, FigureTest
from script_case import call, missing, run_program

from kvbench import command
from kvbench.plot import kind

MIXED = "rows of one mean or comparison differ in "


class PoolingTest(FigureTest):
    """What of rows may differ in one figure or mean; of every kind of figure: test_plot_draws.py."""

    def two(self, first, second, rows=({},), precision="float32"):
        """Tables of two traces, of (model, dtype) each; the traces' names differ."""
        tables = []
        for name, (model, dtype), computed in (("a", first, "float32"), ("b", second, precision)):
            more = {"trace": f"{name}.h5", "model": model, "dtype": dtype, "precision": computed}
            tables.append(self.write([{**row, **more} for row in rows], f"{name}.csv"))
        return tables

    def plot(self, name, *arguments):
        module = __import__(f"kvbench.plot.kinds.{name}", fromlist=[name])
        return call(lambda: command.run_main(lambda: kind.run(module)), f"plot_{name}.py", *arguments,
                    "-o", self.path("p.png"))

    def both_ways(self, run, expected):
        """`run` with and without --pool."""
        done = run()
        self.assertEqual(done.code, 2, done.err)
        self.assertIn(MIXED + expected, done.err)
        self.assertEqual(done.err.count("\n"), done.err.count("note: ") + 1, done.err)
        self.assertFalse(os.path.exists(self.path("p.png")))
        done = run("--pool")
        self.assertEqual(done.code, 0, done.err)
        self.assertIn(f"note: rows that differ in {expected.split(' ')[0]} are pooled", done.err)
        self.assertTrue(os.path.exists(self.path("p.png")))
        os.remove(self.path("p.png"))

    def test_other_differences(self):
        for second, options, expected in (
                (("m", "float16"), {}, "dtype (bfloat16, float16)"),
                (("m", "bfloat16"), {"precision": "float64"}, "precision (float32, float64)")):
            with self.subTest(expected):
                tables = self.two(("m", "bfloat16"), second, **options)
                self.both_ways(lambda *more: self.plot("pareto", *tables, *more), expected)
        for column, value, expected in (("protocol", "stream", "protocol (prefill, stream)"),
                                        ("sink", 4, "sink (4, 10)"), ("device", "cuda:0", "device (cpu, cuda:0)")):
            # Of two methods as well: a figure compares them.
            for other in ("h2o", "snapkv"):
                with self.subTest(expected, other=other):
                    table = self.write([{}, {column: value, "algorithm": other}], "c.csv")
                    self.both_ways(lambda *more: self.plot("pareto", table, *more), expected)
        one = self.write([{"scores": "past"}, {"scores": "all", "q_head": 1}], "c.csv")
        self.assertIn(MIXED + "scores (all, past)", self.plot("pareto", one).err)

    def test_what_may_stand_beside_each_other(self):
        def norms(name, cells="", header=""):
            return self.lines("norms", [f"{name}.h5,p,0,0,keys,1,2,3,4,5,6{cells}"], name + ".csv",
                              CLUSTER["norms"] + header)
        m = ("m", "bfloat16")
        for name, make, *more in (
                ("pareto", lambda: self.two(m, m)),
                ("pareto", lambda: self.two(m, ("", "bfloat16"))),  # a model that no row tells
                # A method that looks at no query; rows that are not drawn.
                ("pareto", lambda: [self.write([{}, {"algorithm": "uniform", "scores": "none"}], "c.csv")]),
                ("pareto", lambda: [self.write([{}, {"algorithm": "local", "protocol": "stream"}], "c.csv")],
                 "--algorithm", "h2o"),
                # A hand-made table may lack these columns.
                ("pareto", lambda: [self.two(m, m)[0], self.write([{"trace": "c.h5"}], "c.csv")]),
                ("norms", lambda: [norms("f", ",m1,bfloat16", ",model,dtype"), norms("g")])):
            tables = make()
            with self.subTest(tables=tables):
                done = self.plot(name, *tables, *more)
                self.assertEqual((done.code, done.err), (0, ""))

    @unittest.skipIf(missing("scipy"), "no scipy")
    def test_tables(self):
        tables = self.two(("m1", "bfloat16"), ("m2", "bfloat16"), [{}, {"algorithm": "knorm"}])
        done = run_program("kvbench-py compare", *tables)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(MIXED + "model (m1, m2)", done.stderr)
        done = run_program("kvbench-py compare", *tables, "--pool")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("h2o", done.stdout)
