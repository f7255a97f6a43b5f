"""Figures of kvbench cluster for kvbench-study claims: coverage, growth, norms."""

import numpy as np

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench_study.claims import tables

LATE = 256  # tokens; before, most tokens open a cluster at any delta
LAYER = [*tables.UNIT, "layer"]


def read(paths, name, columns, options):
    """Reads a table of cluster as tables.grids expects it."""
    frame = tables.add_units(kcc.read_table(paths, name, columns), kcc.table_path(paths[0], name),
                             options)
    frame["good"], frame["seed"] = True, 0
    return frame


def coverage_grids(paths, options):
    """Returns {(what, k): Grid of radius_rel}."""
    frame = read(paths, "coverage.csv", ["radius_rel"], options)
    return tables.grids(frame, "radius_rel", ["what", "k"], "kv_head")


def growth_rows(paths, scale, options):
    """Returns a row per head, what and delta, for corollary B.5 of ClusterGen.

    delta_rel: delta over the radius of one centre. alpha: exponent of clusters in tokens over all
    prefixes. late: the same from LATE tokens on; NaN for fewer than two prefixes. reach: delta r /
    log n, r the largest norm of the head's queries times the softmax scale. cost: log(m e^(2 delta
    r)) / log n, exponent of the memory; NaN if m was not counted.
    """
    frame = read(paths, "growth.csv", ["alpha"], options)
    counts = kcc.read_table(paths, "delta.csv", ["clusters"])
    coverage = kcc.read_table(paths, "coverage.csv", ["radius"])
    keys = [*kcc.HEAD, "what", "delta"]
    for what in ("keys", "values"):
        if what not in set(frame["what"]):
            raise kt.CsvError(f"{kcc.table_path(paths[0], 'growth.csv')}: no rows of {what}, expected keys "
                              "and values")
    frame["delta_rel"] = kcc.relative_delta(frame, coverage)
    frame = frame.merge(late_slopes(counts, keys), on=keys, how="left")
    frame = frame.merge(query_norms(paths, frame), on=[*LAYER, "kv_head"], how="left")
    last = counts.groupby(LAYER)["n_prefix"].transform("max")
    ends = counts.loc[counts["n_prefix"] == last, [*keys, "clusters"]]
    lengths = counts.groupby(LAYER)["n_prefix"].max().rename("n").reset_index()
    frame = frame.merge(lengths, on=LAYER, how="left").merge(ends, on=keys, how="left")
    product = frame["delta"] * frame["r"] * scale
    frame["reach"] = product / np.log(frame["n"])
    frame["cost"] = (np.log(frame["clusters"]) + 2 * product) / np.log(frame["n"])
    return frame


def late_slopes(counts, keys):
    """Returns a frame of `keys` and late: least-squares slopes of log clusters on log n_prefix."""
    some = counts[counts["n_prefix"] >= LATE].copy()
    some["x"], some["y"] = np.log(some["n_prefix"]), np.log(some["clusters"])
    groups = some.groupby(keys)
    for name in ("x", "y"):
        some[name] -= groups[name].transform("mean")
    sums = some.assign(xx=some["x"]**2, xy=some["x"] * some["y"]).groupby(keys)[["xx", "xy"]].sum()
    with np.errstate(invalid="ignore"):
        late = (sums["xy"] / sums["xx"]).where(sums["xx"] > 0)
    return late.rename("late").reset_index()


def query_norms(paths, frame):
    """Returns r per layer and KV head: the largest norm of the queries of its group."""
    norms = kcc.read_table(paths, "norms.csv", ["max"])
    queries = norms[norms["what"] == "queries"].copy()
    if queries.empty:
        raise kt.CsvError(f"{kcc.table_path(paths[0], 'norms.csv')}: no rows of queries, whose norms the "
                          "theorem bounds")
    # Query heads of a group are consecutive.
    served = frame.groupby(LAYER)["kv_head"].max().rename("last").reset_index()
    queries = queries.merge(served, on=LAYER)
    heads = queries.groupby(LAYER)["head"].transform("max") + 1
    queries["kv_head"] = queries["head"] // (heads / (queries["last"] + 1))
    return queries.groupby([*LAYER, "kv_head"])["max"].max().rename("r").reset_index()


def grids_of(frame, column, what):
    """Returns {delta_rel: Grid of `column`}, ascending."""
    found = tables.grids(frame[frame["what"] == what], column, ["delta_rel"], "kv_head")
    return {delta: grid for (delta,), grid in sorted(found.items())}


def min_over_deltas(frame, column):
    """Returns a Grid of the mean over heads of the minimum of `column` over deltas; NaN for a head
    with an uncounted delta.
    """
    heads = frame.groupby(["of", "unit", "layer", "kv_head"])[column].agg(
        lambda values: values.min(skipna=False)).reset_index()
    heads["good"], heads["seed"], heads["one"] = True, 0, 0
    return tables.grids(heads, column, ["one"], "kv_head")[(0,)]


