"""Error and memory along a stream (rows of `kvbench replay --protocol stream`).

Reads OUT.csv and OUT.steps.csv. A column of panels per budget. Above: relative error of the query
at each step; below: bytes held per KV head (recent window and the method's), with the full cache
(grey, dotted) and the budget (grey, dashed: the requested share of the stream's final bytes).

Steps are gathered into bins of equal width (--bins); a point is the mean over a bin's steps,
prompts, layers and heads, per seed, then over seeds; --band shades the standard deviation over
seeds. If prompts differ in length, the last bins hold the longer ones only. Errors below 1e-6
(nothing dropped yet) are rounding and leave a gap. At most ten lines: the references and those with
the smallest error at the smallest budget; --all draws all, --algorithms the named ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D
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

HIGHER = 6  # methods; above, the error panel is higher
FIRST_ERRORS = 0.02  # share of points below the error axis

JOIN_KEYS = ["trace", "prompt", "layer", "q_head", "algorithm", "params", "protocol", "sink",
             "recent", "scores", "device", "seed", "n_queries", "budget_requested"]


def steps_path(path):
    """Returns OUT.steps.csv for OUT.csv, OUT.steps.csv.gz for OUT.csv.gz."""
    for end in (".csv", ".csv.gz"):
        if path.endswith(end):
            return path.removesuffix(end) + ".steps" + end
    return path + ".steps.csv"


def read_joined(path):
    """Returns the steps of one table's measured rows, with n_tokens and full_bytes."""
    rows = kt.read_results([path], [*JOIN_KEYS, "n_tokens", "full_bytes"])
    of_runs = rows
    rows = kt.ok_rows(rows, path)
    if not (rows["protocol"] == "stream").any():
        raise kt.CsvError(f"{path}: column `protocol`: got prefill alone, expected rows of "
                          "--protocol stream")
    steps = kt.read_table([steps_path(path)], [*JOIN_KEYS, "step", "rel_error", "bytes"],
                          kt.TEXT_COLUMNS)
    kt.check_same_run(steps, steps_path(path), of_runs, path)
    # All rows, since degenerate ones have steps too. `seeds` is there if a store wrote them.
    of_rows = of_runs.filter([*JOIN_KEYS, *kt.ORIGINS, "n_tokens", "full_bytes", "status", "seeds"])
    joined = steps[[*JOIN_KEYS, "step", "rel_error", "bytes"]].merge(
        of_rows, on=JOIN_KEYS, how="left", validate="many_to_one")
    lost = int(joined["n_tokens"].isna().sum())
    if lost:
        raise kt.CsvError(f"{steps_path(path)}: {lost} steps have no row in {path}, expected the "
                          "two files of one run")
    joined = joined[joined["status"].map(kt.status_kind) == "ok"]
    streamed = rows[rows["protocol"] == "stream"]
    without = len(streamed) - len(joined.drop_duplicates(JOIN_KEYS))
    if without > 0:
        raise kt.CsvError(f"{steps_path(path)}: {without} rows of {path} have no steps, expected "
                          "the two files of one run")
    return joined


def load(paths, algorithms=(), budgets=(), bins=48, layers=(), relative_to="", pool=False):
    """Returns one row per (budget, label, bin, column): mean, sd, step; columns rel_error, bytes,
    full.

    step: mean position of the bin's steps. bytes and full (all tokens up to the step) in bytes.
    """
    frame = kt.pd.concat([read_joined(path) for path in paths], ignore_index=True)
    frame = kt.pick_algorithms(frame, algorithms, paths[0])
    frame = kt.pick_numbers(frame, "budget_requested", budgets, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    kt.refuse_mixed(frame, paths[0], pool)
    kt.add_labels(frame)
    frame = kt.full_points(frame, ["label", "budget_requested"], paths[0]).copy()
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
            table = kfr.relative(table, relative_to, ["budget_requested", "bin"], paths[0])
        tables.append(table)
    return kfr.keep(kt.pd.concat(tables, ignore_index=True), frame)


def fill_budgets(table):
    """Repeats rows without a budget (exact, native sizes) for every budget."""
    budgets = sorted(table["budget_requested"].dropna().unique(), reverse=True)
    if not budgets:
        return table, [np.nan]
    native = table[table["budget_requested"].isna()]
    copies = [native.assign(budget_requested=budget) for budget in budgets]
    given = table[table["budget_requested"].notna()]
    return kt.pd.concat([given, *copies], ignore_index=True), budgets


def draw_column(error_axes, memory_axes, part, styles, band):
    for i, (label, look) in enumerate(styles.items()):
        own = part[part["label"] == label]
        for axes, column, unit in ((error_axes, "rel_error", 1), (memory_axes, "bytes", 1024)):
            points = own[own["column"] == column].sort_values("step")
            means = points["mean"] / unit
            if column == "rel_error":
                means = means.where(np.isfinite(means) & (means >= kt.ROUNDING_ERROR))
            style = {**look, "markevery": (i % 7, 7)}  # staggered markers
            sds = points["sd"] / unit if band else points["sd"] * 0
            kf.plot_line(axes, points["step"], means, sds, style, band, linewidth=0.9, ms=3)
    for column, dash in (("full", ":"), ("limit", "--")):
        points = part[part["column"] == column].groupby("bin").mean(numeric_only=True)
        memory_axes.plot(points["step"], points["mean"] / 1024, color="0.5", linestyle=dash,
                         linewidth=1.2, zorder=1)


def name_ends(axes, part, styles):
    """Returns the line ends of a panel of errors."""
    own = part[(part["column"] == "rel_error") & np.isfinite(part["mean"])
               & (part["mean"] >= kt.ROUNDING_ERROR)]
    lines = {label: (rows["step"], rows["mean"]) for label in styles
             if len(rows := own[own["label"] == label])}
    return kn.ends_of(axes, lines)


@kf.in_style
def draw(table, band=False, linear_y=False, highlight=(), relative_to=""):
    table, budgets = fill_budgets(table)
    styles = ks.styles(table["label"], highlight)
    # Errors of many methods are close together; memory is not.
    named = len(styles) > kn.MANY
    heights = [4.0 * 2 / 4, 2.0] if len(styles) <= HIGHER else [5.2 * 2 / 3, 5.2 / 3]
    heights[0] = max(heights[0], kn.height_for(len(styles)) if named else 0)
    figure, grid = kf.panels(2, len(budgets), sharex=True, sharey="row", height=sum(heights) / 2,
                             width=kf.PAGE_WIDTH if named else None,
                             gridspec_kw={"height_ratios": heights})
    for column, budget in enumerate(budgets):
        part = table if np.isnan(budget) else table[table["budget_requested"] == budget]
        draw_column(grid[0, column], grid[1, column], part, styles, band)
        grid[0, column].set_title("native sizes" if np.isnan(budget) else f"budget {budget:g}")
        grid[1, column].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    errors = table[(table["column"] == "rel_error") & (table["mean"] >= kt.ROUNDING_ERROR)
                   & np.isfinite(table["mean"])]
    for axes in grid[0]:
        if not linear_y and not errors.empty:
            axes.set_yscale("log")
            # The first errors after a drop are tiny and would take half the axis.
            low = errors["mean"].quantile(FIRST_ERRORS, interpolation="lower")
            axes.set_ylim(low / 1.3, errors["mean"].max() * 1.3)
            kl.plain_log(axes.yaxis)
    grid[0, 0].set_ylabel(kfr.y_label("rel_error", relative_to))
    grid[1, 0].set_ylabel("KiB per KV head")
    for axes in grid[1]:
        axes.set_ylim(bottom=0)
    figure.align_ylabels(grid[:, 0])
    figure.supxlabel("step (tokens)", fontsize=kf.FONT_SIZE)
    # The last panel labels its lines; the legend has the others.
    at_lines = set(name_ends(grid[0, -1], part, styles)) if named else set()
    handles = [kf.line_handle(look, label) for label, look in styles.items()
               if label not in at_lines]
    handles.append(Line2D([], [], color="0.5", linestyle=":", label="full cache"))
    if not np.isnan(budgets[0]):
        handles.append(Line2D([], [], color="0.5", linestyle="--", label="budget"))
    kf.legend_above(figure, handles)
    if named:
        figure.canvas.draw()
        kn.name_lines(grid[0, -1], name_ends(grid[0, -1], part, styles), styles,
                      *ks.emphasis(styles, highlight))
    return figure


def measured(table):
    own = table[table["column"] == "rel_error"]
    parts = []
    for budget, rows in own.groupby("budget_requested", dropna=False, sort=False):
        last = rows[rows["bin"] == rows["bin"].max()].sort_values("mean")
        parts.append(("native sizes: " if np.isnan(budget) else f"budget {budget:g}: ")
                     + ", ".join(f"{k} {v:.3g}" for k, v in zip(last["label"], last["mean"])))
    return "Measured, rel_error at the end of the stream: " + "; ".join(parts) + "."


@kg.public
def figure(tables: list[str], *, algorithms: kg.Names = (), all: bool = False,
           budgets: Sequence[float] = (), bins: int = 48, layers: Sequence[int] = (),
           highlight: kg.Names = (), relative_to: str = "", pool: bool = False, band: bool = False,
           linear_y: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns the figure of OUT.csv with OUT.steps.csv, or of frames {"rows": ..., "steps": ...};
    arguments are the program's options. Raises CsvError, and ValueError for `bins` below 1.
    """
    kg.check_count("bins", bins)
    wanted = kc.Wanted(all, kg.name_list(algorithms), kg.name_list(highlight))
    table = load(tables, wanted.algorithms, budgets, bins, layers, relative_to, pool)
    ks.check_highlight(table["label"], wanted.highlight, tables[0])
    errors = table[table["column"] == "rel_error"]
    labels, chosen = kc.choose(errors.assign(size=errors["budget_requested"]), wanted)
    whole, table = table, table[table["label"].isin(labels)]
    bad = table[(table["column"] == "rel_error") & ~np.isfinite(table["mean"])]
    for label in dict.fromkeys(bad["label"]):
        kt.note(f"{label} has a mean that is not finite; its line has a gap there")
    count = table["budget_requested"].dropna().nunique()
    if count > 4:
        raise kt.CsvError(f"{tables[0]}: {count} budgets, expected at most 4 panels beside each "
                          "other; choose with --budgets")
    picture = draw(table, band, linear_y, wanted.highlight, relative_to)
    bands = "; bands: standard deviation over seeds" if band else ""
    return kfr.finish(picture, whole.attrs["facts"],
                      f"{chosen}Lines: means over layers, heads and the steps of a bin{bands}.",
                      measured(whole), title, model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(
        __doc__, help_text="files of kvbench replay --protocol stream, OUT.steps.csv beside them",
        take=("--algorithms", "--all", "--layers", "--highlight", "--relative-to", "--pool"))
    parser.add_argument("--budgets", type=command.number_list, metavar="RHO,...", default=[],
                        help="only these; default: all")
    parser.add_argument("--bins", type=command.positive, metavar="N", default=48,
                        help="points along the stream, default 48")
    parser.add_argument("--band", action="store_true", help="shade the spread over seeds")
    parser.add_argument("--linear-y", action="store_true", help="linear error axis")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
