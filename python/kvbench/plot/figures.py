"""The style of every figure, its lines, panels and legends, and writing it.

Figures are made without pyplot: a caller's backend, rcParams and open figures stay as they are.
"""

import errno
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
from kvbench.tables import CsvError, DeviceError

# Okabe and Ito's palette, safe for the common kinds of colour blindness. Yellow is left out: it
# does not show on white. Lines differ in marker and dash as well, for print in grey.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">"]
DASHES = ["-", "--", "-.", ":"]

PAGE_WIDTH = 7.0  # inches: both columns of a page
COLUMN_WIDTH = 3.4
PAGE_HEIGHT = 9.6  # no figure is higher, with its legend and what stands below it
FOOTER_HEIGHT = 0.5  # of these: what frame.add writes below
BODY_HEIGHT = PAGE_HEIGHT - FOOTER_HEIGHT
FONT_SIZE = 8
SMALL_FONT_SIZE = 6.5  # nothing in a picture is smaller


class Picture(Figure):
    """A matplotlib Figure that a notebook shows by itself, pyplot imported or not.

    caption: what was measured, in words and numbers.
    """

    caption: str = ""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100, bbox_inches="tight")
        return out.getvalue()


# Type sizes and widths of lines of every figure.
STYLE = {"font.size": FONT_SIZE, "axes.titlesize": FONT_SIZE, "legend.fontsize": 7.5,
         "xtick.labelsize": 7, "ytick.labelsize": 7, "pdf.fonttype": 42, "axes.linewidth": 0.6}


def in_style(function):
    """Decorator: STYLE holds while the function runs, and no longer."""
    @functools.wraps(function)
    def styled(*args, **more):
        with matplotlib.rc_context(STYLE):
            return function(*args, **more)
    return styled


def line_style(i):
    """Colour, marker and dash of the i-th line; the first 7 differ in colour, the next in dash."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(PALETTE) % len(DASHES)],
    }


def plot_line(axes, xs, means, sds, style, band=False, **more):
    """A line with bars of one standard deviation (NaN: none) or a shaded band; returns the line."""
    above = {**style, **more}.get("zorder", 2)
    sds = np.nan_to_num(np.asarray(sds, dtype=float), nan=0.0, posinf=0.0)
    means = np.asarray(means, dtype=float)
    (drawn,) = axes.plot(xs, means, **{"ms": 3.5, "linewidth": 1.2, **style, **more})
    if band:
        axes.fill_between(xs, means - sds, means + sds, color=style["color"], alpha=0.2,
                          linewidth=0)
    elif (sds > 0).any():
        axes.errorbar(xs, means, yerr=sds, fmt="none", ecolor=style["color"], elinewidth=0.8,
                      capsize=2, zorder=above)
    return drawn


def new_picture(width, height):
    """A Picture without panels, in inches, that lays itself out."""
    picture = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def dress(axes):
    """Grid and frame of a panel, as all have them."""
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


@in_style
def panels(nrows, ncols, width=None, height=2.0, **more):
    """Figure and 2-D array of axes in the style of all figures. Sizes in inches.

    `width`: of the whole figure; default: COLUMN_WIDTH for up to two columns, else PAGE_WIDTH.
    `height`: of one row.
    """
    if width is None:
        width = COLUMN_WIDTH if ncols <= 2 else PAGE_WIDTH
    figure = new_picture(width, height * nrows)
    grid = figure.subplots(nrows, ncols, squeeze=False, **more)
    for axes in grid.flat:
        dress(axes)
    return figure, grid


@in_style
def legend_above(figure, handles, **more):
    """A legend above the panels, of as few rows as keep it within the figure's width."""
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
    """A legend's entry for `style`."""
    return Line2D([], [], **{"ms": 3.5, "linewidth": 1.2, "label": label, **style})


def spread_out(positions, gap):
    """Positions moved as little as need be to lie `gap` apart, in the order of `positions`."""
    order = np.argsort(positions, kind="stable")
    blocks = []  # [sum of wanted centres, count]; a block's members stand gap apart
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
    """Writes the files of kvbench.command.picture_files(output), PNG with 200 dpi; the same data
    give the same bytes."""
    dates = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in picture_files(output):
        ending = os.path.splitext(path)[1].lower()
        try:
            with matplotlib.rc_context({**STYLE, "svg.hashsalt": "kvbench"}):
                figure.savefig(path, dpi=200, bbox_inches="tight", metadata=dates[ending])
        except OSError as error:
            device = error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)
            kind = DeviceError if device else CsvError
            raise kind(f"{path}: cannot be written: {error.strerror}") from None
