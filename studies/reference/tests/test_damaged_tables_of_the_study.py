"""Every program of the study that reads a table, with tables that are damaged: tests/test_damaged_tables.py."""

import json
import os
import sys
import unittest

import test_damaged_tables as damaged
from study_case import KVBENCH, ROOT, read_rows, write_text

from kvbench_study import programs

KVREVIVER = "kvreviver:candidate_ratio={0};recent_ratio={0};vague_ratio={1};estimate=sum,mean"
COMMANDS = [
    ("kvbench-study correlate", "a.csv --score-table scores.csv --resamples 100 --csv out/x.csv --figures out/x",
     "a.csv", "a.queries.csv"),
    ("kvbench-study correlate", "a.csv --score-table scores.csv --resamples 100 --csv out/x.csv --figures out/x",
     "scores.csv", "s.kept.csv"),
    ("kvbench-study correlate",
     "a.csv --score-table scores.csv --layer-table layers.csv --resamples 100 --csv out/x.csv", "layers.csv",
     "s.kept.csv"),
    ("kvbench-study answers", "--score-table m scores.csv --records tasks.jsonl --csv out/x.csv", "scores.csv",
     "s.kept.csv"),
    ("kvbench-study page-tables", "page.md", "page.csv", "c/coverage.csv"),
    ("kvbench-study ablate", "ab.layers.csv --csv out/x.csv --figures out/x", "ab.layers.csv", "s.kept.csv"),
    *(("kvbench-study atlas", "--cluster m c --row-table m a.csv --budget 0.6 --algorithm h2o,knorm --csv out/x.csv",
       name, "s.kept.csv") for name in ("a.csv", "c/attention.csv", "c/keys.csv", "c/spectrum.csv")),
    *(("kvbench-study scaling", "--row-table 64 a.csv --cluster 64 c --algorithm h2o,knorm --csv out/x.csv", name,
       "s.kept.csv") for name in ("a.csv", "c/attention.csv")),
    ("kvbench-study claims", "--fig2 f.csv --csv out/x.csv", "f.csv", "a.queries.csv"),
    ("kvbench-study claims", "--fig2-default f.csv --csv out/x.csv", "f.csv", "a.queries.csv"),
    *(("kvbench-study claims", "--cluster c --head-dim 64 --csv out/x.csv --cells out/y.csv", name, "s.kept.csv")
      for name in ("c/coverage.csv", "c/delta.csv", "c/growth.csv", "c/norms.csv")),
    ("kvbench-study claims", "--lambda-scores scores.csv --records r.jsonl --csv out/x.csv", "scores.csv", "a.csv"),
    ("kvbench-study claims", "--revive-scores rs.csv --records r.jsonl --csv out/x.csv", "rs.csv", "a.csv"),
    ("kvbench-study claims", "--merging m.csv --equal e.csv --csv out/x.csv", "m.csv", "a.queries.csv"),
    ("kvbench-study claims", "--ratio r.csv --csv out/x.csv", "r.csv", "a.queries.csv"),
]
AS_THEY_STAND = (0, "cells are shown as they stand")
LET_PASS = {
    ("kvbench-study claims", "c/growth.csv", "NaN"): damaged.GROWTH,
    ("kvbench-study claims", "r.csv", "NaN"): (0, "its figures stand in `diag`"),
    ("kvbench-study page-tables", "page.csv", "NaN"): AS_THEY_STAND,
    ("kvbench-study page-tables", "page.csv", "no numbers"): AS_THEY_STAND,
}


@unittest.skipIf(damaged.PACKAGES, f"{sys.executable} lacks {', '.join(damaged.PACKAGES)}")
@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
class StudyTest(damaged.DamagedTablesTest):
    front, commands, let_pass = programs.COMMANDS, COMMANDS, LET_PASS
    runs = {**damaged.RUNS, "f": ("balancekv:T=1:4 uniform:T=1:4", "--seeds 2"),
            "r": (f"{KVREVIVER.format(0.45, 0.1)} {KVREVIVER.format(0.4, 0.2)}", "--budget 0.6 --budget 0.5"),
            "m": ("kvreviver:vague=none,mean", "--budget 0.6 --budget 0.5"),
            "e": ("kvreviver", "--budget 0.6 --budget 0.5")}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = {name: read_rows(os.path.join(cls.good, f"{name}.csv")) for name in "ame"}
        cls.write_scores("rs.csv", [row for table in rows.values() for row in table])
        cls.kvbench("replay", "t.h5", *damaged.WINDOWS, "--config", os.path.join(ROOT, "configs", "ablation.toml"),
                    "-o", "ab.csv")
        cls.write_layers("ab.layers.csv", read_rows(os.path.join(cls.good, "ab.csv")))
        write_text(os.path.join(cls.good, "r.jsonl"), "".join(json.dumps(
            {"id": name, "kind": "x", "text": ""}) + "\n" for name in {row["prompt"] for row in rows["a"]}))

    def setUp(self):
        super().setUp()
        prompts = {row["prompt"] for row in read_rows(self.path("scores.csv"))}
        self.write_file("tasks.jsonl", "".join(json.dumps(
            {"id": prompt, "task": "one-key", "wrong": ["2"], "text": "x"}) + "\n" for prompt in prompts))
        self.write_file("page.csv", "method,mean\nh2o,0.5\nknorm,0.25\n")
        self.write_file("page.md", f"<!-- table: {self.path('page.csv')} | name method | show mean -->"
                        "\n<!-- end -->\n")


if __name__ == "__main__":
    unittest.main()
