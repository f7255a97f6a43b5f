"""scripts/compare_runs.py: what agrees, what does not, and that NaN never does."""

import csv
import os
import re
import unittest

from script_case import ROOT, FolderCase, call

import compare_runs

# The columns of a result table, from the page that describes them.
with open(os.path.join(ROOT, "docs", "schema.md"), encoding="utf-8") as page:
    SECTION = page.read().split("## The table")[1].split("Every table of a run")[0]
COLUMNS = re.findall(r"^\| `(\w+)` \|", SECTION, re.MULTILINE)
TIMING = re.findall(r"^\| `(\w+)` \|.*\| timing \|$", SECTION, re.MULTILINE)
KEY_COLUMNS = re.findall(r"^\| `(\w+)` \|.*\| key \|$", SECTION, re.MULTILINE)

WORDS = {"trace": "t.h5", "prompt": "nan", "algorithm": "bumblebee", "params": "lambda=0.3;phi=log",
         "protocol": "prefill", "scores": "past", "device": "cpu", "eps_op": "inf",
         "amnesia_mass": "3e-16", "status": "ok", "diag": "objective=12.5;gain_evaluations=100",
         "n_tokens": "64", "tokens_kept": "40", "bytes": "1000", "seed": "0", "q_head": "0",
         "model": "a/b, c", "dtype": "float16", "precision": "float32"}
ROW = {name: WORDS.get(name, "0.25") for name in COLUMNS}
OF_SIDE_TABLES = {"tokens", "last", "queries"}
FIGURES = set(COLUMNS) - compare_runs.EXACT - compare_runs.IGNORED - {*compare_runs.KEYS, "diag"}


class CompareTest(FolderCase):
    def write(self, name, rows, columns=None):
        path = self.path(name)
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns or list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return path

    def run_script(self, *arguments):
        return call(lambda: compare_runs.main(list(arguments)), "compare_runs.py")

    def compare(self, first, second, *options):
        """Of tables of the ordinary row and another query head's, changed as the dicts say."""
        other = {**ROW, "q_head": "1"}
        return self.run_script(self.write("a.csv", [other, {**ROW, **first}]),
                               self.write("b.csv", [{**ROW, "device": "cuda:0", **second},
                                                    {**other, "device": "cuda:0"}]), *options)

    def expect_same(self, first, second, *options):
        result = self.compare(first, second, *options)
        self.assertEqual(result.code, 0, result.out + result.err)
        self.assertIn("same: 2 rows", result.out)
        return result.out

    def expect_other(self, words, first, second, *options):
        result = self.compare(first, second, *options)
        self.assertEqual(result.code, 1, result.out + result.err)
        self.assertIn("differences: 1 in", result.out)
        self.assertIn(words, result.out)

    def test_every_column_has_a_kind(self):
        self.assertGreater(len(COLUMNS), 40)
        self.assertLessEqual(set(WORDS), set(COLUMNS))
        self.assertGreater(len(KEY_COLUMNS), 10)
        self.assertEqual(set(KEY_COLUMNS) - {"device"} - set(compare_runs.KEYS), set())
        self.assertEqual(compare_runs.IGNORED, {"device", "run_id", "row_crc", *TIMING})
        self.assertLessEqual(compare_runs.EXACT - OF_SIDE_TABLES, set(COLUMNS))
        self.assertLessEqual({"rel_error", "rel_error_max", "eps_fro", "eps_op", "log_z_error", "cosine",
                              "mass_kept", "amnesia_mass"}, FIGURES)

    def test_a_column_that_is_not_known(self):
        for value, code in (("0.2500001", 0), ("0.26", 1), ("nan", 1), ("", 1), ("x", 1)):
            result = self.run_script(self.write("a.csv", [{**ROW, "new": "0.25"}]),
                                     self.write("b.csv", [{**ROW, "new": value}]))
            self.assertEqual(result.code, code, value + result.out + result.err)

    def test_device_timing_and_rounding_agree(self):
        self.expect_same({}, {})
        self.expect_same({}, {"compress_ms": "9", "attend_us_per_query": "nan"})
        out = self.expect_same({}, {"rel_error": "0.2500024"})
        self.assertRegex(out, r"largest relative difference 9\.6e-06 \(.*rel_error\)")
        self.expect_same({}, {"amnesia_mass": "5e-12"})
        self.expect_same({}, {"diag": "objective=12.50001;gain_evaluations=7"})
        self.expect_same({"diag": "bumblebee.gain_evaluations=9"}, {"diag": "bumblebee.gain_evaluations=7"})
        self.expect_same({}, {"rel_error": "0.26"}, "--relative", "0.05")

    def test_every_figure_beyond_the_tolerance_differs(self):
        for name in sorted(FIGURES):
            value = "2e-11" if name == "amnesia_mass" else "0.3"
            self.expect_other(name, {}, {name: value})
        self.expect_other("rel_error", {}, {"rel_error": "0.250003"})
        self.expect_other("rel_error", {}, {"rel_error": "0.25000000000000006"}, "--relative", "0")

    def test_all_else_must_be_the_same(self):
        others = compare_runs.EXACT - OF_SIDE_TABLES
        self.assertIn("tokens_kept", others)
        for name in sorted(others):
            self.expect_other(name, {}, {name: ROW[name] + "1"})
        self.expect_other("objective", {}, {"diag": "objective=12.51;gain_evaluations=100"})
        self.expect_other("diag", {}, {"diag": "other=12.5;gain_evaluations=100"})
        self.expect_other("diag", {}, {"diag": ""})
        self.expect_other("rel_error", {}, {"rel_error": ""})
        self.expect_other("rel_error", {"rel_error": ""}, {})

    def test_nan_never_agrees(self):
        for name in sorted(FIGURES | {"ratio", "bytes"}):
            for first, second in (("nan", "nan"), ("nan", ROW[name]), (ROW[name], "nan")):
                self.expect_other(name, {name: first}, {name: second})
        both = {"diag": "objective=nan;gain_evaluations=100"}
        self.expect_other("objective", both, both)
        self.expect_other("objective", {}, both)

    def test_infinity_agrees_with_itself_alone(self):
        self.expect_other("eps_op", {}, {"eps_op": "1e300"})
        self.expect_other("eps_op", {}, {"eps_op": "-inf"})
        self.expect_other("rel_error", {}, {"rel_error": "inf"})

    def test_rows_that_one_table_lacks(self):
        first = self.write("a.csv", [ROW, {**ROW, "seed": "1"}])
        second = self.write("b.csv", [ROW])
        for pair, words in (((first, second), "b.csv has no row"),
                            ((second, first), "b.csv has no row")):
            result = self.run_script(*pair)
            self.assertEqual(result.code, 1)
            self.assertIn(words, result.out)
        many = self.write("many.csv", [{**ROW, "seed": str(i)} for i in range(30)])
        result = self.run_script(many, second)
        self.assertIn("and 19 more", result.out)
        self.assertIn("differences: 29 in 1 rows", result.out)

    def test_steps_and_kept_tokens(self):
        def write_pair(kind, first, second):
            columns = [c for c in ROW if c in KEY_COLUMNS]
            base = {c: ROW[c] for c in columns}
            self.write(f"a.{kind}.csv", [{**base, **first}])
            if second is not None:
                self.write(f"b.{kind}.csv", [{**base, "device": "cuda:0", **second}])

        steps = {"step": "5", "rel_error": "0.5", "bytes": "10"}
        kept = {"step": "63", "tokens": "0-20 22"}
        write_pair("steps", steps, {**steps, "rel_error": "0.500001"})
        write_pair("kept", kept, kept)
        result = self.compare({}, {})
        self.assertEqual((result.code, "same: 4 rows" in result.out), (0, True), result.out)
        write_pair("steps", steps, {**steps, "rel_error": "0.51"})
        self.assertEqual(self.compare({}, {}).code, 1)
        write_pair("steps", {**steps, "rel_error": "nan"}, {**steps, "rel_error": "nan"})
        self.assertEqual(self.compare({}, {}).code, 1)
        write_pair("steps", steps, steps)
        write_pair("kept", kept, {**kept, "tokens": "0-20 23"})
        result = self.compare({}, {})
        self.assertEqual(result.code, 1)
        self.assertIn("tokens: '0-20 22' and '0-20 23'", result.out)
        long = {**kept, "tokens": "1 3 " * 100000}
        write_pair("kept", long, long)
        self.assertEqual(self.compare({}, {}).code, 0)
        os.remove(self.path("b.kept.csv"))
        result = self.compare({}, {})
        self.assertEqual(result.code, 1)
        self.assertIn("b.kept.csv: no such file", result.out)

    def test_layers(self):
        base = {c: ROW[c] for c in ROW if c in KEY_COLUMNS and c not in ("q_head", "kv_head")}
        first = {**base, "out_rel_error": "0.5", "residual_rel_error": ""}
        self.write("a.layers.csv", [first])
        for error, code in (("0.500001", 0), ("0.51", 1), ("nan", 1)):
            self.write("b.layers.csv", [{**first, "device": "cuda:0", "out_rel_error": error}])
            self.assertEqual(self.compare({}, {}).code, code, error)
        self.write("b.layers.csv", [{**first, "residual_rel_error": "0.1"}])
        self.assertEqual(self.compare({}, {}).code, 1)
        for mine, other, code in (("0.5;0.25", "0.5;0.250001", 0), ("0.5;0.25", "0.5;0.26", 1),
                                  ("0.5;0.25", "0.5", 1), ("0.5;nan", "0.5;nan", 1)):
            self.write("a.layers.csv", [{**first, "residual_rel_error_heads": mine}])
            self.write("b.layers.csv", [{**first, "residual_rel_error_heads": other}])
            self.assertEqual(self.compare({}, {}).code, code, (mine, other))

    def test_refusals(self):
        good = self.write("a.csv", [ROW])
        for words, arguments in (
                ("none.csv", [good, "none.csv"]),
                ("no rows", [good, self.write("n.csv", [], COLUMNS)]),
                ("duplicate row", [good, self.write("d.csv", [ROW, ROW])]),
                ("not a table", [good, self.write("x.csv", [{"a": 1}])]),
                ("--relative", [good, good, "--relative", "nan"]),
                ("--relative", [good, good, "--relative", "1"])):
            result = self.run_script(*arguments)
            self.assertEqual(result.code, 2, words)
            self.assertIn(words, result.err)
        empty = self.path("e.csv")
        with open(empty, "w", encoding="utf-8"):
            pass
        self.assertIn("is empty", self.run_script(good, empty).err)
        with open(empty, "w", encoding="utf-8") as file:
            file.write(",".join(COLUMNS) + "\n1.0,t.h5\n")
        self.assertIn(f"line 2: got 2 cells, expected {len(COLUMNS)}", self.run_script(good, empty).err)


if __name__ == "__main__":
    unittest.main()
