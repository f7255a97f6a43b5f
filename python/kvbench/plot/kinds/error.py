"""Relative error against compression, one panel per layer (BalanceKV, figure 2).

At most ten lines: the references and those with the smallest error at the smallest budget; --all
draws all, --algorithm the named ones.

More than nine layers: the mean over layers with the quartiles of layers, and a map of layer against
T or budget per algorithm. `--mean-over-layers`: one panel of the means alone. More than eight lines
are labelled at their right ends if these taller panels fit a page, otherwise in a legend.
`--highlight` greys all other lines and limits maps to the named.

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
import pandas as pd
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl
from kvbench.plot import zero_axis as kz

AXIS_LABELS = {
    "T": "halvings $T$",
    "log2": "halvings ($-\\log_2$ of the budget)",
    "both": "halvings ($T$, or $-\\log_2$ of the budget)",
    "budget": "budget (fraction of the middle)",
    "middle_ratio": "bytes held / full bytes of the middle",
}
X = ("T", "budget", "middle_ratio")
SPREAD = ("seeds", "all")


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


def load(rows, algorithms=(), spread="seeds", y="rel_error", layers=(), mean_over_layers=False,
         relative_to="", pool=False):
    """Returns one row per (layer, label, T): mean, sd, middle_ratio and the bytes that it is a part of. NaN T is its
    own group.
    """
    frame = kfr.measured_rows(rows, ["middle_ratio", y], algorithms, layers, pool)
    path = kt.source_of(frame)
    # Rounded, so that budgets 0.3333 and 0.33330 share a point.
    frame["T"] = [round(halvings(p, b), 9) for p, b in zip(frame["params"], frame["budget_requested"])]
    if frame["T"].isna().all():
        raise kt.CsvError(f"{path}: no row has a parameter T or a budget to put on the x axis")
    kt.add_labels(frame, ignore=("T",))
    keys = ["label", "T"] if mean_over_layers else ["layer", "label", "T"]
    frame["of"] = kt.bytes_of(frame, "middle_ratio")
    table = kfr.points(frame, keys, y, spread, middle_ratio="middle_ratio", of="of")
    if mean_over_layers:
        table["layer"] = kl.ALL
    table = kfr.keep(kfr.relative(table, relative_to, ["layer", "T"], path), frame)
    given = {number(kt.parse_params(params).get("T")) is not None
             for params in frame.loc[frame["T"].notna(), "params"].unique()}
    table.attrs["T"] = "both" if len(given) > 1 else "T" if given == {True} else "log2"
    return table


def axis_label(x, table):
    return AXIS_LABELS[table.attrs.get("T", "T") if x == "T" else x]


def fraction_text(value):
    """Returns powers of two as 1/8, others in decimals."""
    power = -math.log2(value)
    if abs(power - round(power)) < 1e-9 and power >= 0:
        return "1" if round(power) == 0 else f"1/{2 ** round(power)}"
    return f"{value:.3g}"


def set_x_axis(axes, x, table, zero=None, least=None):
    """table: of all panels. zero, least: of zero_axis.zero_place, which `table` has in place of 0."""
    if x == "T":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    axes.set_xscale("log", base=2)
    ticks = sorted(set(table["at"][table["T"].notna()]))
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


def set_y_axis(axes, rows, log_y):
    """Starts at zero, or on a logarithmic axis at the smallest line: `exact` would flatten all others."""
    if not log_y:
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.03 * top, 1.04 * top)
        return
    axes.set_yscale("log")
    lines = rows[rows["x"].notna()]
    means = lines[["low", "high"] if "low" in rows.columns else ["mean"]].to_numpy().ravel()
    means = means[np.isfinite(means) & (means > 0)]
    if len(means):
        axes.set_ylim(0.7 * means.min(), 1.4 * means.max())
        kl.plain_log(axes.yaxis)


@kf.in_style
def draw(table, x="T", log_y=False, band=False, share_y=False, y="rel_error", highlight=(), relative_to=""):
    """Returns a figure with a panel per layer, or an overview of many layers."""
    table = table.assign(x=table["T"], at=table["T"] if x == "T" else np.exp2(-table["T"]))
    zero = least = None
    if x == "middle_ratio":
        at, layers = table["middle_ratio"], table["layer"].nunique()
        if not kl.fit_panels([*range(layers)]):
            # Over all layers, since a method may hold nothing in one and something in another.
            held = table.assign(held=at * table["of"]).groupby(["label", "T"], dropna=False)
            at = held["held"].transform("sum") / held["of"].transform("sum")
        zero, least = kz.zero_place(at)
        table["at"] = at if zero is None else at.replace(0.0, zero)

    def prepare(axes, rows):
        set_x_axis(axes, x, table, zero, least)
        set_y_axis(axes, table if share_y and "low" not in rows.columns else rows, log_y)

    by_t = x == "T"
    part = kl.Part(table, kfr.y_label(y, relative_to), alone=zero, prepare=prepare)
    return kl.sweep([part], axis_label(x, table), highlight=highlight, band=band, sharey=share_y,
                    map_x_name=axis_label("T" if by_t else "budget", table),
                    tick="{:g}".format if by_t else lambda t: fraction_text(2.0**-t))


def measured(table, y="rel_error"):
    ts = sorted(table["T"].dropna().unique())
    parts = []
    for t in dict.fromkeys((ts[0], ts[-1])):
        means = table[table["T"] == t].groupby("label", sort=False)["mean"].mean().sort_values()
        parts.append(f"at T = {t:g} " + ", ".join(f"{k} {v:.3g}" for k, v in means.items()))
    return f"Measured, {y}: " + "; ".join(parts) + "."


@kk.kind(y=kt.METRIC_LABELS, x=X, spread=SPREAD)
def error(rows: pd.DataFrame, *, y: str = "rel_error", x: str = "T", spread: str = "seeds",
          algorithm: kk.Names = (), all: bool = False, layers: Sequence[int] = (),
          mean_over_layers: bool = False, highlight: kk.Names = (), relative_to: str = "",
          pool: bool = False, log_y: bool = False, share_y: bool = False, band: bool = False,
          title: str = "", model: str = "") -> kf.Picture:
    """Returns error over T or budget, a panel per layer.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows, middle_ratio and `y`. Raises
    CsvError, also if no row has a T or a budget.
    """
    whole = load(rows, algorithm, spread, y, layers, mean_over_layers, relative_to, pool)
    table, chosen = kc.pick(whole.assign(size=np.exp2(-whole["T"])), "size", (all, algorithm, highlight),
                            what=y, higher_better=y in kt.HIGHER_BETTER)
    kt.note_each(table[~np.isfinite(table["mean"])], "{} has a mean that is not finite; not drawn")
    picture = draw(table, x, log_y, band, share_y, y, highlight, relative_to)
    over = "all rows" if spread == "all" else "seeds, of the means over prompts and heads"
    bars = kl.spread_text(
        picture, kfr.where_spread(
            table, f"{'Bands' if band else 'Bars'}: standard deviation over {over}."))
    return kfr.finish(picture, whole.attrs["facts"], chosen + bars, measured(whole, y), title, model)
