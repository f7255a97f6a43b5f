"""Runs a unittest file. Exit code 77 (skipped) if a required package is missing."""

import importlib.util
import os
import sys
import unittest

NEEDED = ("numpy", "pandas", "matplotlib")


def main() -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIPPED: {sys.executable} lacks {', '.join(missing)}")
        return 77
    path = os.path.abspath(sys.argv[1])
    # Tests of a study share what is in tests/.
    sys.path[:0] = [os.path.dirname(path), os.path.join(os.path.dirname(__file__), "..", "tests")]
    os.environ.setdefault("MPLBACKEND", "Agg")
    suite = unittest.defaultTestLoader.loadTestsFromName(os.path.splitext(os.path.basename(path))[0])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if result.testsRun == 0:
        print(f"no tests in {path}")
        return 1
    if len(result.skipped) == result.testsRun and result.wasSuccessful():
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
