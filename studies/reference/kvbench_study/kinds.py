"""Losses over those of one method, by kind of text.

    kvbench-py compare --score-table M scores.csv.gz --sources sources.csv --csv losses.csv
    kvbench-study kinds sources.csv --works studies/reference/prompts/sources.toml --to local --csv kinds.csv

Per model, kind, budget and method: geometric mean over works of the loss over that of --to at the same work, and the
smallest and largest. Kinds are those of the works of --works, `all` has every work. A method counts where all works of
the kind that have --to have it. Kinds have 2 to 10 works: estimates without tests.
"""

import tomllib

import numpy as np
import pandas as pd

from kvbench import command
from kvbench import tables as kt
from kvbench.comparison.scores import SOURCE_COLUMNS
from kvbench.comparison.tables import write_table

COLUMNS = ["model", "kind", "budget", "method", "works", "ratio", "least", "largest"]
ALL = "all"


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    add = parser.add_argument
    add("sources", metavar="SOURCES.csv", help="of kvbench-py compare --sources")
    add("--works", required=True, metavar="FILE.toml", help="works, each with `title` and `kind`")
    add("--to", required=True, metavar="NAME", help="divide by the loss of this method")
    add("--csv", required=True, metavar="FILE.csv", help="a row per model, kind, budget and method")
    return parser.parse_args(arguments)


def kinds_of(path):
    """Returns {title: kind}. Raises CsvError."""
    try:
        with open(path, "rb") as file:
            return {work["title"]: work["kind"] for work in tomllib.load(file)["works"].values()}
    except (OSError, KeyError, TypeError, AttributeError, tomllib.TOMLDecodeError) as error:
        raise kt.CsvError(f"{path}: expected works with `title` and `kind`: {error!r}") from None


def lines(frame, kinds, to):
    """Returns a dict of COLUMNS per model, kind, budget and method, smallest ratios first."""
    out = []
    for (model, budget), part in frame.groupby(["model", "budget"], sort=False):
        values = part.pivot(index="source", columns="method", values="value")
        if to not in values:
            continue
        logs = np.log(values[values[to].notna()])
        logs = logs.sub(logs[to], axis=0).drop(columns=to)
        for kind in (ALL, *dict.fromkeys(kinds.values())):
            mine = logs if kind == ALL else logs[[kinds[source] == kind for source in logs.index]]
            mine = mine.dropna(axis=1)
            if len(mine) < 2:
                continue
            out += sorted(({"model": model, "kind": kind, "budget": budget, "method": method, "works": len(mine),
                            "ratio": float(np.exp(mine[method].mean())), "least": float(np.exp(mine[method].min())),
                            "largest": float(np.exp(mine[method].max()))} for method in mine),
                          key=lambda row: row["ratio"])
    return out


def main(arguments=None):
    options = parse_arguments(arguments)
    frame = kt.read_table([options.sources], SOURCE_COLUMNS, ("model", "method", "source"))
    kinds = kinds_of(options.works)
    unknown = sorted(set(frame["source"]) - set(kinds))
    if unknown:
        raise kt.CsvError(f"{options.sources}: source `{unknown[0]}`: expected the title of a work of {options.works}")
    frame = frame[pd.to_numeric(frame["value"]) > 0]  # rounding of `exact` may be 0 or below
    found = lines(frame, kinds, options.to)
    if not found:
        raise kt.CsvError(f"{options.sources}: --to: no losses of {options.to}")
    write_table(options.csv, COLUMNS, found)
