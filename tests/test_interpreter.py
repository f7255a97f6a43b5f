"""Programs of scripts/ where the first `python3` on the PATH lacks their packages."""

import os
import subprocess
import sys
import unittest

from script_case import SCRIPTS, missing

# One for each place that says which packages are missing.
PROGRAMS = ("plot_error.py", "convert_traces.py", "compare.py")


def start(name, python):
    """The program's help, by an interpreter without packages, where $PYTHON is `python`."""
    return subprocess.run([sys.executable, "-S", os.path.join(SCRIPTS, name), "--help"],
                          env={**os.environ, "PYTHON": python}, capture_output=True, text=True,
                          check=False)


class InterpreterTest(unittest.TestCase):
    @unittest.skipIf(missing("numpy", "pandas", "matplotlib", "h5py", "scipy"), "packages are missing")
    def test_it_goes_on_with_one_that_has_them(self):
        for name in PROGRAMS:
            with self.subTest(name):
                done = start(name, sys.executable)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"usage: {name} ", done.stdout)

    def test_one_line_where_there_is_none(self):
        for name in PROGRAMS:
            with self.subTest(name):
                done = start(name, "/bin/false")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"^\S+ has no \w+\. On Debian: apt install .*\n$")


if __name__ == "__main__":
    unittest.main()
