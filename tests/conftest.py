"""What pytest needs besides cmake/run_python_test.py."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")
# readline, which pytest imports, sets them for child processes, and tables would be wrapped.
for name in ("COLUMNS", "LINES"):
    if name not in os.environ:
        os.unsetenv(name)
