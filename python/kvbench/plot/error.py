"""Relative error against compression, one panel per layer (BalanceKV, figure 2).

Of more than nine layers: the mean over layers with the quartiles of layers, and a map of layer
against x per algorithm.

Per algorithm and x the mean of rel_error over traces, prompts and heads is taken for each seed
first; the line shows the mean of these over seeds, the bar their standard deviation (n - 1), as in
the paper. `--spread all` shows the standard deviation over all rows instead. One seed: no bar.

x of a row is its parameter T; without one, -log2 of its requested budget (T halvings leave 2^-T of
the middle). Rows with neither (`exact`) are drawn as a horizontal line.
"""

import argparse
import math
import sys

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl

AXIS_LABELS = {
    "T": "halvings $T$",
    "budget": "budget (fraction of the middle)",
    "middle_ratio": "bytes held / full bytes of the middle",
}


def number(text):
    """A finite float, or None for '', 'auto' and the like."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def halvings(params, budget):
    """T of a row: its parameter, else from its budget, else NaN."""
    t = number(kt.parse_params(params).get("T"))
    if t is None and budget > 0:
        t = -math.log2(budget)
    return math.nan if t is None else t


def reduce_rows(frame, spread):
    """One row per (layer, label, T): mean, sd, middle_ratio, seeds. NaN T is a group of its own."""
    keys = ["layer", "label", "T"]
    per_seed = frame.groupby(keys + ["seed"], dropna=False, sort=False).agg(
        mean=("rel_error", lambda v: v.mean(skipna=False)))
    over_seeds = per_seed.groupby(level=keys, dropna=False, sort=False)["mean"]
    out = over_seeds.agg(mean=lambda v: v.mean(skipna=False), sd="std", seeds="size")
    rows = frame.groupby(keys, dropna=False, sort=False)
    if spread == "all":
        out["sd"] = rows["rel_error"].std()
    out["middle_ratio"] = rows["middle_ratio"].mean()
    return out.reset_index()


def load(paths, algorithms, spread):
    """The frame that is plotted, labels in order of first appearance."""
    frame = kt.read_results(
        paths, ["layer", "seed", "budget_requested", "middle_ratio", "rel_error"])
    if algorithms:
        absent = [a for a in algorithms if a not in set(frame["algorithm"])]
        if absent:
            raise kt.CsvError(f"{paths[0]}: no rows of algorithm {', '.join(absent)}; it holds "
                              + ", ".join(sorted(frame["algorithm"].unique())))
        frame = frame[frame["algorithm"].isin(algorithms)]
    frame = kt.measured_rows(frame)
    # Rounded, so that a budget written as 0.3333 and one as 0.33330 share a point.
    frame["T"] = [round(halvings(p, b), 9)
                  for p, b in zip(frame["params"], frame["budget_requested"])]
    if frame["T"].isna().all():
        raise kt.CsvError(f"{paths[0]}: no row has a parameter T or a budget to put on the x axis")
    kt.add_labels(frame, ignore=("T",))
    return reduce_rows(frame, spread)


def x_values(points, x):
    if x == "middle_ratio":
        return points["middle_ratio"].to_numpy()
    t = points["T"].to_numpy()
    return t if x == "T" else np.exp2(-t)


def draw_line(axes, points, x, style, band):
    """One algorithm in one panel. Infinite means are left out of the line (NaN breaks it)."""
    flat = points["T"].isna().to_numpy()
    for _, point in points[flat].iterrows():
        if x == "middle_ratio":
            axes.plot(point["middle_ratio"], point["mean"], ms=3.5, **style)
        else:
            axes.axhline(point["mean"], color=style["color"], linestyle=":", linewidth=1.2)
    points = points[~flat]
    if points.empty:
        return
    xs = x_values(points, x)
    order = np.argsort(xs)
    xs = xs[order]
    means = points["mean"].replace([np.inf, -np.inf], np.nan).to_numpy()[order]
    sds = points["sd"].replace([np.inf, -np.inf], np.nan).fillna(0.0).to_numpy()[order]
    axes.plot(xs, means, ms=3.5, linewidth=1.2, **style)
    if band:
        axes.fill_between(xs, means - sds, means + sds, color=style["color"], alpha=0.2,
                          linewidth=0)
    elif (sds > 0).any():
        axes.errorbar(xs, means, yerr=sds, fmt="none", ecolor=style["color"], elinewidth=0.9,
                      capsize=3, zorder=3)


def fraction_text(value):
    """Powers of two as 1/8, which is narrower than 0.125; others in decimals."""
    power = -math.log2(value)
    if abs(power - round(power)) < 1e-9 and power >= 0:
        return "1" if round(power) == 0 else f"1/{2 ** round(power)}"
    return f"{value:.3g}"


def set_x_axis(axes, x, table):
    if x == "T":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    axes.set_xscale("log", base=2)
    ticks = sorted(set(x_values(table[table["T"].notna()], x)))
    if x == "budget" and len(ticks) <= 6:
        axes.xaxis.set_major_locator(FixedLocator(ticks))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: fraction_text(v)))
    # Compression grows to the right, as with T. Shared axes: set, not toggled once per panel.
    axes.xaxis.set_inverted(True)


def set_y_axis(axes, means, log_y):
    """From zero with room for what lies on it; logarithmic: from the least of `means` on."""
    if not log_y:
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        return
    axes.set_yscale("log")
    means = means[np.isfinite(means) & (means > 0)]
    if len(means):
        axes.set_ylim(0.7 * means.min(), 1.4 * means.max())
        kl.plain_log(axes.yaxis)


def line_means(part):
    """Means of the lines alone: `exact` has rounding errors or zero, which would flatten all."""
    return part.loc[part["T"].notna(), "mean"].to_numpy()


def line_styles(table, x):
    """{label: style}; what has no T is a dotted level, but for x = middle_ratio, where it is a
    point."""
    out = {}
    for i, label in enumerate(dict.fromkeys(table["label"])):
        out[label] = kf.line_style(i)
        if x != "middle_ratio" and table.loc[table["label"] == label, "T"].isna().all():
            out[label].update(linestyle=":", marker=None)
    return out


def draw(table, x="T", log_y=False, band=False, share_y=False):
    """The figure: a panel per layer, or of many layers an overview."""
    layers = sorted(table["layer"].unique())
    styles = line_styles(table, x)
    if not kl.fit_panels(layers):
        return draw_overview(table, styles, x, log_y)
    figure, panels = kl.facets([layers], sharex=x != "middle_ratio", sharey=share_y)
    for layer, axes in panels.items():
        part = table[table["layer"] == layer]
        for label, style in styles.items():
            draw_line(axes, part[part["label"] == label], x, style, band)
        axes.set_title(f"layer {int(layer)}")
        set_x_axis(axes, x, table)
        set_y_axis(axes, line_means(table if share_y else part), log_y)
    figure.supxlabel(AXIS_LABELS[x], fontsize=kf.FONT_SIZE)
    figure.supylabel("relative error", fontsize=kf.FONT_SIZE)
    kf.legend_above(figure, [kf.line_handle(style, label) for label, style in styles.items()])
    return figure


def draw_overview(table, styles, x, log_y):
    """Means over layers, and a map of layer and T per algorithm."""
    def prepare(axes, means):
        set_x_axis(axes, x, table)
        set_y_axis(axes, means.loc[means["x"].notna(), ["low", "high"]].to_numpy().ravel(), log_y)

    rows = table[np.isfinite(table["mean"])]
    rows = rows.assign(x=rows["T"], at=x_values(rows, x))
    by_t = x != "budget"
    return kl.overview([kl.Part(rows, "relative error")], styles, AXIS_LABELS[x], prepare,
                       map_x_name=AXIS_LABELS["T" if by_t else "budget"],
                       tick="{:g}".format if by_t else lambda t: fraction_text(2.0**-t))


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="OUT.csv", help="files of kvbench replay")
    parser.add_argument("-o", "--output", required=True, metavar="STEM",
                        help="writes STEM.png and STEM.pdf")
    parser.add_argument("--x", choices=list(AXIS_LABELS), default="T", help="default: T")
    parser.add_argument("--spread", choices=["seeds", "all"], default="seeds",
                        help="standard deviation over seeds (default) or over all rows")
    parser.add_argument("--algorithms", metavar="NAME,...", default="",
                        help="only these, default all")
    parser.add_argument("--log-y", action="store_true", help="logarithmic error axis")
    parser.add_argument("--share-y", action="store_true", help="one error scale for all layers")
    parser.add_argument("--band", action="store_true", help="shaded bands in place of error bars")
    return parser.parse_args(arguments)


def main():
    options = parse_arguments()
    algorithms = [a for a in options.algorithms.split(",") if a]
    table = load(options.inputs, algorithms, options.spread)
    bad = table[~np.isfinite(table["mean"])]
    for label in dict.fromkeys(bad["label"]):
        print(f"note: {label} has a mean that is not finite; it is not drawn",
              file=sys.stderr)
    figure = draw(table, options.x, options.log_y, options.band, options.share_y)
    kf.save_figure(figure, options.output)
