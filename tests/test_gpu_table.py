"""scripts/gpu_table.py: numbers in their units, joined by kernel, and its refusals."""

import contextlib
import io
import json
import os
import sys
import tempfile
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import gpu_table  # noqa: E402


def line(name, time=2.0, unit="ms", **more):
    return {"name": f"{name}/manual_time", "run_type": "iteration", "real_time": time,
            "time_unit": unit, "flop/s": 3.21e12, "bytes/s": 4.5e11, "of_bound": 0.125, **more}


class GpuTableTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def bench(self, *lines, **context):
        return self.write("bench.json", json.dumps({
            "context": {"card": "H1", "driver": "12.4", **context}, "benchmarks": list(lines)}))

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = gpu_table.main(list(arguments))
        return types.SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())

    def test_units(self):
        for value, text in ((4.8e12, "4.80 TB/s"), (0.9996e12, "1.00 TB/s"), (67e12, "67.0 TB/s"),
                            (989e9, "989 GB/s"), (9.996, "10.0 B/s"), (99.96, "100 B/s"),
                            (1.5e-5, "15.0 uB/s"), (2e-10, "0.20 nB/s")):
            self.assertEqual(gpu_table.in_units(value, "B/s"), text)

    def test_what_computes_nothing_has_no_rate_of_arithmetic(self):
        moved = line("exact/top_places/131072")
        del moved["flop/s"]
        result = self.run_script(self.bench(moved))
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("| top_places | 131072 | exact | 2.00 ms | - | 450 GB/s | 12.5 % ", result.out)

    def test_rows_are_joined_by_kernel_and_size(self):
        peer = [{"name": "card/copy", "rate": 3e12},
                {"name": "exact_attention/32768", "dtype": "float64", "seconds": 0.004},
                {"name": "exact_attention/32768", "dtype": "bfloat16", "seconds": 0.0005},
                {"name": "exact_attention/131072", "dtype": "float64", "seconds": 1}]
        result = self.run_script(
            self.bench(line("exact/exact_attention/32768"),
                       line("fast/exact_attention/32768", 100, "us", of_bound=None),
                       line("exact/k_center/131072"),
                       line("exact/k_center/131072", run_type="aggregate"),
                       copy_bytes_per_s="4e12", float64_fma_flops="3e13"),
            "--peer", self.write("peer.jsonl", "\n".join(json.dumps(p) for p in peer) + "\n"),
            "--runs", self.write("runs.tsv", "all_methods\t6\t1.5\n"))
        self.assertEqual(result.code, 2, "a bound that is there must be a number")
        fast = line("fast/exact_attention/32768", 100, "us")
        del fast["of_bound"]
        result = self.run_script(
            self.bench(line("exact/exact_attention/32768"), fast, line("exact/k_center/131072"),
                       line("exact/k_center/131072", run_type="aggregate"),
                       copy_bytes_per_s="4e12", float64_fma_flops="3e13"),
            "--peer", os.path.join(self.folder, "peer.jsonl"),
            "--runs", os.path.join(self.folder, "runs.tsv"))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([row for row in result.out.splitlines() if row.startswith("|")], [
            "| the card's own rate | measured | by PyTorch |",
            "| --- | --- | --- |",
            "| copy within the card's memory, bytes read and written | 4.00 TB/s | 3.00 TB/s |",
            "| float64 FMAs outside the tensor cores | 30.0 Tflop/s | - |",
            "| kernel | n | math | time | arithmetic | memory | of bound | PyTorch | its time "
            "| time / its time |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            "| exact_attention | 32768 | exact | 2.00 ms | 3.21 Tflop/s | 450 GB/s | 12.5 % "
            "| float64 | 4.00 ms | 0.5 |",
            "| exact_attention | 32768 | exact | 2.00 ms | 3.21 Tflop/s | 450 GB/s | 12.5 % "
            "| bfloat16 | 500 us | 4 |",
            "| exact_attention | 32768 | fast | 100 us | 3.21 Tflop/s | 450 GB/s | - "
            "| float64 | 4.00 ms | 0.025 |",
            "| exact_attention | 32768 | fast | 100 us | 3.21 Tflop/s | 450 GB/s | - "
            "| bfloat16 | 500 us | 0.2 |",
            "| k_center | 131072 | exact | 2.00 ms | 3.21 Tflop/s | 450 GB/s | 12.5 % "
            "| - | - | - |",
            "| whole run | CPU | CUDA | CPU / CUDA |",
            "| --- | --- | --- | --- |",
            "| all_methods | 6.00 s | 1.50 s | 4 |"])
        self.assertIn("# kvbench on H1", result.out)

    def test_output_file(self):
        path = os.path.join(self.folder, "table.md")
        result = self.run_script(self.bench(line("exact/k_center/9")), "-o", path)
        self.assertEqual((result.code, result.out), (0, ""))
        with open(path, encoding="utf-8") as file:
            self.assertIn("k_center", file.read())
        self.assertEqual(self.run_script(self.bench(line("exact/k_center/9")), "-o",
                                         os.path.join(path, "x")).code, 3)

    def test_refusals(self):
        good = self.bench(line("exact/k_center/9"))
        bad = self.write("bad", "{")
        for arguments in ([bad], [os.path.join(self.folder, "none")], [good, "--peer", bad],
                          [good, "--runs", bad]):
            result = self.run_script(*arguments)
            self.assertEqual((result.code, result.out), (2, ""))
            self.assertTrue(result.err.startswith("gpu_table.py: "), result.err)
        for change in ({"real_time": float("nan")}, {"flop/s": 0}, {"bytes/s": -1},
                       {"time_unit": "h"}, {"error_occurred": True}, {"name": "k_center"}):
            result = self.run_script(self.bench({**line("exact/k_center/9"), **change}))
            self.assertEqual(result.code, 2, change)
        self.assertEqual(self.run_script(self.bench()).code, 2)
        self.assertEqual(self.run_script(self.bench(line("exact/k_center/9"),
                                                    copy_bytes_per_s="nan")).code, 2)


if __name__ == "__main__":
    unittest.main()
