"""Common style of figures: lines, panels, legends, saving.

Figures are made without pyplot, so that a caller's backend, rcParams and open figures are unaffected.
"""

import functools
import io
import math
import os

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvbench.command import picture_files
from kvbench.outputs import replacing
from kvbench.plot.palette import COLORS

MOST = len(COLORS)  # lines of a picture that are told apart

PAGE_WIDTH = 7.0  # inches: both columns of a page
COLUMN_WIDTH = 3.4
PAGE_HEIGHT = 9.6  # maximum, with legend and footer
FOOTER_HEIGHT = 0.5  # written by frame.add
BODY_HEIGHT = PAGE_HEIGHT - FOOTER_HEIGHT
FONT_SIZE = 8
SMALL_FONT_SIZE = 6.5  # minimum


class Picture(Figure):
    """A Figure that a notebook displays without pyplot. caption: the measured numbers in words."""

    caption: str = ""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100, bbox_inches="tight")
        return out.getvalue()


# Font sizes and line widths.
STYLE = {"font.size": FONT_SIZE, "axes.titlesize": FONT_SIZE, "legend.fontsize": 7.5,
         "xtick.labelsize": 7, "ytick.labelsize": 7, "pdf.fonttype": 42, "axes.linewidth": 0.6}


def in_style(function):
    """Decorator: applies STYLE while the function runs."""
    @functools.wraps(function)
    def styled(*args, **more):
        with matplotlib.rc_context(STYLE):
            return function(*args, **more)
    return styled


def plot_line(axes, xs, means, sds, style, **more):
    """Draws a line with bars of one standard deviation (NaN: none)."""
    above = {**style, **more}.get("zorder", 2)
    sds = np.nan_to_num(np.asarray(sds, dtype=float), nan=0.0, posinf=0.0)
    means = np.asarray(means, dtype=float)
    axes.plot(xs, means, **{"ms": 3.5, "linewidth": 1.2, **style, **more})
    if (sds > 0).any():
        axes.errorbar(xs, means, yerr=sds, fmt="none", ecolor=style["color"], elinewidth=0.8, capsize=2, zorder=above)


def new_picture(width, height):
    picture = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def dress(axes):
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


@in_style
def panels(nrows, ncols, width=None, height=2.0, **more):
    """Returns a figure and a 2-D array of axes. Inches: `width` of the figure (None: by columns), `height` of a row."""
    if width is None:
        width = COLUMN_WIDTH if ncols <= 2 else PAGE_WIDTH
    figure = new_picture(width, height * nrows)
    grid = figure.subplots(nrows, ncols, squeeze=False, **more)
    for axes in grid.flat:
        dress(axes)
    return figure, grid


@in_style
def legend_above(figure, handles, **more):
    """Draws a legend above the panels, within the figure's width."""
    rows = 1
    while True:
        columns = math.ceil(len(handles) / rows)
        legend = figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0),
                               frameon=False, ncol=columns, columnspacing=1.5, **more)
        wide = legend.get_window_extent(figure.canvas.get_renderer()).width
        if wide <= figure.bbox.width or columns == 1:
            return legend
        legend.remove()
        rows += 1


def line_handle(style, label):
    return Line2D([], [], **{"ms": 3.5, "linewidth": 1.2, "label": label, **style})


def spread_out(positions, gap):
    """Moves positions as little as possible to be `gap` apart, in order."""
    order = np.argsort(positions, kind="stable")
    blocks = []  # [sum of wanted centres, count] of members `gap` apart
    for want in np.asarray(positions, dtype=float)[order]:
        blocks.append([want, 1])
        while len(blocks) > 1:
            (left, m), (right, n) = blocks[-2:]
            if right / n - left / m >= gap * (m + n) / 2:
                break
            blocks[-2:] = [[left + right, m + n]]
    placed = np.concatenate([total / n + gap * (np.arange(n) - (n - 1) / 2)
                             for total, n in blocks]) if blocks else np.empty(0)
    out = np.empty(len(order))
    out[order] = placed
    return out


def save_figure(figure, output):
    """Writes the files of kvbench.command.picture_files(output), PNG with 200 dpi; deterministic."""
    dates = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in picture_files(output):
        ending = os.path.splitext(path)[1].lower()
        with replacing(path) as part, matplotlib.rc_context({**STYLE, "svg.hashsalt": "kvbench"}):
            figure.savefig(part, format=ending[1:], dpi=200, bbox_inches="tight", metadata=dates[ending])
