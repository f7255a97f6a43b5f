"""The model's loss per source and kind of text, from tables of scores, for kvbench-study claims.

Raises kvbench.tables.CsvError.
"""

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench import units
from kvbench.comparison import scores as kcs
from kvbench_study.claims import tables
from kvbench_study.claims.verdicts import text_of

PROMPT = ["kind", "of", "trace", "prompt"]


def read(paths, algorithms, options):
    """Returns rows of algorithms at budgets with their KL (NaN if not `ok`). kind: the record's
    `task` or `kind`; of: the prompt or its source.
    """
    frame = kcs.read(paths, "kl")
    frame = frame[frame["algorithm"].isin(algorithms) & frame["budget_requested"].notna()].copy()
    for name in algorithms:
        if name not in set(frame["algorithm"]):
            raise kt.CsvError(f"{paths[0]}: no rows of {name} with a budget")
    kcs.refuse_other_layers(frame, paths[0])
    kinds = {str(record.get("id")): str(record.get("task") or record.get("kind") or "")
             for record in units.read_records(options.records)}
    frame["kind"] = frame["prompt"].map(kinds).fillna("")
    if "" in set(frame["kind"]):
        raise kt.CsvError(f"{paths[0]}: prompt {frame.loc[frame['kind'] == '', 'prompt'].iloc[0]}: no record says "
                          "its `task` or `kind`: --records")
    frame = tables.add_units(frame, paths[0], options)
    good = (frame["status"].map(kt.status_kind) == "ok") & (frame["kl"] > 0)
    frame["kl"] = frame["kl"].where(good)
    return frame


def protocol_of(frame):
    layers = frame["layers"].iloc[0] if "layers" in frame else "all"
    return f"the model over caches of {layers if isinstance(layers, str) else int(layers)} layers"


def table_of(frame, keys):
    """Returns log KL [(kind, of), settings (values of keys)]: log of the mean over seeds, then over
    prompts. NaN if a prompt or seed is missing.
    """
    groups = frame.groupby([*PROMPT, *keys], dropna=False)["kl"]
    found = groups.agg(mean=lambda values: values.mean(skipna=False), seeds="size").reset_index()
    whole = found["seeds"] == found.groupby(keys)["seeds"].transform("max")
    found["mean"] = found["mean"].where(whole)
    wide = found.pivot(index=PROMPT, columns=keys, values="mean")
    table = wide.groupby(["kind", "of"]).agg(lambda column: column.mean(skipna=False))
    return np.log(table)


def by_kind(values):
    """Returns [(kind, Grid of one layer, `all`)] of a Series over (kind, of)."""
    return [(kind, part.droplevel("kind").to_frame("all"))
            for kind, part in values.groupby(level="kind", sort=True)]


def add_cells(claim, values, figure="", counts=True, **setting):
    """Adds a cell per kind of a Series over (kind, of)."""
    for kind, grid in by_kind(values):
        text = text_of(kind=kind, **setting)
        if counts:
            claim.add(grid, text)
        else:
            claim.show(grid, text, figure)


def leave_one_out_choice(table):
    """Returns (Series of the value at the setting chosen on the other sources, Series of the
    settings).

    table [(kind, of), settings]. The chosen setting has the smallest mean over the rows of all
    other sources. NaN if the row, or all others, lack it.
    """
    values = table.to_numpy(float)
    whole = np.isfinite(values).all(axis=1)
    of = table.index.get_level_values("of").to_numpy()
    chosen, best = np.full(len(table), np.nan), np.full(len(table), np.nan)
    for at in np.flatnonzero(whole):
        others = values[whole & (of != of[at])]
        if len(others):
            place = int(np.argmin(others.mean(axis=0)))
            chosen[at], best[at] = values[at, place], table.columns[place]
    return pd.Series(chosen, table.index), pd.Series(best, table.index)
