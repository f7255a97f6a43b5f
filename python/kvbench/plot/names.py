"""Labels at the ends of lines, in place of a long legend."""

import numpy as np
from matplotlib.colors import to_rgb

from kvbench.plot import figures as kf

MANY = 8  # lines; above, labels replace the legend
FAR = 0.85  # of the panel's width; a leader that begins before crosses lines, and is dotted
SPACING = 1.12 * kf.SMALL_FONT_SIZE / 72  # inches between labels


def height_for(count):
    """Inches of a panel that fits the labels, ticks and x label."""
    return 0.6 + 1.07 * count * SPACING


def ends_of(axes, lines):
    """Returns {label: (x, y)} of each line's right end, in data; lines: {label: (xs, ys)}."""
    out = {}
    for label, (xs, ys) in lines.items():
        points = np.column_stack([np.asarray(xs, float), np.asarray(ys, float)])
        points = points[np.isfinite(points).all(axis=1)]
        if len(points):
            out[label] = tuple(points[np.argmax(axes.transData.transform(points)[:, 0])])
    return out


def placed(wanted, gap, low, high):
    """Returns positions `gap` apart (less if there is no room), near the wanted ones, from low to high."""
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    out = kf.spread_out(wanted, gap)
    order = np.argsort(out, kind="stable")
    for at, way, edge in ((order, 1, low), (order[::-1], -1, high)):
        for i in at:  # blocks beyond the ends push the others inwards
            out[i] = edge = max(out[i], edge) if way > 0 else min(out[i], edge)
            edge += way * gap
    return out


def name_lines(axes, ends, styles, bold=(), grey=()):
    """Draws labels right of the panel, in the order of the line ends, with leaders. ends: {label: (x, y)} in data, x
    None: a level across the panel. Requires a laid-out figure (canvas.draw) with final limits.
    """
    labels = list(ends)
    if not labels:
        return
    transform = axes.transData + axes.transAxes.inverted()
    left = axes.get_xlim()[0]
    at = np.array([transform.transform((left if x is None else x, y)) for x, y in ends.values()])
    at[:, 0] = [1.0 if x is None else p for (x, _), p in zip(ends.values(), at[:, 0])]
    # Ends outside the axes (an exact cache on a logarithmic axis) are labelled at the edge.
    at[:, 1] = np.clip(np.nan_to_num(at[:, 1], nan=0.0, neginf=0.0, posinf=1.0), 0.0, 1.0)
    height = axes.get_window_extent().height / axes.figure.dpi
    ys = placed(at[:, 1], SPACING / height, 0.0, 1.0)
    for label, (x, y), place in zip(labels, at, ys):
        color = "0.55" if label in grey else styles[label]["color"]
        far = {"linestyle": ":"} if x < FAR else {}
        axes.plot([x, 1.015, 1.05], [y, place, place], transform=axes.transAxes, color=color,
                  linewidth=0.5, alpha=0.7, clip_on=False, zorder=1, scalex=False, scaley=False, **far)
        axes.text(1.06, place, label, transform=axes.transAxes, va="center", color=ink(color),
                  fontsize=kf.SMALL_FONT_SIZE, weight="bold" if label in bold else "normal")


def ink(color):
    """Returns the colour, darkened if unreadable on white."""
    rgb = np.array(to_rgb(color))
    light = rgb @ (0.2126, 0.7152, 0.0722)
    return tuple(rgb * min(1.0, 0.45 / max(light, 1e-9)))
