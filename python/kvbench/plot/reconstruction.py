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
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import guest as kg
from kvbench.plot import style as ks

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
    """Adds load, k, v (error over mean square) and bound (pi a/N); drops empty sketches. The mean
    square is bound N / (pi a).
    """
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


def load(paths, x="vague_ratio", budgets=(), layers=(), pool=False):
    """Returns one row per point and part (k, v): label, budget_requested, x, mean, sd, bound."""
    frame = kt.read_results(paths, [*kt.HEAD_COLUMNS, "kv_head", "seed", "budget_requested",
                                    "diag"])
    frame = kt.pick_numbers(frame, "budget_requested", budgets, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    frame = relative(diagnostics(kt.measured_rows(frame, paths[0], pool), paths[0]))
    frame = frame.drop_duplicates(["trace", "prompt", "layer", "kv_head", "seed", "algorithm",
                                   "params", "budget_requested", "diag"])
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no row has tokens in its sketch")
    params = [kt.parse_params(text) for text in frame["params"]]
    frame["vague_ratio"] = [float(p.get("vague_ratio", "nan")) for p in params]
    if x != "load":
        uneven = np.array([p.get("candidate_ratio") != p.get("recent_ratio") for p in params])
        if uneven.any() and not uneven.all():
            kt.note("rows whose candidate_ratio and recent_ratio differ are left out")
            frame = frame[~uneven].copy()
    shares = ["candidate_ratio", "recent_ratio"]
    kt.add_labels(frame, ignore=[*shares, "vague_ratio"])
    # Shares stay separate points of one line.
    keys = ["label", "params", "budget_requested"]
    frame = kt.full_points(frame, keys, paths[0])
    groups = frame.groupby(keys, dropna=False, sort=False)
    tables = []
    for part in PARTS:
        table = kt.mean_and_sd(frame, keys, part)
        table["part"] = part
        for name in ("vague_ratio", "load", "bound"):
            table[name] = groups[name].mean().to_numpy()
        tables.append(table)
    out = kt.pd.concat(tables, ignore_index=True)
    out["x"] = out["budget_requested" if x == "budget" else x]
    if out["x"].isna().all():
        raise kt.CsvError(f"{paths[0]}: no row has a {x} to put on the x axis")
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


def draw_panel(axes, part, styles, x):
    for label, style in styles.items():
        points = part[part["label"] == label].sort_values("x")
        if x == "load":
            style = {**style, "linestyle": "none", "ms": 3}
        kf.plot_line(axes, points["x"], points["mean"], points["sd"], style)
    if not part.empty:
        draw_bound(axes, part, x)
    axes.axhline(1.0, color="0.6", linewidth=0.7, zorder=1)
    axes.set_yscale("log")
    if x == "load":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    else:
        axes.set_xlim(left=0)


@kf.in_style
def draw(table, x="vague_ratio", highlight=()):
    """Returns a figure with keys above, values below; columns are budgets, or vague ratios if x is budget."""
    facet = FACETS[x]
    columns = [None] if facet is None else sorted(table[facet].unique(), reverse=True)
    styles = ks.styles(table["label"], highlight)
    figure, grid = kf.panels(2, len(columns), sharex=True, sharey="row", height=1.7)
    for column, value in enumerate(columns):
        part = table
        if facet is not None:
            native = math.isnan(value)
            part = part[part[facet].isna() if native else part[facet] == value]
            name = facet.replace("budget_requested", "budget").replace("_", " ")
            grid[0, column].set_title("native size" if native else f"{name} {value:g}")
        for row, name in enumerate(PARTS):
            draw_panel(grid[row, column], part[part["part"] == name], styles, x)
    for row, name in enumerate(PARTS.values()):
        grid[row, 0].set_ylabel(f"{name}: MSE / mean square", fontsize=7)
    figure.supxlabel(X_LABELS[x], fontsize=kf.FONT_SIZE)
    handles = []
    for label, style in styles.items():
        handles.append(kf.line_handle({**style, "linestyle": "none"} if x == "load" else style,
                                      label))
    handles.append(Line2D([], [], color="0.3", linestyle="--", linewidth=1, label="bound"))
    kf.legend_above(figure, handles)
    return figure


def measured(table):
    """Means over all points of a line, keys and values."""
    means = table.groupby(["label", "part"], sort=False)["mean"].mean()
    parts = [f"{label} {means[label, 'k']:.3g} of keys, {means[label, 'v']:.3g} of values"
             for label in dict.fromkeys(table["label"])]
    return "Measured, squared error over mean square, mean of the points: " + "; ".join(parts) + "."


@kg.public
def figure(tables: list[str], *, x: str = "vague_ratio", budgets: Sequence[float] = (),
           layers: Sequence[int] = (), highlight: kg.Names = (), pool: bool = False, title: str = "",
           model: str = "") -> kf.Picture:
    """Returns the figure of rows of kvreviver; arguments are the program's options. Raises
    CsvError, and ValueError for an unknown `x`.
    """
    kg.check_choice("x", x, X_LABELS)
    names = kg.name_list(highlight)
    table = load(tables, x, budgets, layers, pool)
    ks.check_highlight(table["label"], names, tables[0])
    facet = FACETS[x]
    count = 1 if facet is None else table[facet].nunique(dropna=False)
    if count > MAX_COLUMNS:
        raise kt.CsvError(f"{tables[0]}: column `{facet}`: got {count} values, expected at most "
                          f"{MAX_COLUMNS} panels beside each other")
    return kfr.finish(draw(table, x, names), table.attrs["facts"],
                      "Mean over layers and KV heads" + kfr.where_spread(
                          table, "; bars: standard deviation over seeds")
                      + "; dashed: the paper's bound.", measured(table), title, model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(__doc__, take=("--layers", "--highlight", "--pool"))
    parser.add_argument("--x", choices=list(X_LABELS), default="vague_ratio",
                        help="default: vague_ratio")
    parser.add_argument("--budgets", type=command.number_list, metavar="RHO,...", default=[],
                        help="only these; default: all")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
