"""Error against lambda, BumbleBee's weight of diversity against importance (its section 6).

One panel per budget; with --by-layer also per layer, or for many layers means over them and a map
of layer against lambda. A line per variant of each algorithm with a parameter lambda, in
configs/bumblebee_lambda.toml one per concave function phi; lambda = 0 is accumulated attention
alone, 1 facility location over the keys alone. Algorithms without lambda (h2o, local, random-local)
are horizontal lines; the paper compares with h2o.

Mean over prompts, layers and heads per seed, then over seeds; bars: standard deviation over seeds
(n - 1; none for one seed). The paper measures ROUGE of a model, this figure the error of the
attention output. At most ten lines; --all draws all, --algorithm the named ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

LAMBDA = r"$\lambda$  (0: attention alone, 1: facility location alone)"


def lambda_of(params):
    """Returns lambda of a row; NaN if the algorithm has none."""
    text = kt.parse_params(params).get("lambda", "")
    try:
        return float(text)
    except ValueError:
        return math.nan


def load(rows, column="rel_error", budgets=(), by_layer=False, layers=(), relative_to="", pool=False, algorithms=()):
    """Returns one row per (budget, layer, label, lambda): mean, sd. layer is kl.ALL for all together."""
    frame = kfr.measured_rows(rows, [column], algorithms, layers, pool)
    path = kt.source_of(frame)
    frame = kt.pick_numbers(frame, "budget_requested", budgets, path)
    frame = frame[frame["budget_requested"].notna()].copy()
    frame["lambda"] = [lambda_of(text) for text in frame["params"]]
    if frame["lambda"].isna().all():
        raise kt.CsvError(f"{path}: no row with a budget has the parameter lambda, expected bumblebee's")
    kt.add_labels(frame, ignore=("lambda",))
    table = kfr.points(frame, ["budget_requested", "label", "lambda"] + (["layer"] if by_layer else []), column)
    if not by_layer:
        table["layer"] = kl.ALL
    table = kfr.relative(table, relative_to, ["budget_requested", "layer"], path)
    return kfr.keep(kt.finite_points(table), frame)


@kf.in_style
def draw(table, column="rel_error", log_y=False, highlight=(), relative_to=""):
    """Returns a figure with a row of panels per budget, or an overview of many layers."""
    def prepare(axes, _):
        axes.set_xticks(np.linspace(0, 1, 6))
        if log_y:
            axes.set_yscale("log")

    parts = []
    for budget in sorted(table["budget_requested"].unique(), reverse=True):
        rows = table[table["budget_requested"] == budget]
        parts.append(kl.Part(rows.assign(x=rows["lambda"]), kfr.y_label(column, relative_to), f"budget {budget:g}",
                             prepare=prepare))
    return kl.sweep(parts, LAMBDA, highlight=highlight, minima=True,
                    map_x_name=LAMBDA + "; dot: the minimum of the layer")


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


@kk.kind(y=kt.METRIC_LABELS)
def bumblebee_lambda(rows: pd.DataFrame, *, y: str = "rel_error", algorithm: kk.Names = (), all: bool = False,
                     budget: Sequence[float] = (), by_layer: bool = False, layers: Sequence[int] = (),
                     log_y: bool = False, highlight: kk.Names = (), relative_to: str = "",
                     pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns error over lambda, a panel per budget.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows and `y`. Raises CsvError, also
    if no row has the parameter lambda.
    """
    whole = load(rows, y, budget, by_layer, layers, relative_to, pool, algorithm)
    table, chosen = kc.pick(whole, "budget_requested", (all, algorithm, highlight), what=y,
                            higher_better=y in kt.HIGHER_BETTER)
    picture = draw(table, y, log_y, highlight, relative_to)
    bars = kl.spread_text(
        picture, kfr.where_spread(
            table, "Bars, and bands of levels: standard deviation over seeds, of means over "
            "prompts and heads" + ("." if by_layer else " of all layers.")))
    return kfr.finish(picture, whole.attrs["facts"], chosen + bars, measured(whole, y), title, model)
