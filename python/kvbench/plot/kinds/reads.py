"""Recall of what each query read, and what the choice of tokens costs.

Rows of `kvbench replay --protocol retrieval`. x: bytes read over full bytes of the middle, index
included (`read_ratio`). Left: `recall`, the share of the query's B heaviest middle tokens that it
read (B: the tokens that it asked for), the recall@k of vector search. Right: the error over that of
`topk` at the same requested budget, which reads each query's largest logits without an index: what a
method loses by its choice and by the bytes of its index. `static A=oracle` there is the price of one
set for all queries, `static A=NAME` that of one set chosen by NAME. A method that holds entries of
its own (merged, fitted) reads no tokens of the cache and has no recall.

Mean over prompts, layers and heads per seed, then over seeds; bars: standard deviation over seeds (n
- 1). At most ten lines: those of --highlight, the references and those with the largest recall at the
smallest budget; --all draws all, --algorithm the named ones (methods or labels).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl
from kvbench.plot import style as ks
from kvbench.plot import summary
from kvbench.plot.kinds import pareto

BASE = "topk"


def load(rows, y="rel_error", algorithms=(), layers=(), pool=False):
    """Returns one row per point: label, algorithm, params, budget_requested, x, recall, recall_sd, mean,
    sd, price (NaN without a row of BASE at that budget).
    """
    frame = kfr.measured_rows(rows, ["read_ratio", "recall", y], (), layers, pool)
    path = kt.source_of(frame)
    frame = frame[frame["recall"].notna()].copy()
    if frame.empty:
        raise kt.CsvError(f"{path}: column `recall` is empty in every row, expected rows of --protocol retrieval")
    kt.add_labels(frame, ignore=summary.READ_SIZES)
    keys = ["label", "algorithm", "params", "budget_requested"]
    table = kfr.points(frame, keys, "recall", x="read_ratio").rename(columns={"mean": "recall", "sd": "recall_sd"})
    errors = kt.mean_and_sd(kt.full_points(frame, keys, path), keys, y)
    table["mean"], table["sd"] = errors["mean"], errors["sd"]
    base = table[(table["algorithm"] == BASE) & ~table["params"].str.contains("union=group")]
    base = base[base["mean"] >= kt.ROUNDING_ERROR].groupby("budget_requested")["mean"].mean()
    table["price"] = table["mean"] / table["budget_requested"].map(base)
    if table["price"].isna().all():
        kt.note(f"no row of {BASE} at a budget of the others: the right panel is left out")
    wanted = np.array([ks.is_highlighted(label, algorithms) or not algorithms for label in table["label"]])
    for name in algorithms:
        if not any(ks.is_highlighted(label, [name]) for label in table["label"]):
            raise kt.CsvError(f"{path}: no rows of {name}; it holds " + ", ".join(dict.fromkeys(table["label"])))
    return kfr.keep(table[wanted & (table["x"] > 0)], frame)


@kf.in_style
def draw(table, y="rel_error", highlight=()):
    """Returns a figure with a panel of recall and, where BASE has rows, one of prices."""
    def set_recall(axes, _):
        axes.set_ylim(0, 1.03)
        set_x(axes)

    def set_price(axes, _):
        axes.set_yscale("log")
        kl.plain_log(axes.yaxis)
        set_x(axes)

    def set_x(axes):
        axes.set_xscale("log", base=2)
        axes.set_xlim(table["x"].min() / 1.15, table["x"].max() * 1.15)
        pareto.set_x_axis(axes, "read_ratio")

    table = table.assign(layer=kl.ALL)
    read = table.assign(mean=table["recall"].where(table.groupby("label")["recall"].transform("max") > 0),
                        sd=table["recall_sd"])
    parts = [kl.Part(read, "recall of the heaviest tokens", prepare=set_recall)]
    if table["price"].notna().any():
        price = table.assign(mean=table["price"], sd=table["sd"] * table["price"] / table["mean"])
        parts.append(kl.Part(price, f"{kt.METRIC_LABELS.get(y, y)} / that of {BASE}", prepare=set_price))
    return kl.sweep(parts, pareto.X_LABELS["read_ratio"], highlight=highlight, height=2.7, names=False, wide=True)


def measured(table):
    parts = []
    for label, rows in table.groupby("label", sort=False):
        ends = [f"{point.recall:.2f} at {point.budget_requested:g}"
                + ("" if np.isnan(point.price) else f" (error {point.price:.3g} times)")
                for point in rows.sort_values("budget_requested").itertuples()]
        parts.append(f"{label} " + ", ".join(ends))
    return f"Measured, recall and error over that of {BASE}: " + "; ".join(parts) + "."


@kk.kind(y=kt.ERROR_LABELS)
def reads(rows: pd.DataFrame, *, y: str = "rel_error", algorithm: kk.Names = (), all: bool = False,
          layers: Sequence[int] = (), highlight: kk.Names = (), pool: bool = False, title: str = "",
          model: str = "") -> kf.Picture:
    """Returns recall over bytes read, and the error over that of BASE.

    rows: of `kvbench replay --protocol retrieval`, columns of kvbench.plot.frame.measured_rows,
    read_ratio, recall and `y`. Raises CsvError.
    """
    table = load(rows, y, algorithm, layers, pool)
    drawn, chosen = kc.pick(table, "budget_requested", (all, algorithm, highlight), "recall", what="recall",
                            higher_better=True)
    bars = kfr.where_spread(drawn, "; bars: standard deviation over seeds")
    return kfr.finish(draw(drawn, y, highlight), table.attrs["facts"],
                      f"Mean over layers and heads{bars}. {chosen}Right: at equal requested budgets.",
                      measured(table), title, model)
