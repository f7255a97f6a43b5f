"""The figures of kvbench summarize against a plain reading of the rows, and its width on a terminal."""

import csv
import fcntl
import io
import math
import os
import pty
import statistics
import struct
import subprocess
import tempfile
import termios
import unittest

from script_case import KVBENCH


def run(*arguments):
    return subprocess.run([KVBENCH, *map(str, arguments)], capture_output=True, text=True, check=True)


def on_terminal(width, *arguments):
    """What kvbench writes to a terminal of this width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with subprocess.Popen([KVBENCH, *arguments], stdout=its, stderr=subprocess.DEVNULL) as child:
        os.close(its)
        text = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux: nobody writes any more
                break
            if not part:
                break
            text += part
    os.close(ours)
    if child.returncode != 0:
        raise AssertionError(f"exit code {child.returncode}")
    return text.decode().replace("\r\n", "\n")


def shown(value):
    """Three significant digits of an error."""
    return "0" if value == 0 else f"{value:#.3g}"


@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
class Summaries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        trace = os.path.join(cls.folder.name, "t.h5")
        cls.table = os.path.join(cls.folder.name, "out.csv")
        run("synth", "-o", trace, "--layers", 2, "--q-heads", 2, "--kv-heads", 1, "--n", 96, "--d", 16, "--dv", 8)
        run("replay", trace, "-o", cls.table, "--algorithm", "h2o,uniform,snapkv,knorm,exact", "--budget",
            "0.5,0.25,0.125", "--seeds", 3, "--sink", 4, "--recent", 16, "--queries", 8)
        with open(cls.table, encoding="utf-8", newline="") as file:
            cls.rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]

    def groups(self, by, metric):
        out = {}
        for row in self.rows:
            key = tuple(row[name] for name in ("algorithm", "params", "budget_requested", *by))
            out.setdefault(key, []).append(float(row[metric]))
        return out

    def test_programs_get_the_moments(self):
        for by in ((), ("layer",), ("layer", "protocol")):
            extra = [word for name in by for word in ("--by", name)]
            text = run("summarize", self.table, *extra, "--metric", "rel_error", "--format", "csv").stdout
            lines = list(csv.DictReader(io.StringIO(text)))
            reference = self.groups(by, "rel_error")
            self.assertGreaterEqual(len(lines), len(reference))
            for line in lines:
                key = (line["algorithm"], line["params"], line["budget_requested"], *(line[name] for name in by))
                values = reference.pop(key, [])
                self.assertEqual(int(line["count"]), len(values))
                if len(values) > 1:
                    mean, sd = statistics.fmean(values), statistics.stdev(values)
                    self.assertTrue(math.isclose(float(line["mean_rel_error"]), mean, rel_tol=1e-12, abs_tol=1e-15))
                    self.assertTrue(math.isclose(float(line["sd_rel_error"]), sd, rel_tol=1e-9, abs_tol=1e-12))
            self.assertEqual(reference, {})

    def test_readers_get_means_and_errors(self):
        text = run("summarize", self.table, "--where", "algorithm!=exact", "--metric", "rel_error",
                   "--format", "markdown", "--full").stdout
        lines = [[cell.strip() for cell in line.strip("|\n").split("|")]
                 for line in text.splitlines() if line.startswith("|")]
        names = lines[0]
        reference = {key: values for key, values in self.groups((), "rel_error").items() if key[0] != "exact"}
        self.assertGreaterEqual(len(lines) - 2, len(reference))
        for line in lines[2:]:
            cells = dict(zip(names, line))
            key = tuple("" if cells[name] == "-" else cells[name]
                        for name in ("algorithm", "params", "budget (fraction)"))
            values = reference.pop(key)
            error = statistics.stdev(values) / math.sqrt(len(values))
            self.assertEqual(cells["rel_error (fraction)"], f"{shown(statistics.fmean(values))} ± {shown(error)}")
        self.assertEqual(reference, {})

    def test_a_terminal_is_wide_enough(self):
        os.environ.pop("COLUMNS", None)
        whole = run("summarize", self.table).stdout
        self.assertGreater(max(map(len, whole.splitlines())), 100)
        for width in (40, 60, 80, 100, 300):
            for layout in ((), ("--full", "--by", "prompt")):
                text = on_terminal(width, "summarize", self.table, *layout)
                self.assertLessEqual(max(map(len, text.splitlines())), width)
        self.assertEqual(on_terminal(300, "summarize", self.table), whole)
        os.environ["COLUMNS"] = "70"  # the terminal knows better
        self.assertEqual(on_terminal(300, "summarize", self.table), whole)
        self.assertLessEqual(max(map(len, run("summarize", self.table).stdout.splitlines())), 70)
        self.assertLessEqual(max(map(len, on_terminal(0, "summarize", self.table).splitlines())), 70)
        del os.environ["COLUMNS"]
        self.assertLessEqual(max(map(len, on_terminal(0, "summarize", self.table).splitlines())), 100)


if __name__ == "__main__":
    unittest.main()
