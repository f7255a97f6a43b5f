#!/usr/bin/env python3
"""Compares two result tables of one plan, such as those of --device cpu and --device cuda.

  scripts/compare_runs.py CPU.csv CUDA.csv [--relative 1e-5]

Rows are joined by the key columns of docs/schema.md except `device`. Numbers must agree within
--relative; values below 1e-6 (rounding of an exact cache) within --relative times 1e-6. Lists of numbers
(`residual_rel_error_heads`) must have one length and are compared one by one. Numbers in
`diag` have six digits and must agree within 1e-5 or --relative, whichever is larger; `gain_evaluations`,
which depends on the device, is ignored, as are timing columns, `run_id` and `row_crc`. Other columns
(status, tokens kept, bytes) must be equal. NaN equals nothing. The side tables CPU.steps.csv,
CPU.kept.csv, CPU.layers.csv and CPU.queries.csv must exist in both runs or neither, and are compared.

Needs only Python. Exit code: 0, equal; 1, different; 2, bad usage or input.
"""

import argparse
import csv
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "python"))

from kvbench import checksums  # noqa: E402
from kvbench.text import one_line  # noqa: E402

KEYS = ("trace", "prompt", "layer", "q_head", "kv_head", "algorithm", "params", "protocol", "sink",
        "recent", "scores", "seed", "n_tokens", "n_queries", "budget_requested", "step",
        "first")
IGNORED = {"device", "compress_ms", "attend_us_per_query", "compress_ms_iqr",
            "attend_us_per_query_iqr", *checksums.COLUMNS}
# Compared as text, besides KEYS; other columns are compared as numbers.
EXACT = {"schema", "tokens_kept", "bytes", "full_bytes", "ratio", "middle_ratio",
         "aux_bytes", "peak_bytes", "transient_bytes", "amnesia_count", "status", "scoring_queries",
         "repeats", "tokens", "model", "dtype", "precision", "last", "queries"}
DIAG_IGNORED = {"gain_evaluations"}
DIAG_RELATIVE = 1e-5
SMALL = 1e-6  # smaller values are compared with this tolerance scale
SHOWN = 10
csv.field_size_limit(1 << 30)  # a list of kept tokens is one field


class TableError(Exception):
    """Bad input, with a one-line message."""


def side_path(path, kind):
    """OUT.kind.csv of OUT.csv."""
    stem = path[:-4] if path.endswith(".csv") else path
    return f"{stem}.{kind}.csv"


def read_rows(path):
    """(columns, {key: row}); a row is {column: text}."""
    try:
        checksums.check_table(path)
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames
            if not columns:
                raise TableError(f"{path}: the file is empty")
            if len(set(columns)) < len(columns) or "algorithm" not in columns:
                raise TableError(f"{path}: not a table of kvbench replay")
            keys = [name for name in KEYS if name in columns]
            rows = {}
            for row in reader:
                if None in row or None in row.values():
                    raise TableError(f"{path}: line {reader.line_num}: expected {len(columns)} "
                                     "fields")
                key = tuple(row[name] for name in keys)
                if key in rows:
                    raise TableError(f"{path}: line {reader.line_num}: duplicate row")
                rows[key] = row
    except checksums.ChangedError as error:
        raise TableError(str(error)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    if not rows:
        raise TableError(f"{path}: no rows")
    return columns, rows


def is_nan(text):
    return text.lstrip("+-").lower() == "nan"


def distance(first, second):
    """|a - b| / max(|a|, SMALL); NaN or infinite unless both are finite numbers."""
    try:
        a, b = float(first), float(second)
    except ValueError:
        return math.nan
    return abs(a - b) / max(abs(a), SMALL)


class Comparison:
    """Differences of two runs, and the largest accepted distance."""

    def __init__(self, relative):
        self.relative = relative
        self.differences = 0
        self.rows = 0
        self.shown = []
        self.largest = (0.0, "")

    def differ(self, text):
        self.differences += 1
        if len(self.shown) < SHOWN:
            self.shown.append(text)

    def number(self, first, second, relative, where):
        if not is_nan(first) and not is_nan(second) and first == second:
            return
        apart = distance(first, second)
        # NaN compares false and counts as a difference.
        if apart <= relative:
            self.largest = max(self.largest, (apart, where))
        else:
            self.differ(f"{where}: {first or 'nothing'} and {second or 'nothing'}")

    def numbers(self, first, second, where):
        if len(first) != len(second):
            self.differ(f"{where}: {len(first)} and {len(second)} numbers")
            return
        for a, b in zip(first, second):
            self.number(a, b, self.relative, where)

    def text(self, first, second, where):
        if first != second or is_nan(first):
            self.differ(f"{where}: {shortened(first, second)}")

    def diag(self, first, second, where):
        parts = [[part.partition("=") for part in text.split(";")] for text in (first, second)]
        if [p[0] for p in parts[0]] != [p[0] for p in parts[1]]:
            self.differ(f"{where}: {shortened(first, second)}")
            return
        for (name, _, a), (_, _, b) in zip(*parts):
            if name.rpartition(".")[2] not in DIAG_IGNORED:
                self.number(a, b, max(self.relative, DIAG_RELATIVE), f"{where} {name}")

    def tables(self, first_path, second_path):
        first_columns, first = read_rows(first_path)
        second_columns, second = read_rows(second_path)
        name = os.path.basename(first_path)
        if first_columns != second_columns:
            odd = sorted(set(first_columns) ^ set(second_columns)) or ["their order"]
            self.differ(f"{name}: columns differ: {', '.join(odd)}")
            return
        for missing, of in ((first.keys() - second.keys(), second_path),
                            (second.keys() - first.keys(), first_path)):
            for key in sorted(missing):
                self.differ(f"{os.path.basename(of)} has no row {' '.join(filter(None, key))}")
        for key, row in first.items():
            if key in second:
                self.rows += 1
                self.row(row, second[key], f"{name}: {' '.join(filter(None, key))}")

    def row(self, first, second, row):
        for column, text in first.items():
            where = f"{row}: {column}"
            if column in IGNORED or column in KEYS:
                continue
            if column in EXACT:
                self.text(text, second[column], where)
            elif column == "diag":
                self.diag(text, second[column], where)
            else:
                self.numbers(text.split(";"), second[column].split(";"), where)


def shortened(first, second):
    """Both texts, from shortly before their first difference."""
    at = len(os.path.commonprefix([first, second]))
    begin = max(0, at - 20)
    parts = [text[begin:at + 40] or "nothing" for text in (first, second)]
    return ("..." if begin else "") + " and ".join(f"'{part}'" for part in parts)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", metavar="CPU.csv")
    parser.add_argument("second", metavar="CUDA.csv")
    parser.add_argument("--relative", type=float, default=1e-5, metavar="X",
                        help="largest relative difference of a number [1e-5]")
    options = parser.parse_args(arguments)
    if not 0.0 <= options.relative < 1.0:
        parser.error(f"--relative: got {options.relative}, expected a number from 0 to below 1")
    comparison = Comparison(options.relative)
    try:
        comparison.tables(options.first, options.second)
        for kind in ("steps", "kept", "layers", "queries"):
            paths = [side_path(path, kind) for path in (options.first, options.second)]
            have = [os.path.exists(path) for path in paths]
            if all(have):
                comparison.tables(*paths)
            elif any(have):
                comparison.differ(f"{paths[have.index(False)]}: no such file")
    except TableError as error:
        print(one_line(f"compare_runs.py: {error}"), file=sys.stderr)
        return 2
    for text in comparison.shown:
        print(one_line(text))
    if comparison.differences > len(comparison.shown):
        print(f"... and {comparison.differences - len(comparison.shown)} more")
    if comparison.differences:
        print(f"differences: {comparison.differences} in {comparison.rows} rows")
        return 1
    apart, where = comparison.largest
    print(one_line(f"same: {comparison.rows} rows, largest relative difference {apart:.2g}"
                   + (f" ({where})" if where else "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
