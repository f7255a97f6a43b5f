"""Relative error against compression, one panel per layer (BalanceKV, figure 2).

At most ten lines: the references and those with the smallest error at the smallest budget; --all
draws all, --algorithms the named ones.

More than nine layers: the mean over layers with the quartiles of layers, and a map of layer against
T or budget per algorithm. `--mean-over-layers`: one panel of the means alone. More than eight lines
are labelled at their right ends. `--highlight` greys all other lines and limits maps to the named.

Per algorithm and x, rel_error (--y: another column) is averaged over traces, prompts and heads for
each seed; the line is the mean over seeds, the bar the standard deviation over seeds (n - 1; none
for one seed), as in the paper. `--spread all`: over all rows. Points that are infeasible in some
heads are skipped.

x of a row is its parameter T; otherwise -log2 of its requested budget (T halvings leave 2^-T of the
middle). Rows with neither (`exact`) are horizontal lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import guest as kg
from kvbench.plot import layers as kl
from kvbench.plot import names as kn
from kvbench.plot import style as ks
from kvbench.plot import zero_axis as kz

AXIS_LABELS = {
    "T": "halvings $T$",
    "log2": "halvings ($-\\log_2$ of the budget)",
    "both": "halvings ($T$, or $-\\log_2$ of the budget)",
    "budget": "budget (fraction of the middle)",
    "middle_ratio": "bytes held / full bytes of the middle",
}


def number(text):
    """Returns a finite float, or None for '', 'auto' and the like."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def halvings(params, budget):
    """Returns T of a row: its parameter, or from its budget, or NaN."""
    t = number(kt.parse_params(params).get("T"))
    if t is None and budget > 0:
        t = -math.log2(budget)
    return math.nan if t is None else t


X = ("T", "budget", "middle_ratio")
SPREAD = ("seeds", "all")
KEYS = ["layer", "label", "T"]
ALL = -1.0  # layer code of a mean over layers


def reduce_rows(frame, spread, y="rel_error"):
    """Returns one row per (layer, label, T): mean, sd, seeds, middle_ratio. NaN T is its own
    group.
    """
    out = kt.mean_and_sd(frame, KEYS, y, spread)
    rows = frame.groupby(KEYS, dropna=False, sort=False)
    out["middle_ratio"] = rows["middle_ratio"].mean().to_numpy()
    return out


def load(paths, algorithms, spread, y="rel_error", layers=(), mean_over_layers=False,
         relative_to="", pool=False):
    """Returns the plotted frame, labels in order of appearance."""
    frame = kt.read_results(paths, [y, "layer", "seed", "budget_requested", "middle_ratio",
                                    *kt.HEAD_COLUMNS])
    frame = kt.pick_algorithms(frame, algorithms, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    frame = kt.measured_rows(frame, paths[0], pool)
    # Rounded, so that budgets 0.3333 and 0.33330 share a point.
    frame["T"] = [round(halvings(p, b), 9)
                  for p, b in zip(frame["params"], frame["budget_requested"])]
    if frame["T"].isna().all():
        raise kt.CsvError(f"{paths[0]}: no row has a parameter T or a budget to put on the x axis")
    kt.add_labels(frame, ignore=("T",))
    facts = frame
    if mean_over_layers:
        frame = kt.full_points(frame, ["label", "T"], paths[0]).assign(layer=ALL)
    else:
        frame = kt.full_points(frame, KEYS, paths[0])
    table = kfr.relative(reduce_rows(frame, spread, y), relative_to, ["layer", "T"], paths[0])
    given = {number(kt.parse_params(params).get("T")) is not None
             for params in facts.loc[facts["T"].notna(), "params"].unique()}
    table.attrs["T"] = "both" if len(given) > 1 else "T" if given == {True} else "log2"
    return kfr.keep(table, facts)


def axis_label(x, table):
    return AXIS_LABELS[table.attrs.get("T", "T") if x == "T" else x]


def x_values(points, x):
    if x == "middle_ratio":
        return points["middle_ratio"].to_numpy()
    t = points["T"].to_numpy()
    return t if x == "T" else np.exp2(-t)


def draw_line(axes, points, x, style, band, zero=None):
    """Draws one algorithm in one panel, with gaps at infinite means.

    zero: position of methods that hold nothing; not joined to the line.
    """
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
    alone = xs == (math.nan if zero is None else zero)
    for some, look in ((~alone, style), (alone, {**style, "linestyle": "none"})):
        if some.any():
            axes.plot(xs[some], means[some], ms=3.5, linewidth=1.2, **look)
    if band:
        axes.fill_between(xs, means - sds, means + sds, color=style["color"], alpha=0.2,
                          linewidth=0)
    elif (sds > 0).any():
        axes.errorbar(xs, means, yerr=sds, fmt="none", ecolor=style["color"], elinewidth=0.9,
                      capsize=3, zorder=3)


def fraction_text(value):
    """Returns powers of two as 1/8, others in decimals."""
    power = -math.log2(value)
    if abs(power - round(power)) < 1e-9 and power >= 0:
        return "1" if round(power) == 0 else f"1/{2 ** round(power)}"
    return f"{value:.3g}"


def set_x_axis(axes, x, table, zero=None, least=None):
    """zero, least: of zero.zero_place, which `table` has in place of 0."""
    if x == "T":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    axes.set_xscale("log", base=2)
    ticks = sorted(set(x_values(table[table["T"].notna()], x)))
    if x == "budget" and len(ticks) <= 6:
        axes.xaxis.set_major_locator(FixedLocator(ticks))
    else:
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: fraction_text(v)))
    # Compression grows to the right, as with T. Shared axes: set rather than toggle.
    axes.xaxis.set_inverted(True)
    if zero is not None:
        kz.break_axis(axes, zero, least)


def with_zero(table, x):
    """Returns (table, zero, least): 0 on the x axis replaced by its position."""
    zero, least = kz.zero_place(table["middle_ratio"]) if x == "middle_ratio" else (None, None)
    if zero is None:
        return table, None, None
    return table.assign(middle_ratio=table["middle_ratio"].replace(0.0, zero)), zero, least


def set_y_axis(axes, means, log_y):
    """Starts at zero, or on a logarithmic axis at the smallest of `means`."""
    if not log_y:
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
        return
    axes.set_yscale("log")
    means = means[np.isfinite(means) & (means > 0)]
    if len(means):
        axes.set_ylim(0.7 * means.min(), 1.4 * means.max())
        kl.plain_log(axes.yaxis)


def line_means(part):
    """Means of the lines only: those of `exact` would flatten all others."""
    return part.loc[part["T"].notna(), "mean"].to_numpy()


def line_styles(table, x, highlight=()):
    """Returns {label: style}; a line without T is dotted, except for x = middle_ratio, where it is
    a point.
    """
    out = ks.styles(table["label"], highlight)
    for label in out:
        if x != "middle_ratio" and table.loc[table["label"] == label, "T"].isna().all():
            out[label].update(linestyle=":", marker=None)
    return out


def ends(axes, part, styles, x):
    """Returns the ends of a panel's lines, for names.name_lines."""
    lines, levels = {}, {}
    for label in styles:
        points = part[part["label"] == label]
        if points["T"].isna().all() and len(points) and x != "middle_ratio":
            levels[label] = (None, points["mean"].iloc[0])
        else:
            lines[label] = (x_values(points, x), points["mean"])
    return {**kn.ends_of(axes, lines), **levels}


@kf.in_style
def draw(table, x="T", log_y=False, band=False, share_y=False, y="rel_error", highlight=(),
         relative_to=""):
    """Returns a figure with a panel per layer, or an overview of many layers."""
    layers = sorted(table["layer"].unique())
    styles = line_styles(table, x, highlight)
    named = len(styles) > kn.MANY
    columns, height = (2, kn.height_for(len(styles))) if named else (kl.MAX_COLUMNS, 2.0)
    if len(layers) == 1:
        columns, height = 1, max(height, 3.2)
    name = kfr.y_label(y, relative_to)
    if not kl.fit_panels(layers, height=height, columns=columns):
        return draw_overview(table, styles, x, log_y, name, highlight)
    x_name = axis_label(x, table)
    table, *zero = with_zero(table, x)
    figure, panels = kl.facets([layers], height=height, columns=columns, sharey=share_y,
                               sharex=x != "middle_ratio", wide=named)
    for layer, axes in panels.items():
        part = table[table["layer"] == layer]
        for label, style in styles.items():
            draw_line(axes, part[part["label"] == label], x, style, band, zero[0])
        axes.set_title("mean over layers" if layer == ALL else f"layer {int(layer)}")
        set_x_axis(axes, x, table, *zero)
        set_y_axis(axes, line_means(table if share_y else part), log_y)
    figure.supxlabel(x_name, fontsize=kf.FONT_SIZE)
    figure.supylabel(name, fontsize=kf.FONT_SIZE)
    if not named:
        kf.legend_above(figure, [kf.line_handle(look, label) for label, look in styles.items()])
        return figure
    figure.canvas.draw()
    for layer, axes in panels.items():
        kn.name_lines(axes, ends(axes, table[table["layer"] == layer], styles, x), styles,
                      *ks.emphasis(styles, highlight))
    return figure


def draw_overview(table, styles, x, log_y, name, highlight):
    """Returns a figure with means over layers, and a map per algorithm of layer and T, or of layer and budget if x
    is bytes.
    """
    rows = table[np.isfinite(table["mean"])]
    # Over all layers, since a method may hold nothing in one and something in another.
    held = rows.groupby(["label", "T"], dropna=False)["middle_ratio"].transform("mean")
    rows, *zero = with_zero(rows.assign(middle_ratio=held), x)

    def prepare(axes, means):
        set_x_axis(axes, x, rows, *zero)
        set_y_axis(axes, means.loc[means["x"].notna(), ["low", "high"]].to_numpy().ravel(), log_y)

    by_t = x == "T"
    drawn = rows.assign(x=rows["T"], at=x_values(rows, x))
    return kl.overview([kl.Part(drawn, name, alone=zero[0])], styles, axis_label(x, table), prepare,
                       map_x_name=axis_label("T" if by_t else "budget", table),
                       tick="{:g}".format if by_t else lambda t: fraction_text(2.0**-t),
                       highlight=highlight, choose="--algorithms or --highlight")


def measured(table, y="rel_error"):
    ts = sorted(table["T"].dropna().unique())
    parts = []
    for t in dict.fromkeys((ts[0], ts[-1])):
        means = table[table["T"] == t].groupby("label", sort=False)["mean"].mean().sort_values()
        parts.append(f"at T = {t:g} " + ", ".join(f"{k} {v:.3g}" for k, v in means.items()))
    return f"Measured, {y}: " + "; ".join(parts) + "."


@kg.public
def figure(tables: list[str], *, y: str = "rel_error", x: str = "T", spread: str = "seeds",
           algorithms: kg.Names = (), all: bool = False, layers: Sequence[int] = (),
           mean_over_layers: bool = False, highlight: kg.Names = (), relative_to: str = "",
           pool: bool = False, log_y: bool = False, share_y: bool = False, band: bool = False,
           title: str = "", model: str = "") -> kf.Picture:
    """Returns the figure of rows of `kvbench replay`; arguments are the program's options. Raises
    CsvError, and ValueError for an unknown `x`, `y` or `spread`.
    """
    for name, value, allowed in (("y", y, kt.METRIC_LABELS), ("x", x, X), ("spread", spread, SPREAD)):
        kg.check_choice(name, value, allowed)
    wanted = kc.Wanted(all, kg.name_list(algorithms), kg.name_list(highlight))
    table = load(tables, wanted.algorithms, spread, y, layers, mean_over_layers, relative_to, pool)
    ks.check_highlight(table["label"], wanted.highlight, tables[0])
    whole = table
    table, chosen = kc.pick(table.assign(size=np.exp2(-table["T"])), wanted, "size", what=y,
                            higher_better=y in kt.HIGHER_BETTER)
    bad = table[~np.isfinite(table["mean"])]
    for label in dict.fromkeys(bad["label"]):
        kt.note(f"{label} has a mean that is not finite; not drawn")
    picture = draw(table, x, log_y, band, share_y, y, wanted.highlight, relative_to)
    over = "all rows" if spread == "all" else "seeds, of the means over prompts and heads"
    bars = kl.spread_text(
        picture, kfr.where_spread(
            table, f"{'Bands' if band else 'Bars'}: standard deviation over {over}."))
    return kfr.finish(picture, table.attrs["facts"], chosen + bars, measured(whole, y), title,
                      model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(
        __doc__, y=kt.METRIC_LABELS,
        take=("--algorithms", "--all", "--layers", "--mean-over-layers", "--highlight",
              "--relative-to", "--pool"))
    parser.add_argument("--x", choices=X, default="T", help="default: T")
    parser.add_argument("--spread", choices=SPREAD, default="seeds",
                        help="standard deviation over seeds (default) or over all rows")
    parser.add_argument("--log-y", action="store_true", help="logarithmic error axis")
    parser.add_argument("--share-y", action="store_true", help="one error scale for all layers")
    parser.add_argument("--band", action="store_true", help="shaded bands in place of error bars")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
