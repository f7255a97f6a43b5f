#!/usr/bin/env python3
"""The program is python/kvbench/reference/main.py."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "python"))

from kvbench.reference.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
