"""Figures by name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvbench.programs import PROGRAMS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def figure(name: str, tables: str | os.PathLike[str] | pd.DataFrame | Iterable[Any] | Mapping[str, pd.DataFrame],
           **options: Any) -> Figure:
    """Returns the figure of `kvbench-py plot NAME`, by the functions of kvbench.plot.

        kvbench.figure("pareto", rows, highlight="snapkv").savefig("pareto.pdf", bbox_inches="tight")

    name     of `kvbench-py plot`: "error", "pareto", "offset", ...
    tables   a frame of replay, evaluate or read_results, or several: figures of side tables ("offset", "stream",
             "kept-map") find these beside the frame's table; frames by the names of the function's parameters, such
             as {"rows": ..., "steps": ...} of "stream"; or paths, as the program takes them
    options  those of `kvbench-py plot NAME --help`, with _ for -
    Raises ValueError for an unknown name or choice, TypeError for an unknown option, kvbench.CsvError for
    unsuitable tables.
    """
    program = PROGRAMS.get("plot " + name.replace("_", "-"))
    if program is None:
        known = ", ".join(each.removeprefix("plot ") for each in PROGRAMS if each.startswith("plot "))
        raise ValueError(f"name: got {name!r}, expected one of {known}")
    from kvbench.plot import kind

    return kind.draw(kind.of_module(importlib.import_module("kvbench." + program.module)), tables, options)
