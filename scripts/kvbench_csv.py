"""What every plotting script of kvbench shares: reading result files, params, labels, colours.

Errors that a user can mend are CsvError; `run_main` prints them as one line and exits with 2.
Column meanings: docs/schema.md.
"""

import sys

try:
    import matplotlib  # noqa: F401  (checked here for all scripts, so that one line says it)
    import pandas as pd
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


class CsvError(Exception):
    """Bad input: one line for the user."""


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
    frames = []
    for path in paths:
        frame = _read_one(path)
        for column in columns:
            if column not in frame.columns:
                raise CsvError(f"{path}: column `{column}` is missing")
        for column in frame.columns:
            if column not in TEXT_COLUMNS:
                frame[column] = _numbers(frame[column], path, column, column in columns)
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    schemas = sorted(frame["schema"].unique())
    if len(schemas) > 1:
        raise CsvError(f"{paths[0]}: mixed schemas: {', '.join(schemas)}")
    if schemas[0].split(".")[0] != SCHEMA_MAJOR:
        raise CsvError(f"{paths[0]}: schema {schemas[0]}, expected {SCHEMA_MAJOR}.x")
    return frame


def _read_one(path):
    try:
        # Text first: pandas' own guesses turn a prompt `007` into 7 and `nan` into a gap.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise CsvError(f"{path}: no such file") from None
    except pd.errors.EmptyDataError:
        raise CsvError(f"{path}: the file is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
        raise CsvError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if frame.empty:
        raise CsvError(f"{path}: no rows")
    return frame


def _numbers(column, path, name, strict):
    numbers = pd.to_numeric(column.where(column != "", "nan"), errors="coerce")
    bad = numbers.isna() & ~column.isin(["", "nan"])
    if strict and bad.any():
        row = int(bad.to_numpy().nonzero()[0][0])
        raise CsvError(f"{path}: row {row + 1}: column `{name}`: got `{column.iloc[row]}`, "
                       "expected a number")
    # Columns that nobody asked for stay as they are: a newer minor version may add text columns.
    return column if bad.any() else numbers.astype(float)


def measured_rows(frame):
    """Rows that hold measurements; says on stderr what was left out."""
    kind = frame["status"].map(status_kind)
    for word in ("infeasible", "failed"):
        count = int((kind == word).sum())
        if count:
            names = ", ".join(sorted(frame.loc[kind == word, "algorithm"].unique()))
            print(f"note: {count} {word} rows are left out ({names})", file=sys.stderr)
    kept = frame[~kind.isin(["infeasible", "failed"])].copy()
    if kept.empty:
        raise CsvError("no row holds measurements: all are infeasible or failed")
    for name in SETTINGS:
        if name in kept.columns and (kept.groupby("algorithm")[name].nunique() > 1).any():
            print(f"note: rows that differ in {name} are pooled", file=sys.stderr)
    return kept


def add_labels(frame, ignore=()):
    """Adds the column `label`: the algorithm and those of its parameters that differ in `frame`.

    `ignore`: parameters that never enter a label (what the x axis shows).
    """
    texts = {}
    for algorithm, group in frame.groupby("algorithm", sort=False):
        variants = {text: parse_params(text) for text in group["params"].unique()}
        keys = list(dict.fromkeys(k for v in variants.values() for k in v if k not in ignore))
        shown = [k for k in keys if len({v.get(k) for v in variants.values()}) > 1]
        for text, values in variants.items():
            parts = [f"{k}={values[k]}" for k in shown if k in values]
            texts[algorithm, text] = " ".join([algorithm, *parts])
    frame["label"] = [texts[pair] for pair in zip(frame["algorithm"], frame["params"])]
    return frame


def line_style(i):
    """Colour, marker and dash of the i-th line; the first 7 differ in colour, the next in dash."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i // len(PALETTE) % len(DASHES)],
    }


def save_figure(figure, stem):
    """Writes STEM.png (200 dpi) and STEM.pdf; the same data give the same bytes."""
    try:
        figure.savefig(f"{stem}.png", dpi=200, bbox_inches="tight")
        figure.savefig(f"{stem}.pdf", bbox_inches="tight", metadata={"CreationDate": None})
    except OSError as error:
        raise CsvError(f"{stem}: cannot be written: {error.strerror}") from None


def run_main(main):
    """Runs `main`; a CsvError becomes one line on stderr and exit code 2."""
    try:
        main()
    except CsvError as error:
        print(f"{sys.argv[0].rpartition('/')[2]}: {error}", file=sys.stderr)
        sys.exit(2)
