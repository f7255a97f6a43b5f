"""The Python half of kvbench: dumps, conversions, tables, figures, scores, caches in numpy.

Each program in scripts/ is a front of a module here; `PYTHONPATH=python` finds the package.
"""

import os
import sys

# The repository.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def missing(error, packages):
    """What to say of an ImportError of a package that Debian has."""
    return (f"{sys.executable} has no {error.name}. On Debian: apt install {packages}, then run "
            "this with /usr/bin/python3")
