"""kvbench-study correlate --by source: the mean of a source's prompts first, n the sources; and tables of the
store, which lack metrics."""

import csv
import json
import sys
import unittest

from correlate_tables import SCIPY, Tables
from study_case import call, read_rows, read_text

from kvbench import command

if SCIPY:
    from kvbench_study.correlate import main as correlate

# Source one has three prompts, the others one each.
SOURCES = {"p0": "one", "p1": "one", "p2": "one", "p3": "two", "p4": "three", "p5": "four", "p6": "five"}
VALUES = {"a": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "b": (0.4, 0.5, 0.9, 0.5, 0.4, 0.9, 0.8),
          "c": (0.9, 0.9, 0.9, 0.2, 0.1, 0.2, 0.3)}
SCORED = {"a": 1, "b": 2, "c": 3}


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class SourceTest(Tables):
    def setUp(self):
        super().setUp()
        figures = {(f"p{i}", name, 0.5): value for name, values in VALUES.items()
                   for i, value in enumerate(values)}
        self.rows = self.write_rows(figures)
        self.scores = self.write_scores({key: 0.1 * SCORED[key[1]] + 0.01 * int(key[0][1])
                                         for key in figures})
        self.records = self.path("r.jsonl")
        with open(self.records, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": name, "source": source, "text": ""}) + "\n"
                            for name, source in SOURCES.items())

    def test_correlations_resample_sources(self):
        done = call(lambda: command.run_main(correlate.main), "kvbench-study correlate", self.rows, "--score-table",
                    self.scores, "--by", "source", "--records", self.records, "--resamples", "100", "--csv",
                    self.path("k.csv"), "--cells", self.path("cells.csv"), "--markdown", self.path("k.md"))
        self.assertEqual(done.code, 0, done.err)
        cells = {row["method"]: row for row in read_rows(self.path("cells.csv"))}
        self.assertEqual(cells["a"]["prompts"], "5")
        # Source one: the mean of p0, p1, p2.
        self.assertAlmostEqual(float(cells["a"]["kl"]), 0.1 + 0.01 * (1 + 3 + 4 + 5 + 6) / 5, delta=1e-12)
        want = (0.2 + 0.4 + 0.5 + 0.6 + 0.7) / 5
        self.assertAlmostEqual(float(cells["a"]["rel_error"]), want, delta=1e-12)
        self.assertIn("5 sources", read_text(self.path("k.md")))
        self.assertIn("resamples of the sources", read_text(self.path("k.md")))

    def test_the_store_lacks_metrics(self):
        rows = [{**row, "seeds": "1"} for row in read_rows(self.rows)]
        for row in rows:
            del row["eps_op"]
        path = self.path("stored.csv")
        with open(path, "w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)
        words = [path, "--score-table", self.scores, "--resamples", "100", "--csv", self.path("k.csv")]
        done = call(lambda: command.run_main(correlate.main), "kvbench-study correlate", *words)
        self.assertEqual(done.code, 0, done.err)
        metrics = {row["metric"] for row in read_rows(self.path("k.csv"))}
        self.assertIn("eps_fro", metrics)
        self.assertNotIn("eps_op", metrics)


if __name__ == "__main__":
    unittest.main()
