"""Maps of plot.bits: tokens against bits at equal bytes, and keys' bits against values' bits, with
errors in the cells.
"""

import math

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import layers as kl
from kvbench.plot.kinds import bits_rows as kb
from kvbench.plot.kinds import heatmap

CELL = 0.44  # inches across, fits 0.00012
MARGIN = 0.62  # inches of a panel beside its cells: ticks, names of budgets
TITLE = 0.3  # inches
PANEL_HEIGHT = 2.2
REACH = 0.5  # a cell ends half way to the next, or at a factor of the square root of 2
LINE = 1.3 * kf.SMALL_FONT_SIZE / 72  # inches between numbers of a column
ALL = 0.5  # start of the row of all tokens, above log2 of the largest share
COLOURS = "viridis"


def number(value):
    return f"{value:.2g}"


def ink_on(rgba):
    """Returns black or white, whichever is readable on the colour."""
    return "black" if np.dot(rgba[:3], (0.2126, 0.7152, 0.0722)) > 0.45 else "white"


def write(axes, x, y, value, norm, colours):
    """Writes the number of a cell, with an outline."""
    rgba = colours(norm(value))
    text = axes.text(x, y, number(value), ha="center", va="center", color=ink_on(rgba),
                     fontsize=kf.SMALL_FONT_SIZE, zorder=5)
    text.set_path_effects([effects.withStroke(linewidth=2.5, foreground=rgba)])


def layout(count, columns, height, path):
    """Returns (figure, grid, width of a row) of `count` panels with so many columns of cells each."""
    room = kf.PAGE_WIDTH - 0.9  # without the colour bar and the axis label
    ncols = max(1, min(count, int(room / (columns * CELL + MARGIN))))
    nrows = math.ceil(count / ncols)
    most = int((kf.BODY_HEIGHT - 0.3) / height)
    if nrows > most:
        raise kt.CsvError(f"{path}: got {count} maps, expected at most {most * ncols} for one page; "
                          "choose fewer with --algorithm")
    wide = 0.9 + ncols * (columns * CELL + MARGIN)
    width = kf.COLUMN_WIDTH if wide <= kf.COLUMN_WIDTH else kf.PAGE_WIDTH
    figure, grid = kf.panels(nrows, ncols, width=width, height=height, sharex=True, sharey=True)
    kl.hide_others(grid, [divmod(i, ncols) for i in range(count)])
    return figure, grid


# ---------------------------------------------------------------------------- tokens and bits


def load_map(rows, y="rel_error", algorithms=(), layers=(), pool=False):
    """Returns one row per cell: panel, k, v, share, budget_requested, mean, apart; the best of several points. A panel
    has the points of method@quantizer, of the plain method, and of all tokens by the quantizer.
    """
    table = kb.points(*kb.read(rows, y, algorithms, layers, pool), y)
    attrs = table.attrs
    table = table[table["share"] > 0]
    stored = table[(table["method"] != "") & (table["quantizer"] != "")]
    if stored.empty:
        raise kt.CsvError(f"{kt.source_of(rows)}: no point of A@Q keeps tokens; --kind map needs some, such "
                          "as h2o@quant-kivi")
    panels = []
    for method, quantizer in dict.fromkeys(zip(stored["method"], stored["quantizer"])):
        part = table[((table["method"] == method) & table["quantizer"].isin(["", quantizer]))
                     | (table["whole"] & (table["quantizer"] == quantizer))]
        panels.append(one_of_a_place(part).assign(panel=f"{method} @ {quantizer}"))
    out = kt.pd.concat(panels, ignore_index=True)
    out.attrs = attrs
    return out


def one_of_a_place(points):
    """Keeps the best of the points with the same bits and share of tokens."""
    keep, seen = [], []
    for i, point in points.sort_values("mean", kind="stable").iterrows():
        place = (point["whole"], point["k"], point["v"], point["share"])
        if not any(place[:3] == other[:3] and
                   1 / kb.SAME_SHARE < place[3] / other[3] < kb.SAME_SHARE for other in seen):
            seen.append(place)
            keep.append(i)
    return points.loc[keep]


def columns_of(table):
    """Returns the pairs of bits, ascending."""
    return sorted(set(zip(table["k"], table["v"])), key=lambda kv: (sum(kv), kv))


def placed(table):
    """Adds `y`, log2 of a cell's share, moved apart where numbers would overlap; all tokens have a row above."""
    logs = np.log2(table["share"].where(~table["whole"]))
    inches = PANEL_HEIGHT - TITLE - 0.1
    gap = LINE / inches * (logs.max() - logs.min() + 2 * REACH + 1)
    table = table.assign(y=logs)
    for _, part in table[~table["whole"]].groupby(["panel", "k", "v"]):
        table.loc[part.index, "y"] = kf.spread_out(part["y"].to_numpy(), gap)
    top = table["y"].max() + REACH
    table.attrs["top"] = top
    return table.assign(y=table["y"].fillna(top + ALL))


def edges(places, reach=REACH):
    """Returns [(lower, upper)] of the cells at ascending `places`."""
    places = np.asarray(places, float)
    middle = (places[1:] + places[:-1]) / 2
    low = np.maximum(places - reach, np.concatenate([[-np.inf], middle]))
    high = np.minimum(places + reach, np.concatenate([middle, [np.inf]]))
    return list(zip(low, high))


@kf.in_style
def draw_map(table, y="rel_error", path=""):
    columns = columns_of(table)
    titles = list(dict.fromkeys(table["panel"]))
    figure, grid = layout(len(titles), len(columns), PANEL_HEIGHT, path)
    norm, extend = kl.colour_scale(table["mean"], log=True)
    image = ScalarMappable(norm, COLOURS)
    table = placed(table)
    top = table.attrs["top"]
    rows = np.arange(math.ceil(table["y"].min() - REACH), 1)
    ticks = {row: share_text(2.0**row) for row in rows}
    if table["whole"].any():
        ticks[top + ALL] = "all"
    for axes, title in zip(grid.flat, titles):
        part = table[table["panel"] == title]
        axes.set(xlim=(-0.5, len(columns) - 0.5), facecolor="0.95",
                 ylim=(table["y"].min() - REACH, max(table["y"].max(), top - REACH) + REACH))
        axes.grid(False)
        axes.set_title(title, fontsize=kf.SMALL_FONT_SIZE, pad=3)
        axes.set_xticks(range(len(columns)), [kb.bits_text(*pair) for pair in columns])
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.tick_params(length=2)
        for at, pair in enumerate(columns):
            draw_column(axes, at, part[(part["k"] == pair[0]) & (part["v"] == pair[1])], image)
        draw_budgets(axes, part, columns)
    kl.colour_bar(figure, image, grid, extend, kfr.y_label(y))
    unlike = any(k != v for k, v in columns)
    figure.supxlabel("bits of keys / of values" if unlike else "bits per number", fontsize=kf.FONT_SIZE)
    figure.supylabel("share of the middle's tokens", fontsize=kf.FONT_SIZE)
    return figure


def share_text(value):
    """Returns `1/8`, or `0.3` if not a unit fraction."""
    whole = round(1 / value)
    return f"1/{whole}" if whole > 1 and abs(whole * value - 1) < 1e-3 else f"{value:.3g}"


def draw_column(axes, at, points, image):
    """Draws the cells of one number of bits."""
    points = points.sort_values("y")
    if points.empty:
        return
    corners = [[(at - 0.5, low), (at + 0.5, low), (at + 0.5, high), (at - 0.5, high)]
               for low, high in edges(points["y"])]
    axes.add_collection(PolyCollection(corners, array=points["mean"].to_numpy(), norm=image.norm,
                                       cmap=image.cmap, edgecolors="white", linewidths=0.6,
                                       zorder=1), autolim=False)
    for y, value in zip(points["y"], points["mean"]):
        write(axes, at, y, value, image.norm, image.cmap)


def draw_budgets(axes, points, columns):
    """Draws a labelled line through the cells of each budget."""
    bought = points[points["budget_requested"].notna() & ~points["apart"] & ~points["whole"]]
    for budget, part in bought.groupby("budget_requested"):
        at = np.array([columns.index(pair) for pair in zip(part["k"], part["v"])])
        order = np.argsort(at, kind="stable")
        ys = part["y"].to_numpy()[order]
        axes.plot(at[order], ys, color="0.35", linewidth=0.8, linestyle=(0, (3, 2)), zorder=3)
        axes.annotate(f"= {share_text(budget)}", (at[order][-1] + 0.5, ys[-1]), xytext=(2, 0),
                      textcoords="offset points", va="center", color="0.3",
                      fontsize=kf.SMALL_FONT_SIZE, annotation_clip=False)


def tokens_map(rows, y, algorithms, layers, pool):
    """Returns (figure, its table, text on cells, its numbers) of --kind map."""
    table = load_map(rows, y, algorithms, layers, pool)
    parts = []
    for panel, part in table.groupby("panel", sort=False):
        bought = part[part["budget_requested"].notna() & ~part["whole"]]
        for budget, some in bought.groupby("budget_requested"):
            best = some.loc[some["mean"].idxmin()]
            bits = kb.bits_name(kb.bits_text(best["k"], best["v"]))
            parts.append(f"{panel} {bits} and {best['share']:.3g} of the tokens ({best['mean']:.3g}) at {budget:.3g}")
    text = ("Cells: means over prompts, layers, heads and seeds. Dashed: what one budget buys "
            "(= share of the middle's bytes).")
    found = f"Measured, least {y} of each budget: " + (", ".join(parts) or "none") + "."
    return draw_map(table, y, kt.source_of(rows)), table, text, found


# ---------------------------------------------------------------------------- keys and values


def load_keys_values(rows, y="rel_error", budget=None, algorithms=(), layers=(), pool=False):
    """Returns one row per cell: label, k, v, mean; for rows whose params give both bits."""
    path = kt.source_of(rows)
    frame, _ = kb.read(rows, y, algorithms, layers, pool)
    bits = [kt.parse_params(text) for text in frame["params"]]
    given = np.array([all(one.get(name, "auto") not in ("auto", "")
                          for name in ("k_bits", "v_bits")) for one in bits], bool)
    if not given.any():
        raise kt.CsvError(f"{path}: no row has both k_bits and v_bits in its params; expected "
                          "such as exact@quant-kivi:k_bits=2,4;v_bits=2,4")
    kt.note_each(frame[~given & (frame["quantizer"] != "").to_numpy()],
                 "{}: rows without k_bits and v_bits are left out: {count}", "algorithm")
    frame = heatmap.pick_budget(frame[given].copy(), budget, path)
    kt.add_labels(frame, ignore=kb.SIZES)
    frame = kt.full_points(frame, ["label", "k", "v"], path)
    out = kfr.keep(kt.finite_points(kt.mean_and_sd(frame, ["label", "k", "v"], y)), frame)
    used = frame["budget_requested"].dropna().unique()
    out.attrs["budget"] = f"budget {used[0]:g}" if len(used) else "native sizes"
    if not (out["mean"] >= kt.ROUNDING_ERROR).any():
        raise kt.CsvError(f"{path}: column `{y}` is below {kt.ROUNDING_ERROR:g} in every point, "
                          "expected errors for a logarithmic scale")
    return out


@kf.in_style
def draw_keys_values(table, y="rel_error", path=""):
    keys, values = sorted(table["k"].unique()), sorted(table["v"].unique())
    titles = list(dict.fromkeys(table["label"]))
    height = TITLE + 0.25 + 0.3 * max(4, len(keys))  # at least the height of the colour bar's ticks
    figure, grid = layout(len(titles), max(2, len(values)), height, path)
    maps = {title: table[table["label"] == title].pivot(index="k", columns="v", values="mean")
            .reindex(index=keys, columns=values).to_numpy() for title in titles}
    kl.draw_maps(figure, grid, maps, keys, values, kl.colour_scale(table["mean"], log=True), kfr.y_label(y))
    for axes, cells in zip(grid.flat, maps.values()):
        axes.set_ylim(-0.5, len(keys) - 0.5)  # upwards
        axes.set_xticks(range(len(values)), [f"{v:g}" for v in values])
        axes.set_yticks(range(len(keys)), [f"{k:g}" for k in keys])
        image = axes.images[0]
        for (row, column), value in np.ndenumerate(np.maximum(cells, kt.ROUNDING_ERROR)):
            if np.isfinite(value):
                write(axes, column, row, value, image.norm, image.cmap)
    figure.supxlabel("bits of values", fontsize=kf.FONT_SIZE)
    figure.supylabel("bits of keys", fontsize=kf.FONT_SIZE)
    return figure


def keys_values(rows, y, budget, algorithms, layers, pool):
    """Returns (figure, its table, text on cells, its numbers) of --kind keys-values."""
    table = load_keys_values(rows, y, budget, algorithms, layers, pool)
    parts = [f"{label} " + ", ".join(f"{kb.bits_text(k, v)} {mean:.3g}" for k, v, mean in
                                     zip(part["k"], part["v"], part["mean"]))
             for label, part in table.groupby("label", sort=False)]
    text = f"Cells: means over prompts, layers, heads and seeds; {table.attrs['budget']}; hatched: no measurement."
    found = f"Measured, {y} by bits of keys/values: " + "; ".join(parts) + "."
    return draw_keys_values(table, y, kt.source_of(rows)), table, text, found
