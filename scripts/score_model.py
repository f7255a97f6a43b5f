#!/usr/bin/env python3
"""The program is python/kvbench/score/main.py."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "python"))

from kvbench.score.options import parse_arguments  # noqa: E402

if __name__ == "__main__":
    parse_arguments()  # Before torch, which --help and a wrong word do without.
    from kvbench.score.main import main
    from kvbench.trace.writer import run_main

    run_main(main)
