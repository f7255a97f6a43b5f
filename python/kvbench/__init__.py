"""kvbench in Python: its tables, traces and caches, and methods of one's own (docs/python.md).

    import kvbench

    rows = kvbench.replay("t.h5", algorithm="snapkv,h2o", budget="0.25")
    mine = kvbench.evaluate("t.h5", my_function, budgets=[0.25])
    rows = kvbench.read_results("out.csv")

The names of `__all__` are the interface; other modules are parts of the programs in scripts/.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kvbench.api.figure import figure
    from kvbench.api.method import Infeasible, Made, MethodError, Task, evaluate
    from kvbench.api.replay import replay
    from kvbench.api.results import read_results
    from kvbench.api.run import ProgramError, program, run
    from kvbench.api.trace import Trace, read_trace, write_trace
    from kvbench.caches import CacheReader, CacheWriter
    from kvbench.press.adapter import as_press
    from kvbench.press.expression import PressError
    from kvbench.tables import CsvError
    from kvbench.trace.heads import Head
    from kvbench.trace.writer import TraceError

__all__ = ["CacheReader", "CacheWriter", "CsvError", "Head", "Infeasible", "Made", "MethodError", "PressError",
           "ProgramError", "Task", "Trace", "TraceError", "as_press", "evaluate", "figure", "program",
           "read_caches", "read_results", "read_trace", "replay", "run", "sample", "write_caches", "write_trace"]

# Imported when they are asked for: no program pays for packages that it does not use, and those
# that need none run without any.
_PLACES = {"CacheReader": "caches", "CacheWriter": "caches", "CsvError": "tables",
           "Head": "trace.heads", "Infeasible": "api.method", "Made": "api.method",
           "MethodError": "api.method", "PressError": "press.expression", "ProgramError": "api.run",
           "Task": "api.method", "Trace": "api.trace", "TraceError": "trace.writer", "as_press": "press.adapter",
           "evaluate": "api.method", "figure": "api.figure", "program": "api.run",
           "read_results": "api.results", "read_trace": "api.trace", "replay": "api.replay",
           "run": "api.run", "write_trace": "api.trace"}

# The repository, where the package lies in it.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module `kvbench` has no `{name}`")
    return getattr(importlib.import_module("kvbench." + _PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def sample() -> str:
    """The path of a small real trace: a prompt of 2048 tokens, 4 of the 30 layers of
    SmolLM2-135M-Instruct (data/README.md). Raises FileNotFoundError where this installation has none."""
    for path in (os.path.join(os.path.dirname(os.path.abspath(__file__)), "sample.h5"),
                 os.path.join(ROOT, "data", "sample.h5")):
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"{path}: the sample trace comes with the wheel and with the repository")


def read_caches(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> CacheReader:
    """Caches files (docs/trace_format.md), one or the parts of one run, as a CacheReader.

        with kvbench.read_caches("c.h5") as caches:
            for group in caches.groups:
                for prompt in group.prompts():
                    for layer, kv_head in group.heads(prompt):
                        entry = group.read(prompt, layer, kv_head)

    Raises kvbench.TraceError, one line, for a file that is none.
    """
    from kvbench import caches
    return caches.CacheReader(paths)


def write_caches(path: str | os.PathLike[str],
                 traces: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *,
                 sink: int = 16, recent: int = 512, queries: int = 256,
                 protocol: str = "prefill") -> CacheWriter:
    """A CacheWriter: a context manager that writes one caches file (docs/trace_format.md).

        with kvbench.write_caches("c.h5", "t.h5") as writer:
            group = writer.group("mine", budget=0.25)
            group.put("p0", 0, 0, head.k[kept], head.v[kept], token=kept)

    path      of the caches; it is there once it is whole
    traces    the traces that they are made from, of one element type
    sink, recent, queries, protocol   the protocol's windows in tokens, and its name
    Raises kvbench.TraceError, one line, for what the format does not allow.
    """
    from kvbench import caches
    return caches.CacheWriter(path, traces, sink, recent, queries, protocol)
