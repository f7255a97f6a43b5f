"""Figure of kvbench-py compare of scores: KL by budget, a panel per model."""

import math

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvbench import tables as kt
from kvbench.comparison.options import METRICS
from kvbench.comparison.scores import extent, share
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot import style as kst
from kvbench.text import counted

WIDTH = 0.008  # decades between methods at a budget


def budget_axis(axes, budgets):
    """Sets a logarithmic x axis with ticks at the budgets."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(budgets))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: share(value)))


@kf.in_style
def draw(found, methods, metric):
    """Returns a figure with a panel per model, side by side; intervals over sources."""
    models = found.models()
    absent = [m for m in methods if m not in found.methods]
    if absent:
        raise kt.CsvError(f"--show: got `{absent[0]}`, expected some of {', '.join(found.methods)}")
    figure, grid = kf.panels(1, len(models), width=kf.PAGE_WIDTH, height=3.2, sharey=True)
    looks = kst.styles(methods)
    for axes, model in zip(grid[0], models):
        axes.set_yscale("log")
        budgets = [b for b in found.budgets() if (model, b) in found.values and not math.isnan(b)]
        for step, method in enumerate(methods):
            points = [(b, found.values[model, b][method].dropna().to_numpy()) for b in budgets
                      if method in found.values[model, b]]
            points = [(b, v) for b, v in points if len(v) and v.mean() > 0]
            if not points:
                continue
            x = [b * 10**(WIDTH * (step - len(methods) / 2)) for b, _ in points]
            y = np.array([v.mean() for _, v in points])
            spans = np.array([extent(v) for _, v in points])
            bars = np.nan_to_num(np.abs(spans - y[:, None])).T
            bars[0] = np.minimum(bars[0], 0.98 * y)  # an interval may reach below 0
            look = looks[method]
            axes.errorbar(x, y, yerr=bars, color=look["color"], marker=look["marker"], ms=4,
                          linestyle=look["linestyle"], linewidth=1, elinewidth=0.6, label=method,
                          fillstyle=look.get("fillstyle", "full"), zorder=look["zorder"])
        budget_axis(axes, budgets)
        axes.set_xlim(min(budgets) / 2**0.5, max(budgets) * 2**0.5)  # a lone budget is not spread over the panel
        axes.set_title(f"{model} ({counted(len(found.values[model, budgets[0]]), 'source')})")
        axes.set_xlabel("budget (fraction of the middle)")
        kl.plain_log(axes.yaxis)
        if axes is grid[0][0]:
            axes.set_ylabel(METRICS[metric])
    kf.legend_above(figure, [kf.line_handle(looks[m], m) for m in methods])
    return figure
