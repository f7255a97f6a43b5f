"""--by source of kvbench-py compare and tune: the mean of a source's prompts first, n the
sources; and tables with gzip."""

import gzip
import json
import math
import sys
import unittest

from plot_tables import FigureTest
from script_case import call, missing, read_bytes, read_rows, read_text, write_bytes, write_rows, write_text

MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
if not MISSING:
    import pandas as pd

    from kvbench import command, tune, units
    from kvbench import tables as kt
    from kvbench.compare import main as compare

# Source one has three prompts, the others one each.
SOURCES = {"p0": "one", "p1": "one", "p2": "one", "p3": "two", "p4": "three", "p5": "four", "p6": "five"}
VALUES = {"a": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.9, 0.5, 0.4, 0.9, 0.8),
          "c": (0.9, 0.9, 0.9, 0.2, 0.1, 0.2, 0.3)}


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class SourceTest(FigureTest):
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
        done = call(lambda: command.run_main(compare.main), "kvbench-py compare", table, "--to", "a",
                    "--by", "source", "--csv", self.path("c.csv"), "--markdown", self.path("c.md"), *options)
        self.assertEqual(done.code, code, done.err)
        return done.err

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

    def test_columns_may_be_numbers(self):
        """Layers, say: places of units are no names of columns."""
        values = pd.DataFrame({0: [1.0, 3.0, 5.0], 1: [2.0, 6.0, float("nan")]}, ["p", "q", "r"])
        found = units.mean_by(values, {"p": "one", "q": "one", "r": "two"})
        self.assertEqual((list(found.index), list(found.columns)), (["one", "two"], [0, 1]))
        self.assertEqual(found[0].tolist(), [2.0, 5.0])
        self.assertEqual((found.loc["one", 1], math.isnan(found.loc["two", 1])), (4.0, True))
        self.assertEqual(units.mean_by(values[:1], {"p": "one"}).to_numpy().tolist(), [[1.0, 2.0]])

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
            done = call(lambda: command.run_main(tune.main), "kvbench-py tune", *words, *more)
            self.assertEqual(done.code, 0, done.err)
            row, = read_rows(self.path("t.csv"))
            self.assertEqual((row["setting"], row["prompts"]), (setting, units))
