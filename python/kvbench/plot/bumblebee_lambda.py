"""Error against lambda, BumbleBee's weight of diversity against importance (its section 6).

One panel per budget; with --by-layer also per layer, or for many layers means over them and a map
of layer against lambda. A line per variant of each algorithm with a parameter lambda, in
configs/bumblebee_lambda.toml one per concave function phi; lambda = 0 is accumulated attention
alone, 1 facility location over the keys alone. Algorithms without lambda (h2o, local, random-local)
are horizontal lines; the paper compares with h2o.

Mean over prompts, layers and heads per seed, then over seeds; bars: standard deviation over seeds
(n - 1; none for one seed). The paper measures ROUGE of a model, this figure the error of the
attention output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import guest as kg
from kvbench.plot import layers as kl
from kvbench.plot import style as ks

LAMBDA = r"$\lambda$  (0: attention alone, 1: facility location alone)"


def lambda_of(params):
    """Returns lambda of a row; NaN if the algorithm has none."""
    text = kt.parse_params(params).get("lambda", "")
    try:
        return float(text)
    except ValueError:
        return math.nan


def load(paths, column, budgets=(), by_layer=False, layers=(), relative_to="", pool=False):
    """Returns one row per (budget, layer, label, lambda): mean, sd, seeds. layer is -1 for all
    together.
    """
    frame = kt.read_results(paths, [*kt.HEAD_COLUMNS, "seed", "budget_requested", column])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    frame = kt.measured_rows(frame, paths[0], pool)
    frame = kt.pick_numbers(frame, "budget_requested", budgets, paths[0])
    frame = frame[frame["budget_requested"].notna()].copy()
    frame["lambda"] = [lambda_of(text) for text in frame["params"]]
    if frame["lambda"].isna().all():
        raise kt.CsvError(f"{paths[0]}: no row with a budget has the parameter lambda, expected "
                          "bumblebee's")
    kt.add_labels(frame, ignore=("lambda",))
    keys = ["budget_requested", "label", "lambda"] + (["layer"] if by_layer else [])
    table = kt.mean_and_sd(kt.full_points(frame, keys, paths[0]), keys, column)
    if not by_layer:
        table["layer"] = -1.0
    table = kfr.relative(table, relative_to, ["budget_requested", "layer"], paths[0])
    return kfr.keep(kt.finite_points(table), frame)


def styles(table, highlight=()):
    """Returns the style of each label: lines with lambda first, then the horizontal ones."""
    curves = list(dict.fromkeys(table.loc[table["lambda"].notna(), "label"]))
    levels = [label for label in dict.fromkeys(table["label"]) if label not in curves]
    out = ks.styles([*curves, *levels], highlight)
    for i, label in enumerate(levels):
        out[label].update(linestyle=kf.DASHES[1 + i % 3], marker=None)
    return out


def draw_panel(axes, part, drawn):
    for label, style in drawn.items():
        points = part[part["label"] == label].sort_values("lambda")
        if points.empty:
            continue
        if points["lambda"].notna().all():
            kf.plot_line(axes, points["lambda"], points["mean"], points["sd"], style)
            continue
        point = points.iloc[0]
        axes.axhline(point["mean"], color=style["color"], linestyle=style["linestyle"],
                     linewidth=1.2)
        if point["sd"] > 0:
            axes.axhspan(point["mean"] - point["sd"], point["mean"] + point["sd"],
                         color=style["color"], alpha=0.15, linewidth=0)


def set_axes(axes, log_y):
    axes.set_xticks(np.linspace(0, 1, 6))
    if log_y:
        axes.set_yscale("log")


def draw_overview(table, budgets, drawn, name, log_y, highlight):
    """Returns a figure with panels and maps per budget; a dot marks each layer's best lambda."""
    parts = []
    for budget in budgets:
        rows = table[table["budget_requested"] == budget]
        parts.append(kl.Part(rows.assign(x=rows["lambda"]), name,
                             f"budget {budget:g}"))
    return kl.overview(parts, drawn, r"$\lambda$", lambda axes, _: set_axes(axes, log_y),
                       map_x_name=LAMBDA + "; dot: the minimum of the layer", minima=True,
                       highlight=highlight)


@kf.in_style
def draw(table, column="rel_error", log_y=False, highlight=(), relative_to=""):
    """Returns a figure with a row of panels per budget, budgets side by side without layers, or an overview of many
    layers.
    """
    budgets = sorted(table["budget_requested"].unique(), reverse=True)
    layers = sorted(table["layer"].unique())
    drawn = styles(table, highlight)
    name = kfr.y_label(column, relative_to)
    if len(layers) == 1:
        groups = [[(budget, layers[0]) for budget in budgets]]
    else:
        groups = [[(budget, layer) for layer in layers] for budget in budgets]
    if not kl.fit_panels(layers, len(budgets)):
        return draw_overview(table, budgets, drawn, name, log_y, highlight)
    figure, axes_of = kl.facets(groups)
    for (budget, layer), axes in axes_of.items():
        draw_panel(axes, table[(table["budget_requested"] == budget)
                               & (table["layer"] == layer)], drawn)
        title = f"budget {budget:g}"
        axes.set_title(title if layer < 0 else f"{title}, layer {int(layer)}")
        set_axes(axes, log_y)
    figure.supxlabel(LAMBDA, fontsize=kf.FONT_SIZE)
    figure.supylabel(name, fontsize=kf.FONT_SIZE)
    kf.legend_above(figure, [kf.line_handle(style, label) for label, style in drawn.items()])
    return figure


def measured(table, column):
    """Best lambda of each budget and variant, with the methods without lambda."""
    parts = []
    for budget in sorted(table["budget_requested"].unique(), reverse=True):
        means = table[table["budget_requested"] == budget].groupby(
            ["label", "lambda"], dropna=False, sort=False)["mean"].mean().reset_index()
        best = [means.loc[rows["mean"].idxmin()] for _, rows in means.groupby("label", sort=False)]
        parts.append(f"budget {budget:g}: " + ", ".join(
            f"{row['label']} {row['mean']:.3g}"
            + ("" if math.isnan(row["lambda"]) else f" at lambda {row['lambda']:g}")
            for row in best))
    return f"Measured, least {column}: " + "; ".join(parts) + "."


@kg.public
def figure(tables: list[str], *, y: str = "rel_error", budgets: Sequence[float] = (),
           by_layer: bool = False, layers: Sequence[int] = (), log_y: bool = False,
           highlight: kg.Names = (), relative_to: str = "", pool: bool = False, title: str = "",
           model: str = "") -> kf.Picture:
    """Returns the figure of rows of `kvbench replay`; arguments are the program's options. Raises
    CsvError, and ValueError for an unknown `y`.
    """
    kg.check_choice("y", y, kt.METRIC_LABELS)
    names = kg.name_list(highlight)
    table = load(tables, y, budgets, by_layer, layers, relative_to, pool)
    ks.check_highlight(table["label"], names, tables[0])
    picture = draw(table, y, log_y, names, relative_to)
    bars = kl.spread_text(
        picture, kfr.where_spread(
            table, "Bars, and bands of levels: standard deviation over seeds, of means over "
            "prompts and heads" + ("." if by_layer else " of all layers.")))
    return kfr.finish(picture, table.attrs["facts"], bars, measured(table, y), title, model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(
        __doc__, take=("--layers", "--highlight", "--relative-to", "--pool"), y=kt.METRIC_LABELS)
    parser.add_argument("--budgets", type=command.number_list, metavar="RHO,...", default=[],
                        help="only these; default: all")
    parser.add_argument("--by-layer", action="store_true", help="one panel per budget and layer")
    parser.add_argument("--log-y", action="store_true", help="logarithmic error axis")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
