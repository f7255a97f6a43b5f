"""Figures per prompt and layer for kvbench-py claims, from tables of replay and cluster.

A `Grid` is a frame [prompts, layers] of one setting: the mean over heads and seeds. NaN where the
prompt lacks a head, or a row is not `ok`, or not finite: a mean over the easy heads is no figure of
the layer.
"""

import math

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import reconstruction as plot_reconstruction

UNIT = ["trace", "prompt"]
COLUMNS = ["seed", "budget_requested", *kt.HEAD_COLUMNS, *kt.SETTINGS]


def read_rows(paths, columns):
    """Rows of replay with the columns unit and good (status ok). One protocol, no row twice."""
    frame = kt.read_results(paths, [*COLUMNS, *columns])
    one_protocol(frame, paths[0])
    frame["unit"] = frame["trace"] + ":" + frame["prompt"]
    frame["good"] = frame["status"].map(kt.status_kind) == "ok"
    return frame


def one_protocol(frame, path):
    # Which queries a method may score with is the method's: uniform has none.
    settings = [name for name in kt.SETTINGS if name != "scores"]
    for name in settings:
        if frame[name].nunique() > 1:
            raise kt.CsvError(f"{path}: rows differ in {name}; expected one protocol")


def protocol_of(frame):
    row = frame.iloc[0]
    return (f"{row['protocol']}, sink {row['sink']:g}, recent {row['recent']:g}, "
            f"{row['n_queries']:g} queries")


def add_parameters(frame, names, path):
    """Adds parameters as columns, NaN where a row has none; what else differs is refused."""
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
    """{setting (a tuple of `keys`): Grid of the mean of `column`}."""
    count = frame.groupby(["unit", "layer"])[heads].nunique()
    good = frame["good"] & np.isfinite(frame[column])
    groups = frame.assign(good=good).groupby([*keys, "unit", "layer"], sort=True)
    table = groups.agg(mean=(column, "mean"), good=("good", "all"), rows=(column, "size"),
                       seeds=("seed", "nunique")).reset_index()
    expected = pd.MultiIndex.from_frame(table[["unit", "layer"]]).map(count)
    whole = table["good"] & (table["rows"] == table["seeds"] * np.asarray(expected))
    table["mean"] = table["mean"].where(whole)
    units, layers = sorted(frame["unit"].unique()), sorted(frame["layer"].unique())
    return {setting if isinstance(setting, tuple) else (setting,):
            part.pivot(index="unit", columns="layer", values="mean").reindex(units, columns=layers)
            for setting, part in table.groupby(keys if len(keys) > 1 else keys[0])}


def log_ratio(above, below):
    """log(above / below) of two Grids on the prompts and layers that either has; NaN where not."""
    index, columns = above.index.union(below.index), above.columns.union(below.columns)
    above, below = (grid.reindex(index, columns=columns) for grid in (above, below))
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.log(above) - np.log(below)
    return out.where(np.isfinite(out))


def over_layers(grid):
    """The mean over layers as a Grid of one layer, `all`; NaN where a layer is absent."""
    return grid.mean(axis=1, skipna=False).to_frame("all")


def slopes(xs, ys):
    """Least-squares slopes of y on x over lists of Grids of one shape."""
    x, y = (np.stack([grid.to_numpy(float) for grid in some]) for some in (xs, ys))
    x = x - x.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = (x * y).sum(axis=0) / (x**2).sum(axis=0)
    return pd.DataFrame(out, index=ys[0].index, columns=ys[0].columns)


# ---------------------------------------------------------------------------------- clusters


def cluster_units(frame):
    frame["unit"] = frame["trace"] + ":" + frame["prompt"]
    return frame


def coverage_grids(paths):
    """{(what, k): Grid of radius_rel}."""
    frame = cluster_units(kcc.read_table(paths, "coverage.csv", ["radius_rel"]))
    frame["good"], frame["seed"] = True, 0
    return grids(frame, "radius_rel", ["what", "k"], "kv_head")


def growth_rows(paths, scale):
    """A row per head of the keys and delta, with what Corollary B.5 of ClusterGen speaks of.

    delta_rel: delta over the radius of one centre; alpha; reach: delta r / log n, with r the
    largest norm of the head's queries times the softmax scale, for the paper's logits have none;
    cost: log(m e^(2 delta r)) / log n, the exponent of the memory; NaN where m was not counted.
    """
    growth = kcc.read_table(paths, "growth.csv", ["alpha"])
    counts = kcc.read_table(paths, "delta.csv", ["clusters"])
    coverage = kcc.read_table(paths, "coverage.csv", ["radius"])
    norms = kcc.read_table(paths, "norms.csv", ["max"])
    keys = [*kcc.HEAD, "what", "delta"]
    frame = growth[growth["what"] == "keys"].copy()
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: growth.csv has no rows of keys")
    frame["delta_rel"] = kcc.relative_delta(frame, coverage)
    layer = [*UNIT, "layer"]
    queries = norms[norms["what"] == "queries"].copy()
    if queries.empty:
        raise kt.CsvError(f"{paths[0]}: norms.csv has no rows of queries, whose norms the theorem "
                          "bounds")
    # Query heads of a group follow each other.
    served = frame.groupby(layer)["kv_head"].max().rename("last").reset_index()
    queries = queries.merge(served, on=layer)
    heads = queries.groupby(layer)["head"].transform("max") + 1
    queries["kv_head"] = queries["head"] // (heads / (queries["last"] + 1))
    r = queries.groupby([*layer, "kv_head"])["max"].max().rename("r").reset_index()
    last = counts.groupby(layer)["n_prefix"].transform("max")
    ends = counts.loc[counts["n_prefix"] == last, [*keys, "clusters"]]
    lengths = counts.groupby(layer)["n_prefix"].max().rename("n").reset_index()
    frame = frame.merge(r, on=[*layer, "kv_head"], how="left").merge(lengths, on=layer, how="left")
    frame = frame.merge(ends, on=keys, how="left")
    product = frame["delta"] * frame["r"] * scale
    frame["reach"] = product / np.log(frame["n"])
    frame["cost"] = (np.log(frame["clusters"]) + 2 * product) / np.log(frame["n"])
    frame["good"], frame["seed"] = True, 0
    return cluster_units(frame)


def min_over_deltas(frame, column):
    """Grid of the mean over heads of the least of `column` over deltas.

    A head with a delta that was not counted has none: the least might be there.
    """
    heads = frame.groupby(["unit", "layer", "kv_head"])[column].agg(
        lambda values: values.min(skipna=False)).reset_index()
    heads["good"], heads["seed"], heads["one"] = True, 0, 0
    return grids(heads, column, ["one"], "kv_head")[(0,)]


# ---------------------------------------------------------------------------------- sketches


def sketch_rows(paths):
    """Rows of kvreviver with estimate=sum, one per KV head, with k and v: squared error / bound."""
    frame = read_rows(paths, ["kv_head", "diag"])
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
