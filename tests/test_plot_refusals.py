"""What each kind of figure refuses; rows of several models, element types or protocols."""

import glob
import os
import unittest

from plot_tables import CLUSTER, NAMES, FigureTest, kept_row, points_rows, replay
from script_case import missing, read_rows, run_program, write_rows
from test_plot_draws import DRAWN, SKLEARN, module_of

MIXED = "rows of one mean or comparison differ in "
# Kind: a table, options, what is said of it. Empty and missing tables: test_damaged_tables.py.
COVERAGE = "t,p,0,0,keys,1,1,1,0"
QUERIES = [row | {"offset": at} for row in replay([0, 3], NAMES[:1]) for at in range(2)]
KIVI = {"algorithm": "quant-kivi", "params": "bits=auto;k_bits=auto;v_bits=auto"}
FORTY = [{"algorithm": f"h2o@quant-{i}", "params": "k_bits=4;v_bits=4"} for i in range(40)]
REFUSED = [
    ("error", [{}, {"q_head": 1, "schema": "1.1"}], "", "mixed schemas: 1.0, 1.1"),
    ("error", [{"schema": "2.0"}], "", "schema 2.0, expected 1.x"),
    ("error", [{"budget_requested": "", "params": "a=1"}], "", "no row has a parameter T"),
    ("error", [{"rel_error": "many"}], "", "got `many`, expected a number"),
    ("error", [{}], "--algorithm nope", "no rows of algorithm nope"),
    ("error", [{"status": "failed: x", "rel_error": ""}], "", "all are degenerate, infeasible or failed"),
    ("error", [{}], "-o no/out", "cannot be written"), ("error", [{}], "-o a.jpg", "ends in .png, .pdf or"),
    ("error", [{}], "-o a.png,b", "expected one stem, or names that all end in"),
    ("error", [{}], "--layers a", "--layers: got `a`, expected numbers and ranges"),
    ("error", [{}], "--layers 5", "no rows with layer 5; it holds 0"),
    ("error", [{}], "--highlight nope", "t.csv: --highlight: got `nope`, expected some of h2o"),
    ("error", [{}], "--relative-to nope", "--relative-to: got `nope`, expected one of h2o"),
    ("error", replay(range(10), [f"method-number-{i}" for i in range(60)], (0.5,)), "--all",
     "maps of 10 layers: got 60 lines, expected at most "),
    ("bits", [{}], "", "no row has a number of bits; expected rows of a quantizer (quant-kivi) or of A@Q"),
    ("bits", [KIVI, {}], "", "no row of a quantizer says its number of bits"),
    ("bits", [{**KIVI, "diag": "bits=4"}], "--kind keys-values", "no row has both k_bits and v_bits in its params"),
    ("bits", [{**KIVI, "diag": "bits=4"}], "--kind map", "no point of A@Q keeps tokens; --kind map needs some"),
    ("bits", FORTY, "--budget 0.25", "--budget: --kind lines shows all of them"),
    ("bits", FORTY, "", "got 40 quantizers, expected at most 6 for one page"),
    ("bits", FORTY, "--kind map", "got 40 maps, expected at most "),
    *(("bits", [{**FORTY[0], "rel_error": 1e-9}], f"--kind {kind}", "is below 1e-06 in every point")
      for kind in ("lines", "keys-values")),
    ("bits", FORTY, "--kind formats", "no rows of quant-format or exact@quant-format"),
    ("coverage", ["t,p,0,0,keys,two,1,1,0"], "", "row 1: column `k`: got `two`"),
    ("coverage", ["t,p,0,0,kv,1,1,1,0"], "", "got `kv`, expected one of queries, keys, values"),
    ("coverage", [COVERAGE] * 2, "", "two rows for trace t, prompt p, layer 0.0"),
    ("coverage", [COVERAGE], "--layers 7", "--layers: got 7, which it does not hold; it holds 0"),
    ("heatmap", [{}], "--budget 0.3", "no rows with budget_requested 0.3; it holds 0.5"),
    ("kept_map", [kept_row()], "--labels nope", "expected some of h2o"),
    ("kept_map", [kept_row()], "--prompt x", "--prompt: got `x`, expected one of p"),
    ("kept_map", [kept_row(schema="2.0")], "", "schema 2.0, expected 1.x"),
    ("kept_map", [kept_row(protocol="prefill")], "", "no row of protocol stream"),
    ("kept_map", [kept_row(tokens="9-7")], "", "got `9-7`, expected ascending ranges within 0-7"),
    ("kept_map", [kept_row(step=3, tokens="5")], "", "step 3 holds token 5, which comes after it"),
    ("kept_map", [kept_row(), kept_row()], "", "two rows for"),
    ("offset", [{**row, "offset": -1} for row in QUERIES], "", "column `offset`: expected whole numbers"),
    ("offset", [{**row, "offset": 0.5} for row in QUERIES], "", "column `offset`: expected whole numbers"),
    ("offset", [*QUERIES, {"offset": ""}], "", "row 25: column `offset`: got ``, expected a number"),
    ("offset", QUERIES, "--by layer", "3 budgets, expected one with --by layer; choose with --budget 0.5, 0.25"),
    ("offset", [{"offset": 0, "rel_error": 1e-16}], "", "errors are below 1e-06 in every point"),
    ("pareto", [{"seed": 1}, {"q_head": 1}], "", "t.csv: no point has rows for every head"),
    ("reads", [{}], "", "expected rows of --protocol retrieval"),
    ("reads", replay([0], ["topk"], protocol="retrieval"), "--algorithm quest", "no rows of quest; it holds topk"),
    ("reconstruction", [{}], "", "t.csv: column `diag`: no row has k_error"),
    ("stream", [{}], "", "got prefill alone"), ("stream", [{"protocol": "stream"}], "", "t.steps.csv: no such file"),
    ("tsne", points_rows(4), "", "expected at least 5"),
    ("tsne", points_rows(12), "--marked nope", "--marked: got `nope`, which kept none of these tokens"),
    ("tsne", points_rows(12), "--kv-heads 4", "--kv-heads: got 4"),
]


class RefusalsTest(FigureTest):
    def test_models_are_not_mixed(self):
        """Rows of two models share no figure without --pool."""
        for name, (make, options) in DRAWN.items():
            if " " in name or name in ("kept_map", "tsne"):  # of one head, or label, each
                continue
            with self.subTest(name):
                made = make(self, range(2))
                for path in glob.glob(made + "/*.csv") or [made]:
                    rows = [{**row, "model": f"m{row['layer']}", "dtype": "float16"} for row in read_rows(path)]
                    write_rows(path, rows[0], [row.values() for row in rows])
                words = [module_of(name), made, *options.split()]
                self.refused(MIXED + "model (m0, m1)", *words)
                if name in ("error", "coverage", "offset", "stream"):  # each its own way to refuse
                    said = self.must(*words, "--pool", "-o", self.path("pooled.png"))[1]
                    self.assertIn("note: rows that differ in model are pooled", said)
                for path in glob.glob(self.path("*.csv")):
                    os.remove(path)

    def source(self, name, rows):
        """A table of the kind that holds these rows."""
        lines = {"kept_map": "kept", "tsne": "points"}.get(name, name)
        if lines in CLUSTER:
            return self.lines(lines, rows)
        return self.write(rows, "q.queries.csv" if name == "offset" else "t.csv")

    def test_refusals(self):
        os.chdir(self.folder)
        self.addCleanup(os.chdir, os.path.dirname(os.path.abspath(__file__)))
        for name, rows, options, text in REFUSED:
            if name in SKLEARN and missing("sklearn"):
                continue
            with self.subTest(name, text=text):
                self.refused(text, module_of(name), self.source(name, rows), *options.split())


class PoolingTest(FigureTest):
    """What of rows may differ in one figure or mean: refused without --pool by all that takes several tables."""

    def two(self, first, second, rows=({},), precision="float32"):
        """Tables of two traces, of (model, dtype) each; the traces' names differ."""
        tables = []
        for name, (model, dtype), computed in (("a", first, "float32"), ("b", second, precision)):
            more = {"trace": f"{name}.h5", "model": model, "dtype": dtype, "precision": computed}
            tables.append(self.write([{**row, **more} for row in rows], f"{name}.csv"))
        return tables

    def plot(self, name, *arguments):
        return self.call(module_of(name), *arguments, "-o", self.path("p.png"))

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
            with self.subTest(expected):
                # Of two methods as well: a figure compares them.
                table = self.write([{}, {column: value, "algorithm": "h2o" if column == "sink" else "snapkv"}], "c.csv")
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
