"""Figure of kvbench-py compare of scores: KL by budget or by bytes, a panel per model."""

import math
import re

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvbench import tables as kt
from kvbench.comparison import scores
from kvbench.comparison.options import METRICS, MOST_SHOWN
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot import style as kst
from kvbench.text import counted

WIDTH = 0.008  # decades between methods at a budget
MOST_COLUMNS = 3  # titles of more panels overlap
LABELS = {"budget": "budget (fraction of the middle)", "bytes": "bytes of the whole cache (fraction)"}


def budget_axis(axes, shares):
    """Sets a logarithmic x axis with ticks at the shares."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(shares))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: scores.share(value)))


def line_of(label, axis):
    """Returns the line that a label is a point of: by bytes that of its method, of policies without a last number."""
    if axis == "budget":
        return label
    method = kst.method_of(label)
    return re.sub(r"-[0-9]+$", "", method) if method.startswith("policy:") else method


def lines_of(found, axis):
    """Returns {model: {line: [(x, losses by source)]}}, x ascending."""
    out = {}
    for (model, budget), table in found.values.items():
        mine = out.setdefault(model, {})
        for label in table.columns:
            x = budget if axis == "budget" else found.sizes.get((model, budget), {}).get(label, math.nan)
            values = table[label].dropna().to_numpy()
            if not math.isnan(x) and len(values):
                mine.setdefault(line_of(label, axis), []).append((x, values))
    for mine in out.values():
        for points in mine.values():
            points.sort(key=lambda point: point[0])
    for model, mine in out.items():
        if not mine:
            raise kt.CsvError(f"--axis {axis}: the tables of {model} have no figure of it")
    return out


def ticks(lines, axis):
    """Returns the places of ticks: the budgets, or powers of two about the bytes."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    if axis == "budget":
        return xs
    return [2.0**at for at in range(math.floor(math.log2(xs[0])), math.ceil(math.log2(xs[-1])) + 1)]


@kf.in_style
def draw(found, shown, metric, axis):
    """Returns a figure with a panel per model, intervals over sources. shown: lines [default: the best]."""
    models, every = found.models(), lines_of(found, axis)
    names = list(dict.fromkeys(line_of(label, axis) for label in found.methods))
    absent = [one for one in shown if one not in names]
    if absent:
        raise kt.CsvError(f"--show: got `{absent[0]}`, expected some of {', '.join(names)}")
    methods = shown or list(dict.fromkeys(line_of(one, axis) for one in scores.shown(found, MOST_SHOWN)))
    rows = math.ceil(len(models) / MOST_COLUMNS)
    columns = math.ceil(len(models) / rows)
    figure, grid = kf.panels(rows, columns, width=kf.PAGE_WIDTH, height=3.2 if rows == 1 else 2.6, sharey=True)
    for axes in grid.flat[len(models):]:
        axes.remove()
    looks = kst.styles(methods)
    for at, (axes, model) in enumerate(zip(grid.flat, models)):
        axes.set_yscale("log")
        for step, method in enumerate(methods):
            points = [(x, v) for x, v in every[model].get(method, []) if v.mean() > 0]
            if not points:
                continue
            x = [one * 10**(WIDTH * (step - len(methods) / 2) * (axis == "budget")) for one, _ in points]
            y = np.array([v.mean() for _, v in points])
            spans = np.array([scores.extent(v) for _, v in points])
            bars = np.nan_to_num(np.abs(spans - y[:, None])).T
            bars[0] = np.minimum(bars[0], 0.98 * y)  # an interval may reach below 0
            look = looks[method]
            axes.errorbar(x, y, yerr=bars, color=look["color"], marker=look["marker"], ms=4,
                          linestyle=look["linestyle"], linewidth=1, elinewidth=0.6, label=method,
                          fillstyle=look.get("fillstyle", "full"), zorder=look["zorder"])
        places = ticks(every[model], axis)
        budget_axis(axes, places)
        if axis == "budget":
            axes.set_xlim(min(places) / 2**0.5, max(places) * 2**0.5)  # a lone budget is not spread over the panel
        sources = max(len(v) for points in every[model].values() for _, v in points)
        axes.set_title(f"{model} ({counted(sources, 'source')})")
        if at + columns >= len(models):
            axes.set_xlabel(LABELS[axis])
        kl.plain_log(axes.yaxis)
        if at % columns == 0:
            axes.set_ylabel(METRICS[metric])
    kf.legend_above(figure, [kf.line_handle(looks[m], m) for m in methods])
    return figure
