"""scripts/compare_runs.py: what agrees, what does not, and that NaN never does."""

import os
import re

from script_case import ROOT, FolderCase, call, write_rows

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
        return write_rows(self.path(name), columns or list(rows[0]), [row.values() for row in rows])

    def run_script(self, *arguments):
        return call(lambda: compare_runs.main(list(arguments)), "compare_runs.py")

    def compare(self, first, second, *options):
        """Of tables of the ordinary row and another query head's, changed as the dicts say."""
        other = {**ROW, "q_head": "1"}
        return self.run_script(self.write("a.csv", [other, {**ROW, **first}]),
                               self.write("b.csv", [{**ROW, "device": "cuda:0", **second},
                                                    {**other, "device": "cuda:0"}]), *options)

    def test_every_column_has_a_kind(self):
        self.assertGreater(len(COLUMNS), 40)
        self.assertLessEqual(set(WORDS), set(COLUMNS))
        self.assertGreater(len(KEY_COLUMNS), 10)
        self.assertEqual(set(KEY_COLUMNS) - {"device"} - set(compare_runs.KEYS), set())
        self.assertEqual(compare_runs.IGNORED, {"device", "run_id", "row_crc", *TIMING})
        self.assertLessEqual(compare_runs.EXACT - OF_SIDE_TABLES, set(COLUMNS))
        self.assertIn("tokens_kept", compare_runs.EXACT)
        self.assertLessEqual({"rel_error", "rel_error_max", "eps_fro", "eps_op", "log_z_error", "cosine",
                              "mass_kept", "amnesia_mass"}, FIGURES)

    def test_a_column_that_is_not_known(self):
        for value, code in (("0.2500001", 0), ("0.26", 1), ("nan", 1), ("", 1), ("x", 1)):
            result = self.run_script(self.write("a.csv", [{**ROW, "new": "0.25"}]),
                                     self.write("b.csv", [{**ROW, "new": value}]))
            self.assertEqual(result.code, code, value + result.out + result.err)

    def test_device_timing_and_rounding_agree(self):
        for first, second, *options in (
                ({}, {}), ({}, {"compress_ms": "9", "attend_us_per_query": "nan"}), ({}, {"rel_error": "0.2500024"}),
                ({}, {"amnesia_mass": "5e-12"}),
                ({}, {"diag": "objective=12.50001;gain_evaluations=7"}, "--relative", "1e-7"),
                ({"diag": "bumblebee.gain_evaluations=9"}, {"diag": "bumblebee.gain_evaluations=7"}),
                ({}, {"rel_error": "0.26"}, "--relative", "0.05")):
            result = self.compare(first, second, *options)
            self.assertEqual(result.code, 0, result.out + result.err)
            self.assertIn("same: 2 rows", result.out)
        self.assertRegex(self.compare({}, {"rel_error": "0.2500024"}).out,
                         r"largest relative difference 9\.6e-06 \(.*rel_error\)")

    def test_all_else_differs(self):
        """What names the difference, and cells of both tables."""
        unknown = {"diag": "objective=nan;gain_evaluations=100"}
        for words, first, second, *options in (
                *((name, {}, {name: "2e-11" if name == "amnesia_mass" else "0.3"}) for name in FIGURES),
                ("rel_error", {}, {"rel_error": "0.250003"}),
                ("rel_error", {}, {"rel_error": "0.25000000000000006"}, "--relative", "0"),
                *((name, {}, {name: ROW[name] + "1"}) for name in compare_runs.EXACT - OF_SIDE_TABLES),
                ("objective", {}, {"diag": "objective=12.51;gain_evaluations=100"}),
                ("diag", {}, {"diag": "other=12.5;gain_evaluations=100"}), ("diag", {}, {"diag": ""}),
                ("rel_error", {}, {"rel_error": ""}), ("rel_error", {"rel_error": ""}, {}),
                # NaN never agrees, infinity with itself alone.
                *((name, {name: one}, {name: other}) for name in FIGURES | {"ratio", "bytes"}
                  for one, other in (("nan", "nan"), ("nan", ROW[name]), (ROW[name], "nan"))),
                ("objective", unknown, unknown), ("objective", {}, unknown), ("eps_op", {}, {"eps_op": "1e300"}),
                ("eps_op", {}, {"eps_op": "-inf"}), ("rel_error", {}, {"rel_error": "inf"})):
            result = self.compare(first, second, *options)
            self.assertEqual(result.code, 1, result.out + result.err)
            self.assertIn("differences: 1 in", result.out)
            self.assertIn(words, result.out)

    def test_rows_that_one_table_lacks(self):
        first = self.write("a.csv", [ROW, {**ROW, "seed": "1"}])
        second = self.write("b.csv", [ROW])
        for pair in ((first, second), (second, first)):
            result = self.run_script(*pair)
            self.assertEqual(result.code, 1)
            self.assertIn("b.csv has no row", result.out)
        many = self.write("many.csv", [{**ROW, "seed": str(i)} for i in range(30)])
        result = self.run_script(many, second)
        self.assertIn("and 19 more", result.out)
        self.assertIn("differences: 29 in 1 rows", result.out)

    def test_side_tables(self):
        keys = {c: ROW[c] for c in ROW if c in KEY_COLUMNS}
        steps, kept = {"step": "5", "rel_error": "0.5", "bytes": "10"}, {"step": "63", "tokens": "0-20 22"}
        long = {**kept, "tokens": "1 3 " * 100000}
        for kind, first, second, code, words in (
                ("kept", kept, kept, 0, "same: 3 rows"),
                ("steps", steps, {**steps, "rel_error": "0.500001"}, 0, "same: 4 rows"),
                ("steps", steps, {**steps, "rel_error": "0.51"}, 1, "rel_error"),
                ("steps", {**steps, "rel_error": "nan"}, {**steps, "rel_error": "nan"}, 1, "rel_error"),
                ("steps", steps, steps, 0, "same: 4 rows"),
                ("kept", kept, {**kept, "tokens": "0-20 23"}, 1, "tokens: '0-20 22' and '0-20 23'"),
                ("kept", long, long, 0, "same: 4 rows"),
                *(("layers", {name: mine}, {name: other}, code, "same: 5 rows" if code == 0 else name)
                  for name, mine, other, code in (
                      ("out_rel_error", "0.5", "0.51", 1), ("out_rel_error", "0.5", "nan", 1),
                      ("residual_rel_error", "", "0.1", 1), ("residual_rel_error_heads", "0.5;0.25", "0.5;0.26", 1),
                      ("residual_rel_error_heads", "0.5;0.25", "0.5", 1),
                      ("residual_rel_error_heads", "0.5;nan", "0.5;nan", 1),
                      ("residual_rel_error_heads", "0.5;0.25", "0.5;0.250001", 0),
                      ("out_rel_error", "0.5", "0.500001", 0)))):
            base = {c: keys[c] for c in keys if kind != "layers" or c not in ("q_head", "kv_head")}
            self.write(f"a.{kind}.csv", [{**base, **first}])
            self.write(f"b.{kind}.csv", [{**base, "device": "cuda:0", **second}])
            result = self.compare({}, {})
            self.assertEqual(result.code, code, result.out)
            self.assertIn(words, result.out)
        os.remove(self.path("b.kept.csv"))
        result = self.compare({}, {})
        self.assertEqual(result.code, 1)
        self.assertIn("b.kept.csv: no such file", result.out)

    def test_refusals(self):
        good = self.write("a.csv", [ROW])
        for words, *arguments in (
                ("none.csv", "none.csv"), ("no rows", self.write("n.csv", [], COLUMNS)),
                ("duplicate row", self.write("d.csv", [ROW, ROW])), ("not a table", self.write("x.csv", [{"a": 1}])),
                ("--relative", good, "--relative", "nan"), ("--relative", good, "--relative", "1"),
                ("is empty", self.write_file("e.csv", "")),
                (f"line 2: got 2 cells, expected {len(COLUMNS)}",
                 self.write_file("short.csv", ",".join(COLUMNS) + "\n1.0,t.h5\n"))):
            result = self.run_script(good, *arguments)
            self.assertEqual(result.code, 2, words)
            self.assertIn(words, result.err)
