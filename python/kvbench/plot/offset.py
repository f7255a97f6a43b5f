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
draws all, --algorithms the named ones.

A line that falls from the first query on shows a method that relies on the tokens after the middle:
at first only `recent - queries` exact tokens precede the query, later all previous queries' keys
too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import guest as kg
from kvbench.plot import layers as kl
from kvbench.plot import names as kn
from kvbench.plot import style as ks

# Key of a line, also of binned tables.
LINE_KEYS = ["trace", "prompt", "layer", "q_head", "algorithm", "params", "seed", "budget_requested"]
BINS = ["first", "last", "queries", "rel_error_mean", "rel_error_p50"]
MAX_PANELS = 20  # of budgets: five rows
BY = ("budget", "layer")  # what panels are
OFFSET = "offset of the query (tokens)"
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


def read_queries(paths):
    """Returns lines of one form of all tables, with their rows' columns.

    Columns: the rows' keys, SETTINGS, ORIGINS; offset (middle of a bin), queries (count),
    rel_error_mean and rel_error (median of a bin); first of a bin.
    """
    for path in paths:
        refuse_other_tables(path)
    frame = kt.pd.concat([_with_rows(_lines(path), path) for path in paths], ignore_index=True)
    if len({*frame["binned"]}) > 1:
        raise kt.CsvError(f"{paths[0]}: tables of bins and of single queries, expected one form")
    empty = frame["rel_error"].isna()
    if empty.any():
        names = ", ".join(sorted(frame.loc[empty, "algorithm"].unique()))
        kt.note(f"{int(empty.sum())} rows without an error are left out ({names})")
    if empty.all():
        raise kt.CsvError(f"{paths[0]}: no row holds measurements: every error is empty")
    return frame[~empty].copy()


def _lines(path):
    """Returns the lines of a table of either form."""
    kt.check_table(path)
    binned = "first" in kt.header_of(path)
    own = BINS if binned else ["schema", "offset", "rel_error"]
    frame = kt.read_table([path], [*LINE_KEYS, *own], kt.TEXT_COLUMNS, [*kt.SETTINGS, *kt.ORIGINS])
    if binned:
        frame = frame.assign(offset=(frame["first"] + frame["last"]) / 2,
                             rel_error=frame["rel_error_p50"])
    else:
        schemas = sorted(frame["schema"].unique())
        if len(schemas) > 1:
            raise kt.CsvError(f"{path}: mixed schemas: {', '.join(schemas)}")
        if schemas[0].split(".")[0] != kt.SCHEMA_MAJOR:
            raise kt.CsvError(f"{path}: schema {schemas[0]}, expected {kt.SCHEMA_MAJOR}.x")
        frame = frame.assign(first=frame["offset"], queries=1, rel_error_mean=frame["rel_error"])
    if not (frame["first"] >= 0).all() or not (frame["first"] % 1 == 0).all():
        name = "first" if binned else "offset"
        raise kt.CsvError(f"{path}: column `{name}`: expected whole numbers from 0 on")
    return frame.assign(binned=binned)


def _with_rows(lines, path):
    """Adds SETTINGS and ORIGINS, and drops lines of rows without fair measurements.

    Single queries carry their settings and need no OUT.csv.
    """
    stem = path.removesuffix(".gz").removesuffix(".queries.csv")
    places = [stem + ".csv", stem + ".csv.gz", stem] if ".queries.csv" in path[len(stem):] else []
    table = next((place for place in places if os.path.isfile(place)), None)
    if table is None:
        if lines["binned"].any():
            raise kt.CsvError(f"{places[0] if places else path + ' is not OUT.queries.csv: OUT.csv'}: "
                              "no such file, expected the table beside the queries'")
        return kt.with_origins(lines)
    rows = kt.read_results([table], [*LINE_KEYS, *kt.SETTINGS])
    kt.check_same_run(lines, path, rows, table)
    rows = kt.ok_rows(rows, table)
    more = [name for name in (*kt.SETTINGS, *kt.ORIGINS, "n_tokens") if name not in lines.columns]
    out = lines.merge(rows[[*LINE_KEYS, *more]], on=LINE_KEYS, how="inner")
    if out.empty:
        raise kt.CsvError(f"{path}: no line is of a row of {table}")
    return out


def load(paths, algorithms=(), budgets=(), layers=(), by="budget", bins=32, relative_to="",
         pool=False):
    """Returns one row per (panel, label, bin): offset (mean of the bin's), mean, low, median, high.

    panel: the budget (NaN for exact), or with by="layer" the layer.
    """
    frame = read_queries(paths)
    frame = kt.pick_algorithms(frame, algorithms, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    if budgets:
        # Methods without a budget are in every panel.
        native = frame["budget_requested"].isna()
        given = kt.pick_numbers(frame[~native], "budget_requested", budgets, paths[0])
        frame = kt.pd.concat([given, frame[native]]).sort_index()
    have = sorted(frame["budget_requested"].dropna().unique(), reverse=True)
    if by == "layer" and len(have) > 1:
        raise kt.CsvError(f"{paths[0]}: {len(have)} budgets, expected one with --by layer; choose "
                          "with --budgets " + ", ".join(f"{v:g}" for v in have))
    kt.refuse_mixed(frame, paths[0], pool)
    kt.add_labels(frame)
    frame["bin"] = (frame["first"] if frame["binned"].iloc[0]
                    else np.floor(frame["offset"] * bins / (frame["offset"].max() + 1)))
    frame["panel"] = frame["layer" if by == "layer" else "budget_requested"]
    frame = whole_heads(frame, paths[0])
    groups = frame.groupby(["panel", "label", "bin"], dropna=False, sort=False)
    table = groups["rel_error"].agg(low=quartile(0.25), median=quartile(0.5), high=quartile(0.75))
    sums = (frame["rel_error_mean"] * frame["queries"]).groupby(
        [frame[name] for name in ("panel", "label", "bin")], dropna=False, sort=False).sum()
    table["mean"] = sums / groups["queries"].sum()
    table["offset"] = groups["offset"].mean()
    table = above_rounding(table.reset_index(), paths[0])
    return kfr.keep(kfr.relative(table, relative_to, ["panel", "bin"], paths[0]), frame)


def above_rounding(table, path):
    """Returns rows of methods with some error above rounding; notes the others."""
    largest = table.groupby("label", sort=False)["high"].transform("max")
    for label in dict.fromkeys(table.loc[largest < kt.ROUNDING_ERROR, "label"]):
        kt.note(f"{label} is exact: its errors are below {kt.ROUNDING_ERROR:g}, it is not "
                "drawn")
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
    heads = frame.groupby(["prompt", "layer", "q_head"], sort=False).ngroup()
    seen = heads.groupby([frame["panel"], frame["label"]], dropna=False).transform("nunique")
    of_all = heads.groupby(frame["panel"], dropna=False).transform("nunique")
    part = seen < of_all
    for label in dict.fromkeys(frame.loc[part, "label"]):
        kt.note(f"{label}: left out where some heads are missing")
    if part.all():
        raise kt.CsvError(f"{path}: no method has rows for every head that the file has")
    return frame[~part]


def panel_list(table, by):
    """Returns [(title, rows)]; rows without a budget are in every budget's panel."""
    values = sorted(table["panel"].dropna().unique(), reverse=by == "budget")
    if not values:
        return [("native sizes", table)]
    native = table["panel"].isna()
    name = "layer" if by == "layer" else "budget"
    return [(f"{name} {value:g}", table[(table["panel"] == value) | native]) for value in values]


def draw_panel(axes, rows, styles, centre, band):
    for i, (label, look) in enumerate(styles.items()):
        points = rows[rows["label"] == label].sort_values("offset")
        style = {**look, "markevery": (i % 5, 5)}  # staggered markers
        middle = points[centre].where(np.isfinite(points[centre])
                                      & (points[centre] >= kt.ROUNDING_ERROR))
        axes.plot(points["offset"], middle, ms=3, linewidth=1.0, **style)
        if band:
            low, high = (points[name].where(middle.notna() & np.isfinite(points[name]))
                         for name in ("low", "high"))
            axes.fill_between(points["offset"], low.clip(lower=0), high, color=style["color"],
                              alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlim(left=0)


def set_error_axis(axes, values, log_y):
    """Scales to `values`, not to bands."""
    seen = values[np.isfinite(values) & (values >= kt.ROUNDING_ERROR)]
    if log_y and len(seen):
        axes.set_yscale("log")
        axes.set_ylim(seen.min() / 1.5, seen.max() * 1.5)
        kl.plain_log(axes.yaxis)
    elif not log_y:
        axes.set_ylim(0, 1.6 * seen.max() if len(seen) else 1)


@kf.in_style
def draw(table, by="budget", centre="median", band=None, log_y=False, highlight=(),
         relative_to=""):
    """Returns a figure with at most four panels side by side on one scale of errors, or an overview of many layers.

    band: None: for few methods.
    """
    styles = ks.styles(table["label"], highlight)
    band = len(styles) <= MAX_BANDS if band is None else band
    parts = panel_list(table, by)
    name = kfr.y_label("rel_error", relative_to) + f" ({centre})"
    if by == "layer" and not kl.fit_panels(parts, height=1.7):
        return draw_overview(table, styles, centre, name, log_y, highlight)
    titles = [title for title, _ in parts]
    height = 2.3 if len(parts) <= 4 else 1.7
    high = max(height, kn.height_for(len(styles)))
    named = len(styles) > kn.MANY and kl.fit_panels(parts, height=high)
    figure, panels = kl.facets([titles], height=high if named else height, sharex=True,
                               sharey=True, wide=named)
    for title, rows in parts:
        draw_panel(panels[title], rows, styles, centre, band)
        panels[title].set_title(title)
    set_error_axis(panels[titles[0]], table[centre].to_numpy(), log_y)
    figure.supxlabel(OFFSET, fontsize=kf.FONT_SIZE)
    figure.supylabel(name, fontsize=kf.FONT_SIZE)
    if not named:
        kf.legend_above(figure, [kf.line_handle(style, label) for label, style in styles.items()])
        return figure
    # The last panel of each row labels its lines; the legend has the others.
    missing = [label for label in styles if label not in set(parts[-1][1]["label"])]
    if missing:
        kf.legend_above(figure, [kf.line_handle(styles[label], label) for label in missing])
    figure.canvas.draw()
    for i, (title, rows) in enumerate(parts):
        if i == len(parts) - 1 or panels[titles[i + 1]].get_subplotspec().is_first_col():
            lines = {label: (own["offset"], own[centre]) for label in styles
                     if len(own := rows[rows["label"] == label])}
            kn.name_lines(panels[title], kn.ends_of(panels[title], lines), styles,
                          *ks.emphasis(styles, highlight))
    return figure


def measured(table, centre):
    parts = []
    for panel, rows in table.groupby("panel", dropna=False, sort=False):
        rows = rows.sort_values("bin")
        ends = rows.groupby("label", sort=False)[centre].agg(["first", "last"])
        parts.append(f"{panel:g}: " + ", ".join(
            f"{label} {row['first']:.3g} to {row['last']:.3g}" for label, row in ends.iterrows()))
    return (f"Measured, {centre} of rel_error, first to last offsets, by panel: "
            + "; ".join(parts) + ".")


def draw_overview(table, styles, centre, name, log_y, highlight):
    """Returns a figure with means over layers, and a map of layer and offset per method."""
    def prepare(axes, means):
        set_error_axis(axes, means["mean"].to_numpy(), log_y)
        axes.set_xlim(left=0)

    # A method's bins are the same for all heads: their mean offset is the label.
    rows = table.assign(x=table["offset"].round(), layer=table["panel"], mean=table[centre])
    rows = rows[np.isfinite(rows["mean"])]
    return kl.overview([kl.Part(rows, name)], styles, OFFSET, prepare, highlight=highlight)


@kg.public
def figure(tables: list[str], *, algorithms: kg.Names = (), all: bool = False,
           budgets: Sequence[float] = (), layers: Sequence[int] = (), by: str = "budget",
           bins: int = 32, mean: bool = False, band: bool | None = None, log_y: bool = False,
           highlight: kg.Names = (), relative_to: str = "", pool: bool = False, title: str = "",
           model: str = "") -> kf.Picture:
    """Returns the figure of OUT.queries.csv, or of frames {"rows": OUT.csv, "queries":
    OUT.queries.csv}; arguments are the program's options. Raises CsvError, and ValueError for an
    unknown `by` and for `bins` below 1.
    """
    kg.check_choice("by", by, BY)
    kg.check_count("bins", bins)
    wanted = kc.Wanted(all, kg.name_list(algorithms), kg.name_list(highlight))
    table = load(tables, wanted.algorithms, budgets, layers, by, bins, relative_to, pool)
    ks.check_highlight(table["label"], wanted.highlight, tables[0])
    centre = "mean" if mean else "median"
    for label in dict.fromkeys(table.loc[~np.isfinite(table[centre]), "label"]):
        kt.note(f"{label} has a {centre} that is not finite; its line has a gap there")
    whole = table.assign(one=1.0)
    table, chosen = kc.pick(whole, wanted, "panel" if by == "budget" else "one", centre)
    count = table["panel"].dropna().nunique()
    if by == "budget" and count > MAX_PANELS:
        raise kt.CsvError(f"{tables[0]}: {count} panels, expected at most {MAX_PANELS}; choose with "
                          "--budgets")
    picture = draw(table, by, centre, band, log_y, wanted.highlight, relative_to)
    bars = kl.spread_text(
        picture, f"Lines: {centre}s over prompts, layers, heads and seeds; bands, if any: "
        "quartiles.", f"{centre}s over prompts, heads and seeds")
    return kfr.finish(picture, table.attrs["facts"], chosen + bars, measured(whole, centre), title,
                      model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(__doc__, "OUT.queries.csv",
                                     "files of kvbench replay --per-query",
                                     take=("--algorithms", "--all", "--layers", "--highlight",
                                           "--relative-to", "--pool"))
    parser.add_argument("--budgets", type=command.number_list, metavar="RHO,...", default=[],
                        help="only these; default: all")
    parser.add_argument("--by", choices=BY, default="budget",
                        help="a panel per budget (over all layers, default) or per layer; layer needs "
                             "one budget")
    parser.add_argument("--bins", type=command.positive, metavar="N", default=32,
                        help="maximum number of points per line, for tables of single queries; default: 32")
    parser.add_argument("--mean", action="store_true", help="lines are means, not medians")
    parser.add_argument("--band", action=argparse.BooleanOptionalAction, default=None,
                        help="shade between the quartiles, default for up to four methods")
    parser.add_argument("--log-y", action="store_true", help="logarithmic error axis")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
