#!/usr/bin/env python3
"""The program is python/kvbench/plot/pareto.py."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "python"))

from kvbench.command import run_main  # noqa: E402
from kvbench.plot.pareto import main  # noqa: E402

if __name__ == "__main__":
    run_main(main)
