"""Figures of kvbench-study correlate: metrics against scores, and correlations with intervals."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import layers as kl
from kvbench.plot import names as kn
from kvbench.plot import style as kst
from kvbench.text import counted
from kvbench_study.correlate.ranks import WORSE
from kvbench_study.correlate.resamples import ACROSS, WITHIN
from kvbench_study.correlate.tables import SCORE_TITLES, title

DRAWN = ("kl", "loss_change")  # scores of the scatter plot, where available
ROW = 0.115  # inches per method name
LONGEST = 26  # characters
LETTER = 0.56 * kf.SMALL_FONT_SIZE / 72  # inches per letter
TITLE = 0.75  # inches of a row of panels besides its names
DOTS = 0.2  # inches per metric


def short(label):
    return label if len(label) <= LONGEST else label[:LONGEST - 1] + "\u2026"


def chosen(found, score):
    """Returns two metrics: the mean relative error and the highest other, or the two highest."""
    lines = sorted((line for line in found.pick(score=score, scope=ACROSS, reduction="mean")
                    if not math.isnan(line.spearman)), key=lambda line: -line.spearman)
    usual = [line for line in lines if line.metric == "rel_error"]
    return [*usual, *(line for line in lines if line not in usual)][:2]


def set_scale(axis, values):
    """Sets a logarithmic axis with margins; symlog if there are values at or below zero."""
    values = np.asarray(values, float)
    name = axis.axis_name
    set_limits = getattr(axis.axes, f"set_{name}lim")
    if (values > 0).all():
        getattr(axis.axes, f"set_{name}scale")("log")
        room = (values.max() / values.min())**0.06 if values.max() > values.min() else 1.5
        set_limits(values.min() / room, values.max() * room)
        kl.plain_log(axis)
        if values.max() > 15 * values.min():  # panels are narrow
            steps = (1, 3) if values.max() < 100 * values.min() else (1,)
            axis.set_major_locator(LogLocator(subs=steps, numticks=7 if steps == (1,) else 20))
        return
    size = np.median(np.abs(values[values != 0])) if values.any() else 1.0
    unit = 10.0**math.floor(math.log10(size))
    getattr(axis.axes, f"set_{name}scale")("symlog", linthresh=unit, linscale=0.7)
    to_scale = axis.get_transform()
    ends = to_scale.transform(np.array([values.min(), values.max()]))
    room = 0.06 * (ends[1] - ends[0]) or 1.0
    low, high = to_scale.inverted().transform(ends + [-room, room])
    set_limits(low, high)
    decades = max(0, math.floor(math.log10(max(abs(low), abs(high)) / unit)))
    powers = [unit * 10.0**k for k in range(0, decades + 1, math.ceil((decades + 1) / 3))]
    ticks = [0.0, *powers, *(-p for p in powers)]
    axis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


@kf.in_style
def scatter(found):
    """Returns a figure with a row of panels per score, a panel per metric: every cell, with the budgets of a method
    joined.
    """
    table = found.table
    scores = [score for score in DRAWN if score in table.scores]
    budgets = table.budgets()
    methods = list(dict.fromkeys(method for _, method in table.cells))
    names = max(len(short(method)) for method in methods) * LETTER + 0.2
    height = max(2.6, ROW * len(methods) + TITLE)
    height = min(height, (kf.BODY_HEIGHT - 0.5) / len(scores))
    figure, grid = kf.panels(len(scores), 2, width=kf.PAGE_WIDTH, height=height)
    figure.set_layout_engine("none")
    wide = (kf.PAGE_WIDTH - 0.55 - 0.45 - 2 * names) / 2  # of a panel
    styles = [{**kst.line_style(i), "linestyle": "none"} for i in range(len(budgets))]
    drawn = set()
    for row, score in enumerate(scores):
        level = np.nanmean(table.scores[score], axis=0)
        lines = chosen(found, score)
        for column, axes in enumerate(grid[row]):
            if column >= len(lines):
                axes.set_visible(False)
                continue
            left = 0.55 + column * (wide + names + 0.45)
            bottom = height * (len(scores) - 1 - row) + 0.42
            axes.set_position([left / kf.PAGE_WIDTH, bottom / (height * len(scores)),
                               wide / kf.PAGE_WIDTH, (height - TITLE) / (height * len(scores))])
            line = lines[column]
            x = found.figures[line.level, line.metric, line.reduction]
            # Rounding of an exact cache would take most of a logarithmic axis.
            shown = [i for i in table.members() if not 0 < x[i] < kt.ROUNDING_ERROR]
            set_scale(axes.xaxis, x[shown])
            set_scale(axes.yaxis, level[shown])
            draw_cells(axes, table, shown, x, level, budgets, styles)
            axes.set_xlabel(f"{title(line)}, mean")
            if column == 0:
                axes.set_ylabel(SCORE_TITLES[score])
            ends = ("" if math.isnan(line.spearman_low) else
                    f" [{line.spearman_low:.2f}, {line.spearman_high:.2f}]")
            axes.set_title(f"rank corr. {line.spearman:.2f}{ends}", loc="left",
                           fontsize=kf.SMALL_FONT_SIZE)
            name_methods(axes, table, shown, x, level, (height - TITLE))
            drawn |= {table.cells[i][0] for i in shown}
    kf.legend_above(figure, [kf.line_handle(style, f"budget {budget}")
                             for style, budget in zip(styles, budgets) if budget in drawn])
    return figure


def draw_cells(axes, table, shown, x, y, budgets, styles):
    for method in {table.cells[i][1]: None for i in shown}:
        mine = [i for i in shown if table.cells[i][1] == method]
        axes.plot(x[mine], y[mine], color="0.75", linewidth=0.5, zorder=1)
    for budget, style in zip(budgets, styles):
        mine = [i for i in shown if table.cells[i][0] == budget]
        axes.plot(x[mine], y[mine], ms=3.2, zorder=2, markeredgewidth=0, **style)


def name_methods(axes, table, shown, x, y, inches):
    """Draws names right of the panel, each with a leader to the method's cell of the smallest
    budget.
    """
    last = {table.cells[i][1]: i for i in shown}
    methods = list(last)
    at = np.array([[x[last[m]], y[last[m]]] for m in methods])
    to_axes = axes.transScale + axes.transLimits
    at = to_axes.transform(at)
    gap = ROW / inches
    wanted = np.clip(at[:, 1], 0, 1)
    placed = kn.placed(wanted, gap, -0.03, 1.05)
    for method, (px, py), y_name in zip(methods, at, placed):
        axes.plot([px, 1.0, 1.02], [py, y_name, y_name], transform=axes.transAxes, color="0.8",
                  linewidth=0.35, clip_on=False, zorder=0)
        axes.text(1.025, y_name, short(method), transform=axes.transAxes, ha="left", va="center",
                  fontsize=kf.SMALL_FONT_SIZE)


@kf.in_style
def correlations(found):
    """Returns a figure with a panel per score: each metric's correlation over all cells, and within budgets."""
    scores = list(found.table.scores)
    lines = found.pick(score=scores[0], scope=ACROSS, reduction="mean")
    order = [line.metric for line in sorted(lines, key=lambda line: -line.spearman if not
                                            math.isnan(line.spearman) else math.inf)]
    figure, grid = kf.panels(1, len(scores), width=kf.PAGE_WIDTH,
                             height=0.8 + DOTS * len(order), sharex=True, sharey=True)
    colors = {ACROSS: kf.COLORS[0], WITHIN: kf.COLORS[1]}
    for axes, score in zip(grid[0], scores):
        for shift, scope in ((-0.17, ACROSS), (0.17, WITHIN)):
            for line in found.pick(score=score, scope=scope, reduction="mean"):
                if math.isnan(line.spearman):
                    continue
                y = order.index(line.metric) + shift
                axes.plot([line.spearman_low, line.spearman_high], [y, y], linewidth=1.2,
                          color=colors[scope], solid_capstyle="butt")
                full = line.verdict != WORSE
                axes.plot([line.spearman], [y], marker="o", ms=3.4, color=colors[scope],
                          markerfacecolor=colors[scope] if full else "white", markeredgewidth=0.9,
                          linestyle="none", clip_on=False)
        axes.axvline(0, color="black", linewidth=0.6)
        prompts = max(line.prompts for line in found.pick(score=score, scope=ACROSS))
        axes.set_title(f"{SCORE_TITLES[score]},\n{counted(prompts, found.table.by)}")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    grid[0, 0].set_yticks(range(len(order)), order, fontsize=kf.SMALL_FONT_SIZE)
    grid[0, 0].set_ylim(len(order) - 0.4, -0.6)
    figure.supxlabel("Spearman's rank correlation of a metric (mean) with the score",
                     fontsize=kf.FONT_SIZE)
    dot = {"marker": "o", "linestyle": "-"}
    kf.legend_above(figure, [
        kf.line_handle({**dot, "color": colors[ACROSS]}, "all cells"),
        kf.line_handle({**dot, "color": colors[WITHIN]}, "within budgets"),
        kf.line_handle({"marker": "o", "linestyle": "none", "color": "0.3",
                        "markerfacecolor": "white"}, "hollow: behind the highest")])
    return figure


def pictures(found, options):
    """Returns {"scatter": figure, "correlations": figure}."""
    return {name: kfr.finish(make(found), options.facts, bars) for name, make, bars in (
        ("scatter", scatter, "Dots: a method at a budget, mean over prompts; grey lines join a "
                             "method's budgets."),
        ("correlations", correlations, f"Bars: bootstrap intervals over {found.resampled()}."))}


def draw(found, options):
    """Writes the figures of --figures. Raises CsvError, DeviceError."""
    for name, picture in pictures(found, options).items():
        kf.save_figure(picture, f"{options.figures}.{name}")
