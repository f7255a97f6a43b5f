"""Memory grows by little with a table's rows: replay, its resume, merge, summarize and verify."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from script_case import KVBENCH

# Sizes of runs in rows, and how much one row may add to the peak.
FEW, MANY = 15_000, 60_000
BYTES_PER_ROW = 64


# In a small process of its own: what a process held before it became another program counts as well.
MEASURE = """
import os, subprocess, sys
# What malloc keeps of freed blocks would depend on the order in which threads come and go.
steady = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, env={**os.environ, **steady})
_, status, usage = os.wait4(child.pid, 0)
child.returncode = os.waitstatus_to_exitcode(status)
print(usage.ru_maxrss)
sys.exit(child.returncode)
"""


def peak(folder, *arguments):
    """Runs kvbench; the largest resident set of its process in bytes."""
    ran = subprocess.run([sys.executable, "-c", MEASURE, KVBENCH, *map(str, arguments)],
                         cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"kvbench {' '.join(map(str, arguments))}: {ran.stderr}")
    return int(ran.stdout) * 1024


@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
class ManyRows(unittest.TestCase):
    def peaks(self, folder, rows):
        """Peaks of all commands on a run of so many rows, with a side table, by name."""
        run = ["replay", "t.h5", "--algorithm", "uniform:T=1", "--seeds", rows // 2, "--sink", 2,
               "--recent", 4, "--queries", 1, "--per-query", "--threads", 2]
        out = {"replay": peak(folder, *run, "-o", "whole.csv", "--keep-log")}
        lines = (folder / "whole.csv").read_bytes().splitlines(keepends=True)
        self.assertEqual(len(lines), rows + 1)
        log = (folder / "whole.csv.log").read_bytes()
        (folder / "half.csv.log").write_bytes(log[:len(log) // 2])  # of a killed run
        out["resume"] = peak(folder, *run, "-o", "half.csv", "--resume")
        again = (folder / "half.csv").read_bytes().splitlines(keepends=True)
        self.assertEqual(len(again), rows + 1)
        self.assertGreater(len(set(again) & set(lines)), rows // 3)
        for i in (1, 2):
            peak(folder, *run, "-o", f"p{i}.csv", "--shard", f"{i}/2")
        out["merge"] = peak(folder, "merge", "p1.csv", "p2.csv", "-o", "merged.csv")
        self.assertEqual((folder / "merged.queries.csv").read_bytes(), (folder / "whole.queries.csv").read_bytes())
        out["summarize"] = peak(folder, "summarize", "whole.csv")
        out["verify"] = peak(folder, "verify", "whole.csv", "--sample", 3)
        return out

    def test_memory_of_a_row(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            peak(folder, "synth", "-o", "t.h5", "--layers", 1, "--q-heads", 2, "--kv-heads", 1,
                 "--n", 32, "--d", 16, "--dv", 16)
            few = self.peaks(folder, FEW)
            for path in folder.glob("*.csv*"):
                path.unlink()
            many = self.peaks(folder, MANY)
        for command, bytes_ in many.items():
            grown = (bytes_ - few[command]) / (MANY - FEW)
            print(f"{command}: {bytes_ / 2**20:.0f} MiB, {grown:.0f} bytes a row")
            self.assertLess(grown, BYTES_PER_ROW, command)
