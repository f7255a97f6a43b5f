"""Replay, compare and extend KV cache compression methods from Python (docs/python.md).

    import kvbench

    rows = kvbench.replay("t.h5", algorithm="snapkv,h2o", budget="0.25")
    mine = kvbench.evaluate("t.h5", my_function, budget=[0.25])
    rows = kvbench.read_results("out.csv")
    print(kvbench.compare(rows, to="snapkv"))

`__all__` is the public API. Other modules are internal.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from kvbench import plot
    from kvbench.api.compare import compare, policy
    from kvbench.api.figure import figure
    from kvbench.api.method import Infeasible, Made, MethodError, Task, evaluate
    from kvbench.api.replay import replay
    from kvbench.api.results import read_results
    from kvbench.api.run import ProgramError, program, run
    from kvbench.api.trace import Trace, read_trace, write_trace
    from kvbench.caches import CacheReader, CacheWriter, read_caches, write_caches
    from kvbench.caches.kept import export_kept
    from kvbench.generate.functions import compress, judge, load_cache
    from kvbench.press.adapter import as_press
    from kvbench.press.expression import PressError
    from kvbench.tables import CsvError
    from kvbench.trace.heads import Head
    from kvbench.trace.writer import TraceError

__all__ = ["CacheReader", "CacheWriter", "CsvError", "Head", "Infeasible", "Made", "MethodError",
           "PressError", "ProgramError", "Task", "Trace", "TraceError", "as_press", "compare", "compress", "evaluate",
           "export_kept", "figure", "judge", "load_cache", "plot", "policy", "program", "read_caches", "read_results",
           "read_trace", "replay", "run", "sample", "write_caches", "write_trace"]

# Imported on first use, so that a program loads only the packages it needs.
_MODULES = {"CacheReader": "caches", "CacheWriter": "caches", "CsvError": "tables", "Head": "trace.heads",
            "Infeasible": "api.method", "Made": "api.method", "MethodError": "api.method",
            "PressError": "press.expression", "ProgramError": "api.run", "Task": "api.method", "Trace": "api.trace",
            "TraceError": "trace.writer", "as_press": "press.adapter", "compare": "api.compare",
            "compress": "generate.functions", "evaluate": "api.method", "export_kept": "caches.kept",
            "figure": "api.figure", "judge": "generate.functions", "load_cache": "generate.functions",
            "policy": "api.compare", "program": "api.run", "read_caches": "caches", "read_results": "api.results",
            "read_trace": "api.trace", "replay": "api.replay", "run": "api.run", "write_caches": "caches",
            "write_trace": "api.trace"}

# Root of the repository, in a checkout.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _version() -> str:
    """Version of the checkout, or of the installed package."""
    path = os.path.join(ROOT, "CMakeLists.txt")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            found = re.search(r"project\(kvbench\s+VERSION ([0-9.]+)", file.read())
        if found:
            return found[1]
    from importlib.metadata import version
    return version("kvbench")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name == "plot":
        return importlib.import_module("kvbench.plot")
    if name not in _MODULES:
        raise AttributeError(f"module `kvbench` has no `{name}`")
    return getattr(importlib.import_module("kvbench." + _MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def sample() -> str:
    """Path of a small real trace: 2048 tokens, 4 layers of SmolLM2-135M-Instruct (data/README.md).

    Raises FileNotFoundError if this installation has none.
    """
    for path in (os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample.h5"),
                 os.path.join(ROOT, "data", "sample.h5")):
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"{path}: the sample trace comes with the wheel and with the repository")
