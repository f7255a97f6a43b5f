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
    """Returns one row per (what, layer): mean, min and max over heads of each of QUANTILES."""
    frame = kcc.checked(rows, "norms.csv", list(QUANTILES), pool)
    frame = frame[frame["layer"].isin(kcc.choose(frame["layer"], layers, "--layers", kt.source_of(frame)))]
    groups = frame.groupby(["what", "layer"], sort=True)[list(QUANTILES)]
    # skipna=False: NaN must propagate.
    table = groups.agg([lambda v: v.mean(skipna=False), lambda v: v.min(skipna=False),
                        lambda v: v.max(skipna=False)])
    table.columns = [f"{quantile}_{name}" for quantile in QUANTILES
                     for name in ("mean", "least", "most")]
    return kfr.keep(table.reset_index(), frame, "head")


@kf.in_style
def draw(table):
    whats = [what for what in kcc.WHAT if what in set(table["what"])]
    figure, grid = kf.panels(1, len(whats))
    for axes, what in zip(grid.flat, whats):
        part = table[table["what"] == what]
        for i, quantile in enumerate(QUANTILES):
            style = kf.line_style(i)
            axes.fill_between(part["layer"], part[f"{quantile}_least"], part[f"{quantile}_most"],
                              color=style["color"], alpha=0.2, linewidth=0)
            axes.plot(part["layer"], part[f"{quantile}_mean"], linewidth=1.2, **style,
                      ms=3.5 if part["layer"].nunique() <= kl.MAX_PANELS else 2)
        largest = part["max_most"].max(skipna=False)
        text = "not a number" if math.isnan(largest) else f"{largest:.3g}"
        axes.set_title(f"{what}, $r$ = {text}")
        axes.set_ylim(0, 1.08 * largest if 0 < largest < math.inf else None)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.supxlabel("layer", fontsize=8)
    figure.supylabel("norm", fontsize=8)
    kf.legend_above(figure, [kf.line_handle(kf.line_style(i), text)
                             for i, text in enumerate(QUANTILES.values())])
    return figure


def measured(table):
    parts = []
    for what, part in table.groupby("what", sort=False):
        if part["max_most"].isna().any():
            parts.append(f"{what} have norms that are not numbers")
            continue
        most = part.loc[part["max_most"].idxmax()]
        parts.append(f"{what} at most {most['max_most']:.3g} (layer {most['layer']:g}), medians "
                     f"{part['p50_mean'].min():.3g} to {part['p50_mean'].max():.3g}")
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


def main():
    kk.run(norms)
