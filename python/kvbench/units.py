"""Unit of inference: prompts, or their sources (`--by source`).

A source is an author, a book, a program's documentation or a code base. Its prompts are not
independent: they are averaged first, and n counts sources.
"""

from typing import Any

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.records import read_jsonl

BY = {"choices": ("prompt", "source"), "default": "prompt",
      "help": "unit of means, intervals and tests: source takes the mean of a source's prompts first; "
              "sources come from the tables (column `source`) or in --records [default: prompt]"}
RECORDS: dict[str, Any] = {"nargs": "+", "metavar": "FILE.jsonl", "default": [],
           "help": "the records of prompts, with `set` and `source`"}

# Where a prompt without records is its own source.
SOURCES = {**RECORDS, "help": "prompt records, whose field `source` groups prompts"}


def read_records(files):
    """Returns the records of files. Raises CsvError."""
    return [record for path in files for record in read_jsonl(path)]


def of_set(name, files):
    """Returns the ids of the records of a set."""
    return {str(record.get("id")) for record in read_records(files) if record.get("set") == name}


def sources_of(frame, files, path, own_source=False):
    """Returns the source of each row's prompt: from column `source`, otherwise from the records of `files`.

    own_source: a prompt whose record has no source is its own; without `files` no records are read.
    Raises CsvError if a prompt has none or several.
    """
    found = frame["source"].fillna("") if "source" in frame.columns else pd.Series("", frame.index)
    pairs = frame[["trace", "prompt"]].assign(source=found)[found != ""].drop_duplicates()
    twice = pairs.loc[pairs.duplicated(["trace", "prompt"]), "prompt"]
    if len(twice):
        raise kt.CsvError(f"{path}: column `source`: prompt {twice.iloc[0]} has several, expected one")
    if (found == "").any() and own_source and not files:
        return found.where(found != "", frame["prompt"])
    if (found == "").any():
        known = recorded_sources(files, set(frame.loc[found == "", "prompt"]), own_source)
        found = found.where(found != "", frame["prompt"].map(known).fillna(""))
    if (found == "").any():
        raise kt.CsvError(f"{path}: prompt {frame.loc[found == '', 'prompt'].iloc[0]} has no source, "
                          "neither in a column `source` nor in the records")
    return found


def recorded_sources(files, prompts, own_source):
    """Returns {prompt: source} of these prompts' records. own_source: as of sources_of. Raises CsvError."""
    known, ids = {}, set()
    for record in read_records(files):
        name, source = str(record.get("id")), str(record.get("source") or "")
        ids.add(name)
        if name in prompts and source and known.setdefault(name, source) != source:
            raise kt.CsvError(f"{', '.join(files)}: prompt {name} has the sources {known[name]} and {source}, "
                              "expected one")
    return {name: name for name in ids} | known if own_source else known


def mean_by(values, units):
    """Returns means over rows that share a unit, in order of appearance; NaN if one is missing. units: {row: unit}."""
    mine = [units[name] for name in values.index]
    order = {unit: at for at, unit in enumerate(dict.fromkeys(mine))}
    if len(order) == len(mine):  # a row is the mean of its unit
        return values.set_axis(pd.Index(mine))
    # An array: a list of numbers might be taken as column names.
    groups = values.groupby(np.array([order[unit] for unit in mine], dtype=int))
    out = groups.agg(lambda column: column.mean(skipna=False))
    out.index = pd.Index(list(order))
    return out
