"""`kvbench-study PROGRAM ...` (kvbench_study.programs)."""

import sys

from kvbench.__main__ import run
from kvbench_study.programs import COMMANDS


def main():
    sys.exit(run(sys.argv[1:], COMMANDS))


if __name__ == "__main__":
    main()
