"""The tests of figures with the newest matplotlib, pandas and numpy: $KVBENCH_NEWEST_PYTHON, else
build/newest-venv/bin/python. Skipped where there is none:

    python3 -m venv build/newest-venv
    build/newest-venv/bin/pip install matplotlib pandas numpy h5py scipy scikit-learn
"""

import glob
import os
import subprocess
import unittest

from script_case import KVBENCH, ROOT

TESTS = os.path.dirname(os.path.abspath(__file__))
NEWEST = os.environ.get("KVBENCH_NEWEST_PYTHON") or os.path.join(ROOT, "build", "newest-venv", "bin", "python")
SKIPPED = 77  # run_python_test.py: every test was skipped
SECONDS = 1800  # for one file
OLD = "error::FutureWarning,error::DeprecationWarning:kvbench"


@unittest.skipUnless(os.path.exists(NEWEST), f"no {NEWEST}; KVBENCH_NEWEST_PYTHON names one")
class NewestLibrariesTest(unittest.TestCase):
    def test_every_test_of_figures(self):
        runner = os.path.join(ROOT, "cmake", "run_python_test.py")
        env = {**os.environ, "KVBENCH": KVBENCH, "SRC": ROOT, "PYTHONWARNINGS": OLD}
        env.pop("PYTHONPATH", None)
        files = sorted(glob.glob(os.path.join(TESTS, "test_plot_*.py")))
        self.assertGreater(len(files), 7)
        for path in files:
            with self.subTest(os.path.basename(path)):
                done = subprocess.run([NEWEST, runner, path], env=env, capture_output=True, text=True,
                                      timeout=SECONDS, check=False)
                self.assertIn(done.returncode, (0, SKIPPED), done.stdout + done.stderr)
