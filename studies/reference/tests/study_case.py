"""What tests of the study share: where it lies; and all of tests/script_case.py."""

import os
import sys

STUDY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [STUDY, os.path.join(os.path.dirname(os.path.dirname(STUDY)), "tests")]

import script_case  # noqa: E402
from script_case import *  # noqa: E402, F403


def run_study(name, *arguments):
    """`kvbench-study ...`, in an interpreter of its own."""
    return script_case.run_program(f"kvbench-study {name}", *arguments, folder=STUDY)
