"""Figures of kvbench-study atlas: a map of layers and KV heads per feature, and the best method of each head."""

import re

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot import style as kst

# feature: (title, logarithmic colours).
SHOWN = {"entropy": ("entropy, nats", False), "first_mass": ("attention on the first 16 tokens", False),
         "near_mass": ("attention on the last 256 tokens", False), "rho": ("bound on logits", True),
         "key_mean": ("mean key's share of keys", False), "key_dims": ("dimensions of keys", False)}
ROW = 0.42  # inches of a map, and for each KV head
MANY = 8  # largest over smallest value, for logarithmic colours
MOST = 7  # methods with a colour of their own


def cells(column, layers, heads):
    """Returns values [kv_head, layer], NaN if missing."""
    return column.unstack("layer").reindex(index=heads, columns=layers).to_numpy()


def colours(models):
    """Returns {method: colour} of the most frequent best methods of all models; the others share grey."""
    names, counts = np.unique(np.concatenate([one.best().to_numpy(dtype=str) for one in models]), return_counts=True)
    order = names[np.argsort(-counts, kind="stable")]
    return {method: kf.COLORS[at] for at, method in enumerate(order[:MOST])}


@kf.in_style
def draw(heads, looks):
    layers = sorted(heads.errors.index.unique("layer"))
    numbers = sorted(heads.errors.index.unique("kv_head"))
    maps = 2 + len(SHOWN)
    bars = bool(heads.budgets)
    height = ROW + 0.09 * len(numbers)
    figure = kf.new_picture(kf.PAGE_WIDTH, height * (maps + 2 * bars))
    grid = figure.subplots(maps + bars, 1, squeeze=False, sharex=True,
                           gridspec_kw={"height_ratios": [1] * maps + [2] * bars})[:, 0]
    extent = (layers[0] - 0.5, layers[-1] + 0.5, len(numbers) - 0.5, -0.5)
    best = heads.best()
    methods = [method for method in looks if (best == method).any()]
    others = sorted(set(best) - set(methods))
    codes = best.map({method: at for at, method in enumerate(methods)}).fillna(len(methods)).astype(float)
    palette = ListedColormap([*(looks[method] for method in methods), kst.GREY])
    grid[0].imshow(cells(codes, layers, numbers), cmap=palette, vmin=-0.5, vmax=len(methods) + 0.5, aspect="auto",
                   interpolation="nearest", extent=extent)
    grid[0].set_title("best method", loc="left")
    smallest = heads.errors.min(axis=1)
    drawn = [(smallest, "its error", True), *((heads.features[name], *look) for name, look in SHOWN.items())]
    for axes, (column, title, log) in zip(grid[1:], drawn):
        wide = log and 0 < MANY * column.min() < column.max()
        norm = LogNorm(column.min(), column.max()) if wide else None
        image = axes.imshow(cells(column, layers, numbers), norm=norm, cmap="viridis", aspect="auto",
                            interpolation="nearest", extent=extent)
        axes.set_title(title, loc="left")
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, aspect=4)
        if norm is None:
            bar.ax.yaxis.set_major_locator(MaxNLocator(2))
        else:
            kl.plain_log(bar.ax.yaxis)
            bar.ax.yaxis.set_major_locator(LogLocator(numticks=4))
            bar.ax.yaxis.set_minor_locator(NullLocator())
    for axes in grid[:maps]:
        axes.set_yticks(range(len(numbers)), [f"{n:g}" for n in numbers])
        axes.set_ylabel("KV head")
        axes.tick_params(length=2)
    if bars:
        kf.dress(grid[-1])
        shares = [heads.budgets.get(int(layer), np.nan) for layer in layers]
        grid[-1].bar(layers, shares, color=kf.COLORS[0], width=0.8)
        grid[-1].set_title("budget of the policy", loc="left")
        grid[-1].set_ylabel("fraction")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[-1].set_xlabel("layer")
    handles = [Patch(color=looks[method], label=method) for method in methods]
    if others:
        handles.append(Patch(color=kst.GREY, label="other" if len(others) > 1 else others[0]))
    kf.legend_above(figure, handles)
    return figure


def draw_all(stem, models):
    looks = colours(models)
    for one in models:
        kf.save_figure(draw(one, looks), f"{stem}-{re.sub(r'[^a-z0-9.]+', '-', one.model.lower())}")
