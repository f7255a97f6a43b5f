"""Position of 0 on a logarithmic x axis, left of a break, for methods that hold nothing of the middle."""

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter


def zero_place(xs):
    """Returns (x of the points at 0, x of the break), or (None, None) without such points."""
    xs = np.asarray(xs, float)
    xs = xs[np.isfinite(xs)]
    if (xs > 0).all():
        return None, None
    least = xs[xs > 0].min() if (xs > 0).any() else 1.0
    return least / 2, least / 2**0.5


def break_axis(axes, zero, least):
    """Breaks the x axis at `least` and labels `zero` 0."""
    number = axes.xaxis.get_major_formatter()
    axes.xaxis.set_major_locator(FixedLocator([zero, *(v for v in axes.xaxis.get_majorticklocs() if v > least)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, at: number(v, at) if v > least else "0"))
    axes.axvline(least, color="0.6", linestyle=(0, (1, 2)), linewidth=0.8, zorder=0)
    for at in (least / 1.015, least * 1.015):  # two strokes across the axis
        axes.plot([at / 1.01, at * 1.01], [-0.012, 0.012], color="black", linewidth=0.7,
                  transform=axes.get_xaxis_transform(), clip_on=False, scalex=False, scaley=False)
