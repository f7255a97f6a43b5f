"""Error against the offset of the query (rows of `kvbench replay --per-query`).

Reads OUT.queries.csv: relative errors |z - a| / |a| of each query head's evaluated queries, in bins
of neighbours or single (--per-query=all). x is the query's offset among the evaluated queries
(under prefill: tokens decoded before it). Settings and status come from the OUT.csv beside it. One
panel per budget; --by layer: one per layer, and for more than nine layers the mean over layers,
with a map of layer against offset for each method. kvbench-py plot stream draws the steps of a
stream, OUT.steps.csv.

A line is the median over prompts, layers, heads and seeds (--mean: the mean over all queries); for
binned tables of the bins' medians. Single queries are put into --bins. A band spans the quartiles
(--band; by default for at most four methods). Infinite errors (an exact output of zero) count in
quartiles; a mean leaves a gap. Methods with rounding errors only (below 1e-6, `exact`) are skipped.
At most ten lines: the references and those with the smallest error at the smallest budget; --all
draws all, --algorithm the named ones.

A line that falls from the first query on shows a method that relies on the tokens after the middle:
at first only `recent - queries` exact tokens precede the query, later all previous queries' keys
too.
"""

from __future__ import annotations

import os
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

# Key of a line, also of binned tables.
LINE_KEYS = ["trace", "prompt", "layer", "q_head", "algorithm", "params", "seed", "budget_requested"]
BINS = ["first", "last", "queries", "rel_error_mean", "rel_error_p50"]
SINGLE = ["schema", "offset", "rel_error"]
MAX_PANELS = 20  # of budgets: five rows
BY = ("budget", "layer")  # what panels are
OFFSET = "offset of the query: evaluated tokens before it"
MAX_BANDS = 4  # more would overlap


def refuse_other_tables(path):
    """Raises CsvError for a table that is not of --per-query, naming the program that draws it."""
    header = kt.header_of(path)
    if "algorithm" not in header or {"offset", "first"} & {*header}:
        return
    of_steps = {"step", "bytes"} <= {*header} and "status" not in header
    raise kt.CsvError(f"{path}: {'the steps of a stream' if of_steps else 'no table of queries'}, "
                      "expected OUT.queries.csv of kvbench replay --per-query; "
                      + ("kvbench-py plot stream OUT.csv draws the steps" if of_steps else
                         "it lies beside OUT.csv"))


def read(paths, **_):
    """Returns (lines of OUT.queries.csv files, rows of the OUT.csv beside them or None)."""
    lines, rows = [], []
    for path in paths:
        refuse_other_tables(path)
        binned = "first" in kt.header_of(path)
        lines.append(kt.read_table([path], [*LINE_KEYS, *(BINS if binned else SINGLE)], kt.TEXT_COLUMNS,
                                   [*kt.SETTINGS, *kt.ORIGINS]))
        stem = path.removesuffix(".gz").removesuffix(".queries.csv")
        places = [stem + ".csv", stem + ".csv.gz", stem] if ".queries.csv" in path[len(stem):] else []
        table = next((place for place in places if os.path.isfile(place)), None)
        if table is not None:
            rows.append(kt.read_results([table], [*LINE_KEYS, *kt.SETTINGS]))
            kt.check_same_run(lines[-1], path, rows[-1], table)
        elif binned:  # single queries carry their settings
            raise kt.CsvError(f"{places[0] if places else path + ' is not OUT.queries.csv: OUT.csv'}: "
                              "no such file, expected the table beside the queries'")
    return kt.joined(lines), kt.joined(rows) if len(rows) == len(lines) else None


def lines_of(queries, rows=None):
    """Returns the lines of fair measurements: LINE_KEYS, the columns of their rows, offset (middle of a
    bin), first, queries (count), rel_error (median of a bin), rel_error_mean, binned. Raises CsvError.
    """
    path = kt.source_of(queries)
    binned = "first" in queries.columns and queries["first"].notna().any()
    if "first" in queries.columns and "offset" in queries.columns and queries[["first", "offset"]].notna().any().all():
        raise kt.CsvError(f"{path}: tables of bins and of single queries, expected one form")
    frame = kt.table_of(queries, [*LINE_KEYS, *(BINS if binned else SINGLE)], kt.TEXT_COLUMNS)
    if binned:
        frame = frame.assign(offset=(frame["first"] + frame["last"]) / 2, rel_error=frame["rel_error_p50"])
    else:
        kt.check_schema(frame, path)
        frame = frame.assign(first=frame["offset"], queries=1, rel_error_mean=frame["rel_error"])
    if not (frame["first"] >= 0).all() or not (frame["first"] % 1 == 0).all():
        raise kt.CsvError(f"{path}: column `{'first' if binned else 'offset'}`: expected whole numbers from 0 on")
    frame = kt.with_origins(frame.assign(binned=binned))
    if rows is not None:
        table = kt.source_of(rows)
        rows = kt.ok_rows(kt.results_of(rows, [*LINE_KEYS, *kt.SETTINGS]), table)
        more = [name for name in (*kt.SETTINGS, *kt.ORIGINS, "n_tokens", "ratio", "full_bytes") if name in rows.columns]
        frame = frame.drop(columns=[name for name in more if name in frame.columns]).merge(
            rows[[*LINE_KEYS, *more]], on=LINE_KEYS, how="inner")
        if frame.empty:
            raise kt.CsvError(f"{path}: no line is of a row of {table}")
    empty = frame["rel_error"].isna()
    if empty.any():
        names = ", ".join(sorted(frame.loc[empty, "algorithm"].unique()))
        kt.note(f"{int(empty.sum())} rows without an error are left out ({names})")
    if empty.all():
        raise kt.CsvError(f"{path}: no row holds measurements: every error is empty")
    return frame[~empty].copy()


def load(queries, rows=None, algorithms=(), budgets=(), layers=(), by="budget", bins=32, relative_to="", pool=False):
    """Returns a row per (panel: budget or layer, label, bin): offset (mean of the bin's), mean, low, median, high."""
    path = kt.source_of(queries)
    frame = lines_of(queries, rows)
    frame = kt.pick_names(frame, "algorithm", algorithms, path)
    frame = kt.pick_layers(frame, layers, path)
    if budgets:
        # Methods without a budget are in every panel.
        native = frame["budget_requested"].isna()
        given = kt.pick_numbers(frame[~native], "budget_requested", budgets, path)
        frame = kt.pd.concat([given, frame[native]]).sort_index()
    have = sorted(frame["budget_requested"].dropna().unique(), reverse=True)
    if by == "layer" and len(have) > 1:
        raise kt.CsvError(f"{path}: {len(have)} budgets, expected one with --by layer; choose "
                          "with --budget " + ", ".join(f"{v:g}" for v in have))
    kt.refuse_mixed(frame, path, pool)
    kt.add_labels(frame)
    frame["bin"] = (frame["first"] if frame["binned"].iloc[0]
                    else np.floor(frame["offset"] * bins / (frame["offset"].max() + 1)))
    frame["panel"] = frame["layer" if by == "layer" else "budget_requested"]
    frame = whole_heads(frame, path)
    groups = frame.groupby(["panel", "label", "bin"], dropna=False, sort=False)
    table = groups["rel_error"].agg(low=quartile(0.25), median=quartile(0.5), high=quartile(0.75))
    sums = (frame["rel_error_mean"] * frame["queries"]).groupby(
        [frame[name] for name in ("panel", "label", "bin")], dropna=False, sort=False).sum()
    table["mean"] = sums / groups["queries"].sum()
    table["offset"] = groups["offset"].mean()
    table = above_rounding(table.reset_index(), path)
    table = kfr.keep(kfr.relative(table, relative_to, ["panel", "bin"], path), frame)
    table.attrs.update(paths=[path], binned=bool(frame["binned"].iloc[0]))
    return table


def above_rounding(table, path):
    """Returns rows of methods with some error above rounding; notes the others."""
    largest = table.groupby("label", sort=False)["high"].transform("max")
    kt.note_each(table[largest < kt.ROUNDING_ERROR],
                 f"{{}} is exact: its errors are below {kt.ROUNDING_ERROR:g}, it is not drawn")
    table = table[largest >= kt.ROUNDING_ERROR].reset_index(drop=True)
    if table.empty:
        raise kt.CsvError(f"{path}: errors are below {kt.ROUNDING_ERROR:g} in every point")
    return table


def quartile(share):
    """Returns a quantile function where infinite errors lie above all others."""
    def value(errors):
        # "lower" and "higher" first, since interpolating inf - inf gives NaN.
        low, high = (np.quantile(errors, share, method=m) for m in ("lower", "higher"))
        return low if low == high else np.quantile(errors, share)
    return value


def whole_heads(frame, path):
    """Returns rows of methods with every head of their panel; a subset would be biased."""
    heads = frame.groupby(kt.HEAD_COLUMNS, dropna=False, sort=False).ngroup()
    seen = heads.groupby([frame["panel"], frame["label"]], dropna=False).transform("nunique")
    of_all = heads.groupby(frame["panel"], dropna=False).transform("nunique")
    part = seen < of_all
    kt.note_each(frame[part], "{}: left out where some heads are missing")
    if part.all():
        raise kt.CsvError(f"{path}: no method has rows for every head that the file has")
    return frame[~part]


def set_error_axis(axes, values, log_y, room=1.6):
    """Scales to `values`, not to bands. room: of these above the largest value of a linear axis."""
    seen = values[np.isfinite(values) & (values >= kt.ROUNDING_ERROR)]
    if log_y and len(seen):
        axes.set_yscale("log")
        axes.set_ylim(seen.min() / 1.5, seen.max() * 1.5)
        kl.plain_log(axes.yaxis)
    elif not log_y:
        axes.set_ylim(0, room * seen.max() if len(seen) else 1)


def set_offset_axis(axes, binned):
    """Spreads bins that double in width evenly; a linear axis for equal bins."""
    if binned:
        axes.set_xscale("function", functions=(lambda v: np.log1p(np.maximum(v, 0)), np.expm1))
        last = axes.get_xlim()[1]
        axes.set_xticks([0, *(4**i for i in range(12) if 4**i <= last)])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlim(left=0)


@kf.in_style
def draw(table, by="budget", centre="median", band=None, log_y=False, highlight=(), relative_to=""):
    """Returns a figure with a panel per budget or layer, or an overview of many layers. band: None: for few methods."""
    def prepare(axes, rows):
        values = rows["mean"] if "layers" in rows.columns else table[centre]  # of an overview's means
        set_error_axis(axes, values.to_numpy(), log_y, 1.6 if band else 1.1)
        set_offset_axis(axes, table.attrs.get("binned"))

    band = table["label"].nunique() <= MAX_BANDS if band is None else band
    # A method's bins are the same for all heads: their mean offset is the label.
    by_layer = by == "layer"
    shown = np.isfinite(table[centre]) & (table[centre] >= kt.ROUNDING_ERROR)
    rows = table.assign(x=table["offset"].round() if by_layer else table["offset"], at=table["offset"],
                        layer=table["panel"], mean=table[centre].where(shown))
    if not band:
        rows = rows.assign(low=rows["mean"], high=rows["mean"])
    part = kl.Part(rows, kfr.y_label("rel_error", relative_to) + f" ({centre})", prepare=prepare)
    return kl.sweep([part], OFFSET, highlight=highlight, band=band, name=by, maps=by_layer, falling=not by_layer,
                    height=1.7, sharey=True)


def measured(table, centre):
    parts = []
    for panel, rows in table.groupby("panel", dropna=False, sort=False):
        rows = rows.sort_values("bin")
        ends = rows.groupby("label", sort=False)[centre].agg(["first", "last"])
        parts.append(f"{panel:g}: " + ", ".join(
            f"{label} {row['first']:.3g} to {row['last']:.3g}" for label, row in ends.iterrows()))
    return (f"Measured, {centre} of rel_error, first to last offsets, by panel: " + "; ".join(parts) + ".")


@kk.kind(read, "OUT.queries.csv", "files of kvbench replay --per-query", by=BY)
def offset(queries: pd.DataFrame, rows: pd.DataFrame | None = None, *, algorithm: kk.Names = (),
           all: bool = False, budget: Sequence[float] = (), layers: Sequence[int] = (), by: str = "budget",
           bins: int = 32, mean: bool = False, band: bool | None = None, log_y: bool = False,
           highlight: kk.Names = (), relative_to: str = "", pool: bool = False, title: str = "",
           model: str = "") -> kf.Picture:
    """Returns error over the offset of the query, a panel per budget or layer.

    queries: OUT.queries.csv, columns LINE_KEYS and SINGLE or BINS; rows: the rows of OUT.csv, whose
    settings and status bins need. Raises CsvError.
    """
    whole = load(queries, rows, algorithm, budget, layers, by, bins, relative_to, pool)
    centre = "mean" if mean else "median"
    kt.note_each(whole[~np.isfinite(whole[centre])],
                 f"{{}} has a {centre} that is not finite; its line has a gap there")
    sized = whole.assign(size=whole["panel"] if by == "budget" else 1.0)
    table, chosen = kc.pick(sized, "size", (all, algorithm, highlight), centre)
    count = table["panel"].dropna().nunique()
    if by == "budget" and count > MAX_PANELS:
        raise kt.CsvError(f"{kt.source_of(queries)}: {count} panels, expected at most {MAX_PANELS}; choose with "
                          "--budget")
    picture = draw(table, by, centre, band, log_y, highlight, relative_to)
    bars = kl.spread_text(
        picture, f"Lines: {centre}s over prompts, layers, heads and seeds; bands, if any: "
        "quartiles.", f"{centre}s over prompts, heads and seeds")
    return kfr.finish(picture, whole.attrs["facts"], chosen + bars, measured(whole, centre), title, model)
