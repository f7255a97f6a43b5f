"""Runs of the program that return their rows."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Any

from kvbench.api.results import read_results
from kvbench.api.run import path_list, run
from kvbench.checksums import SIDE_TABLES
from kvbench.tables import side_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd


def rows_of(command: str, traces: Any, output: str | os.PathLike | None, options: dict[str, Any]) -> pd.DataFrame:
    """Returns the rows of `kvbench COMMAND TRACES OPTIONS`, written to `output` or a temporary file."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        table = os.path.join(folder, "rows.csv") if output is None else os.fspath(output)
        run(command, *path_list(traces), "--output", table, **options)
        if output is None and any(os.path.exists(side_table(table, kind)) for kind in SIDE_TABLES):
            atexit.register(stack.pop_all().close)  # figures read side tables
        return read_results(table)


def replay(traces: str | os.PathLike | Iterable[str | os.PathLike],
           output: str | os.PathLike | None = None, **options: Any) -> pd.DataFrame:
    """Returns the rows of `kvbench replay` (docs/schema.md).

        kvbench.replay("t.h5", algorithm="snapkv,h2o", budget=[0.25, 0.125], seeds=3)
        kvbench.replay("t.h5", algorithm={"snapkv": {"window": [32, 64]}, "h2o": {}}, budget=0.25)

    output   result table to write; None: temporary, until Python ends if there are side tables
    options  those of the command line, with _ for -: memory_limit="8G", per_query=True
    """
    return rows_of("replay", traces, output, options)
