"""Error by layer and head: one panel per algorithm, layers downwards, query heads across.

Cells are means over prompts and seeds on a common logarithmic colour scale. The 2 % of the cells
with the largest errors share a colour, and so do the smallest (pointed ends of the bar). Shows one
budget (--budget; default: the smallest) and native sizes. A hatched cell has no measurement:
infeasible, or not replayed. Panels with all errors below 1e-6 (an exact cache) are skipped. If
layers hold different numbers of bytes, ticks at the right mark those that hold most: layers without
a sliding window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

MAX_PANELS = 48  # eight rows of six per page


def pick_budget(frame, budget, path):
    """Returns rows of one budget and rows without; notes the choice."""
    have = sorted(frame["budget_requested"].dropna().unique())
    if budget is not None:
        kt.pick_numbers(frame, "budget_requested", [budget], path)
    elif have:
        budget = have[0]
        if len(have) > 1:
            kt.note(f"budget {budget:g} is shown; --budget chooses among " + ", ".join(f"{b:g}" for b in have))
    else:
        return frame
    native = frame["budget_requested"].isna()
    near = np.isclose(frame["budget_requested"], budget, rtol=1e-6, atol=0)
    return frame[native | near]


def load(rows, column="rel_error", budget=None, algorithms=(), layers=(), relative_to="", pool=False):
    """Returns one row per (label, layer, q_head): mean; without NaN and infinite means."""
    path = kt.source_of(rows)
    frame = pick_budget(kt.results_of(rows, ["budget_requested"]), budget, path)
    frame = kt.add_labels(kfr.measured_rows(frame, [column], algorithms, layers, pool))
    table = kt.finite_points(kt.mean_and_sd(frame, ["label", "layer", "q_head"], column))
    table = kfr.relative(table, relative_to, ["layer", "q_head"], path)
    largest = table.groupby("label")["mean"].transform("max")
    kt.note_each(table[largest < kt.ROUNDING_ERROR], "{} is exact and left out")
    table = table[largest >= kt.ROUNDING_ERROR]
    if table.empty:
        raise kt.CsvError(f"{path}: column `{column}` is below {kt.ROUNDING_ERROR:g} or not "
                          "finite everywhere, expected errors for a logarithmic scale")
    count = table["label"].nunique()
    if count > MAX_PANELS:
        raise kt.CsvError(f"{path}: {count} panels, expected at most {MAX_PANELS}; choose with --algorithm")
    used = frame["budget_requested"].dropna().unique()
    out = kfr.keep(table, frame)
    out.attrs["budget"] = f"budget {used[0]:g}" if len(used) else "native sizes"
    out.attrs["whole"] = whole_layers(frame)
    return out


def whole_layers(frame):
    """Returns the layers whose KV heads have most bytes, if others have fewer: those without a window."""
    if "full_bytes" not in frame:
        return []
    most = frame.groupby([*kt.HEAD_COLUMNS[:2]])["full_bytes"].transform("max")
    whole = (frame["full_bytes"] == most).groupby(frame["layer"]).all()
    return [] if whole.all() else [*whole.index[whole]]


@kf.in_style
def draw(table, column="rel_error", relative_to=""):
    """Returns a figure with as many maps side by side as fit at page width."""
    layers = sorted(table["layer"].unique())
    heads = sorted(table["q_head"].unique())
    labels = list(dict.fromkeys(table["label"]))
    ncols = kl.map_columns(labels)
    nrows = math.ceil(len(labels) / ncols)
    width = kf.PAGE_WIDTH if ncols > 2 else kf.COLUMN_WIDTH
    shape = min(1.6, max(0.6, len(layers) / len(heads)))  # height per width of a panel
    height = min(0.28 + (width - 0.8) / max(ncols, 2) * shape, (kf.BODY_HEIGHT - 0.5) / nrows)
    figure, grid = kf.panels(nrows, ncols, width=width, height=height, sharex=True, sharey=True)
    maps = {label: kl.cell_matrix(table[table["label"] == label], "q_head", layers, heads) for label in labels}
    kl.draw_maps(figure, grid, maps, layers, heads, kl.colour_scale(table["mean"], log=True),
                 kfr.y_label(column, relative_to))
    whole = [layers.index(layer) for layer in table.attrs.get("whole", ()) if layer in layers]
    for axes in grid.flat if whole else ():
        axes.yaxis.remove_overlapping_locs = False
        axes.set_yticks(whole, minor=True)
        axes.tick_params(axis="y", which="minor", left=False, right=True, length=4, width=1.2)
    figure.supxlabel("query head", fontsize=kf.FONT_SIZE)
    figure.supylabel("layer", fontsize=kf.FONT_SIZE)
    return figure


def marks(table):
    """Returns what hatched cells and ticks at the right mean, where there are some."""
    cells = table["label"].nunique() * table["layer"].nunique() * table["q_head"].nunique()
    return ("; hatched: no measurement" if len(table) < cells else "") + (
        "; ticks at the right: layers without a window" if table.attrs.get("whole") else "")


def measured(table, column):
    groups = table.groupby("label", sort=False)["mean"].agg(["mean", "min", "max"])
    parts = [f"{label} {row['mean']:.3g} ({row['min']:.3g} to {row['max']:.3g})"
             for label, row in groups.sort_values("mean").iterrows()]
    return f"Measured, {column}, mean over heads (least to largest head): " + ", ".join(parts) + "."


@kk.kind(y=kt.ERROR_LABELS)
def heatmap(rows: pd.DataFrame, *, y: str = "rel_error", budget: float | None = None, algorithm: kk.Names = (),
            layers: Sequence[int] = (), relative_to: str = "", pool: bool = False, title: str = "",
            model: str = "") -> kf.Picture:
    """Returns maps of error by layer and query head, one per algorithm.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows and `y`. Raises CsvError.
    """
    table = load(rows, y, budget, algorithm, layers, relative_to, pool)
    return kfr.finish(draw(table, y, relative_to), table.attrs["facts"],
                      f"Cells: means over prompts and seeds; {table.attrs['budget']}{marks(table)}.",
                      measured(table, y), title, model)
