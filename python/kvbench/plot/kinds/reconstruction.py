"""KVReviver's reconstruction error: sum against mean estimate, with the paper's variance bound.

From the diagnostics of `kvreviver` rows (configs/kvreviver_ratio.toml): mean squared error per
element of the rebuilt keys and values, over the mean square of the same elements (1: no better than
zeros), against

  vague_ratio  share of the bytes in the sketch (the paper's table 2), one column per budget; budget
  share of the middle's bytes, one column per vague_ratio;
  load         tokens in the sketch per cell, a/N: one curve in theory.

The dashed line is the paper's bound, pi a/N times the variance (normal elements of mean 0,
`rows=3`, estimate=sum). Along x = vague_ratio or budget it is that of estimate=sum; the mean's
counts take memory from its cells, which raises a/N a little. Keys enter the sketch without signs,
so a common offset accumulates; values have signs.

One value per KV head, since query heads of a group repeat it. Mean over prompts, layers and KV
heads per seed, then over seeds; bars: standard deviation over seeds (n - 1; none for one seed).
Rows whose candidate_ratio and recent_ratio differ (the paper's table 3) enter x = load only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

X_LABELS = {
    "vague_ratio": "bytes in the sketch / bytes of the cache",
    "budget": "budget (fraction of the middle)",
    "load": "tokens in the sketch per cell, $a/N$",
}
FACETS = {"vague_ratio": "budget_requested", "budget": "vague_ratio", "load": None}
MAX_COLUMNS = 6
PARTS = {"k": "keys", "v": "values"}
DIAGNOSTICS = ["vague", "cells", "k_error", "k_bound", "v_error", "v_bound"]


def diagnostics(frame, path):
    """Adds DIAGNOSTICS as columns; drops rows without them."""
    parsed = [kt.parse_params(text) for text in frame["diag"]]
    has = [all(name in diag for name in DIAGNOSTICS) for diag in parsed]
    if not any(has):
        raise kt.CsvError(f"{path}: column `diag`: no row has k_error, k_bound, v_error and "
                          "v_bound, expected rows of kvreviver")
    frame = frame[has].copy()
    parsed = [diag for diag, keep in zip(parsed, has) if keep]
    for name in DIAGNOSTICS:
        try:
            frame[name] = [float(diag[name]) for diag in parsed]
        except ValueError:
            raise kt.CsvError(f"{path}: column `diag`: {name} is no number") from None
    return frame


def relative(frame):
    """Adds load, k, v (error over mean square, bound N / (pi a)) and bound (pi a/N); drops empty sketches."""
    filled = (frame["vague"] > 0) & (frame["cells"] > 0)
    if not filled.all():
        kt.note(f"{int((~filled).sum())} rows with an empty sketch are left out")
    frame = frame[filled].copy()
    frame["load"] = frame["vague"] / frame["cells"]
    frame["bound"] = math.pi * frame["load"]
    for part in PARTS:
        square = frame[f"{part}_bound"] / frame["bound"]
        frame[part] = (frame[f"{part}_error"] / square).where(square > 0)
    return frame


def load(rows, x="vague_ratio", budgets=(), layers=(), pool=False, algorithms=()):
    """Returns one row per point and part (k, v): label, budget_requested, x, mean, sd, bound."""
    frame = kfr.measured_rows(rows, ["kv_head", "diag"], algorithms, layers, pool)
    path = kt.source_of(frame)
    frame = kt.pick_numbers(frame, "budget_requested", budgets, path)
    frame = relative(diagnostics(frame, path))
    frame = frame.drop_duplicates(["trace", "prompt", "layer", "kv_head", "seed", "algorithm",
                                   "params", "budget_requested", "diag"])
    if frame.empty:
        raise kt.CsvError(f"{path}: no row has tokens in its sketch")
    params = [kt.parse_params(text) for text in frame["params"]]
    frame["vague_ratio"] = [float(p.get("vague_ratio", "nan")) for p in params]
    if x != "load":
        uneven = np.array([p.get("candidate_ratio") != p.get("recent_ratio") for p in params])
        if uneven.any() and not uneven.all():
            kt.note("rows whose candidate_ratio and recent_ratio differ are left out")
            frame = frame[~uneven].copy()
    kt.add_labels(frame, ignore=["candidate_ratio", "recent_ratio", "vague_ratio"])
    # Shares stay separate points of one line.
    keys = ["label", "params", "budget_requested"]
    out = kt.pd.concat([kfr.points(frame, keys, part, vague_ratio="vague_ratio", load="load", bound="bound")
                        .assign(part=part) for part in PARTS], ignore_index=True)
    out["x"] = out["budget_requested" if x == "budget" else x]
    if out["x"].isna().all():
        raise kt.CsvError(f"{path}: no row has a {x} to put on the x axis")
    return kfr.keep(kt.finite_points(out[out["x"].notna()]), frame, "kv_head")


def draw_bound(axes, part, x):
    """Draws pi a/N for one variant, preferably of estimate=sum."""
    style = {"color": "0.3", "linestyle": "--", "linewidth": 1}
    if x == "load":
        loads = np.array([part["x"].min(), part["x"].max()])
        axes.plot(loads, math.pi * loads, **style)
        return
    of_sum = part[["estimate=sum" in params for params in part["params"]]]
    points = of_sum if not of_sum.empty else part
    points = points[points["label"] == points["label"].iloc[0]].sort_values("x")
    axes.plot(points["x"], points["bound"], **style)


@kf.in_style
def draw(table, x="vague_ratio", highlight=()):
    """Returns a figure with keys above, values below; columns are budgets, or vague ratios if x is budget."""
    def prepare(axes, rows):
        if not rows.empty:
            draw_bound(axes, rows, x)
        axes.axhline(1.0, color="0.6", linewidth=0.7, zorder=1)
        axes.set_yscale("log")
        if x == "load":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        else:
            axes.set_xlim(left=0)

    facet = FACETS[x]
    table = table.assign(layer=kl.ALL if facet is None else table[facet])
    parts = [kl.Part(table[table["part"] == part], f"{name}: MSE /\nmean square", prepare=prepare)
             for part, name in PARTS.items()]
    return kl.sweep(parts, X_LABELS[x], highlight=highlight, height=1.7, columns=MAX_COLUMNS, maps=False,
                    stacked=True, falling=True, dots=x == "load", sharey="row", grey=[("bound", "--")],
                    name=(facet or "").replace("budget_requested", "budget").replace("_", " "))


def measured(table):
    """Means over all points of a line, keys and values."""
    means = table.groupby(["label", "part"], sort=False)["mean"].mean()
    parts = [f"{label} {means[label, 'k']:.3g} of keys, {means[label, 'v']:.3g} of values"
             for label in dict.fromkeys(table["label"])]
    return "Measured, squared error over mean square, mean of the points: " + "; ".join(parts) + "."


@kk.kind(x=X_LABELS)
def reconstruction(rows: pd.DataFrame, *, x: str = "vague_ratio", algorithm: kk.Names = (), all: bool = False,
                   budget: Sequence[float] = (), layers: Sequence[int] = (), highlight: kk.Names = (),
                   pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns the reconstruction error of kvreviver's sketch: keys above, values below.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows, kv_head and diag. Raises
    CsvError, also if no row has kvreviver's diagnostics.
    """
    whole = load(rows, x, budget, layers, pool, algorithm)
    table, chosen = kc.pick(whole, "budget_requested", (all, algorithm, highlight), what="error")
    facet = FACETS[x]
    count = 1 if facet is None else table[facet].nunique(dropna=False)
    if count > MAX_COLUMNS:
        raise kt.CsvError(f"{kt.source_of(rows)}: column `{facet}`: got {count} values, expected at most "
                          f"{MAX_COLUMNS} panels beside each other")
    return kfr.finish(draw(table, x, highlight), whole.attrs["facts"],
                      chosen + "Mean over layers and KV heads" + kfr.where_spread(
                          table, "; bars: standard deviation over seeds")
                      + "; dashed: the paper's bound.", measured(whole), title, model)
