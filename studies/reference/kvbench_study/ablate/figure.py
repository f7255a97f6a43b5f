"""Figure of kvbench-study ablate: errors by layer, a panel per budget."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from kvbench.comparison.scores import extent, share
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot import style as kst


@kf.in_style
def draw(curves):
    """Returns a figure of {name: errors [source, layer, size]}: means and intervals over sources."""
    first = next(iter(curves.values()))
    sizes = sorted({size for size in first.index.unique("size") if not size.startswith("T=")}, key=float,
                   reverse=True)
    figure, grid = kf.panels(len(sizes), 1, width=kf.PAGE_WIDTH, height=2.1, sharex=True, sharey=True)
    looks = {name: kst.line_style(i) for i, name in enumerate(curves)}
    for (axes,), size in zip(grid, sizes):
        for name, errors in curves.items():
            table = errors.xs(size, level="size").unstack("layer")
            layers = table.columns.to_numpy(dtype=int)
            spans = np.array([extent(table[layer].dropna().to_numpy()) for layer in table.columns])
            look = looks[name]
            axes.plot(layers, table.mean(), ms=3, linewidth=1, **look)
            axes.fill_between(layers, spans[:, 0], spans[:, 1], color=look["color"], alpha=0.15, linewidth=0)
        axes.set_yscale("log")
        kl.plain_log(axes.yaxis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(f"{share(float(size))} of the bytes")
        axes.set_ylabel("error")
    grid[-1][0].set_xlabel("layer")
    kf.legend_above(figure, [kf.line_handle(looks[name], name) for name in curves])
    return figure


def draw_to(stem, curves):
    kf.save_figure(draw(curves), stem)
