"""Figures per unit and layer for kvbench-study claims, from tables of replay and cluster.

A `Grid` is a frame [units, layers] of one setting: mean over heads and seeds, then over the prompts
of a source (--by source). NaN if a prompt lacks a head, or a row is not `ok` or not finite.
"""

import math

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench import units
from kvbench.plot.kinds import reconstruction as plot_reconstruction

UNIT = ["trace", "prompt"]
COLUMNS = ["seed", "budget_requested", *kt.HEAD_COLUMNS, *kt.SETTINGS]


def read_rows(paths, columns, options):
    """Returns rows of replay with the columns of add_units and `good` (status ok), of one protocol,
    without duplicates.
    """
    frame = kt.read_results(paths, [*COLUMNS, *columns])
    one_protocol(frame, paths[0])
    frame["good"] = frame["status"].map(kt.status_kind) == "ok"
    return add_units(frame, paths[0], options)


def add_units(frame, path, options):
    """Adds unit (the prompt) and of (the prompt or its source)."""
    frame["unit"] = frame["trace"] + ":" + frame["prompt"]
    frame["of"] = (units.sources_of(frame, options.records, path) if options.by == "source"
                   else frame["unit"])
    return frame


def one_protocol(frame, path):
    # `scores` may differ by method.
    settings = [name for name in kt.SETTINGS if name != "scores"]
    for name in settings:
        if frame[name].nunique() > 1:
            raise kt.CsvError(f"{path}: rows differ in {name}; expected one protocol")


def protocol_of(frame):
    row = frame.iloc[0]
    return (f"{row['protocol']}, sink {row['sink']:g}, recent {row['recent']:g}, "
            f"{row['n_queries']:g} queries")


def add_parameters(frame, names, path):
    """Adds parameters as columns, NaN if absent. Raises CsvError if others differ."""
    parsed = {text: kt.parse_params(text) for text in frame["params"].unique()}
    for name in names:
        frame[name] = frame["params"].map({t: p.get(name, "") for t, p in parsed.items()})
    rest = frame["params"].map({t: ";".join(f"{k}={v}" for k, v in p.items() if k not in names)
                                for t, p in parsed.items()})
    for algorithm, others in rest.groupby(frame["algorithm"]):
        if others.nunique() > 1:
            raise kt.CsvError(f"{path}: {algorithm} with other parameters too than "
                              f"{', '.join(names)}: {' | '.join(sorted(others.unique())[:3])}")


def as_numbers(frame, name):
    frame[name] = pd.to_numeric(frame[name], errors="coerce")


def grids(frame, column, keys, heads="q_head"):
    """Returns {setting (a tuple of `keys`): Grid of the mean of `column`}."""
    count = frame.groupby(["unit", "layer"])[heads].nunique()
    good = frame["good"] & np.isfinite(frame[column])
    groups = frame.assign(good=good).groupby([*keys, "of", "unit", "layer"], sort=True)
    table = groups.agg(mean=(column, "mean"), good=("good", "all"), rows=(column, "size"),
                       seeds=("seed", "nunique")).reset_index()
    expected = pd.MultiIndex.from_frame(table[["unit", "layer"]]).map(count)
    whole = table["good"] & (table["rows"] == table["seeds"] * np.asarray(expected))
    table["mean"] = table["mean"].where(whole)
    prompts = frame[["of", "unit"]].drop_duplicates().sort_values(["of", "unit"])
    of = dict(zip(prompts["unit"], prompts["of"]))
    layers = sorted(frame["layer"].unique())
    out = {}
    for setting, part in table.groupby(keys if len(keys) > 1 else keys[0]):
        grid = part.pivot(index="unit", columns="layer", values="mean")
        grid = units.mean_by(grid.reindex(prompts["unit"], columns=layers), of)
        out[setting if isinstance(setting, tuple) else (setting,)] = grid
    return out


def log_ratio(above, below):
    """Returns log(above / below) of two Grids; NaN where only one has a value."""
    index, columns = above.index.union(below.index), above.columns.union(below.columns)
    above, below = (grid.reindex(index, columns=columns) for grid in (above, below))
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log(above) - np.log(below)
    return out.where(np.isfinite(out))


def over_layers(grid):
    """Returns the mean over layers as a Grid of one layer, `all`; NaN if a layer is missing."""
    return grid.mean(axis=1, skipna=False).to_frame("all")


def slopes(xs, ys):
    """Returns least-squares slopes of y on x over lists of Grids of one shape."""
    x, y = (np.stack([grid.to_numpy(float) for grid in some]) for some in (xs, ys))
    x = x - x.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = (x * y).sum(axis=0) / (x**2).sum(axis=0)
    return pd.DataFrame(out, index=ys[0].index, columns=ys[0].columns)


# ---------------------------------------------------------------------------------- sketches


def sketch_rows(paths, options):
    """Returns rows of kvreviver with estimate=sum, one per KV head; k and v: squared error /
    bound.
    """
    frame = read_rows(paths, ["kv_head", "diag"], options)
    frame = frame[frame["algorithm"] == "kvreviver"].copy()
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no rows of kvreviver")
    protocol = protocol_of(frame)
    parsed = {text: kt.parse_params(text) for text in frame["params"].unique()}
    frame = frame[frame["params"].map(lambda t: parsed[t].get("estimate") == "sum"
                                      and parsed[t].get("vague", "sketch") == "sketch")].copy()
    diag = [kt.parse_params(text) for text in frame["diag"]]
    for name in plot_reconstruction.DIAGNOSTICS:
        frame[name] = pd.to_numeric([one.get(name, "") for one in diag], errors="coerce")
    frame["good"] &= frame["vague"] > 0
    for part in plot_reconstruction.PARTS:
        with np.errstate(divide="ignore", invalid="ignore"):
            frame[part] = frame[f"{part}_error"] / frame[f"{part}_bound"]
    # Query heads of a group share a sketch.
    frame = frame.drop_duplicates([*UNIT, "layer", "kv_head", "params", "budget_requested", "seed"])
    return frame, protocol


def number_text(value):
    return "native" if isinstance(value, float) and math.isnan(value) else f"{value:g}"
