"""Figures of tables of kvbench: functions of data frames that return a matplotlib Figure.

    import kvbench
    from kvbench import plot

    rows = kvbench.read_results("out.csv")
    plot.pareto(rows, highlight=["snapkv"]).savefig("pareto.pdf", bbox_inches="tight")

Options are those of `kvbench-py plot KIND --help`, with _ for -. Names are a list or `a,b`. A function
raises kvbench.CsvError for unsuitable tables (a missing column, no measured rows) and ValueError for an
unknown choice. Notes on skipped rows go to the logger `kvbench`, level INFO. pyplot, its backend and
rcParams are unaffected. `figure.caption` holds the measured numbers in words.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from kvbench.plot.kinds.amnesia import amnesia
    from kvbench.plot.kinds.bits import bits
    from kvbench.plot.kinds.bumblebee_lambda import bumblebee_lambda
    from kvbench.plot.kinds.coverage import coverage
    from kvbench.plot.kinds.error import error
    from kvbench.plot.kinds.growth import growth
    from kvbench.plot.kinds.heatmap import heatmap
    from kvbench.plot.kinds.kept_map import kept_map
    from kvbench.plot.kinds.norms import norms
    from kvbench.plot.kinds.offset import offset
    from kvbench.plot.kinds.pareto import pareto
    from kvbench.plot.kinds.reads import reads
    from kvbench.plot.kinds.reconstruction import reconstruction
    from kvbench.plot.kinds.stream import stream
    from kvbench.plot.kinds.tsne import tsne

__all__ = ["amnesia", "bits", "bumblebee_lambda", "coverage", "error", "growth", "heatmap", "kept_map", "norms",
           "offset", "pareto", "reads", "reconstruction", "stream", "tsne"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imported on first use: matplotlib is slow
        return getattr(importlib.import_module(f"kvbench.plot.kinds.{name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
