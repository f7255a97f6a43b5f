"""kvbench summarize on a terminal: no line is wider."""

import fcntl
import os
import pty
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
