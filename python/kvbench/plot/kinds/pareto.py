"""Error against memory, with the Pareto front.

A point per algorithm, parameters and budget; a line joins the sizes of one variant. x: bytes held
over full bytes of the middle (`middle_ratio`) or of the whole cache with sinks and recent tokens
(`ratio`), bytes per KV head, the requested budget, or (rows of the retrieval protocol) bytes read
over full bytes of the middle (`read_ratio`); y: an error. Both axes are logarithmic. Mean
over prompts, layers and heads per seed, then over seeds; bars: standard deviation over seeds (n -
1; none for one seed), with `--spread all` over all rows.

At most ten lines: the methods on the front, the references (oracles), and those with the smallest
error at the smallest budget; --all draws all, --algorithm the named ones. The front is that of the
whole table, or of --algorithm.

Methods are compared at equal requested budget: the Pareto front (thick grey) joins the points that
no other beats in error at the same budget or a smaller one, within half a per cent. Sizes fixed by
a method's parameters count as the share of the middle that they hold. A point needs another method
at its size or a smaller one: fewest bytes alone is not enough. A method with a point on the front
is bold. Points that hold less than 95 % of their budget are hollow and not joined.

Methods that see the evaluated queries (`oracle`, also as a part) and those that find tokens without
reading an index (`topk`, `topp`) are dashed and excluded from the front. `oracle-matching`, if
present, is the floor: the smallest known error for the bytes, dotted, with grey below. Errors below
1e-6 (an exact cache) are rounding and off the axis; points that hold no bytes are left of a break of
the axis, over a 0. Lines are labelled at their right ends. Points that are infeasible in some heads
are skipped.

Also reads a summary of rows (`kvbench summarize OUT.csv --metric rel_error,middle_ratio --format
csv`), whose bars are those of --spread all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl
from kvbench.plot import names as kn
from kvbench.plot import style as ks
from kvbench.plot import summary
from kvbench.plot import zero_axis as kz

X_LABELS = {
    "middle_ratio": "bytes held / bytes of the full middle",
    "ratio": "bytes held / bytes of the full cache",
    "bytes": "bytes held per KV head",
    "budget_requested": "requested budget (fraction of the middle)",
    "read_ratio": "bytes read / bytes of the full middle",
}
SPREAD = ("seeds", "all")
BOLD = ("Bold (grey steps, the Pareto front): no other method has a smaller error at the same requested budget or "
        "a smaller one; dashed: sees the evaluated queries, not compared.")
FREE = "dashed: sees the evaluated queries"
FREE_READS = "dashed: finds tokens without an index"
# Fitted to the evaluated queries: the smallest known error for the bytes.
FLOOR = "oracle-matching"
ORACLES = ("oracle", FLOOR, "topk", "topp")
# A budget buys whole tokens, blocks or groups: bytes of methods differ by at most this share.
SAME_MEMORY = 1.005
# A method may leave some bytes of its budget (whole tokens, rows of a sketch); a smaller share is another size.
USED = 0.95
APART = "Hollow, not joined: holds less than 95 % of its budget. "


def sees_evaluated(algorithm, params):
    """Returns whether some part is one of ORACLES."""
    named = kt.parse_params(params).values()
    return any(name in ORACLES for name in [*re.split("[+@]", algorithm), *named])


def load(rows, x="middle_ratio", y="rel_error", spread="seeds", algorithms=(), layers=(), relative_to="", pool=False):
    """Returns one row per point: label, algorithm, params, budget_requested, size, x, error, mean, sd, front, apart.

    size: basis of comparison: the requested budget, or the middle_ratio of native sizes. error: the mean; `mean` and
    sd are divided by that of `relative_to`. front: in pareto_front; apart: holds less than USED of its budget.
    """
    path = kt.source_of(rows)
    if summary.is_summary(rows):
        table = summary.points(rows, x, y, spread, algorithms, layers, pool)
    else:
        table = points_of_rows(rows, x, y, spread, algorithms, layers, pool)
    attrs, held = table.attrs, table["held"]
    # Rounded, so that sizes equal in a table are equal here.
    table["size"] = table["budget_requested"].fillna(held).round(9)
    table["apart"] = held < USED * table["budget_requested"]
    table["error"] = table["mean"]
    table = kfr.relative(kt.finite_points(table), relative_to, ["size"], path)
    table.attrs = attrs
    kfr.above_rounding(table, y)
    kt.note_each(table[table["x"].isna()], f"{{}} has points without {x}; they are not drawn")
    if drawn_points(table).empty:
        raise kt.CsvError(f"{path}: no point has both a {x} and an error above {kt.ROUNDING_ERROR:g}")
    table["front"] = table.index.isin(pareto_front(table).index)
    return table


def points_of_rows(rows, x, y, spread, algorithms, layers, pool):
    """Returns a row per point: label, algorithm, params, budget_requested, mean, sd, x, held."""
    basis = "read_ratio" if x == "read_ratio" else "middle_ratio"
    frame = kfr.measured_rows(rows, [basis, x, y], algorithms, layers, pool)
    basis = "ratio" if kt.of_whole_cache(frame) else basis
    kt.add_labels(frame, ignore=summary.READ_SIZES if x == "read_ratio" else summary.SIZE_PARAMETERS)
    keys = ["label", "algorithm", "params", "budget_requested"]
    return kfr.keep(kfr.points(frame, keys, y, spread, x=x, held=basis), frame)


def pareto_front(table):
    """Returns points with a smaller error than all others of the same size or less, by ascending size.

    Sizes within SAME_MEMORY are equal; the first of equal points is kept. A point needs another line at its size or a
    smaller one.
    """
    oracles = [sees_evaluated(*pair) for pair in zip(table["algorithm"], table["params"])]
    points = table[~np.array(oracles, bool)].sort_values(["error", "size"], kind="stable")
    front = []
    for at, size in enumerate(points["size"]):
        others = points.iloc[:at]  # smaller errors, or equal ones of no larger size
        if (others["size"] <= size * SAME_MEMORY).any():
            continue
        beside = points.loc[points["size"] <= size * SAME_MEMORY, "label"]
        if (beside != points["label"].iloc[at]).any():
            front.append(at)
    return points.iloc[front].sort_values("size")


def drawn_points(table):
    return table[(table["mean"] >= kt.ROUNDING_ERROR) & (table["x"] >= 0)]


def draw_front(axes, front):
    """Draws the staircase through the front to the right edge."""
    front = front[front["x"] > 0].sort_values("x")
    if front.empty:
        return
    xs = [*front["x"], max(front["x"].max(), axes.get_xlim()[1])]
    means = [*front["mean"], front["mean"].iloc[-1]]
    axes.plot(xs, means, drawstyle="steps-post", color="0.8", linewidth=5, zorder=1,
              solid_capstyle="butt", label="Pareto front")


def set_x_axis(axes, x, zero=None, least=0.0):
    """Sets powers of two, or decimals if fewer than two are in view. zero, least: of zero.zero_place."""
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_xlim()
    low, high = np.log2([max(low, least or low), high])
    sparse = np.floor(high) - np.ceil(low) < 1
    if sparse:
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=np.arange(1, 10), numticks=20))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    if x == "bytes":
        axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1, 1.5), numticks=12))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1024:g} Ki"))
    elif sparse:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"1/{1 / v:g}" if v < 1 else f"{v:g}"))
    if zero is not None:
        kz.break_axis(axes, zero, least)


def draw_method(axes, points, zero, style, on_front):
    """Draws one line, dots at x = 0 and hollow dots of points apart; returns its right end."""
    look = {"linewidth": 1.4 if on_front else 0.8, "ms": 4 if on_front else 2.8,
            "alpha": 1.0 if on_front else 0.75, "zorder": style["zorder"] + on_front}
    label = points["label"].iloc[0]
    for part, more in ((points[~points["apart"]], {}),
                       (points[points["apart"]], {"linestyle": "none", "markerfacecolor": "white", "ms": 5.5})):
        if len(part):
            kf.plot_line(axes, part["x"].replace(0.0, zero or 0.0), part["mean"], part["sd"], {**style, **look, **more},
                         label=label)
            label = "_"
    last = points.iloc[-1]
    return (last["x"] or zero, last["mean"])


@kf.in_style
def draw(table, x="middle_ratio", y="rel_error", highlight=(), relative_to=""):
    """Returns a figure with one panel at page width, as high as its labels need."""
    shown = drawn_points(table)
    labels = list(dict.fromkeys(shown["label"]))
    height = min(max(3.6, kn.height_for(len(labels))), kf.BODY_HEIGHT)
    figure, grid = kf.panels(1, 1, width=kf.PAGE_WIDTH, height=height)
    axes = grid[0, 0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    front = shown[shown["front"]].sort_values("size")
    bold = set(front["label"])
    styles = ks.styles(labels, highlight)
    low, high = shown["mean"].min(), shown["mean"].max()
    zero, least = kz.zero_place(shown["x"])
    ends = {}
    for label in labels:
        points = shown[shown["label"] == label].sort_values("x")
        if sees_evaluated(points["algorithm"].iloc[0], points["params"].iloc[0]):
            styles[label]["linestyle"] = "--"
        if label == FLOOR:
            styles[label]["linestyle"] = ":"
            beaten = low < points["mean"].min()
            draw_floor(axes, points[points["x"] > 0], low / 1.3, f"below {FLOOR}" if beaten else "least error known")
        end = draw_method(axes, points, zero, styles[label], label in bold)
        if (points["x"] > 0).any():
            ends[label] = end
        else:  # a leader from there would cross the panel
            axes.annotate(label, end, xytext=(6, 0), textcoords="offset points", va="center",
                          color=kn.ink(styles[label]["color"]), fontsize=kf.SMALL_FONT_SIZE)
    axes.set_ylim(low / 1.3, high * 1.3)  # bars may exceed: a mean minus its sd can be below zero
    axes.set_xlim((zero or shown["x"].min()) / 1.1, max(shown["x"].max(), least or 0) * 1.1)
    if not relative_to:  # a step is meaningless for relative errors
        draw_front(axes, front)
    set_x_axis(axes, x, zero, least)
    kl.plain_log(axes.yaxis)
    axes.set_xlabel(X_LABELS[x])
    axes.set_ylabel(kfr.y_label(y, relative_to))
    figure.canvas.draw()  # labels need the final layout
    kn.name_lines(axes, ends, styles, bold, ks.emphasis(labels, highlight)[1])
    return figure


def draw_floor(axes, points, bottom, text):
    """Shades the area below the smallest known errors."""
    if points.empty:
        return
    axes.fill_between(points["x"], points["mean"], bottom, color="0.93", zorder=0, linewidth=0)
    if len(points) > 1:  # one point has no area
        axes.annotate(text, (points["x"].iloc[0], 0.03), color="0.35",
                      xycoords=("data", "axes fraction"), xytext=(6, 0),
                      textcoords="offset points", fontsize=kf.SMALL_FONT_SIZE)


def measured(table, y="rel_error"):
    front = table[table["front"]].sort_values("size")
    front = front[front["error"] >= kt.ROUNDING_ERROR]
    points = [f"{label} {mean:.3g} at {size:.3g}" for label, mean, size in
              zip(front["label"], front["error"], front["size"])]
    return f"Measured, {y} and budget of the front: " + (", ".join(points) or "none") + "."


def read(paths, **_):
    """Returns the rows of OUT.csv files, or the lines of a summary."""
    return (summary.read(paths) if summary.is_summary_file(paths[0]) else kk.read_rows(paths)[0],)


@kk.kind(read, y=kt.ERROR_LABELS, x=[*X_LABELS, "budget"], spread=SPREAD)
def pareto(rows: pd.DataFrame, *, x: str = "middle_ratio", y: str = "rel_error", spread: str = "seeds",
           algorithm: kk.Names = (), all: bool = False, layers: Sequence[int] = (), highlight: kk.Names = (),
           relative_to: str = "", pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns error against memory with the Pareto front.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows, middle_ratio, `x` and `y`; or of
    a summary. Raises CsvError.
    """
    x = {"budget": "budget_requested"}.get(x, x)
    table = load(rows, x, y, spread, algorithm, layers, relative_to, pool)
    drawn, chosen = kc.pick(drawn_points(table), "size", (all, algorithm, highlight), what=y,
                            first=table.loc[table["front"], "label"])
    over = "all rows" if spread == "all" else "seeds"
    bold = BOLD.replace(" (grey steps, the Pareto front)", "") if relative_to else BOLD
    bold = bold.replace(FREE, FREE_READS) if x == "read_ratio" else bold
    bars = kfr.where_spread(drawn, f"; bars: standard deviation over {over}")
    apart = APART if drawn["apart"].any() else ""
    return kfr.finish(draw(drawn, x, y, highlight, relative_to), table.attrs["facts"],
                      f"Mean over layers and heads{bars}. {chosen}{apart}{bold}",
                      measured(table, y), title, model)
