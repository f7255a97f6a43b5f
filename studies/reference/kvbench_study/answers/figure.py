"""Figure of kvbench-study answers: a panel per setting and task, by budget."""

import math

import numpy as np
from matplotlib.ticker import PercentFormatter

from kvbench import tables as kt
from kvbench.comparison.score_figure import budget_axis
from kvbench.plot import figures as kf
from kvbench.plot import style as kst
from kvbench_study.answers.tables import REASON

LABELS = {"change": "growth of the answer's\nnegative log likelihood, nats",
          "right": "sources with the\nright choice"}
APART = 0.012  # decades between the intervals of methods at a budget


def line_of(rows, method, measure):
    """Returns (budgets, means, [lows, highs]) of a method in a panel, the largest budget first."""
    mine = sorted((row for row in rows if row["method"] == method and not math.isnan(row["budget"])),
                  key=lambda row: -row["budget"])
    x, y = (np.array([row[name] for row in mine]) for name in ("budget", measure))
    ends = np.array([[row[f"{measure}_low"], row[f"{measure}_high"]] for row in mine]).reshape(-1, 2)
    return x, y, ends


def draw_panel(axes, rows, methods, looks, measure):
    for step, method in enumerate(methods):
        x, y, ends = line_of(rows, method, measure)
        if not len(x):
            continue
        look = looks[method]
        # Exact intervals of ten shares would cover the panel; they are in the table.
        bars = np.nan_to_num(np.abs(ends - y[:, None])).T if measure == "change" else None
        axes.errorbar(x * 10**(APART * (step - len(methods) / 2)), y, yerr=bars, color=look["color"],
                      marker=look["marker"], ms=3.5, linestyle=look["linestyle"], linewidth=1, elinewidth=0.5,
                      fillstyle=look.get("fillstyle", "full"), zorder=look["zorder"])


@kf.in_style
def draw(found, rows, methods, measure):
    """Returns a figure with settings below each other, tasks side by side; only tasks whose controls separate in
    some setting.
    """
    kept = found.kept()
    tasks = [task for task in found.tasks() if any(place[1] == task for place in kept)]
    settings = found.settings()
    known = {row["method"] for row in rows if (row["setting"], row["task"]) in kept
             and not math.isnan(row["budget"])}
    absent = [method for method in methods if method not in known]
    if absent:
        raise kt.CsvError(f"--show: got `{absent[0]}`, expected some of {', '.join(sorted(known))}")
    figure, grid = kf.panels(len(settings), len(tasks), width=kf.COLUMN_WIDTH if len(tasks) == 1 else
                             kf.PAGE_WIDTH, height=2.1, sharex=True, sharey=True)
    looks = kst.styles(methods)
    for (at, setting), (column, task) in ((one, other) for one in enumerate(settings)
                                          for other in enumerate(tasks)):
        axes, place = grid[at][column], (setting, task)
        mine = [row for row in rows if (row["setting"], row["task"]) == place]
        if place in kept:
            draw_panel(axes, mine, methods, looks, measure)
            axes.set_title(f"{task}, {setting} ({max(row['sources'] for row in mine)} sources)")
        else:
            axes.set_title(f"{task}, {setting}")
            axes.text(0.5, 0.5, "dropped:\n" + REASON.replace("do not", "do\nnot") if place in found.controls
                      else "not run", transform=axes.transAxes, ha="center", va="center", color="0.4")
        dress(axes, rows, measure, at == len(settings) - 1, column == 0)
        if measure == "right" and mine:
            axes.axhline(mine[0]["chance"], color="0.5", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    kf.legend_above(figure, [kf.line_handle(looks[method], method) for method in methods])
    return figure


def dress(axes, rows, measure, lowest, first):
    budgets = sorted({row["budget"] for row in rows if not math.isnan(row["budget"])})
    budget_axis(axes, budgets)
    if measure == "right":
        axes.set_ylim(-0.04, 1.04)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if lowest:
        axes.set_xlabel("budget")
    if first:
        axes.set_ylabel(LABELS[measure])


def draw_to(stem, found, rows, methods, measure):
    """Writes STEM.png and STEM.pdf; prints a note if there is nothing to show."""
    if not found.kept():
        kt.note(f"no picture: {REASON} in any task")
        return
    kf.save_figure(draw(found, rows, methods, measure), stem)
