"""Files of the store of kvbench-py reference: condensed results of a step, in DIR/STAGE.

PROMPT.csv.gz           rows by method, params, budget, layer and head, means over seeds
PROMPT.TABLE.csv.gz     layers, scores, or another table of the step, likewise
PROMPT.json             the record: dependencies of the step, and finished variants

A table is a CSV file with the columns of docs/schema.md, sorted, with rounded numbers, and further
columns: `seeds`, number of rows in each mean; `source` of the prompt (rows, scores); and `check`,
on the first row of each variant and layer: the CRC-32 of all their unrounded rows without times,
for a comparison bit by bit. The same rows give the same bytes. Files are written atomically.
"""

import csv
import gzip
import io
import json
import math
import os
import zlib

from kvbench_study.reference import plan as rp

FORMAT = "kvbench-store 1"
LIMIT = 40_000_000  # bytes of all stores together, since they are committed
LEVEL = 9
# Key of a row; the order is that of columns and of sorting.
PLACE = ("schema", "trace", "prompt", "model", "dtype", "precision", "protocol", "sink", "recent",
         "scores", "device", "n_tokens", "n_queries", "what", "kept_by", "algorithm", "params",
         "budget_requested", "layer", "kv_head", "q_head", "head", "layers", "step", "k", "delta",
         "n_prefix", "offset", "first", "last", "queries")
MOVING = PLACE[PLACE.index("layer"):]
VARIANT = ("what", "algorithm", "params", "budget_requested", "layer")
TIMES = ("compress_ms", "attend_us_per_query", "compress_ms_iqr", "attend_us_per_query_iqr",
         "seconds")
DROPPED = ("run_id", "row_crc")
# Of rows.csv, with a stage's `columns`. Other tables keep all but ON_DEMAND, and these as well if named there.
COLUMNS = ("status", "full_bytes", "tokens_kept", "bytes", "aux_bytes", "ratio", "middle_ratio", "rel_error",
           "mass_kept", "compress_ms", "attend_us_per_query")
# Columns added to tables of scores after rows were committed. A row with an empty one equals the
# row without it, so that older records still compare equal.
LATER = ("answer_nll", "answer_nll_exact", "wrong_nll", "wrong_nll_exact", "choice_exact_right", "choice_right")
READS = ("read_bytes", "read_ratio", "index_bytes", "recall")  # the same, of tables of replays
APPENDED = (*LATER, *READS)
ON_DEMAND = ("residual_rel_error_heads",)  # lists
# Rows of later minor versions of schema 1 differ by appended columns only: they are stored as this one, and
# compare equal to rows that were committed before.
SCHEMA = "1.4"
DIGITS, FEW_ROWS_DIGITS = 5, 9
FEW_ROWS = ("layers", "scores", "scores.layers")
TIME_DIGITS = {"attend_us_per_query": 2}  # of a query; more digits are noise
USUAL_TIME_DIGITS = 3


def table_name(file):
    """Returns `` for rows.csv, `layers` for rows.layers.csv, `scores` for scores.csv."""
    return file.removesuffix(".csv").removeprefix("rows").removeprefix(".")


def path_of(folder, prompt, table):
    return os.path.join(folder, prompt + (f".{table}" if table else "") + ".csv.gz")


def sort_key(values):
    out = []
    for text in values:
        try:
            out.append((0, float(text), ""))
        except ValueError:
            out.append((1, 0.0, text))
    return out


def number(text):
    """Returns a cell as a float; None if not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def rounded(value, digits):
    return f"{value:.{digits}g}" if math.isfinite(value) else repr(value)


def mean_cell(cells, digits):
    """Returns the stored mean over seeds. Integers stay integers if possible; of text the first;
    empty if a seed is empty.
    """
    if "" in cells:
        return ""
    values = [number(cell) for cell in cells]
    if None in values:
        return cells[0]
    if all(cell.lstrip("-").isdecimal() for cell in cells):
        total = sum(map(int, cells))
        return str(total // len(cells)) if total % len(cells) == 0 else repr(total / len(cells))
    if all(map(math.isfinite, values)):
        return rounded(math.fsum(values) / len(values), digits)
    return rounded(sum(values) / len(values), digits)


def mean_diag(cells, digits):
    """Returns the mean over seeds of each number of `key=value;...`; other values are the first's.
    Different keys: the first seed's.
    """
    parts = [[part.partition("=") for part in cell.split(";")] for cell in cells]
    if len({tuple(name for name, _, _ in one) for one in parts}) > 1:
        return cells[0]
    return ";".join(name + equals + mean_cell([one[at][2] for one in parts], digits)
                    for at, (name, equals, _) in enumerate(parts[0]))


def mean_list(cells, digits):
    """Returns the mean over seeds of each number of `a;b;...`."""
    parts = [cell.split(";") for cell in cells]
    if len({len(one) for one in parts}) > 1:
        return cells[0]
    return ";".join(mean_cell(list(some), digits) for some in zip(*parts))


def stored_schema(text):
    major, _, minor = text.partition(".")
    usual, _, least = SCHEMA.partition(".")
    return SCHEMA if major == usual and minor.isdecimal() and int(minor) > int(least) else text


def status_of(cells):
    """Returns ok if ok with every seed."""
    return next((cell for cell in cells if cell != "ok"), "ok")


class Table:
    """header and rows, lists of text. columns: {name: index}."""

    def __init__(self, header, rows):
        self.header, self.rows = list(header), rows
        self.columns = {name: at for at, name in enumerate(self.header)}

    def indices(self, names):
        return [self.columns[name] for name in names if name in self.columns]

    def key_indices(self):
        return self.indices(PLACE)

    def lacks_later(self, column):
        """Returns whether it is one of APPENDED and empty in all rows."""
        return column in APPENDED and not any(row[self.columns[column]] for row in self.rows)

    def variant(self, row):
        """Returns (algorithm, params, budget) of a row; "" for missing columns."""
        return tuple(row[self.columns[name]] if name in self.columns else ""
                     for name in VARIANT[1:4])

    def only(self, keep):
        """Returns the rows whose variant `keep` accepts."""
        known = {}
        rows = []
        for row in self.rows:
            variant = self.variant(row)
            if variant not in known:
                known[variant] = keep(variant)
            if known[variant]:
                rows.append(row)
        return Table(self.header, rows)

    def variants(self):
        return {self.variant(row) for row in self.rows}

    def sort(self):
        at = self.key_indices()
        self.rows.sort(key=lambda row: sort_key([row[i] for i in at]))

    def with_columns(self, header):
        """Returns the rows under another header; missing cells are empty."""
        at = [self.columns.get(name) for name in header]
        return Table(header, [["" if i is None else row[i] for i in at] for row in self.rows])


def read_plain(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise rp.PlanError(f"{path}: cannot be read: {error}", 3) from None
    return table_of(path, rows)


def table_of(path, rows):
    """Returns the table of a file's rows, header first. Raises PlanError."""
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise rp.PlanError(f"{path}: expected a table, each row with as many cells as the first", 3)
    return Table(rows[0], rows[1:])


def condense(table, name, columns=(), source="", times=True):
    """Returns a step's table as stored. name: of table_name; columns: further ones of rows.csv; times: keep them."""
    if "schema" in table.columns:
        at = table.columns["schema"]
        table = Table(table.header, [[*row[:at], stored_schema(row[at]), *row[at + 1:]] for row in table.rows])
    mine = [c for c in PLACE if c in table.columns]
    # Varying columns are adjacent, for compression.
    steady = [c for c in mine if c not in MOVING]
    kept = [c for c in table.header if c not in (*mine, *DROPPED, "seed")
            and (c in columns or (c not in ON_DEMAND if name else c in COLUMNS)) and not table.lacks_later(c)
            and (times or c not in TIMES)]
    if not name:
        kept.sort(key=[*COLUMNS, *columns].index)
    kept.sort(key=lambda c: c in TIMES)
    seeds = [c for c in ("seed",) if c in table.columns]
    extra = ["source"] if name in ("", "scores", "scores.layers") else []
    out = Table([*extra, *steady, *seeds, *(["seeds"] if seeds else []), *mine[len(steady):], *kept,
                 "check"], [])
    digits = FEW_ROWS_DIGITS if name in FEW_ROWS else DIGITS
    groups, sums = {}, {}
    at, variant = table.indices(mine), table.indices(VARIANT)
    for row in table.rows:
        groups.setdefault(tuple(row[i] for i in at), []).append(row)
    checked = [i for i, c in enumerate(table.header) if c not in (*DROPPED, *TIMES, *APPENDED, *ON_DEMAND)]
    later = [i for i, c in enumerate(table.header) if c in APPENDED or c in ON_DEMAND and c in columns]
    seed = table.columns.get("seed")
    for key in sorted(groups, key=sort_key):
        rows = groups[key]
        if seed is not None:
            rows.sort(key=lambda row: sort_key([row[seed]]))
        group = tuple(rows[0][i] for i in variant)
        for row in rows:
            text = "\0".join([*(row[i] for i in checked),
                               *(f"{table.header[i]}={row[i]}" for i in later if row[i])])
            sums[group] = zlib.crc32(text.encode() + b"\n", sums.get(group, 0))
        cells = []
        for column in kept:
            values = [row[table.columns[column]] for row in rows]
            if column == "status":
                cells.append(status_of(values))
            elif column == "diag":
                cells.append(mean_diag(values, digits))
            elif column in ON_DEMAND:
                cells.append(mean_list(values, digits))
            else:
                cells.append(mean_cell(values, TIME_DIGITS.get(column, USUAL_TIME_DIGITS)
                                       if column in TIMES else digits))
        out.rows.append([*([source] if extra else []), *key[:len(steady)],
                         *([rows[0][seed], str(len(rows))] if seeds else []), *key[len(steady):],
                         *cells, group])
    seen = set()
    for row in out.rows:
        group = row[-1]
        row[-1] = "" if group in seen else f"{sums[group]:08x}"
        seen.add(group)
    return out


def merge(old, new):
    """Returns rows of both; `new` replaces variants of `old`."""
    header = [*new.header[:-1], *(c for c in old.header if c not in new.columns), "check"]
    again = new.variants()
    rest = old.only(lambda variant: variant not in again)
    out = Table(header, [*rest.with_columns(header).rows, *new.with_columns(header).rows])
    out.sort()
    return out


# ------------------------------------------------------------------------------------------ files

def csv_text(table):
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(table.header)
    write.writerows(table.rows)
    return out.getvalue()


def write_bytes(path, data):
    """Writes a file atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = path + ".part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def packed(text):
    """Returns gzip of a text without time and name: deterministic."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=out, mtime=0) as file:
        file.write(text.encode())
    return out.getvalue()


def write(path, table):
    write_bytes(path, packed(csv_text(table)))


def read(path):
    """Returns a table of the store, or None."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise rp.PlanError(f"{path}: cannot be read: {error}; take it from the repository again, or "
                           "remove it and its .json to make it again", 3) from None
    return table_of(path, rows)


def tables_of(folder, prompt):
    """Returns names of the prompt's tables in a stage's folder, rows first."""
    out = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.startswith(prompt + ".") and name.endswith(".csv.gz"):
            out.append(name[len(prompt):].removesuffix(".csv.gz").removeprefix("."))
    return sorted(out)


def write_record(path, record):
    write_bytes(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def size(folder):
    """Returns (bytes, files) of a store."""
    sizes = [os.path.getsize(os.path.join(at, name)) for at, _, files in os.walk(folder)
             for name in files if name.endswith((".csv.gz", ".json"))]
    return sum(sizes), len(sizes)
