"""kvbench-py compare: figures by hand, what is left out and said, a planted effect, its outputs and
pictures. Its statistics alone: test_kvbench_stats.py."""

import gzip
import itertools
import json
import os
import sys
import unittest
from unittest import mock

import numpy as np
from plot_tables import FigureTest, infeasible
from script_case import missing, read_bytes, read_rows, read_text, write_bytes, write_rows, write_text

from kvbench import tables as kt
from kvbench.outputs import opened
from kvbench.plot import figures as kf

SCIPY = not missing("scipy")
if SCIPY:
    from kvbench import tune
    from kvbench.comparison import main as compare

SMALL = {  # mean rel_error by prompt and method
    "a": (0.1, 0.3, 0.2, 0.4), "b": (0.2, 0.5, 0.1, 0.6), "c": (0.4, 0.4, 0.4, 0.8)}

# Source one has three prompts, the others one each.
SOURCES = {"p0": "one", "p1": "one", "p2": "one", "p3": "two", "p4": "three", "p5": "four", "p6": "five"}
VALUES = {"a": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.9, 0.5, 0.4, 0.9, 0.8),
          "c": (0.9, 0.9, 0.9, 0.2, 0.1, 0.2, 0.3)}


def small_rows():
    """Four prompts, three methods; per prompt two layers, two heads and, for b, two seeds."""
    for name, values in SMALL.items():
        for prompt, value in enumerate(values):
            for layer, head in itertools.product((0, 3), (0, 1)):
                for seed in (0, 1) if name == "b" else (0,):
                    part = (1 + 0.5 * (1 if layer else -1)) * (1 + 0.2 * (1 if head else -1))
                    part *= 1 + 0.1 * (2 * seed - 1) if name == "b" else 1
                    yield {"prompt": f"p{prompt}", "layer": layer, "q_head": head, "seed": seed,
                           "algorithm": name, "rel_error": value * part}


def planted(methods, prompts, worse=(), seed=1, budgets=(0.5,)):
    """Methods alike but for noise, `worse` ones by a half; prompts differ by far more."""
    rng = np.random.default_rng(seed)
    for prompt, budget in itertools.product(range(prompts), budgets):
        hard = rng.lognormal(0, 0.6)
        for i in range(methods):
            noise = rng.lognormal(0, 0.1) * (1.5 if i in worse else 1) * (1 + 0.02 * i)
            for head in (0, 1):
                yield {"prompt": f"p{prompt}", "q_head": head, "algorithm": f"method-{i}",
                       "budget_requested": budget, "rel_error": hard * noise * (1 + head / 4)}


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class CompareTest(FigureTest):
    def run_compare(self, *arguments, code=0):
        return self.must(compare, *arguments, code=code)

    def compare(self, rows, *options, name="t.csv"):
        """{method: row} of the table for one budget, and what was said."""
        _, said = self.run_compare(self.write(rows, name), "--csv", self.path("c.csv"), *options)
        return {row["method"]: row for row in self.table("c.csv")}, said

    def test_figures_by_hand(self):
        rows, said = self.compare(small_rows(), "--to", "a")
        self.assertEqual(list(rows), ["a", "b", "c"])  # by mean: .25, .35, .5
        self.near([rows[m]["mean"] for m in "abc"], [0.25, 0.35, 0.5])
        self.near([rows[m]["median"] for m in "abc"], [0.25, 0.35, 0.4])
        # Ranks: p0 1 2 3; p1 1 3 2; p2 2 1 3; p3 1 2 3.
        self.near([rows[m]["mean_rank"] for m in "abc"], [1.25, 2.0, 2.75])
        self.near([rows[m]["wins"] for m in "abc"], [3, 1, 0])
        # b - a: .1, .2, -.1, .2; ranks 1.5, 3.5, -1.5, 3.5: P(sum <= 1.5) = 3/16.
        self.near([rows["b"][c] for c in ("difference", "relative", "better", "worse", "p")],
                  [0.1, 0.4, 1, 3, 0.375])
        self.near([rows["c"]["p"], rows["c"]["p_holm"], rows["b"]["p_holm"]], [0.125, 0.25, 0.375])
        self.assertEqual((rows["a"]["difference"], rows["a"]["p"], rows["a"]["verdict"]), ("", "", ""))
        self.assertEqual((rows["b"]["verdict"], rows["b"]["to"]), ("undecided", "a"))
        self.assertTrue(float(rows["b"]["low"]) < 0.35 < float(rows["b"]["high"]))
        for alpha, verdict in (("0.2", "undecided"), ("0.3", "worse")):  # p is .125, of Holm .25
            found, _ = self.compare(small_rows(), "--to", "a", "--alpha", alpha)
            self.assertEqual(found["c"]["verdict"], verdict)
        self.compare(small_rows(), "--to", "a")
        tests = self.table("c.tests.csv")[0]
        # 12 * 4 / (3 * 4) * (1.25^2 + 2^2 + 2.75^2 - 3 * 16 / 4)
        self.near([tests["chi2"], tests["prompts"], tests["methods"]], [4.5, 4, 3])
        self.near(tests["f"], 3 * 4.5 / (4 * 2 - 4.5))
        layers = {(r["method"], r["layer"]): r for r in self.table("c.layers.csv")}
        self.near([layers["b", "0"]["mean"], layers["b", "3"]["mean"],
                   layers["b", "3"]["difference"], layers["c", "0"]["median"]],
                  [0.175, 0.525, 0.15, 0.2])
        prompts = {(r["method"], r["prompt"]): r for r in self.table("c.prompts.csv")}
        self.near([prompts["b", "p3"]["value"], prompts["b", "p3"]["rank"]], [0.6, 2])
        self.assertIn("too few prompts for Wilcoxon's test: with 4 prompts the smallest p is 0.125,"
                      " after Holm's correction for 2 methods 0.25, above 0.05", said)
        self.assertIn("; 7 prompts could", said)
        # Without a method to compare with, no such columns have figures.
        alone, said = self.compare(small_rows())
        self.near([alone[m]["mean"] for m in "abc"], [0.25, 0.35, 0.5])
        self.assertEqual({alone[m]["p"] for m in "abc"}, {""})
        self.assertNotIn("Wilcoxon", said)

    def test_a_metric_of_which_more_is_better(self):
        def rows():
            for row in small_rows():
                yield {**row, "mass_kept": 1 - row["rel_error"]}
        columns = [*kt.HEAD_COLUMNS, *kt.SETTINGS, "schema", "algorithm", "params", "status",
                   "seed", "budget_requested", "rel_error", "mass_kept"]
        path = self.write(({"mass_kept": 0, **row} for row in rows()), columns=columns)
        self.run_compare(path, "--metric", "mass_kept", "--to", "a", "--csv", self.path("c.csv"))
        got = {row["method"]: row for row in self.table("c.csv")}
        self.near([got[m]["mean_rank"] for m in "abc"], [1.25, 2.0, 2.75])
        self.near([got["b"]["better"], got["b"]["worse"], got["b"]["difference"]], [1, 3, -0.1])
        self.run_compare(path, "--higher-better", "--csv", self.path("c.csv"))
        self.assertEqual([row["method"] for row in self.table("c.csv")], ["c", "b", "a"])
        self.near([row["mean_rank"] for row in self.table("c.csv")], [1.25, 2.0, 2.75])

        path = self.write({**row, "recall": 1 - row["rel_error"]} for row in small_rows())
        self.run_compare(path, "--metric", "recall", "--csv", self.path("c.csv"))
        self.assertEqual([row["method"] for row in self.table("c.csv")], ["a", "b", "c"])

    def test_shares_are_sums_of_bytes_over_sums_of_bytes(self):
        rows = [{"algorithm": name, "prompt": f"p{prompt}", "layer": layer, "full_bytes": full,
                 "bytes": full * held, "ratio": held, "middle_ratio": held}
                for name, shares in (("a", (0.1, 0.5)), ("b", (0.25, 0.25))) for prompt in range(4)
                for layer, (full, held) in enumerate(zip((2000, 500), shares))]
        found, _ = self.compare(rows, "--metric", "ratio")
        self.near([found["a"]["mean"], found["b"]["mean"]], [(200 + 250) / 2500, 0.25])

    def test_what_lacks_prompts_is_said_and_has_no_rank(self):
        rows = list(small_rows())
        kivi = [{**row, "algorithm": "quant-kivi"} for row in rows if row["algorithm"] == "a"]
        kivi[0] = {**kivi[0], **infeasible()}  # one head of p0
        half = [{**row, "algorithm": "half"} for row in rows
                if row["algorithm"] == "a" and (row["prompt"], row["layer"]) != ("p1", 3)]
        flat = [{**row, "algorithm": "flat", "status": "degenerate: empty middle"} for row in rows
                if row["algorithm"] == "a"]
        endless = [{**row, "algorithm": "endless", "rel_error": "inf" if row["prompt"] == "p2" else row["rel_error"]}
                   for row in rows if row["algorithm"] == "a"]
        seeds = [{**row, "algorithm": "seeds", "status": "failed: x" if row["seed"] else "ok"}
                 for row in rows if row["algorithm"] == "b"]
        plain, _ = self.compare(rows, "--to", "b")
        got, said = self.compare([*rows, *kivi, *half, *flat, *endless, *seeds], "--to", "b")
        for method in "abc":
            self.assertEqual(got[method]["mean_rank"], plain[method]["mean_rank"])
        for method, have in (("quant-kivi", 3), ("half", 3), ("flat", 0), ("endless", 3), ("seeds", 0)):
            self.assertIn(f"{method} has {have} of 4 prompts", said)
            if have:
                self.assertEqual((got[method]["mean_rank"], got[method]["wins"]), ("", ""))
                self.assertEqual((got[method]["prompts"], got[method]["pairs"]), ("3", "3"))
            else:
                self.assertNotIn(method, got)
        self.near(got["half"]["mean"], (0.1 + 0.2 + 0.4) / 3)  # without p1
        self.near(got["half"]["difference"], (-0.1 + 0.1 - 0.2) / 3)
        self.assertIn("| prompts |", self.run_compare(self.path("t.csv"))[0])
        for words in ("1 infeasible rows are left out (quant-kivi)", "degenerate rows are left out (flat)",
                      "failed rows are left out (seeds)"):
            self.assertIn(words, said)
        self.assertEqual(self.table("c.tests.csv")[0]["methods"], "3")
        one_head = [{**row, "rel_error": "inf"} if (row["algorithm"], row["prompt"]) == ("a", "p2") else row
                    for row in rows if (row["layer"], row["q_head"], row["seed"]) == (0, 0, 0)]
        self.assertIn("a has 3 of 4 prompts", self.compare(one_head)[1])

    def test_a_planted_effect(self):
        got, said = self.compare(planted(6, 12, worse=(4,)), "--to", "method-0")
        self.assertEqual(got["method-4"]["verdict"], "worse")
        self.assertEqual({got[f"method-{i}"]["verdict"] for i in (1, 2, 3)}, {"undecided"})
        self.assertGreater(float(got["method-4"]["difference_low"]), 0)
        self.assertEqual(said, "")  # twelve prompts are enough for six methods
        again, _ = self.compare(planted(6, 12, worse=(4,)), "--to", "method-0")
        self.assertEqual(again, got)
        other, _ = self.compare(planted(6, 12, worse=(4,)), "--to", "method-0", "--seed", "1")
        self.assertNotEqual(other["method-0"]["low"], got["method-0"]["low"])
        got, _ = self.compare(planted(6, 12, worse=(4,)), "--to", "method-4")
        self.assertEqual({got[f"method-{i}"]["verdict"] for i in (0, 1, 2, 3, 5)}, {"better"})

    def test_too_few_prompts(self):
        _, said = self.compare(planted(6, 2), "--to", "method-0")
        self.assertIn("no intervals: 2 prompts", said)
        self.assertIn("too few prompts for Nemenyi's test: mean ranks of 6 methods differ by 5 at most", said)
        got, said = self.compare(planted(6, 1), "--to", "method-0")
        self.assertEqual({row["verdict"] for row in got.values()}, {"", "undecided"})
        self.assertEqual(self.table("c.tests.csv")[0]["chi2"], "")

    def test_selections(self):
        rows = list(planted(3, 6, budgets=(0.5, 0.25)))
        path = self.write(rows)
        records = self.write_file("r.jsonl", "".join(json.dumps(
            {"id": f"p{i}", "set": "test" if i % 2 else "dev", "text": "x"}) + "\n" for i in range(9)))

        def prompts(*options):
            self.run_compare(path, "--csv", self.path("c.csv"), *options)
            found = self.table("c.prompts.csv")
            self.assertTrue(found)
            return tuple({row[name] for row in found} for name in ("prompt", "budget", "method"))
        methods = {f"method-{i}" for i in range(3)}
        self.assertEqual(prompts("--set", "test", "--records", records), ({"p1", "p3", "p5"}, {"0.5", "0.25"}, methods))
        self.assertEqual(prompts("--prompts", "p0,p4", "--budget", "0.25"), ({"p0", "p4"}, {"0.25"}, methods))
        self.assertEqual(prompts("--exclude", "method-1")[2], {"method-0", "method-2"})
        self.assertEqual(prompts("--algorithm", "method-1,method-2")[2], {"method-1", "method-2"})

    def test_several_files(self):
        rows = list(small_rows())
        one = self.write([r for r in rows if r["prompt"] in ("p0", "p1")], "one.csv")
        two = self.write([r for r in rows if r["prompt"] in ("p2", "p3")], "two.csv")
        whole, _ = self.compare(rows, "--to", "a")
        self.run_compare(one, two, "--to", "a", "--csv", self.path("c.csv"))
        self.assertEqual({row["method"]: row for row in self.table("c.csv")}, whole)
        other = self.write([{**r, "trace": "u.h5"} for r in rows], "other.csv")
        _, said = self.run_compare(self.path("t.csv"), other, "--csv", self.path("c.csv"))
        self.assertIn("prompts of one name in several traces count as several prompts: p0", said)
        self.assertEqual(len({r["prompt"] for r in self.table("c.prompts.csv")}), 8)

    def test_a_budget_that_some_prompts_lack(self):
        rows = [row for row in planted(3, 6, budgets=(0.5, 0.25))
                if row["prompt"] != "p2" or row["budget_requested"] == 0.5]
        path = self.write(rows)
        text, said = self.run_compare(path)
        self.assertIn("\n- budget 0.25: 1 prompt without rows here: p2\n", text)
        self.assertEqual(said, "")  # once
        self.assertIn("note: budget 0.25: 1 prompt without rows here: p2\n",
                      self.run_compare(path, "--csv", self.path("c.csv"))[1])
        text, _ = self.run_compare(path, "--by-layer")
        self.assertIn("## Budget 0.5 (0.5 of the cache, 2x): 6 prompts", text)
        self.assertIn("## Budget 0.25 (0.5 of the cache, 2x): 5 prompts", text)

    def test_rows_without_a_budget(self):
        rows = [{**row, "budget_requested": "", "params": f"T={t}"} for t in (1, 2)
                for row in planted(2, 5)]
        text, _ = self.run_compare(self.write(rows))
        self.assertIn("| `method-1 T=2` | native |", text)
        exact = [{**row, "algorithm": "exact", "budget_requested": ""} for row in planted(1, 5)]
        _, said = self.run_compare(self.write([*planted(2, 5), *exact]))
        self.assertIn("note: budget native: exact alone; nothing to compare", said)

    def test_refusals(self):
        path = self.write(small_rows())
        records = self.write_file("dev.jsonl", '{"id": "p0", "set": "dev", "text": "x"}\n')
        link = self.path("link.csv")
        os.symlink(path, link)
        for words, options in (
                ("--to: got `z`, expected one of a, b, c", ["--to", "z"]),
                ("column `nope` is missing", ["--metric", "nope"]),
                ("no rows of algorithm z; it holds a, b, c", ["--algorithm", "z"]),
                ("no budget has two methods", ["--algorithm", "a"]),
                ("no rows are left", ["--exclude", "a,b,c"]),
                ("--orders: got rows of kvbench replay, which do not have it", ["--orders", "x"]),
                ("--set: expected the records that say a prompt's `set`: --records", ["--set", "test"]),
                ("--set: no rows of prompts of the set test", ["--set", "test", "--records", records]),
                ("none.jsonl: cannot be read", ["--set", "test", "--records", "none.jsonl"]),
                ("a number above 0 and below 1", ["--alpha", "2"]),
                ("a name that ends in .csv", ["--csv", "x"]),
                ("cannot be written", ["--markdown", self.path("no/x.md")]),
                ("t.csv: is also an input, expected another file", ["--csv", path]),
                ("link.csv: is also an input", ["--csv", link]),
                ("dev.jsonl: is also an input", ["--records", records, "--latex", records]),
                ("x.tests.csv: is also another output", ["--csv", self.path("x.csv"), "--markdown",
                                                         self.path("x.tests.csv")])):
            with self.subTest(words):
                before = read_bytes(path), os.listdir(self.folder)
                _, said = self.run_compare(path, *options, code=2)
                self.assertIn(words, said.strip().splitlines()[-1])
                self.assertEqual((read_bytes(path), os.listdir(self.folder)), before)

    def test_outputs_are_whole(self):
        path, link = self.write_file("out.md", "old"), self.path("link.md")
        os.symlink("out.md", link)
        with self.assertRaises(ZeroDivisionError), opened(link) as file:
            print("new", 1 // 0, file=file)
        with self.assertRaisesRegex(kt.CsvError, "out.md: another run writes it"), opened(path), opened(link):
            pass
        self.assertEqual(read_text(path), "old")
        with opened(link) as file:
            file.write("new")
        self.assertEqual((read_text(path), os.path.islink(link)), ("new", True))
        with opened(os.devnull) as file:
            file.write("new")
        self.assertEqual(sorted(os.listdir(self.folder)), ["link.md", "out.md"])

    def test_markdown_and_latex(self):
        rows = [{**row, "algorithm": row["algorithm"].replace("c", "c+x"), "params": f"a_b={setting}"}
                for row in small_rows() if row["seed"] == 0 for setting in (1, 2)
                if setting == 1 or row["algorithm"] == "b"]
        path = self.write(rows)
        text, _ = self.run_compare(path, "--to", "a")
        table = [line for line in text.splitlines() if line.startswith("| ")]
        self.assertEqual((len(table), {line.count("|") for line in table}), (6, {11}))
        self.assertTrue(table[2].startswith("| `a` | 0.5 | 0.5, 2x | 0.25 | ["))
        self.assertIn(" | +0.065 | ", table[3])
        whole = ("--to", "a", "--by-layer")
        text, _ = self.run_compare(path, *whole)
        lines = text.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("| method | mean"))
        self.assertEqual({line.count("|") for line in lines[at:at + 6]}, {12})
        self.assertTrue(lines[at + 2].startswith("| `a` | 0.25 |"))
        self.run_compare(path, *whole, "--latex", self.path("t.tex"), "--markdown", self.path("t.md"))
        self.assertEqual(read_text(self.path("t.md")), text)
        tex = [line for line in read_text(self.path("t.tex")).splitlines() if not line.startswith("%")]
        self.assertIn("\\texttt{b a\\_b=1}", "\n".join(tex))
        self.assertIn("95 \\%", "\n".join(tex))
        self.assertEqual(tex.count("\\begin{tabular}{lrrrrrrrrrr}"), 1)
        self.assertEqual([line.count(" & ") for line in tex if line.endswith("\\\\")], 5 * [10] + 5 * [2])

    def test_significant_digits(self):
        from kvbench.comparison.tables import significant

        for value, text in ((0.25, "0.25"), (0.2, "0.20"), (0.0996, "0.10"), (0.0123, "0.012"), (9.96, "10"),
                            (123.4, "123"), (0, "0.0"), (-1.04e-7, "-1.0e-07"), (float("nan"), "-"), (None, "-")):
            self.assertEqual(significant(value, 2), text)

    def test_pictures(self):
        """Of few and of many methods with long names: on a page."""
        for methods, budgets, options in ((5, (0.5,), []), (33, (0.5, 0.25, 0.125, 0.06), ["--to", "method-1"])):
            rows = [{**row, "algorithm": row["algorithm"] + "-of-a-long-name" * (methods == 5)}
                    for row in planted(methods, 9, worse=range(methods // 2), budgets=budgets)]
            figures = {}
            with mock.patch.object(kf, "save_figure", lambda figure, stem: figures.update({stem: figure})):
                self.run_compare(self.write(rows), "--figures", self.path("one"), "--resamples", "200", *options)
            self.assertEqual({*figures}, {self.path(f"one.{name}")
                                          for name in (*(f"cd.{budget:g}" for budget in budgets), "intervals")})
            for figure in figures.values():
                self.on_one_page(figure)


    def test_a_method_without_figures_has_no_picture_of_differences(self):
        rows = [*planted(2, 4), *({**row, "algorithm": "c", **infeasible()} for row in planted(1, 4))]
        _, said = self.run_compare(self.write(rows), "--to", "c", "--resamples", "9", "--figures", self.path("f"))
        self.assertIn("no method has a difference to c: no picture of intervals", said)
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".png")], ["f.cd.0.5.png"])


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class SourceTest(FigureTest):
    """--by source, also of tune: the mean of a source's prompts first, n the sources; and tables with gzip."""

    def setUp(self):
        super().setUp()
        self.rows = self.write([
            {"trace": f"p{i}.h5", "prompt": f"p{i}", "algorithm": name, "layer": layer, "q_head": head,
             "rel_error": value * (1 + (0.5 if layer else -0.5)) * (1 + (0.2 if head else -0.2))}
            for name, values in VALUES.items() for i, value in enumerate(values)
            for layer in (0, 3) for head in (0, 1)], "rows.csv")
        self.records = self.write_file("r.jsonl", "".join(
            json.dumps({"id": name, "source": source, "text": ""}) + "\n" for name, source in SOURCES.items()))

    def compared(self, table, *options, code=0):
        return self.must(compare, table, "--to", "a", "--by", "source", "--csv", self.path("c.csv"), "--markdown",
                         self.path("c.md"), *options, code=code)[1]

    def changed(self, name, change):
        """The table with rows that `change` gives, without those of which it gives none."""
        rows = [row for row in map(change, read_rows(self.rows)) if row]
        return write_rows(self.path(name), rows[0], [row.values() for row in rows])

    def test_a_source_counts_once(self):
        said = self.compared(self.rows, "--records", self.records)
        rows = {row["method"]: row for row in read_rows(self.path("c.csv"))}
        one = (0.1 + 0.2 + 0.3) / 3
        want = (one + 0.4 + 0.5 + 0.6 + 0.7) / 5
        self.assertAlmostEqual(float(rows["a"]["mean"]), want, delta=1e-12)
        self.assertEqual({row["prompts"] for row in rows.values()}, {"5"})
        # c is worse in one source, better in four, though there are as many prompts.
        self.assertEqual((rows["c"]["better"], rows["c"]["worse"]), ("4", "1"))
        self.assertIn("with 5 sources the smallest p is 0.0625", said)
        text = read_text(self.path("c.md"))
        self.assertIn("5 sources, each a mean over prompts, layers, heads and seeds", text)
        self.assertNotIn("7 prompts", text)
        found = {(row["method"], row["prompt"]): float(row["value"]) for row in read_rows(self.path("c.prompts.csv"))}
        self.assertAlmostEqual(found["b", "one"], 0.6, delta=1e-12)
        layers = [row for row in read_rows(self.path("c.layers.csv")) if (row["method"], row["layer"]) == ("a", "3")]
        self.assertAlmostEqual(float(layers[0]["mean"]), 1.5 * want, delta=1e-12)

    def test_a_budget_without_figures(self):
        rows = read_rows(self.rows)
        low = [{**row, "budget_requested": 0.25, **infeasible()} for row in rows]
        table = write_rows(self.path("both.csv"), rows[0], [row.values() for row in [*rows, *low]])
        self.assertIn("budget 0.25: b has 0 of 5 sources", self.compared(table, "--records", self.records))
        self.assertEqual({row["budget"] for row in read_rows(self.path("c.csv"))}, {"0.5"})

    def test_sources_of_the_table_come_first(self):
        self.compared(self.rows, "--records", self.records)
        want = read_text(self.path("c.csv"))
        table = self.changed("s.csv", lambda row: {**row, "source": SOURCES[row["prompt"]]})
        self.compared(table)
        self.assertEqual(read_text(self.path("c.csv")), want)
        write_bytes(self.path("s.csv.gz"), gzip.compress(read_bytes(table)))
        self.compared(self.path("s.csv.gz"))
        self.assertEqual(read_text(self.path("c.csv")), want)

    def test_refusals(self):
        self.assertIn("prompt p0 has no source", self.compared(self.rows, code=2))
        table = self.changed("s.csv", lambda row: {**row, "source": row["q_head"]})
        self.assertIn("prompt p0 has several", self.compared(table, code=2))
        less = self.changed("less.csv", lambda row: (row["algorithm"], row["prompt"]) != ("b", "p1") and row)
        self.assertIn("b has 4 of 5 sources", self.compared(less, "--records", self.records))
        other = self.write_file("o.jsonl", json.dumps({"id": "p0", "source": "two", "text": ""}) + "\n")
        self.assertIn("prompt p0 has the sources one and two, expected one",
                      self.compared(self.rows, "--records", self.records, other, code=2))
        data = gzip.compress(read_bytes(table))
        for name, damaged in (("half", data[:len(data) // 2]), ("none", b"text")):
            path = write_bytes(self.path(name + ".csv.gz"), damaged)
            for read in (lambda: kt.read_table([path], [], ()), lambda: kt.header_of(path)):
                with self.subTest(name=name), self.assertRaisesRegex(kt.CsvError, "cannot be read"):
                    read()

    def test_tuning_by_source(self):
        write_text(self.path("grids.csv"), "algorithm,setting,params\na,default,x=1\na,grid,x=2\n")
        self.changed("dev.csv", lambda row: row["algorithm"] in "ac" and {
            **row, "algorithm": "a", "params": f"x={'ac'.index(row['algorithm']) + 1}"})
        words = ["choose", self.path("dev.csv"), "--grids", self.path("grids.csv"), "--csv", self.path("t.csv")]
        for more, setting, units in (([], "", "7"), (["--by", "source", "--records", self.records], "x=2", "5")):
            self.must(tune, *words, *more)
            row, = read_rows(self.path("t.csv"))
            self.assertEqual((row["setting"], row["prompts"]), (setting, units))
