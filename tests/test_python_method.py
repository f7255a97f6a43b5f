"""docs/python.md: its two examples that write caches run, and `kvbench evaluate` reads them.

The SnapKV must give what kvbench's own gives: same tokens, same rows. The k-means needs torch
and is left out, aloud, where that is missing.
"""

import os
import re
import subprocess
import sys
import unittest

import numpy as np
from script_case import KVBENCH, ROOT, FolderCase, missing, read_rows, read_text

TRACE = os.path.join(ROOT, "data", "sample.h5")
PAGE = os.path.join(ROOT, "docs", "python.md")
EXAMPLES = os.path.join(ROOT, "docs", "examples")
BUDGETS = {"0.25", "0.125"}


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
@unittest.skipIf(missing("h5py"), "no h5py")
class PythonMethodTest(FolderCase):
    def caches_of(self, name):
        """Runs an example; the rows that evaluate makes of its caches, and their sets."""
        done = subprocess.run(
            [sys.executable, os.path.join(EXAMPLES, name), TRACE, self.path("c.h5")], capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.done("evaluate", TRACE, "--caches", self.path("c.h5"), "--kept", "-o", self.path("e.csv"))
        found = read_rows(self.path("e.csv"))
        self.assertEqual({row["budget_requested"] for row in found}, BUDGETS)
        self.assertEqual({row["status"] for row in found}, {"ok"})
        self.assertEqual(len(found), 2 * 4 * 9)  # budgets, layers, query heads
        return found, read_rows(self.path("e.kept.csv"))

    def test_the_page_names_every_example(self):
        linked = re.findall(r"\]\(examples/(\S+?)\)", read_text(PAGE))
        self.assertEqual(sorted(linked), sorted(os.listdir(EXAMPLES)))

    def test_snapkv_in_numpy_gives_the_rows_of_kvbench(self):
        found, kept = self.caches_of("snapkv_numpy.py")
        self.done("replay", TRACE, "--algorithm", "snapkv", "--budget", "0.25,0.125", "--kept", "-o",
                  self.path("r.csv"))
        places = ("prompt", "layer", "q_head", "budget_requested")
        expected = {tuple(row[c] for c in places): row for row in read_rows(self.path("r.csv"))}
        tokens = [{(row["layer"], row["kv_head"], row["budget_requested"]): row["tokens"] for row in rows}
                  for rows in (kept, read_rows(self.path("r.kept.csv")))]
        self.assertEqual(len(kept), 2 * 4 * 3)
        self.assertEqual(*tokens)
        for row in found:
            own = expected[tuple(row[c] for c in places)]
            for column in ("tokens_kept", "bytes", "middle_ratio", "mass_kept", "amnesia_count",
                           "rel_error", "eps_op", "cosine", "log_z_error"):
                self.assertEqual(row[column], own[column], column)

    @unittest.skipIf(missing("torch"), "no torch")
    def test_kmeans_in_torch_fills_its_budget_with_made_entries(self):
        found, _ = self.caches_of("kmeans_torch.py")
        for row in found:
            budget = float(row["budget_requested"])
            pair = 2 * (64 + 64)  # bytes of a bfloat16 key and value
            self.assertLessEqual(float(row["middle_ratio"]), budget)
            # A cluster that lost its members leaves room; no more than a hundredth here.
            self.assertGreater(float(row["middle_ratio"]), 0.99 * budget)
            self.assertEqual(int(row["tokens_kept"]), 16 + 512)
            held = int(row["bytes"]) - int(row["aux_bytes"]) - (16 + 512) * pair
            self.assertEqual(int(row["aux_bytes"]) // 4, held // pair)
            self.assertTrue(np.isfinite(float(row["rel_error"])))
