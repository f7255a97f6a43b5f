"""Error against memory, all methods in one picture, with the Pareto front.

A point per algorithm, parameters and budget; a line joins the sizes of one variant. x: bytes held
over full bytes of the whole cache (`ratio`) or of the middle alone, or bytes per KV head; y: an
error. Both axes are logarithmic. Mean over prompts, layers and heads per seed, then over seeds;
bars: standard deviation over seeds (n - 1; none for one seed), with `--spread all` over all rows.

The Pareto front (thick grey) joins the points that no other beats in error at the same memory or
less; half a per cent more is the same (caches hold whole tokens). With some memory one can have the
error of the front's nearest point to its left, so the front is a staircase.
What sees the evaluated queries (`oracle`, also as a part of another) is dashed and stays outside
the front. `oracle-matching`, where it is given, is the floor: the smallest error known for the bytes,
dotted, and grey below. Errors below 1e-9 (an exact cache) are rounding and lie below the axis. Each
line is named at its right end, methods on the front in bold. Points that are infeasible in some
heads are left out.
"""

import sys

import matplotlib.patheffects as effects
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf

X_LABELS = {
    "ratio": "bytes held / bytes of the full cache",
    "middle_ratio": "bytes held / bytes of the full middle",
    "bytes": "bytes held per KV head",
}
# Parameters that set a size: along a line they vary, so they name no line.
SIZE_PARAMETERS = ("T", "tokens", "delta", "bits")
# Fitted to the queries that it is judged by: the smallest error known for the bytes.
FLOOR = "oracle-matching"
# One budget buys whole tokens, blocks or groups: bytes of methods differ by this share at most.
SAME_MEMORY = 1.005


def sees_evaluated(algorithm, params):
    """Whether some part is given the queries that it is judged by: no compressor can have that."""
    named = kt.parse_params(params).values()
    return any(name in ("oracle", FLOOR) for name in [*algorithm.split("+"), *named])


def load(paths, x="ratio", y="rel_error", spread="seeds", algorithms=(), layers=()):
    """One row per point: label, algorithm, params, budget_requested, x, mean, sd, seeds."""
    frame = kt.read_results(paths, [*kt.HEAD_COLUMNS, "seed", "budget_requested", x, y])
    frame = kt.pick_algorithms(frame, algorithms, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    frame = kt.measured_rows(frame, paths[0])
    kt.add_labels(frame, ignore=SIZE_PARAMETERS)
    keys = ["label", "algorithm", "params", "budget_requested"]
    frame = kt.full_points(frame, keys, paths[0])
    table = kt.mean_and_sd(frame, keys, y, spread)
    table["x"] = frame.groupby(keys, dropna=False, sort=False)[x].mean().to_numpy()
    table = kt.finite_points(table)
    exact = table["mean"] < kt.ROUNDING_ERROR
    if exact.all():
        raise kt.CsvError(f"{paths[0]}: column `{y}` is below {kt.ROUNDING_ERROR:g} in every "
                          "point, expected errors for a logarithmic axis")
    hidden = table[(table["mean"] < kt.ROUNDING_ERROR) | (table["x"] <= 0)]
    for label in dict.fromkeys(hidden["label"]):
        print(f"note: {label} has points of no {x} or no {y}, which logarithmic axes cannot show",
              file=sys.stderr)
    return table


def pareto_front(table):
    """Points with a smaller mean than all others of the same x or less, by ascending x.

    x within SAME_MEMORY is the same; of points alike in both the first stays.
    """
    oracles = [sees_evaluated(*pair) for pair in zip(table["algorithm"], table["params"])]
    points = table[~np.array(oracles, bool)].sort_values(["mean", "x"], kind="stable")
    front = []
    for at, (x, mean) in enumerate(zip(points["x"], points["mean"])):
        others = points.iloc[:at]  # smaller errors, or equal ones of no more memory
        if not (others["x"] <= x * SAME_MEMORY).any():
            front.append(at)
    return points.iloc[front].sort_values("x")


def drawn_points(table):
    """Points within the logarithmic axes."""
    return table[(table["mean"] >= kt.ROUNDING_ERROR) & (table["x"] > 0)]


def draw_front(axes, front):
    """The staircase through the front and on to the right edge."""
    if front.empty:
        return
    xs = [*front["x"], max(front["x"].max(), axes.get_xlim()[1])]
    means = [*front["mean"], front["mean"].iloc[-1]]
    axes.plot(xs, means, drawstyle="steps-post", color="0.8", linewidth=5, zorder=1,
              solid_capstyle="butt", label="Pareto front")


def name_lines(axes, ends, bold):
    """Labels in a column right of the panel, in the order of the line ends, joined to them."""
    figure = axes.figure
    labels = list(ends)
    transform = axes.transData + axes.transAxes.inverted()
    at = np.array([transform.transform(ends[label][0]) for label in labels])
    height = axes.get_window_extent().height / figure.dpi * 72  # points
    gap = 1.12 * kf.SMALL_FONT_SIZE / height
    ys = kf.spread_out(at[:, 1], gap)
    ys += max(0.0, -ys.min()) - max(0.0, ys.max() - 1.0)
    for label, (x, y), place in zip(labels, at, ys):
        color = ends[label][1]["color"]
        axes.plot([x, 1.015, 1.05], [y, place, place], transform=axes.transAxes, color=color,
                  linewidth=0.5, alpha=0.7, clip_on=False, zorder=1, scalex=False, scaley=False)
        axes.text(1.06, place, label, transform=axes.transAxes, va="center", color=color,
                  fontsize=kf.SMALL_FONT_SIZE, weight="bold" if label in bold else "normal")


def set_x_axis(axes, x):
    """Powers of two; decimals where fewer than two of these are in view."""
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = np.log2(axes.get_xlim())
    sparse = np.floor(high) - np.ceil(low) < 1
    if sparse:
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=np.arange(1, 10), numticks=20))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    if x == "bytes":
        axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1, 1.5), numticks=12))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1024:g} Ki"))
    elif sparse:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(
            lambda v, _: f"1/{1 / v:g}" if v < 1 else f"{v:g}"))


def draw(table, x="ratio", y="rel_error"):
    """The figure: one panel at page width, as high as its labels need."""
    shown = drawn_points(table)
    labels = list(dict.fromkeys(shown["label"]))
    height = max(3.6, 0.6 + len(labels) * 1.2 * kf.SMALL_FONT_SIZE / 72)
    figure, grid = kf.panels(1, 1, width=kf.PAGE_WIDTH, height=height)
    axes = grid[0, 0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    front = drawn_points(pareto_front(table))
    bold = set(front["label"])
    low, high = shown["mean"].min(), shown["mean"].max()
    ends = {}
    for i, label in enumerate(labels):
        points = shown[shown["label"] == label].sort_values("x")
        style = kf.line_style(i)
        on_front = label in bold
        if sees_evaluated(points["algorithm"].iloc[0], points["params"].iloc[0]):
            style["linestyle"] = "--"
        if label == FLOOR:
            style.update(color="0.3", linestyle=":")
            axes.fill_between(points["x"], points["mean"], low / 1.3, color="0.93", zorder=0,
                              linewidth=0)
            if len(points) > 1:  # one point has no area below it
                axes.annotate("least error known", (points["x"].iloc[0], 0.03),
                              xycoords=("data", "axes fraction"), xytext=(6, 0), color="0.35",
                              textcoords="offset points", fontsize=kf.SMALL_FONT_SIZE)
        kf.plot_line(axes, points["x"], points["mean"], points["sd"], style,
                     linewidth=1.4 if on_front else 0.8, ms=4 if on_front else 2.8,
                     alpha=1.0 if on_front else 0.75, zorder=4 if on_front else 3, label=label)
        ends[label] = ((points["x"].iloc[-1], points["mean"].iloc[-1]), style)
    axes.set_ylim(low / 1.3, high * 1.3)  # bars may leave: a mean minus its sd can be below zero
    axes.set_xlim(shown["x"].min() / 1.1, shown["x"].max() * 1.1)
    draw_front(axes, front)
    set_x_axis(axes, x)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.set_xlabel(X_LABELS[x])
    axes.set_ylabel(kt.ERROR_LABELS[y])
    figure.canvas.draw()  # names stand by places in the laid-out panel
    name_lines(axes, ends, bold)
    if not front.empty:
        # Below its widest step: what beats the front is not there, but for oracles.
        steps = np.log([*front["x"], axes.get_xlim()[1]])
        point = front.iloc[int(np.argmax(np.diff(steps)))]
        note = axes.annotate("Pareto front", (point["x"], point["mean"]), xytext=(4, -5), va="top",
                             textcoords="offset points", fontsize=kf.SMALL_FONT_SIZE, color="0.35")
        note.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])
    return figure


def parse_arguments(arguments=None):
    parser = command.argument_parser(__doc__)
    parser.add_argument("--x", choices=list(X_LABELS), default="ratio", help="default: ratio")
    parser.add_argument("--y", choices=list(kt.ERROR_LABELS), default="rel_error",
                        help="default: rel_error")
    parser.add_argument("--spread", choices=["seeds", "all"], default="seeds",
                        help="standard deviation over seeds (default) or over all rows")
    parser.add_argument("--algorithms", type=command.name_list, metavar="NAME,...", default=[],
                        help="only these, default all")
    parser.add_argument("--layers", type=command.number_list, metavar="N,...", default=[],
                        help="mean over these layers, default all")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments()
    table = load(options.inputs, options.x, options.y, options.spread, options.algorithms,
                 options.layers)
    kf.save_figure(draw(table, options.x, options.y), options.output)
    plt.close("all")
