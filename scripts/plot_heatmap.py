#!/usr/bin/env python3
"""Error by layer and head: one panel per algorithm, layers downwards, query heads across.

Cells are means over prompts and seeds; the colours' scale is logarithmic and the same for all
panels. One budget is shown (--budget; default: the smallest of the file) beside what was given
native sizes. A hatched cell has no measurement: infeasible there, or not replayed. Panels whose
errors are all below 1e-9 (an exact cache) are left out.
"""

import math
import sys

import kvbench_csv as kc
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

MOST_PANELS = 48  # eight rows of six; more would not fit a page


def pick_budget(frame, budget, path):
    """Rows of one budget and rows without one; says which if the file has several."""
    have = sorted(frame["budget_requested"].dropna().unique())
    if budget is not None:
        kc.pick_numbers(frame, "budget_requested", [budget], path)
    elif have:
        budget = have[0]
        if len(have) > 1:
            print(f"note: budget {budget:g} is shown; --budget chooses among "
                  + ", ".join(f"{b:g}" for b in have), file=sys.stderr)
    else:
        return frame
    native = frame["budget_requested"].isna()
    near = np.isclose(frame["budget_requested"], budget, rtol=1e-9, atol=0)
    return frame[native | near]


def load(paths, column="rel_error", budget=None, algorithms=()):
    """One row per (label, layer, q_head): mean; NaN and infinite means are left out."""
    frame = kc.read_results(paths, [*kc.HEAD_COLUMNS, "seed", "budget_requested", column])
    frame = kc.pick_algorithms(frame, algorithms, paths[0])
    frame = pick_budget(frame, budget, paths[0])
    frame = kc.add_labels(kc.measured_rows(frame, paths[0]))
    table = kc.finite_points(kc.mean_and_sd(frame, ["label", "layer", "q_head"], column))
    most = table.groupby("label")["mean"].transform("max")
    for label in dict.fromkeys(table.loc[most < kc.ROUNDING_ERROR, "label"]):
        print(f"note: {label} is exact and left out", file=sys.stderr)
    table = table[most >= kc.ROUNDING_ERROR]
    if table.empty:
        raise kc.CsvError(f"{paths[0]}: column `{column}` is below {kc.ROUNDING_ERROR:g} or not "
                          "finite everywhere, expected errors for a logarithmic scale")
    count = table["label"].nunique()
    if count > MOST_PANELS:
        raise kc.CsvError(f"{paths[0]}: {count} panels, expected at most {MOST_PANELS}; choose "
                          "with --algorithms")
    return table


def cell_matrix(part, layers, heads):
    """Means as [layers, heads], NaN where there is none."""
    cells = part.pivot(index="layer", columns="q_head", values="mean")
    return cells.reindex(index=layers, columns=heads).to_numpy()


def draw(table, column="rel_error"):
    """The figure: as many panels beside each other as their titles allow, at page width."""
    layers = sorted(table["layer"].unique())
    heads = sorted(table["q_head"].unique())
    labels = list(dict.fromkeys(table["label"]))
    # 6.5 pt: 17 characters to the inch; 0.6 in are the colour bar and the layers' numbers.
    longest = max(len(label) for label in labels)
    ncols = max(1, min(6, len(labels), int((kc.PAGE_WIDTH - 0.6) / (longest / 17 + 0.1))))
    nrows = math.ceil(len(labels) / ncols)
    width = kc.PAGE_WIDTH if ncols > 2 else kc.COLUMN_WIDTH
    shape = min(1.6, max(0.6, len(layers) / len(heads)))  # of a panel: its height per width
    height = 0.28 + (width - 0.8) / max(ncols, 2) * shape
    figure, grid = kc.panels(nrows, ncols, width=width, height=height, sharex=True, sharey=True)
    positive = table.loc[table["mean"] >= kc.ROUNDING_ERROR, "mean"]
    low, high = positive.min(), positive.max()
    norm = LogNorm(low, high) if low < high else LogNorm(low / 2, high * 2)
    image = None
    for axes, label in zip(grid.flat, labels):
        cells = cell_matrix(table[table["label"] == label], layers, heads)
        axes.set_facecolor("0.92")
        axes.patch.set(hatch="/////", edgecolor="0.7")
        axes.grid(False)
        # What is below the scale (an exact head) has the scale's lowest colour.
        image = axes.imshow(np.maximum(cells, low), norm=norm, cmap="viridis", aspect="auto",
                            interpolation="nearest")
        axes.set_title(label, fontsize=kc.SMALL_FONT_SIZE, pad=2)
        axes.tick_params(length=2)
        for axis, values in ((axes.xaxis, heads), (axes.yaxis, layers)):
            axis.set_major_locator(MaxNLocator(4, integer=True))
            axis.set_major_formatter(FuncFormatter(
                lambda at, _, values=values: f"{values[round(at)]:g}"
                if 0 <= round(at) < len(values) else ""))
    for axes in grid.flat[len(labels):]:
        axes.set_visible(False)
    for at in range(max(0, len(labels) - ncols), len(labels)):
        grid.flat[at].tick_params(labelbottom=True)  # nothing stands below it
    bar = figure.colorbar(image, ax=grid, fraction=0.04, pad=0.015, aspect=25)
    bar.set_label(kc.ERROR_LABELS[column])
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    figure.supxlabel("query head", fontsize=kc.FONT_SIZE)
    figure.supylabel("layer", fontsize=kc.FONT_SIZE)
    return figure


def parse_arguments(arguments=None):
    parser = kc.argument_parser(__doc__)
    parser.add_argument("--column", choices=list(kc.ERROR_LABELS), default="rel_error",
                        help="what the colours show, default: rel_error")
    parser.add_argument("--budget", type=float, metavar="RHO", help="default: the smallest")
    parser.add_argument("--algorithms", type=kc.name_list, metavar="NAME,...", default=[],
                        help="only these, default all")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments()
    table = load(options.inputs, options.column, options.budget, options.algorithms)
    kc.save_figure(draw(table, options.column), options.output)
    plt.close("all")


if __name__ == "__main__":
    kc.run_main(main)
