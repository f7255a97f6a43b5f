"""Figures of kvbench-py compare: critical-difference diagrams and intervals."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kvbench import tables as kt
from kvbench.comparison.tables import sized
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.text import counted

MAX_COLUMNS = 5  # panels side by side, to save a page
ROW = 0.145  # inches per line of small type
BAR = 0.065  # inches between bars
LONGEST = 40  # characters
LETTER = 0.58 * kf.SMALL_FONT_SIZE / 72  # inches per letter


def short(label):
    return label if len(label) <= LONGEST else label[:LONGEST - 1] + "\u2026"


def stacked(groups):
    """Returns the level of each (first, last) so that bars do not overlap."""
    ends, out = [], []
    for first, last in groups:
        row = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[row:row + 1] = [last]
        out.append(row)
    return out


@kf.in_style
def critical_difference(found):
    """Returns Demsar's diagram: an axis of mean ranks, the better half left, bars over methods not told apart."""
    names = [short(label) for label in found.ranked]
    ranks = {row["method"]: row["mean_rank"] for row in found.rows if "mean_rank" in row}
    ranks = [ranks[label] for label in found.ranked]
    k, left = len(names), math.ceil(len(names) / 2)
    margin = max(len(name) for name in names) * LETTER + 0.45
    rows = stacked(found.groups)
    bars = BAR * (max(rows, default=-1) + 1) + 0.06
    height = 0.72 + bars + ROW * left + 0.1
    figure, grid = kf.panels(1, 1, width=kf.PAGE_WIDTH, height=height)
    figure.set_layout_engine("none")
    axes = grid[0, 0]
    axes.set_position([0, 0, 1, 1])
    axes.axis("off")
    axes.set_xlim(0, kf.PAGE_WIDTH)
    axes.set_ylim(height, 0)
    low, high = 1, k
    begin, end = margin, kf.PAGE_WIDTH - margin
    at = lambda rank: begin + (rank - low) / (high - low) * (end - begin)  # noqa: E731
    line = 0.62  # the axis, inches from the top
    thin = {"color": "black", "linewidth": 0.7, "clip_on": False}
    axes.plot([begin, end], [line, line], **thin)
    step = next(s for s in (1, 2, 5, 10, 20) if (high - low) / s <= 12)
    inner = [t for t in range(step, high, step) if t > low and high - t >= step / 2]
    for tick in [low, *inner, high]:
        axes.plot([at(tick)] * 2, [line, line - 0.06], **thin)
        axes.text(at(tick), line - 0.08, f"{tick:g}", ha="center", va="bottom", fontsize=kf.SMALL_FONT_SIZE)
    axes.text((begin + end) / 2, line - 0.4, f"mean rank (1 is the best), "
              f"{counted(len(found.values), found.by)}, budget {sized(found)}", ha="center", va="bottom",
              fontsize=kf.FONT_SIZE)
    # Scale bar of the critical difference.
    size = found.tests["critical_difference"]
    if size <= high - low:
        y = line - 0.3
        axes.plot([at(1), at(1 + size)], [y, y], color="black", linewidth=1.2)
        for x in (at(1), at(1 + size)):
            axes.plot([x, x], [y - 0.03, y + 0.03], **thin)
    axes.text(begin - 0.07, line - 0.3, f"critical difference {size:.2f}" if margin > 1.4 else
              f"CD {size:.2f}", ha="right", va="center", fontsize=kf.SMALL_FONT_SIZE)
    for (first, last), row in zip(found.groups, rows):
        y = line + 0.07 + BAR * row
        axes.plot([at(ranks[first]) - 0.02, at(ranks[last]) + 0.02], [y, y], color="0.35",
                  linewidth=2.2, solid_capstyle="butt", zorder=3)
    for i, (name, rank) in enumerate(zip(names, ranks)):
        on_left = i < left
        place = i if on_left else k - 1 - i
        y = line + bars + ROW * (place + 0.7)
        edge = margin - 0.38 if on_left else kf.PAGE_WIDTH - margin + 0.38
        axes.plot([at(rank), at(rank), edge], [line, y, y], color="0.55", linewidth=0.5, zorder=1)
        side = -1 if on_left else 1
        axes.text(edge + side * 0.04, y, name, ha="right" if on_left else "left", va="center",
                  fontsize=kf.SMALL_FONT_SIZE)
        axes.text(edge - side * 0.03, y - 0.01, f"{rank:.1f}", ha="left" if on_left else "right",
                  va="bottom", fontsize=kf.SMALL_FONT_SIZE, color="0.35")
    return figure


@kf.in_style
def intervals(comparisons, options):
    """Returns a figure with a panel per budget: each method's interval of the difference to --to, or of the mean."""
    order = []
    for found in comparisons:
        order += [row["method"] for row in found.rows if row["method"] not in order]
    if options.to:
        order.remove(options.to)
    height = 0.65 + ROW * len(order)
    columns = next((n for n in range(min(3, len(comparisons)), MAX_COLUMNS)
                    if math.ceil(len(comparisons) / n) * height <= kf.BODY_HEIGHT - 0.4),
                   min(MAX_COLUMNS, len(comparisons)))
    rows = math.ceil(len(comparisons) / columns)
    wide = kf.COLUMN_WIDTH if len(comparisons) == 1 and len(order) <= 6 else kf.PAGE_WIDTH
    figure, grid = kf.panels(rows, columns, width=wide, height=height, sharey=True)
    unit = log_unit(comparisons, options)
    for axes, found in zip(grid.flat, comparisons):
        draw_panel(axes, found, order, options, " " if columns <= 3 else "\n")
        if unit is None:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        else:
            if options.to:
                axes.set_xscale("symlog", linthresh=unit, linscale=0.7, subs=[3])
            else:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axes.tick_params(axis="x", labelrotation=45)
    for axes in grid.flat[len(comparisons):]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_yticks(range(len(order)), [short(label) for label in order], fontsize=kf.SMALL_FONT_SIZE)
    grid[0, 0].set_ylim(len(order) - 0.4, -0.6)
    name = kt.ERROR_LABELS.get(options.metric, options.metric)
    text = f"{name}, minus {options.to}" if options.to else name
    figure.supxlabel(text, fontsize=kf.FONT_SIZE)
    if options.to:
        dot = {"marker": "o", "linestyle": "none"}
        kf.legend_above(figure, [
            kf.line_handle({**dot, "color": kf.COLORS[0]}, f"better than {options.to}"),
            kf.line_handle({**dot, "color": kf.COLORS[1]}, "worse"),
            kf.line_handle({**dot, "color": "0.3", "markerfacecolor": "white"},
                           "hollow: undecided")])
    return figure


def log_unit(comparisons, options):
    """Returns the linear threshold of a symlog axis for all panels; None: linear. Outliers would squeeze the others."""
    sizes = np.array([abs(row["difference" if options.to else "mean"]) for found in comparisons
                      for row in found.rows if row.get("difference" if options.to else "mean")])
    sizes = sizes[sizes > 0]
    if not len(sizes) or sizes.max() < 12 * np.median(sizes):
        return None
    return 10**math.floor(math.log10(np.median(sizes)))


def draw_panel(axes, found, order, options, space):
    low_name, high_name, middle = (("difference_low", "difference_high", "difference")
                                   if options.to else ("low", "high", "mean"))
    for row in found.rows:
        if middle not in row or row["method"] not in order:
            continue
        y = order.index(row["method"])
        sure = row.get("verdict", "better") != "undecided"
        color = kf.COLORS[0]
        if options.to:
            side = row["sign" if sure else middle] * (1 if options.higher_better else -1)
            color = kf.COLORS[0] if side > 0 else kf.COLORS[1]
        ends = [row[low_name], row[high_name]]
        if np.isfinite(ends).all():
            axes.plot(ends, [y, y], color=color, linewidth=1.3, solid_capstyle="butt")
        axes.plot([row[middle]], [y], marker="o", ms=3.6, color=color, linestyle="none",
                  markerfacecolor=color if sure else "white", markeredgewidth=0.9, clip_on=False)
    axes.set_title(f"budget {found.budget},{space}{counted(len(found.values), found.by)}")
    if options.to:
        axes.axvline(0, color="black", linewidth=0.7)


def pictures(comparisons, options):
    """Returns {`cd.BUDGET` or `intervals`: figure}; a single ranked method has no diagram."""
    out = {}
    for found in comparisons:
        if len(found.ranked) >= 2:
            picture = critical_difference(found)
            out[f"cd.{found.budget}"] = kfr.finish(
                picture, options.facts, f"Ranks: means over {found.by}s; bars join methods that "
                "Nemenyi's test does not tell apart.")
    if options.to and not any("difference" in row for found in comparisons for row in found.rows):
        kt.note(f"no method has a difference to {options.to}: no picture of intervals")
        return out
    out["intervals"] = kfr.finish(
        intervals(comparisons, options), options.facts, f"Dots: means over {options.by}s; bars: "
        f"bootstrap intervals over {options.by}s, level {options.level:g}.")
    return out


def draw(comparisons, options):
    """Writes the figures of --figures. Raises CsvError, DeviceError."""
    for name, picture in pictures(comparisons, options).items():
        kf.save_figure(picture, f"{options.figures}.{name}")
