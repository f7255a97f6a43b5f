"""Formats of engines for plot.bits: error over bytes, a line per type of values, a marker per type of keys."""

from __future__ import annotations

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import layers as kl
from kvbench.plot import palette
from kvbench.plot.kinds import pareto

METHOD = "quant-format"
TYPES = ("k_type", "v_type")


def load(rows, y="rel_error", algorithms=(), layers=(), pool=False):
    """Returns one row per pair of types and other parameters: label, k_type, v_type, panel, x, mean, sd."""
    frame = kfr.measured_rows(rows, ["middle_ratio", y], algorithms, layers, pool)
    alone = frame["algorithm"].isin([METHOD, f"exact@{METHOD}"])
    frame = frame[alone].copy()
    if frame.empty:
        raise kt.CsvError(f"{kt.source_of(rows)}: no rows of {METHOD} or exact@{METHOD}")
    params = {text: kt.parse_params(text) for text in frame["params"].unique()}
    for name in TYPES:
        frame[name] = frame["params"].map({text: values[name] for text, values in params.items()})
    frame["rest"] = frame["params"].map(
        {text: " ".join(f"{key}={value}" for key, value in values.items() if key not in TYPES)
         for text, values in params.items()})
    frame["label"] = frame["k_type"] + "/" + frame["v_type"]
    table = kfr.points(frame, ["label", *TYPES, "rest"], y, x="middle_ratio")
    table = kfr.above_rounding(table, y)
    table["panel"] = table["rest"] if table["rest"].nunique() > 1 else ""
    return kfr.keep(table.sort_values("x", kind="stable").reset_index(drop=True), frame)


@kf.in_style
def draw(table, y="rel_error", path=""):
    """Returns the figure, a panel per setting of the other parameters."""
    panels = sorted(set(table["panel"]))
    keys, values = (list(dict.fromkeys(table.sort_values("x")[name])) for name in TYPES)
    most = min(len(palette.COLORS), len(palette.MARKERS))
    if len(panels) > 2 or max(len(keys), len(values)) > most:
        raise kt.CsvError(f"{path}: got {len(panels)} settings, {len(keys)} types of keys and {len(values)} of values, "
                          f"expected at most 2, {most} and {most}")
    figure, grid = kf.panels(1, len(panels), width=kf.PAGE_WIDTH, height=3.4, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, panels, strict=True):
        axes.set(xscale="log", yscale="log", title=panel)
        part = table[table["panel"] == panel]
        for color, v_type in zip(palette.COLORS, values, strict=False):
            line = part[part["v_type"] == v_type]
            kf.plot_line(axes, line["x"], line["mean"], line["sd"], {"color": color, "marker": ""})
            for marker, k_type in zip(palette.MARKERS, keys, strict=False):
                at = line[line["k_type"] == k_type]
                axes.plot(at["x"], at["mean"], color=color, marker=marker, ms=4.5, linestyle="none")
        axes.set_xscale("log", base=2)
        axes.set_xlim(table["x"].min() / 1.1, table["x"].max() * 1.1)
        pareto.set_x_axis(axes, "middle_ratio")
        kl.plain_log(axes.yaxis)
    figure.supxlabel(pareto.X_LABELS["middle_ratio"], fontsize=kf.FONT_SIZE)
    figure.supylabel(kfr.y_label(y), fontsize=kf.FONT_SIZE)
    handles = [kf.line_handle({"color": color}, f"values {name}")
               for color, name in zip(palette.COLORS, values, strict=False)]
    handles += [kf.line_handle({"color": "0.3", "marker": marker, "linestyle": "none"}, f"keys {name}")
                for marker, name in zip(palette.MARKERS, keys, strict=False)]
    kf.legend_above(figure, handles)
    return figure


def measured(table, y):
    """Returns the least error of each number of bytes: pairs that no other dominates."""
    front, best = [], float("inf")
    for row in table.sort_values(["x", "mean"]).itertuples():
        if row.mean < best:
            best = row.mean
            front.append(f"{row.label} {row.mean:.3g} at {row.x:.3g}")
    return f"Measured, {y} of the pairs (keys/values) that no smaller one equals: " + ", ".join(front) + "."


def formats(rows, y, algorithms, layers, pool):
    """Returns (figure, its table, text on lines and bars, its numbers)."""
    table = load(rows, y, algorithms, layers, pool)
    bars = kfr.where_spread(table, "; bars: standard deviation over seeds")
    text = f"Points: means over layers and heads{bars}. Colour: type of values; marker: type of keys."
    return draw(table, y, kt.source_of(rows)), table, text, measured(table, y)
