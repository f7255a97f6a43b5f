"""What fills docs/performance.md: tables, marks, fitted exponents, and a small run of curves.py."""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import curves  # noqa: E402
import pages  # noqa: E402
import peers  # noqa: E402


def line(**more):
    return {"work": "w", "title": "work", "shape": "n = 8", "threads": 2, "seconds": 0.5,
            "flops": 1e9, "peer": "other", "peer_seconds": 2.0, "agreement": None, **more}


class Pages(unittest.TestCase):
    def test_what_stands_between_the_marks_is_replaced_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write("a\n<!-- x.py -->\nold\n<!-- end of x.py -->\nb\n")
            for text in ("new\n", "newer\n"):
                pages.renew(path, "x.py", text)
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(),
                                     f"a\n<!-- x.py -->\n{text}<!-- end of x.py -->\nb\n")
            with self.assertRaisesRegex(ValueError, "page.md: expected the lines <!-- y.py -->"):
                pages.renew(path, "y.py", "text\n")

    def test_the_page_has_the_marks_of_both_programs(self):
        with open(os.path.join(ROOT, "docs", "performance.md"), encoding="utf-8") as file:
            page = file.read()
        for program in ("peers.py", "curves.py"):
            self.assertEqual(page.count(f"<!-- {program} -->\n"), 1, program)
            self.assertEqual(page.count(f"<!-- end of {program} -->\n"), 1, program)


class PeersTable(unittest.TestCase):
    def test_a_row_has_rate_ratio_and_agreement(self):
        text = peers.table({"lines": [line(agreement="3e-07")], "products": {"float32/2": 250e9}})
        row = text.splitlines()[2]
        self.assertEqual(row, "| work: n = 8 | 2 | 500 ms | 2 | other | 2 s | 0.25 | 3e-07 |")
        self.assertIn("float32 with 2 threads 250 Gflop/s", text)

    def test_work_without_a_peer_or_without_products_says_so(self):
        row = peers.table({"lines": [line(flops=0.0, peer=None, peer_seconds=None)],
                           "products": {}}).splitlines()[2]
        self.assertEqual(row, "| work: n = 8 | 2 | 500 ms |  | none here |  |  |  |")


class Curves(unittest.TestCase):
    def test_the_exponent_is_the_slope_over_the_upper_half(self):
        sizes = [2**e for e in range(11, 18)]
        self.assertAlmostEqual(curves.exponent([(n, 3.0 * n**1.5) for n in sizes]), 1.5, places=12)
        bent = [(n, 5.0 if n < 2**14 else n**2 / 2**28) for n in sizes]
        self.assertAlmostEqual(curves.exponent(bent), 2.0, places=12)
        self.assertIsNone(curves.exponent([(2048, 1.0), (4096, 2.0)]))
        self.assertIsNone(curves.exponent([(2048, 0.0), (4096, 2.0), (8192, 4.0)]))

    @unittest.skipUnless("KVBENCH" in os.environ, "no program")
    def test_a_small_run(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            with open(page, "w", encoding="utf-8") as file:
                file.write("<!-- curves.py -->\n<!-- end of curves.py -->\n")
            out = os.path.join(folder, "curves.csv")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "curves.py"), "--build",
                 os.path.dirname(os.environ["KVBENCH"]), "--methods", "uniform,h2o,bumblebee-stream",
                 "--from", "512", "--to", "2048", "-o", out, "--docs", page],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual([(row["method"], row["n"]) for row in rows],
                             [(name, n) for name in ("bumblebee-stream", "exact", "h2o", "uniform")
                              for n in ("512", "1024", "2048")])
            self.assertEqual({row["protocol"] for row in rows if row["method"].endswith("stream")},
                             {"stream"})
            for row in rows:
                self.assertGreater(int(row["bytes"]), 0)
            held = {row["method"]: int(row["bytes"]) for row in rows if row["n"] == "2048"}
            self.assertLess(held["uniform"], held["exact"])
            with open(page, encoding="utf-8") as file:
                self.assertIn("| `h2o` | prefill | 2048 |", file.read())


if __name__ == "__main__":
    unittest.main()
