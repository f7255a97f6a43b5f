"""Growth of the number of clusters m(delta) with the length of the stream (ClusterGen, section 2).

Rows are keys and values, columns layers, both axes logarithmic: number of clusters of radius delta
that online clustering opened over prefixes of the stream. delta is a fraction of R, the radius of
one centre (coverage.csv, k = 1), so that heads share a line. Lines are geometric means over KV
heads; the legend gives the mean over heads of alpha, the fitted exponent of m ~ n^alpha. The dotted
line of slope 1 is m = n. Theorem B.4 requires alpha < 1.

More than four layers: the curves of four evenly spaced ones, and maps of alpha by layer and delta.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl
from kvbench.plot import style as ks

MAX_COLUMNS = 4  # panels side by side
MAPS_HEIGHT = 2.1  # inches
MAX_LINES = 5  # limit of a panel's legend


def geometric_mean(values):
    return math.exp(np.log(values).mean()) if (values > 0).all() else math.nan


def load(counts, fits, coverage, layers=(), pool=False):
    """Returns (clusters by (layer, what, delta, n_prefix), alpha by (layer, what, delta), whether delta is absolute):
    it is delta / R if these agree between heads (the program's own grid).
    """
    path = kt.source_of(counts)
    counts = kcc.checked(counts, "delta.csv", ["clusters"], pool)
    fits = kcc.checked(fits, "growth.csv", ["alpha"])
    coverage = kcc.checked(coverage, "coverage.csv", ["radius"])
    chosen = kcc.choose(counts["layer"].unique(), layers, "--layers", path)
    counts, fits = (t[t["layer"].isin(chosen)].copy() for t in (counts, fits))
    ratios = kcc.relative_delta(counts, coverage)
    absolute = len(np.unique(ratios)) > counts["delta"].nunique() or np.isnan(ratios).any()
    if not absolute:
        counts["delta"] = ratios
        fits["delta"] = kcc.relative_delta(fits, coverage)
    keys = ["layer", "what", "delta"]
    table = counts.groupby([*keys, "n_prefix"], sort=True)["clusters"].agg(
        clusters=geometric_mean, heads="size").reset_index()
    # Prefixes with too many clusters are missing per head; a mean over the remaining heads would bend the line.
    largest = table.groupby(keys)["heads"].transform("max")
    if (table["heads"] < largest).any():
        kt.note("prefixes that only some heads have are left out")
    table = table[table["heads"] == largest]
    alpha = fits.groupby(keys, sort=True)["alpha"].agg(lambda v: v.mean(skipna=False))
    return kfr.keep(table, counts, "kv_head"), alpha, absolute


def shown_deltas(table, wanted):
    """Returns at most MAX_LINES of the table's deltas, or `wanted`. Raises CsvError."""
    present = sorted(table["delta"].unique())
    for value in wanted:
        if not np.isclose(present, value, rtol=1e-3).any():
            raise kt.CsvError(f"--deltas: got {value:g}, expected some of " + ", ".join(f"{v:.4g}" for v in present))
    if wanted:
        return [v for v in present if np.isclose(wanted, v, rtol=1e-3).any()]
    return kcc.spread_out(present, MAX_LINES)


def alpha_text(alpha, key):
    """Returns `0.2: α = 0.61`, `–` without a fit."""
    value = alpha.get(key, math.nan)
    return f"{key[2]:.3g}: {'–' if math.isnan(value) else f'{value:.2f}'}"


@kf.in_style
def draw(table, alpha, absolute, deltas):
    """Returns a figure with rows keys and values, a column per layer; for many layers some, and maps of alpha."""
    layers = sorted(table["layer"].unique())
    shown = kcc.spread_out(layers, MAX_COLUMNS)
    whats = [what for what in kcc.WHAT if what in set(table["what"])]
    if len(shown) == len(layers):
        figure, grid = kf.panels(len(whats), len(layers), height=2.0, sharex=True, sharey=True)
        top = figure
    else:
        figure, (top, below) = kl.blocks([2.0 * len(whats) + 0.3, MAPS_HEIGHT])
        grid = kl.block_panels(top, len(whats), len(shown), sharex=True, sharey=True)
        draw_alphas(below, alpha, layers, whats, absolute)
    ends = table["n_prefix"].min(), table["n_prefix"].max()
    for row, what in enumerate(whats):
        for column, layer in enumerate(shown):
            part = table[(table["what"] == what) & (table["layer"] == layer)]
            draw_panel(grid[row, column], part, alpha, (layer, what), deltas, ends)
    top.supxlabel("tokens of the stream $n$ (dotted: $m = n$)", fontsize=8)
    top.supylabel("clusters $m$", fontsize=8)
    of_all = "" if len(shown) == len(layers) else f"; {len(shown)} of {len(layers)} layers"
    top.suptitle(f"legends: {delta_name(absolute)}: "
                 rf"fitted $\alpha$ of $m \sim n^\alpha${of_all}", fontsize=8)
    return figure


def delta_name(absolute):
    return r"$\delta$" if absolute else r"$\delta / R$"


def draw_panel(axes, part, alpha, place, deltas, ends):
    """Draws one layer's keys or values: a line per delta."""
    for i, delta in enumerate(deltas):
        line = part[part["delta"] == delta]
        if line.empty:
            continue
        axes.plot(line["n_prefix"], line["clusters"], ms=2.5, linewidth=1.1,
                  label=alpha_text(alpha, (*place, delta)), **ks.line_style(i))
    axes.plot(ends, ends, color="0.4", linestyle=":", linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis, ticks in ((axes.xaxis, kcc.powers_of_4(*ends, max_ticks=4)), (axes.yaxis, kcc.powers_of_4(1, ends[1]))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set_xlim(ends[0] / 1.3, 1.3 * ends[1])
    axes.set_ylim(0.8, 1.6 * ends[1])
    # m <= n leaves the upper left free.
    axes.legend(loc="upper left", frameon=False, handlelength=1.6,
                fontsize=kf.SMALL_FONT_SIZE, handletextpad=0.4,
                borderaxespad=0.1, labelspacing=0.15, borderpad=0.1)
    axes.set_title(f"{place[1]}, layer {int(place[0])}")


def draw_alphas(block, alpha, layers, whats, absolute):
    """Draws maps of layer against delta for keys and values, from 0 to 1."""
    fits = alpha.rename("mean").reset_index()
    deltas = sorted(fits["delta"].unique())
    maps = {what: kl.cell_matrix(fits[fits["what"] == what], "delta", layers, deltas) for what in whats}
    kl.draw_maps(block, kl.block_panels(block, 1, len(whats), sharex=True, sharey=True), maps,
                 layers, deltas, (Normalize(0, 1), "neither"), r"fitted $\alpha$",
                 tick="{:.3g}".format)
    block.supxlabel(delta_name(absolute) + ", every layer", fontsize=8)
    block.supylabel("layer", fontsize=8)


def measured(alpha, absolute):
    parts = []
    for what, own in alpha.groupby("what", sort=False):
        means = own.groupby("delta").mean()
        parts.append(f"{what} " + ", ".join(f"{v:.2f} at {d:.3g}" for d, v in means.items()))
    name = "delta" if absolute else "delta / R"
    return f"Measured, fitted alpha by {name}, mean over layers: " + "; ".join(parts) + "."


def read(paths, **_):
    """Returns the tables delta.csv, growth.csv and coverage.csv of folders of `kvbench cluster`."""
    for path in paths:
        if not os.path.isdir(path):
            raise kt.CsvError(f"{path}: no such folder; expected one that kvbench cluster wrote")
    return tuple(kcc.read_table(paths, name, [column]) for name, column in (
        ("delta.csv", "clusters"), ("growth.csv", "alpha"), ("coverage.csv", "radius")))


@kk.kind(read, "DIR", "folders of kvbench cluster: delta.csv, growth.csv, coverage.csv")
def growth(counts: pd.DataFrame, fits: pd.DataFrame, coverage: pd.DataFrame, *, layers: Sequence[int] = (),
           deltas: Sequence[float] = (), pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns the growth of the number of clusters with the stream.

    counts, fits, coverage: delta.csv, growth.csv and coverage.csv of `kvbench cluster`. Raises CsvError.
    """
    table, alpha, absolute = load(counts, fits, coverage, layers, pool)
    picture = draw(table, alpha, absolute, shown_deltas(table, deltas))
    return kfr.finish(picture, table.attrs["facts"], "Lines: geometric means over KV heads; "
                      "dotted: a cluster per token.", measured(alpha, absolute), title, model)
