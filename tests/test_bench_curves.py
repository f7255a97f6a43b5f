"""bench/curves.py: the exponents that it fits, its table, and a run on synthetic heads."""

import os
import subprocess
import sys
import unittest

from script_case import KVBENCH, ROOT, FolderCase, read_rows, read_text, write_text

BENCH = os.path.join(ROOT, "bench")
CURVES = os.path.join(BENCH, "curves.py")
sys.path.append(BENCH)

import curves  # noqa: E402


class TableTest(unittest.TestCase):
    def test_exponents(self):
        sizes = [2 ** k for k in range(12, 18)]
        for power in (1.0, 1.5, 2.0):
            self.assertAlmostEqual(curves.exponent([(n, 3e-4 * n ** power) for n in sizes]), power)
        # Upper half alone: what small sizes cost beside the method is left out.
        self.assertAlmostEqual(curves.exponent([(n, max(n, 2.0 ** 15)) for n in sizes]), 1.0)
        self.assertIsNone(curves.exponent([(4096, 1.0), (8192, 2.0)]))


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class RunTest(FolderCase):
    def run_it(self, *options):
        out = self.path("curves.csv")
        done = subprocess.run([sys.executable, CURVES, "--build", os.path.dirname(os.path.abspath(KVBENCH)),
                               "-o", out, *options], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_rows(out)

    def test_synthetic_heads(self):
        page = write_text(self.path("page.md"), "before\n<!-- curves.py -->\nold\n<!-- end of curves.py -->\nafter\n")
        rows = self.run_it("--from", "256", "--to", "1024", "--methods", "h2o,topk", "--docs", page)
        self.assertEqual([(row["method"], row["protocol"], row["n"]) for row in rows],
                         [(name, protocol, n) for name, protocol in (
                             ("exact", "prefill"), ("h2o", "prefill"), ("topk", "retrieval"))
                          for n in ("256", "512", "1024")])
        for row in rows:
            self.assertGreater(float(row["ms"]), 0)
            self.assertGreater(float(row["memory_mib"]), 0)
        # All keys and values, float16, or a quarter of the middle beside 64 recent tokens.
        held = {(row["method"], row["n"]): int(row["bytes"]) for row in rows}
        self.assertEqual(held["exact", "1024"], 1024 * 2 * 64 * 2)
        self.assertEqual(held["h2o", "1024"], (64 + (1024 - 64) // 4) * 2 * 64 * 2)
        text = read_text(page)
        self.assertIn("`h2o`", text)
        self.assertNotIn("old", text)
