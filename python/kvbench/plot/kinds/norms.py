"""Norms of queries, keys and values over the layers (ClusterGen, appendix C.1).

One panel each for queries, keys and values; x is the layer, y the Euclidean norm. Lines are the
median, 95th percentile and maximum of a head's tokens, as means over heads (of all prompts and
traces); bands reach from the smallest to the largest head. The title gives r, the largest norm:
ClusterGen's theorem B.4 assumes queries within a small constant r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.ticker import MaxNLocator

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

QUANTILES = {"max": "largest", "p95": "95th percentile", "p50": "median"}


def load(rows, layers=(), pool=False):
    """Returns one row per (what, layer, label of QUANTILES): mean, low and high over heads."""
    frame = kcc.checked(rows, "norms.csv", list(QUANTILES), pool)
    frame = frame[frame["layer"].isin(kcc.choose(frame["layer"], layers, "--layers", kt.source_of(frame)))]
    groups = frame.groupby(["what", "layer"], sort=True)
    # skipna=False: NaN must propagate.
    tables = [groups[quantile].agg(mean=lambda v: v.mean(skipna=False), low=lambda v: v.min(skipna=False),
                                   high=lambda v: v.max(skipna=False)).reset_index().assign(label=label)
              for quantile, label in QUANTILES.items()]
    return kfr.keep(kt.pd.concat(tables, ignore_index=True), frame, "head")


def largest_of(rows):
    """Returns r, the largest norm; NaN if one is not a number."""
    return rows.loc[rows["label"] == QUANTILES["max"], "high"].max(skipna=False)


@kf.in_style
def draw(table):
    """Returns a figure with a panel each for queries, keys and values."""
    def prepare(axes, rows):
        largest = largest_of(rows)
        axes.set_ylim(0, 1.08 * largest if 0 < largest < math.inf else None)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

    parts = []
    for what in kcc.WHAT:
        rows = table[table["what"] == what]
        if len(rows):
            text = "not a number" if math.isnan(largest_of(rows)) else f"{largest_of(rows):.3g}"
            parts.append(kl.Part(rows.assign(x=rows["layer"], layer=kl.ALL), "norm", f"{what}, $r$ = {text}",
                                 prepare=prepare))
    return kl.sweep(parts, "layer", band=True)


def measured(table):
    parts = []
    for what, part in table.groupby("what", sort=False):
        if math.isnan(largest_of(part)):
            parts.append(f"{what} have norms that are not numbers")
            continue
        most = part.loc[part["high"].idxmax()]
        medians = part.loc[part["label"] == QUANTILES["p50"], "mean"]
        parts.append(f"{what} at most {most['high']:.3g} (layer {most['layer']:g}), medians "
                     f"{medians.min():.3g} to {medians.max():.3g}")
    return "Measured, norms: " + "; ".join(parts) + "."


def read(paths, **_):
    return (kcc.read_table(paths, "norms.csv", list(QUANTILES)),)


@kk.kind(read, "DIR|norms.csv", "output of kvbench cluster")
def norms(rows: pd.DataFrame, *, layers: Sequence[int] = (), pool: bool = False, title: str = "",
          model: str = "") -> kf.Picture:
    """Returns norms of queries, keys and values over the layers.

    rows: norms.csv of `kvbench cluster` (trace, prompt, layer, head, what, p50, p95, max). Raises CsvError.
    """
    table = load(rows, layers, pool)
    return kfr.finish(draw(table), table.attrs["facts"], "Lines: means over heads; bands: from "
                      "the least to the largest head.", measured(table), title, model)
