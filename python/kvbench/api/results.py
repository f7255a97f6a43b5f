"""Result tables as pandas frames."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pandas as pd

from kvbench import tables
from kvbench.api.run import path_list
from kvbench.checksums import SIDE_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

# Key columns of a side table (docs/schema.md), where present.
_KEYS = ("trace", "prompt", "layer", "q_head", "kv_head", "algorithm", "params", "protocol", "sink",
         "recent", "scores", "device", "seed", "n_queries", "budget_requested")
# Integer columns, unless a row is empty.
_WHOLE = ("layer", "q_head", "kv_head", "sink", "recent", "seed", "n_tokens", "n_queries",
          "tokens_kept", "bytes", "full_bytes", "aux_bytes", "peak_bytes", "transient_bytes",
          "amnesia_count", "scoring_queries", "repeats", "step", "offset", "first", "last",
          "queries")


def read_results(paths: str | os.PathLike | Iterable[str | os.PathLike], side: str | None = None) -> pd.DataFrame:
    """Reads tables of `kvbench replay` or `evaluate` as one frame, with every row checked.

    paths    OUT.csv, or several of one schema
    side     `steps`, `kept`, `queries` or `layers`: reads that side table of each, joined with the columns of their
             rows; lines of a KV head or layer get the columns on which all its rows agree
    Integer columns are integers, other numbers floats; empty fields are NaN. Raises
    kvbench.CsvError for a file that is missing, modified, of another run or not such a table.
    """
    names = path_list(paths)
    frame = tables.read_results(names, [])
    if side is None:
        return _with_whole(frame)
    if side not in SIDE_TABLES:
        raise tables.CsvError(f"side: got `{side}`, expected {', '.join(SIDE_TABLES)}")
    joined = []
    for name in names:
        rows = tables.read_results([name], [])
        path = tables.side_table(name, side)
        lines = tables.read_table([path], [], {*tables.TEXT_COLUMNS, "tokens"})
        tables.check_same_run(lines, path, rows, name)
        joined.append(_join(lines, rows))
    return _with_whole(pd.concat(joined, ignore_index=True))


def _join(lines: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Adds to lines of a side table the missing columns of their rows."""
    keys = [name for name in _KEYS if name in lines.columns]
    more = [name for name in rows.columns if name not in lines.columns]
    groups = rows.groupby(keys, dropna=False, sort=False)
    agreed = [name for name in more if (groups[name].nunique(dropna=False) <= 1).all()]
    found = rows[[*keys, *agreed]].drop_duplicates(keys)
    return lines.merge(found, on=keys, how="left", validate="many_to_one")


def _with_whole(frame: pd.DataFrame) -> pd.DataFrame:
    for name in _WHOLE:
        if name in frame.columns:
            column = frame[name]
            if column.dtype.kind == "f" and column.notna().all() and (column == column.round()).all():
                frame[name] = column.astype("int64")
    return frame

