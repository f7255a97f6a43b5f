"""Figures by name."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from kvbench.programs import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.figure import Figure


def figure(name: str, tables: str | os.PathLike[str] | pd.DataFrame | Sequence[Any], **options: Any) -> Figure:
    """Returns the figure of `kvbench-py plot NAME`.

        kvbench.figure("pareto", rows, highlight="snapkv").savefig("pareto.pdf",
        bbox_inches="tight")

    name     of `kvbench-py plot`: "error", "pareto", "offset", ...
    tables   frames of replay, evaluate or read_results, or paths; for "coverage", "growth", "norms"
    and
             "tsne" folders of `kvbench cluster`
    options  those of `kvbench-py plot NAME --help`, with _ for -
    Raises ValueError for an unknown name or option, kvbench.CsvError for unsuitable tables.
    """
    program = PROGRAMS.get("plot " + name.replace("_", "-"))
    if program is None:
        known = ", ".join(each.removeprefix("plot ") for each in PROGRAMS if each.startswith("plot "))
        raise ValueError(f"name: got {name!r}, expected one of {known}")
    return importlib.import_module("kvbench." + program.module).figure(tables, **options)
