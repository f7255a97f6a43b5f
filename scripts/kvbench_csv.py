"""What every plotting script of kvbench shares: reading tables, params, labels, means, panels.

Errors that a user can mend are CsvError; `run_main` prints them as one line and exits with 2. A
picture that cannot be written for the device's sake (full disk, I/O error) is DeviceError: 3.
Column meanings: docs/schema.md.
"""

import argparse
import errno
import math
import sys

try:
    import matplotlib
    import numpy as np
    import pandas as pd

    matplotlib.use("Agg")  # before pyplot: no script opens a window
    import matplotlib.pyplot as plt
except ImportError as error:
    print(f"{sys.executable} has no {error.name}; on Debian: apt install python3-pandas "
          "python3-matplotlib, and /usr/bin/python3", file=sys.stderr)
    sys.exit(2)

SCHEMA_MAJOR = "1"

# Okabe and Ito's palette, safe for the common kinds of colour blindness. Yellow is left out: it
# does not show on white. Lines differ in marker and dash as well, for print in grey.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">"]
DASHES = ["-", "--", "-.", ":"]

TEXT_COLUMNS = {
    "schema", "trace", "prompt", "algorithm", "params", "protocol", "scores", "device", "status",
    "diag",
}
SETTINGS = ["protocol", "sink", "recent", "scores", "device", "n_queries"]
HEAD_COLUMNS = ["trace", "prompt", "layer", "q_head"]  # what a mean over heads runs over

PAGE_WIDTH = 7.0  # inches: both columns of a page
COLUMN_WIDTH = 3.4
PAGE_HEIGHT = 9.6  # no figure is higher, its legend included
FONT_SIZE = 8
SMALL_FONT_SIZE = 6.5  # nothing in a picture is smaller

# Errors below this are rounding of an exact cache: logarithmic axes leave them out.
ROUNDING_ERROR = 1e-9
HIGHER_BETTER = {"cosine", "mass_kept"}  # of all other metrics the least is the best
# What may be drawn as a method's error, as an axis says it.
ERROR_LABELS = {
    "rel_error": "relative error",
    "rel_error_p95": "relative error, 95th percentile",
    "eps_fro": r"$\epsilon$ (Frobenius norm)",
    "eps_op": r"$\epsilon$ (operator norm)",
    "log_z_error": "error of log denominator (nats)",
    "amnesia_mass": "attention on tokens not held",
}


class CsvError(Exception):
    """Bad input: one line for the user."""

    exit_code = 2


class DeviceError(CsvError):
    """Nothing that the user gave is wrong: the device failed."""

    exit_code = 3


def parse_params(text):
    """`key=value;key=value` as a dict, in the text's order; a part without `=` maps to ''."""
    out = {}
    for part in text.split(";"):
        if part:
            key, _, value = part.partition("=")
            out[key] = value
    return out


def status_kind(status):
    """First word of a status: ok, degenerate, infeasible or failed."""
    return status.partition(":")[0]


def read_results(paths, needed):
    """Result files as one frame.

    `needed`: columns that the caller reads besides schema, algorithm, params and status. Numeric
    columns are float64 (an empty field, as in rows without measurements, is NaN); text columns are
    str. Raises CsvError for a missing file or column, an empty file, mixed or foreign schemas, and
    a field that is no number.
    """
    columns = ["schema", "algorithm", "params", "status"]
    columns += [c for c in needed if c not in columns]
    frame = read_table(paths, columns, TEXT_COLUMNS)
    schemas = sorted(frame["schema"].unique())
    if len(schemas) > 1:
        raise CsvError(f"{paths[0]}: mixed schemas: {', '.join(schemas)}")
    if schemas[0].split(".")[0] != SCHEMA_MAJOR:
        raise CsvError(f"{paths[0]}: schema {schemas[0]}, expected {SCHEMA_MAJOR}.x")
    return frame


def read_table(paths, needed, text, others=None):
    """Files of one header as one frame, such as OUT.steps.csv or those of `kvbench cluster`.

    `needed`: columns that must be there; `others`: all else that is read where it is there, None:
    every column (a long table takes memory for each). Columns of `text` are str, the others float64 (an empty
    field is NaN); a column that is not needed and holds text stays str. Raises CsvError for a
    missing file or column, an empty file, and a field of a needed column that is no number.
    """
    frames = []
    for path in paths:
        frame = _read_one(path, None if others is None else {*needed, *others})
        for column in needed:
            if column not in frame.columns:
                raise CsvError(f"{path}: column `{column}` is missing")
        for column in frame.columns:
            if column not in text:
                frame[column] = numbers(frame[column], path, column, column in needed)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _read_one(path, columns):
    try:
        # Text first: pandas' own guesses turn a prompt `007` into 7 and `nan` into a gap.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False,
                            usecols=None if columns is None else columns.__contains__)
    except FileNotFoundError:
        raise CsvError(f"{path}: no such file") from None
    except pd.errors.EmptyDataError:
        raise CsvError(f"{path}: the file is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
        raise CsvError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if frame.empty:
        raise CsvError(f"{path}: no rows")
    return frame


def numbers(column, path, name, strict):
    """A text column as floats; a CsvError names the first that is none, unless not `strict`."""
    values = pd.to_numeric(column.where(column != "", "nan"), errors="coerce")
    bad = values.isna() & ~column.isin(["", "nan"])
    if strict and bad.any():
        row = int(bad.to_numpy().nonzero()[0][0])
        raise CsvError(f"{path}: row {row + 1}: column `{name}`: got `{column.iloc[row]}`, "
                       "expected a number")
    # Columns that nobody asked for stay as they are: a newer minor version may add text columns.
    return column if bad.any() else values.astype(float)


def pick_algorithms(frame, names, path):
    """Rows of these algorithms, all for an empty list; CsvError for one that has no rows."""
    absent = [name for name in names if name not in set(frame["algorithm"])]
    if absent:
        raise CsvError(f"{path}: no rows of algorithm {', '.join(absent)}; it holds "
                       + ", ".join(sorted(frame["algorithm"].unique())))
    return frame[frame["algorithm"].isin(names)] if names else frame


def pick_numbers(frame, column, values, path):
    """Rows whose `column` is one of `values`, all for an empty list; CsvError for an absent one."""
    have = frame[column].dropna().unique()
    for value in values:
        if not np.isclose(have, value, rtol=1e-9, atol=0).any():
            raise CsvError(f"{path}: no rows with {column} {value:g}; it holds "
                           + ", ".join(f"{v:g}" for v in sorted(have)))
    if not values:
        return frame
    near = np.isclose(frame[column].to_numpy()[:, None], values, rtol=1e-9, atol=0).any(axis=1)
    return frame[near]


def measured_rows(frame, path=""):
    """Rows with fair measurements (status ok); says on stderr what was left out."""
    kind = frame["status"].map(status_kind)
    for word in ("degenerate", "infeasible", "failed"):
        count = int((kind == word).sum())
        if count:
            names = ", ".join(sorted(frame.loc[kind == word, "algorithm"].unique()))
            print(f"note: {count} {word} rows are left out ({names})", file=sys.stderr)
    kept = frame[kind == "ok"].copy()
    if kept.empty:
        where = f"{path}: " if path else ""
        raise CsvError(f"{where}no row holds measurements: all are degenerate, infeasible or failed")
    for name in SETTINGS:
        if name in kept.columns and (kept.groupby("algorithm")[name].nunique() > 1).any():
            print(f"note: rows that differ in {name} are pooled", file=sys.stderr)
    return kept


def commonest(values):
    """The value of more than half of them, or None."""
    values = list(values)
    return next((v for v in set(values) if 2 * values.count(v) > len(values)), None)


def add_labels(frame, ignore=(), short=False):
    """Adds the column `label`: the algorithm and those of its parameters that differ in `frame`.

    `ignore`: parameters that never enter a label (what the x axis shows). `short`: nor do values
    that more than half of the algorithm's variants have, as in an ablation around one setting.
    """
    texts = {}
    for algorithm, group in frame.groupby("algorithm", sort=False):
        variants = {text: parse_params(text) for text in group["params"].unique()}
        keys = list(dict.fromkeys(k for v in variants.values() for k in v if k not in ignore))
        # A parameter that only some have differs too, but for one that another's value brings with
        # it (attention-matching's keys=h2o brings h2o.heavy_ratio).
        shown = [k for k in keys
                 if len({v.get(k) for v in variants.values() if k in v or "." not in k}) > 1]
        usual = {k: commonest(v.get(k) for v in variants.values()) if short else None
                 for k in shown}
        for text, values in variants.items():
            parts = [f"{k}={values[k]}" for k in shown if k in values and values[k] != usual[k]]
            texts[algorithm, text] = " ".join([algorithm, *parts])
    frame["label"] = [texts[pair] for pair in zip(frame["algorithm"], frame["params"])]
    return frame


def full_points(frame, keys, path):
    """Rows of points that cover every head; says on stderr which points are left out.

    A point is a group by `keys`, of one seed or more. Where an algorithm was feasible in some heads
    only, a mean over these would stand beside means over all: easy heads against all heads. Heads
    are those of the frame (of the point's layer, when `keys` holds `layer`).
    """
    facets = [k for k in keys if k in HEAD_COLUMNS]
    heads = frame.groupby(HEAD_COLUMNS, dropna=False, sort=False).ngroup()
    seen = heads.groupby([frame[k] for k in [*keys, "seed"]], dropna=False).transform("nunique")
    of_all = (heads.groupby([frame[k] for k in facets], dropna=False).transform("nunique")
              if facets else heads.nunique())
    part = seen < of_all
    for label in dict.fromkeys(frame.loc[part, "label"]):
        rows = frame[part & (frame["label"] == label)]
        points = len(rows.drop_duplicates(keys))
        print(f"note: {label}: points left out because some heads are missing: {points}",
              file=sys.stderr)
    if part.all():
        raise CsvError(f"{path}: no point has rows for every head that the file has")
    return frame[~part]


def mean_and_sd(frame, keys, column, spread="seeds"):
    """One row per group of `keys`, in order of appearance: mean, sd (n - 1), seeds.

    The mean over a seed's rows is taken first; `mean` is the mean of these and `sd` their standard
    deviation, as in BalanceKV's figure 2. spread="all": sd over all rows. NaN and infinity stay
    visible: they are not averaged away. One value has no sd (NaN).
    """
    per_seed = frame.groupby([*keys, "seed"], dropna=False, sort=False)[column].agg(
        lambda v: v.mean(skipna=False))
    groups = per_seed.groupby(level=list(keys), dropna=False, sort=False)
    out = groups.agg(mean=lambda v: v.mean(skipna=False), sd="std", seeds="size")
    if spread == "all":
        out["sd"] = frame.groupby(list(keys), dropna=False, sort=False)[column].std()
    return out.reset_index()


def finite_points(table):
    """Points whose mean is finite; says on stderr which labels have others."""
    bad = ~np.isfinite(table["mean"])
    for label in dict.fromkeys(table.loc[bad, "label"]):
        print(f"note: {label} has a mean that is not finite; it is not drawn", file=sys.stderr)
    return table[~bad]


def line_style(i):
    """Colour, marker and dash of the i-th line; the first 7 differ in colour, the next in dash."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(PALETTE) % len(DASHES)],
    }


def plot_line(axes, xs, means, sds, style, band=False, **more):
    """A line with bars of one standard deviation (NaN: none) or a shaded band; returns the line."""
    sds = np.nan_to_num(np.asarray(sds, dtype=float), nan=0.0, posinf=0.0)
    means = np.asarray(means, dtype=float)
    (drawn,) = axes.plot(xs, means, **{"ms": 3.5, "linewidth": 1.2, **style, **more})
    if band:
        axes.fill_between(xs, means - sds, means + sds, color=style["color"], alpha=0.2,
                          linewidth=0)
    elif (sds > 0).any():
        axes.errorbar(xs, means, yerr=sds, fmt="none", ecolor=style["color"], elinewidth=0.8,
                      capsize=2)
    return drawn


def set_style():
    """Type sizes and widths of lines, for every figure that is made from now on."""
    plt.rcParams.update({
        "font.size": FONT_SIZE, "axes.titlesize": FONT_SIZE, "legend.fontsize": 7.5,
        "xtick.labelsize": 7, "ytick.labelsize": 7, "pdf.fonttype": 42, "axes.linewidth": 0.6})


def dress(axes):
    """Grid and frame of a panel, as all have them."""
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def panels(nrows, ncols, width=None, height=2.0, **more):
    """Figure and 2-D array of axes in the style of all figures. Sizes in inches.

    `width`: of the whole figure; default: COLUMN_WIDTH for up to two columns, else PAGE_WIDTH.
    `height`: of one row.
    """
    set_style()
    if width is None:
        width = COLUMN_WIDTH if ncols <= 2 else PAGE_WIDTH
    figure, grid = plt.subplots(nrows, ncols, squeeze=False, constrained_layout=True,
                                figsize=(width, height * nrows), **more)
    for axes in grid.flat:
        dress(axes)
    return figure, grid


def legend_above(figure, handles):
    """A legend above the panels, of as few rows as keep it within the figure's width."""
    rows = 1
    while True:
        columns = math.ceil(len(handles) / rows)
        legend = figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0),
                               frameon=False, ncol=columns, columnspacing=1.5)
        wide = legend.get_window_extent(figure.canvas.get_renderer()).width
        if wide <= figure.bbox.width or columns == 1:
            return legend
        legend.remove()
        rows += 1


def line_handle(style, label):
    """A legend's entry for `style`."""
    return plt.Line2D([], [], **{"ms": 3.5, "linewidth": 1.2, "label": label, **style})


def spread_out(positions, gap):
    """Positions moved as little as need be to lie `gap` apart, in the order of `positions`."""
    order = np.argsort(positions, kind="stable")
    blocks = []  # [sum of wanted centres, count]; a block's members stand gap apart
    for want in np.asarray(positions, dtype=float)[order]:
        blocks.append([want, 1])
        while len(blocks) > 1:
            (left, m), (right, n) = blocks[-2:]
            if right / n - left / m >= gap * (m + n) / 2:
                break
            blocks[-2:] = [[left + right, m + n]]
    placed = np.concatenate([total / n + gap * (np.arange(n) - (n - 1) / 2)
                             for total, n in blocks]) if blocks else np.empty(0)
    out = np.empty(len(order))
    out[order] = placed
    return out


def save_figure(figure, stem):
    """Writes STEM.png (200 dpi) and STEM.pdf; the same data give the same bytes."""
    try:
        figure.savefig(f"{stem}.png", dpi=200, bbox_inches="tight")
        figure.savefig(f"{stem}.pdf", bbox_inches="tight", metadata={"CreationDate": None})
    except OSError as error:
        kind = DeviceError if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT) else CsvError
        raise kind(f"{stem}: cannot be written: {error.strerror}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


def plain_parser(doc):
    """Parser without arguments yet. Its errors are one line."""
    return _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def argument_parser(doc, inputs="OUT.csv", help_text="files of kvbench replay"):
    """Parser with what every figure takes: input files and -o."""
    parser = plain_parser(doc)
    parser.add_argument("inputs", nargs="+", metavar=inputs, help=help_text)
    parser.add_argument("-o", "--output", required=True, metavar="STEM",
                        help="writes STEM.png and STEM.pdf")
    return parser


def name_list(text):
    """`a,b` as a list, for argparse; empty parts are dropped."""
    return [part for part in text.split(",") if part]


def number_list(text):
    """`0.5,0.25` as floats, for argparse."""
    try:
        values = [float(part) for part in name_list(text)]
    except ValueError:
        values = [math.nan]
    if not np.isfinite(values).all():
        raise argparse.ArgumentTypeError(f"got `{text}`, expected numbers with commas between")
    return values


def positive(text):
    """A number of bins, for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a number above 0")
    return int(text)


def run_main(main):
    """Runs `main`; a CsvError becomes one line on stderr and the error's exit code."""
    try:
        main()
    except CsvError as error:
        print(f"{sys.argv[0].rpartition('/')[2]}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
