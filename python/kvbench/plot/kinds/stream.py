"""Error and memory along a stream (rows of `kvbench replay --protocol stream`).

Reads OUT.csv and OUT.steps.csv. A column of panels per budget. Above: relative error of the query
at each step; below: bytes held per KV head (recent window and the method's), with the full cache
(grey, dotted) and the budget (grey, dashed: the requested share of the stream's final bytes).

Steps are gathered into bins of equal width (--bins); a point is the mean over a bin's steps,
prompts, layers and heads, per seed, then over seeds; --band shades the standard deviation over
seeds. If prompts differ in length, the last bins hold the longer ones only. Errors below 1e-6
(nothing dropped yet) are rounding and leave a gap. At most ten lines: the references and those with
the smallest error at the smallest budget; --all draws all, --algorithm the named ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

FIRST_ERRORS = 0.02  # share of points below the error axis
MAX_BUDGETS = 4
JOIN_KEYS = ["trace", "prompt", "layer", "q_head", "algorithm", "params", "protocol", "sink",
             "recent", "scores", "device", "seed", "n_queries", "budget_requested"]
STEPS = ["step", "rel_error", "bytes"]
SIZES = ["n_tokens", "full_bytes"]
GREY = {"full": ":", "limit": "--"}  # dashes of the full cache and of the budget


def stream_rows(rows, path):
    """Returns the rows of --protocol stream; raises CsvError without any."""
    streamed = rows[rows["protocol"] == "stream"]
    if streamed.empty:
        raise kt.CsvError(f"{path}: column `protocol`: got prefill alone, expected rows of --protocol stream")
    return streamed


def read(paths, **_):
    """Returns (rows, steps) of OUT.csv files with OUT.steps.csv beside each. Raises CsvError."""
    rows, steps = [], []
    for path in paths:
        rows.append(kt.read_results([path], [*JOIN_KEYS, *SIZES]))
        stream_rows(rows[-1], path)
        side = kt.side_table(path, "steps")
        steps.append(kt.read_table([side], [*JOIN_KEYS, *STEPS], kt.TEXT_COLUMNS))
        kt.check_same_run(steps[-1], side, rows[-1], path)
    return kt.joined(rows), kt.joined(steps)


def join(rows, steps):
    """Returns the steps of the measured rows, with n_tokens and full_bytes."""
    path, beside = kt.source_of(rows), kt.source_of(steps)
    every = kt.results_of(rows, [*JOIN_KEYS, *SIZES])
    streamed = stream_rows(kt.ok_rows(every, path), path)
    steps = kt.table_of(steps, [*JOIN_KEYS, *STEPS], kt.TEXT_COLUMNS)
    # All rows, since degenerate ones have steps too. `seeds` is there if a store wrote them.
    of_rows = every.filter([*JOIN_KEYS, *kt.ORIGINS, *SIZES, "status", "seeds"])
    joined = steps[[*JOIN_KEYS, *STEPS]].merge(of_rows, on=JOIN_KEYS, how="left", validate="many_to_one")
    lost = int(joined["n_tokens"].isna().sum())
    if lost:
        raise kt.CsvError(f"{beside}: {lost} steps have no row in {path}, expected the two files of one run")
    joined = joined[joined["status"].map(kt.status_kind) == "ok"]
    without = len(streamed) - len(joined.drop_duplicates(JOIN_KEYS))
    if without > 0:
        raise kt.CsvError(f"{beside}: {without} rows of {path} have no steps, expected the two files of one run")
    return joined


def load(rows, steps, algorithms=(), budgets=(), bins=48, layers=(), relative_to="", pool=False):
    """Returns one row per (budget, label, bin, column): mean, sd, step; columns rel_error, bytes, full, limit.

    step: mean position of the bin's steps. bytes, full (all tokens up to the step) and limit in bytes.
    """
    path = kt.source_of(rows)
    frame = join(rows, steps)
    frame = kt.pick_names(frame, "algorithm", algorithms, path)
    frame = kt.pick_numbers(frame, "budget_requested", budgets, path)
    frame = kt.pick_layers(frame, layers, path)
    kt.refuse_mixed(frame, path, pool)
    kt.add_labels(frame)
    frame = kt.full_points(frame, ["label", "budget_requested"], path).copy()
    frame["full"] = frame["full_bytes"] * (frame["step"] + 1) / frame["n_tokens"]
    frame["limit"] = frame["full_bytes"] * frame["budget_requested"]
    frame["bin"] = np.floor(frame["step"] * bins / frame["n_tokens"].max())
    keys = ["budget_requested", "label", "bin"]
    groups = frame.groupby(keys, dropna=False, sort=False)
    tables = []
    for column in ("rel_error", "bytes", "full", "limit"):
        table = kt.mean_and_sd(frame, keys, column)
        table["step"] = groups["step"].mean().to_numpy()
        table["column"] = column
        if column == "rel_error":
            table = kfr.relative(table, relative_to, ["budget_requested", "bin"], path)
        tables.append(table)
    out = kfr.keep(kt.pd.concat(tables, ignore_index=True), frame)
    out.attrs["paths"] = [path]
    return out


@kf.in_style
def draw(table, band=False, linear_y=False, highlight=(), relative_to=""):
    """Returns a figure with a column per budget: errors above, bytes below."""
    errors = table[table["column"] == "rel_error"]
    seen = errors["mean"][np.isfinite(errors["mean"]) & (errors["mean"] >= kt.ROUNDING_ERROR)]

    def set_errors(axes, _):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if not linear_y and not seen.empty:
            axes.set_yscale("log")
            # The first errors after a drop are tiny and would take half the axis.
            axes.set_ylim(seen.quantile(FIRST_ERRORS, interpolation="lower") / 1.3, seen.max() * 1.3)
            kl.plain_log(axes.yaxis)

    def set_bytes(axes, rows):
        axes.set_ylim(0, 1.05 * table.loc[table["column"] != "rel_error", "mean"].max() / 1024)
        budget = rows["budget_requested"].dropna()
        for column, dash in GREY.items():
            own = table[(table["column"] == column) & (table["budget_requested"].isin(budget)
                                                       | table["budget_requested"].isna())]
            points = own.groupby("bin").mean(numeric_only=True).dropna(subset="mean")
            axes.plot(points["step"], points["mean"] / 1024, color="0.5", linestyle=dash, linewidth=1.2, zorder=1)

    table = table.assign(x=table["step"], layer=table["budget_requested"], sd=table["sd"] if band else 0.0)
    shown = table["mean"].where(table["column"] != "rel_error", table["mean"].where(
        np.isfinite(table["mean"]) & (table["mean"] >= kt.ROUNDING_ERROR)))
    unit = np.where(table["column"] == "bytes", 1024, 1)
    lines = table.assign(mean=shown / unit, sd=table["sd"] / unit)
    parts = [kl.Part(lines[lines["column"] == "rel_error"], kfr.y_label("rel_error", relative_to), prepare=set_errors),
             kl.Part(lines[lines["column"] == "bytes"], "KiB per KV head", prepare=set_bytes)]
    return kl.sweep(parts, "step (tokens)", highlight=highlight, band=band, name="budget", maps=False,
                    stacked=True, falling=True, grey=[("full cache", ":"), ("budget", "--")], sharey="row")


def measured(table):
    own = table[table["column"] == "rel_error"]
    parts = []
    for budget, rows in own.groupby("budget_requested", dropna=False, sort=False):
        last = rows[rows["bin"] == rows["bin"].max()].sort_values("mean")
        parts.append(("native sizes: " if np.isnan(budget) else f"budget {budget:g}: ")
                     + ", ".join(f"{k} {v:.3g}" for k, v in zip(last["label"], last["mean"])))
    return "Measured, rel_error at the end of the stream: " + "; ".join(parts) + "."


@kk.kind(read, about="files of kvbench replay --protocol stream, OUT.steps.csv beside them")
def stream(rows: pd.DataFrame, steps: pd.DataFrame, *, algorithm: kk.Names = (), all: bool = False,
           budget: Sequence[float] = (), bins: int = 48, layers: Sequence[int] = (), highlight: kk.Names = (),
           relative_to: str = "", pool: bool = False, band: bool = False, linear_y: bool = False,
           title: str = "", model: str = "") -> kf.Picture:
    """Returns error and memory along a stream, a column per budget.

    rows: OUT.csv, columns JOIN_KEYS and SIZES; steps: OUT.steps.csv, columns JOIN_KEYS and STEPS. Raises CsvError.
    """
    whole = load(rows, steps, algorithm, budget, bins, layers, relative_to, pool)
    errors = whole[whole["column"] == "rel_error"]
    drawn, chosen = kc.pick(errors, "budget_requested", (all, algorithm, highlight))
    table = whole[whole["label"].isin(drawn["label"])]
    kt.note_each(drawn[~np.isfinite(drawn["mean"])], "{} has a mean that is not finite; its line has a gap there")
    count = table["budget_requested"].dropna().nunique()
    if count > MAX_BUDGETS:
        raise kt.CsvError(f"{kt.source_of(rows)}: {count} budgets, expected at most {MAX_BUDGETS} panels beside "
                          "each other; choose with --budget")
    picture = draw(table, band, linear_y, highlight, relative_to)
    bands = "; bands: standard deviation over seeds" if band else ""
    return kfr.finish(picture, whole.attrs["facts"],
                      f"{chosen}Lines: means over layers, heads and the steps of a bin{bands}.",
                      measured(whole), title, model)
