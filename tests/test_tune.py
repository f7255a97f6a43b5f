"""kvbench-py tune: choices and tables with figures that are known by hand."""

import sys
import unittest

from script_case import FolderCase, call, missing, read_rows, read_text

MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
if not MISSING:
    from kvbench import command, tune
HEADER = ("schema,trace,prompt,layer,q_head,kv_head,algorithm,params,protocol,sink,recent,scores,"
          "device,seed,n_queries,budget_requested,rel_error,status\n")
GRIDS = """algorithm,setting,params
exact,default,
a,default,T=auto;x=1;y=auto
a,grid,T=auto;x=2;y=auto
a,authors,T=auto;x=3;y=auto
b,default,z=0
b,grid,z=1
"""
A1, A2, A3 = "T=auto;x=1;y=tables", "T=auto;x=2;y=tables", "T=auto;x=3;y=tables"


def rows(algorithm, params, errors, budget=0.125, heads=2, status="ok", seeds=1):
    """A prompt per error; its heads lie around it, so that only their mean is it."""
    out = []
    for prompt, error in enumerate(errors):
        for head in range(heads):
            for seed in range(seeds):
                value = error * (0.5 if head == 0 else 1.5) if heads == 2 else error
                out.append(f"1.1,t{prompt}.h5,p{prompt},0,{head},0,{algorithm},{params},prefill,16,512,"
                           f"past,cpu,{seed},256,{budget},{value},{status}\n")
    return out


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class TuneTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.write("grids.csv", GRIDS)

    def write(self, name, *parts):
        return self.write_file(name, "".join(map("".join, parts)))

    def read(self, name):
        return read_text(self.path(name))

    def run_it(self, *words, code=0):
        done = call(lambda: command.run_main(tune.main), "kvbench-py tune", *words)
        self.assertEqual(done.code, code, done.out + done.err)
        self.assertNotIn("Traceback", done.err)
        return done.out + done.err

    def words(self, *more):
        return ["choose", self.path("dev.csv"), "--grids", self.path("grids.csv"), "--settings",
                self.path("tuned.toml"), "--csv", self.path("tuning.csv"), "--markdown",
                self.path("tuning.md"), "--each", self.path("each.csv"), *more]

    def choose(self, *more, code=0):
        return self.run_it(*self.words(*more), code=code)

    def test_the_choice_may_be_by_whole_layers(self):
        """x = 2 is the best by single heads, x = 3 by layers; x = 1 has no line of one layer."""
        both = [rows("a", A1, [0.1, 0.2]), rows("a", A2, [0.1, 0.1]), rows("a", A3, [0.3, 0.3])]
        self.write("dev.csv", HEADER, *both, [line.replace(",0,0,0,a", ",1,0,0,a").replace(
            ",0,1,0,a", ",1,1,0,a") for part in both for line in part])
        lines = ["schema,trace,prompt,protocol,algorithm,params,budget_requested,seed,layer,"
                 "residual_rel_error\n"]
        errors = {A1: [(0.1, 0.1), (0.1, None)], A2: [(0.3, 0.5), (0.3, 0.5)], A3: [(0.2, 0.4), (0.1, 0.3)]}
        for params, prompts in errors.items():
            for prompt, layers in enumerate(prompts):
                lines += [f"1.4,t{prompt}.h5,p{prompt},prefill,a,{params},0.125,0,{layer},{error}\n"
                          for layer, error in enumerate(layers) if error is not None]
        self.write("dev.layers.csv", lines)
        self.choose("--metric", "residual_rel_error", "--layer-table", self.path("dev.layers.csv"))
        row, = read_rows(self.path("tuning.csv"))
        self.assertEqual((row["metric"], row["usable"], row["setting"]), ("residual_rel_error", "2", "x=3"))
        self.assertAlmostEqual(float(row["tuned"]), 0.25, delta=1e-12)
        for alone in (("--metric", "residual_rel_error"), ("--layer-table", self.path("dev.layers.csv"))):
            self.assertIn("--layer-table: expected with --metric", self.choose(*alone, code=2))
        self.write("twice.layers.csv", lines, lines[1:2])
        said = self.choose("--metric", "residual_rel_error", "--layer-table", self.path("twice.layers.csv"), code=2)
        self.assertIn("duplicate row: prompt p0, layer 0, a", said)

    def test_the_least_mean_over_prompts_is_chosen(self):
        # x = 2 has the least mean (.2 against .25 and .3), x = 1 the least at one prompt.
        self.write("dev.csv", HEADER, rows("a", A1, [0.1, 0.4]), rows("a", A2, [0.2, 0.2]),
                   rows("a", A3, [0.3, 0.3]), rows("b", "z=0", [0.5, 0.5]),
                   rows("b", "z=1", [0.5, 0.5]), rows("exact", "", [0, 0], budget=""))
        self.choose()
        self.assertEqual([line for line in self.read("tuned.toml").splitlines() if ":" in line
                          and not line.startswith("#")], ['  "a:x=2",'])  # b: a tie, the default.
        a, _ = read_rows(self.path("tuning.csv"))
        self.assertEqual([a[name] for name in ("algorithm", "budget", "metric", "prompts", "settings", "usable")],
                         ["a", "0.125", "rel_error", "2", "3", "3"])
        self.assertAlmostEqual(float(a["default"]), 0.25, delta=1e-12)
        self.assertAlmostEqual(float(a["tuned"]), 0.2, delta=1e-12)
        self.assertEqual(a["setting"], "x=2")
        each = {(row["algorithm"], row["setting"]): row for row in read_rows(self.path("each.csv"))}
        self.assertEqual(list(each), [("a", "x=2"), ("a", "default"), ("a", "x=3"),
                                      ("b", "default"), ("b", "z=1")])
        row = each["a", "x=2"]
        self.assertAlmostEqual(float(row["difference"]), -0.05, delta=1e-12)
        self.assertEqual((row["prompts"], row["better"], row["worse"]), ("2", "1", "1"))
        self.assertEqual(row["difference_low"], "")  # two prompts have no interval
        self.assertIn("| `a` | 3 | 0.250 | 0.200 | `x=2` |", self.read("tuning.md"))
        self.assertIn("| `b` | 2 | 0.500 | 0.500 | the default |", self.read("tuning.md"))

    def test_what_is_not_whole_is_not_chosen(self):
        for name, bad in (("infeasible", rows("a", A2, [0.2], status="infeasible: too small")),
                          ("NaN", rows("a", A2, [float("nan")])),
                          ("a head", rows("a", A2, [0.2], heads=1)),
                          ("a prompt", rows("a", A2, []))):
            with self.subTest(name):
                self.write("dev.csv", HEADER, rows("a", A1, [0.3, 0.3]), rows("a", A3, [0.31, 0.31]),
                           rows("a", A2, [0.2, 0.2])[:2] if name != "a prompt" else
                           rows("a", A2, [0.2]), [row.replace("t0.h5,p0", "t1.h5,p1") for row in bad])
                self.choose()
                self.assertNotIn('"a:', self.read("tuned.toml"))
                self.assertIn("a,0.125,rel_error,2,3,2,", self.read("tuning.csv"))

    def test_both_columns(self):
        usual = [0.4, 0.5, 0.3, 0.6, 0.5]
        self.write("dev.csv", HEADER, rows("a", A1, [0.4]), rows("a", A2, [0.2]), rows("a", A3, [0.5]),
                   rows("b", "z=0", [0.1]), rows("b", "z=1", [0.2]))
        self.choose()
        self.write("all.csv", HEADER, rows("a", A1, [9, 9, 9, 9, 9]), rows("b", "z=0", usual))
        self.write("authors.csv", HEADER, rows("a", A3, usual))
        self.write("tuned.csv", HEADER, rows("a", A2, [0.3, 0.5, 0.1, 0.4, 0.6]))
        self.run_it("table", self.path("all.csv"), "--authors", self.path("authors.csv"), "--tuned",
                    self.path("tuned.csv"), "--choice", self.path("tuning.csv"), "--csv",
                    self.path("both.csv"), "--markdown", self.path("both.md"))
        by_name = {row["algorithm"]: row for row in read_rows(self.path("both.csv"))}
        a = by_name["a"]
        self.assertAlmostEqual(float(a["authors"]), 0.46, delta=1e-12)  # not the default's 9
        self.assertAlmostEqual(float(a["tuned"]), 0.38, delta=1e-12)
        self.assertAlmostEqual(float(a["difference"]), -0.08, delta=1e-12)
        self.assertEqual((a["better"], a["worse"], a["setting"]), ("3", "1", "x=2"))
        self.assertLess(float(a["difference_low"]), -0.08)
        self.assertGreater(float(a["difference_high"]), -0.08)
        b = by_name["b"]
        self.assertEqual(b["authors"], b["tuned"])
        self.assertEqual(float(b["difference"]), 0)
        self.assertIn("| `a` | 0.460 |", self.read("both.md"))
        self.assertIn("-0.080", self.read("both.md"))

    def test_what_is_left_out_is_said(self):
        self.write("dev.csv", HEADER, rows("a", A1, [0.4]), rows("a", A2, [0.2]), rows("a", A3, [0.5]),
                   rows("b", "z=0", [0.1], status="failed: x"), rows("b", "z=1", [0.2], status="failed: x"))
        self.assertIn("b is left out: no setting is ok on every head of every prompt", self.choose())
        self.write("all.csv", HEADER, rows("a", A1, [0.4]), rows("b", "z=0", [0.1], status="failed: x"))
        words = ["table", self.path("all.csv"), "--tuned", self.path("tuned.csv"), "--choice", self.path("tuning.csv"),
                 "--csv", self.path("both.csv")]
        for budget, status, expected in (
                (0.5, "ok", "a at budget 0.125 is left out: {} has no rows of x=2"),
                (0.125, "infeasible: x", "a at budget 0.125 is left out: rows that are not ok")):
            self.write("tuned.csv", HEADER, rows("a", A2, [0.2], budget, status=status))
            said = self.run_it(*words)
            self.assertIn(expected.format(self.path("tuned.csv")), said)
            self.assertIn("b at budget 0.125 is left out: rows that are not ok", said)
            self.assertEqual(read_rows(self.path("both.csv")), [])

    def test_refusals(self):
        good = rows("a", A1, [0.1]) + rows("a", A2, [0.2]) + rows("a", A3, [0.2])
        for bad, expected in ((good + rows("a", A1, [0.1]), "duplicate row"),
                              (good + rows("a", A1, [0.1], budget=0.5), "2 budgets"),
                              (good + rows("a", "T=auto;x=4;y=tables", [0.1]), "not those of its grid"),
                              (good + [row.replace("t0.h5", "u.h5") for row in good],
                               "several traces"),
                              ([row.replace("prefill", "stream") for row in good[:2]] + good[2:],
                               "rows differ in protocol, expected")):
            with self.subTest(expected):
                self.write("dev.csv", HEADER, bad)
                self.assertIn(expected, self.choose(code=2))
        self.write("dev.csv", HEADER, [row.replace(",ok", ",failed") for row in good])
        self.assertIn("got no setting of the grids that is ok", self.choose(code=2))
        self.write("dev.csv", HEADER, good)
        self.choose()
        self.write("all.csv", HEADER, rows("b", "z=0", [0.1]))
        self.write("more.csv", HEADER, rows("a", A3, [0.1]))
        self.assertIn("more.csv: a at budget 0.125: got no rows of it in the other tables", self.run_it(
            "table", self.path("all.csv"), "--authors", self.path("more.csv"), "--tuned", self.path("all.csv"),
            "--choice", self.path("tuning.csv"), code=2))
        self.run_it("choose", self.path("nosuch.csv"), "--grids", self.path("grids.csv"), code=2)
        self.run_it("nosuch", code=2)
        self.assertIn("grids.csv: is also an input", self.choose("--csv", self.path("grids.csv"), code=2))

    def test_with_the_program(self):
        """What the program declares and what it writes into rows go together."""
        trace, dev = self.path("t.h5"), self.path("dev.csv")
        options = ("--recent", "64", "--queries", "32", "--budget", "0.25", "-o")
        self.done("synth", "-o", trace, "--n", "700", "--d", "16", "--dv", "16", "--layers", "1")
        self.done("replay", trace, "--algorithm", "h2o:grid", "--algorithm", "balancekv:grid", "--algorithm",
                  "expected-attention:grid", *options, dev)
        self.write("grids.csv", self.done("list", "--grid"))
        self.choose()
        self.assertEqual([line.split(",")[0] for line in self.read("tuning.csv").splitlines()[1:]],
                         ["h2o", "expected-attention", "balancekv"])
        self.done("replay", trace, "--config", self.path("tuned.toml"), *options, self.path("tuned.csv"))
