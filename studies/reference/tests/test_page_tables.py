"""kvbench-study page-tables, and that the tables of the study's pages are those of its files."""

import glob
import os
import re
import sys
import unittest

from study_case import STUDY, FolderCase, call, missing, read_text, run_study

MISSING = missing("numpy", "pandas", "matplotlib")
if not MISSING:
    from kvbench import command
    from kvbench_study import page_tables
BLOCK = re.compile(r"^<!-- table: .*? -->\n.*?^<!-- end -->$", re.M | re.S)
SUMMARY = """algorithm,params,budget_requested,mean_rel_error,low,high
a,x=1;y=0,0.5,0.12345,0.1,0.2
a,x=1;y=0,0.25,0.3,0.2,0.4
a,x=2;y=0,0.5,0.05,0.04,0.06
a,x=2;y=0,0.25,,,
b,,0.5,0.07,0.01,0.09
b,,0.25,0.01,0.0,0.02
"""


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class PageTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.csv = self.write_file("s.csv", SUMMARY)
        self.page = self.path("page.md")

    def write(self, spec, body=""):
        self.write_file("page.md", f"Text 1.\n\n<!-- table: {spec} -->\n{body}<!-- end -->\nText 2.\n")

    def run_it(self, *options, code=0, page=None):
        done = call(lambda: command.run_main(page_tables.main), "kvbench-study page-tables", *options,
                    page or self.page)
        self.assertEqual(done.code, code, done.out + done.err)
        self.assertNotIn("Traceback", done.err)
        return done.err

    def rows(self, spec):
        self.write(spec)
        self.run_it()
        text = read_text(self.page)
        self.assertTrue(text.startswith("Text 1.\n") and text.endswith("<!-- end -->\nText 2.\n"))
        self.run_it("--check")
        return [line for line in text.splitlines() if line.startswith("|")]

    def test_pivot(self):
        self.assertEqual(self.rows(f"{self.csv} | name label | show mean_rel_error | "
                                   "pivot budget_requested | sort 0.5"), [
            "| algorithm | 0.5 | 0.25 |", "| --- | ---: | ---: |", "| `a x=2` | 0.050 | - |",
            "| `b` | 0.070 | 0.010 |", "| `a x=1` | 0.123 | 0.300 |"])

    def test_listed_values_stand_in_that_order(self):
        for values in ("0.25,0.5", "0.5,.25"):
            first, second = (f"{float(value):g}" for value in values.split(","))
            self.assertEqual(self.rows(f"{self.csv} | where algorithm=b | name algorithm | show low=a, high=b | "
                                       f"pivot budget_requested={values}")[0],
                             f"| algorithm | a {first} | b {first} | a {second} | b {second} |")

    def test_columns(self):
        self.assertEqual(self.rows(
            f"{self.csv} | where budget_requested=.5 | name algorithm, params |\n"
            "show mean_rel_error=error:.2f, low..high=95 % | sort -mean_rel_error | first 2"), [
            "| algorithm, params | error | 95 % |", "| --- | ---: | ---: |",
            "| `a, x=1;y=0` | 0.12 | 0.100 to 0.200 |", "| `b, ` | 0.07 | 0.010 to 0.090 |"])

    def test_one_of_the_params(self):
        self.assertEqual(self.rows(f"{self.csv} | where budget_requested=0.5 algorithm=a | name label "
                                   "| show mean_rel_error | pivot params.x"), [
            "| algorithm | 1 | 2 |", "| --- | ---: | ---: |", "| `a` | 0.123 | 0.050 |"])
        self.assertEqual(self.rows(f"{self.csv} | where algorithm=a | name params.x "
                                   "| show mean_rel_error | pivot budget_requested=0.25,0.1"), [
            "| x | 0.25 |", "| --- | ---: |", "| `1` | 0.300 |", "| `2` | - |"])
        self.assertEqual(self.rows(f"{self.csv} | where budget_requested!=.5 params.x!=2 | "
                                   "name algorithm | show mean_rel_error")[2:],
                         ["| `a` | 0.300 |", "| `b` | 0.010 |"])

    def test_join(self):
        times = self.write_file("times.csv", "algorithm,failed,ms\nb,0,2\nb,1,9\nc,0,3\n")
        joined = f"join {times} algorithm failed=0 | joined ms=time:.1f"
        self.assertEqual(self.rows(f"{self.csv} | where algorithm=b | name algorithm | show mean_rel_error | "
                                   f"pivot budget_requested | {joined}"), [
            "| algorithm | 0.5 | 0.25 | time |", "| --- | ---: | ---: | ---: |", "| `b` | 0.070 | 0.010 | 2.0 |"])
        self.assertEqual(self.rows(f"{self.csv} | where budget_requested=0.25 params.x!=1 | name algorithm | "
                                   f"show mean_rel_error | {joined}")[2:],
                         ["| `a` | - | - |", "| `b` | 0.010 | 2.0 |"])
        for wrong in (joined.replace(" failed=0", ""), f"join {times} | joined ms", joined.partition("|")[0]):
            self.write(f"{self.csv} | where algorithm=b | name algorithm | show mean_rel_error | "
                       f"pivot budget_requested | {wrong}")
            self.run_it(code=2)

    def test_two_files(self):
        other = self.csv.replace("s.csv", "t.csv")
        with open(other, "w", encoding="utf-8") as file:
            file.write(SUMMARY.replace("b,,0.25", "c,,0.25"))
        self.assertEqual(self.rows(
            f"A={self.csv} B={other} | where budget_requested=0.25 | name label | "
            "show mean_rel_error=e | rows b c"), [
            "| algorithm | A e | B e |", "| --- | ---: | ---: |", "| `b` | 0.010 | - |",
            "| `c` | - | 0.010 |"])

    def test_a_number_that_differs_is_found(self):
        spec = f"{self.csv} | where budget_requested=0.5 | name label | show mean_rel_error | rows b"
        table = "| algorithm | mean rel error |\n| --- | ---: |\n| `b` | 0.070 |\n"
        self.write(spec, table)
        self.run_it("--check")
        self.write(spec, table.replace("0.070", "0.071"))
        self.assertIn("tables differ", self.run_it("--check", code=1))
        self.run_it()
        self.run_it("--check")

    def test_refusals(self):
        for spec, expected in (
                (f"{self.csv} | name label", "`show` is missing"),
                (f"{self.csv} | name label | show nosuch", "no column `nosuch`"),
                (f"{self.csv} | name label | show low | where nosuch=1", "no column `nosuch`"),
                (f"{self.csv} | name label | show low | where budget_requested=1", "no row with"),
                (f"{self.csv} | name label | show low", "several rows of a"),
                (f"{self.csv} | name label | show low | pivot budget_requested | rows z",
                 "rows: no `z`"),
                (f"{self.csv} | name label | show low | pivot budget_requested | sort 1",
                 "sort: no `1`"),
                (f"{self.csv} | name label | show low | colour red", "got `colour red`"),
                ("nosuch.csv | name label | show low", "nosuch.csv")):
            with self.subTest(spec=spec):
                self.write(spec)
                self.assertIn(expected, self.run_it(code=2))

    def test_the_reference_pages_tables_are_those_of_the_files(self):
        paths = [os.path.join(STUDY, "README.md"), *sorted(glob.glob(os.path.join(STUDY, "pages", "*.md")))]
        done = run_study("page-tables", "--check", *paths)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        tables = 0
        for path in paths:
            with open(path, encoding="utf-8") as file:
                page = file.read()
            tables += len(BLOCK.findall(page))
            for line in BLOCK.sub("", page).splitlines():
                # Typed by hand: a cell that is a number.
                self.assertIsNone(re.search(r"^\|.*\| *[-+]?\d+\.\d", line), (path, line))
        self.assertGreater(tables, 15)


if __name__ == "__main__":
    unittest.main()
