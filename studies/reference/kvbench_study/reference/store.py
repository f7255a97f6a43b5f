"""Files of the store of kvbench-study reference: condensed results of a plan's steps, in one folder.

STAGE.csv.gz         rows by method, params, budget, layer and head, means over seeds
STAGE.TABLE.csv.gz   layers, scores, or another table of the stage, likewise
records.json         {stage: {prompt: record}}: dependencies of each step, and finished variants
SHA256SUMS           of these files, checked when they are read
model.json           {"model": NAME} of all tables, for kvbench-py policy

A table is a CSV file with the columns of docs/schema.md, sorted, with rounded numbers, and further
columns: `seeds`, number of rows in each mean; `source` of the prompt (rows, scores); and `check`,
on the first row of each variant and layer: the CRC-32 of all their unrounded rows without times,
for a comparison bit by bit. The same rows give the same bytes: a gzip member for the header and one
for each prompt's rows, by prompt, without time and name.

A step writes its tables and the records beside the old ones (.part), then SHA256SUMS, then renames
them. A kill before SHA256SUMS is written leaves the state before the step, a later kill the state
after it (Store.recover).
"""

import csv
import fcntl
import gzip
import hashlib
import io
import json
import math
import os
import zlib

from kvbench import checksums
from kvbench.text import parse_json
from kvbench_study.reference import plan as rp

FORMAT = "kvbench-store 1"
RECORDS, MODEL = "records.json", "model.json"
PART = ".part"
REMEDY = "; take it from the repository again, or remove it, and its steps are done again"
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
# row without it, so that older records still compare equal. Rows of replays always had `ratio`.
LATER = ("answer_nll", "answer_nll_exact", "wrong_nll", "wrong_nll_exact", "choice_exact_right", "choice_right",
         "ratio")
READS = ("read_bytes", "read_ratio", "index_bytes", "recall")  # the same, of tables of replays
ON_DEMAND = ("residual_rel_error_heads", "budget_bytes")
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


def digits_of(table):
    return FEW_ROWS_DIGITS if table in FEW_ROWS else DIGITS


def appended(table):
    """Returns the columns of a table that were added after rows were committed."""
    return LATER if table.startswith("scores") else READS


def file_of(stage, table):
    return stage + (f".{table}" if table else "") + ".csv.gz"


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

    def lacks(self, column):
        """Returns whether a column is absent or empty in all rows."""
        return column not in self.columns or not any(row[self.columns[column]] for row in self.rows)

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


def condense(table, name, columns=(), source="", times=True, without=()):
    """Returns a step's table as stored. name: of table_name; columns: further ones of rows.csv; times: keep them;
    without: columns of appended() that are left out, as from a table that a step wrote before there were any.
    """
    added = appended(name)
    if "schema" in table.columns:
        at = table.columns["schema"]
        table = Table(table.header, [[*row[:at], stored_schema(row[at]), *row[at + 1:]] for row in table.rows])
    mine = [c for c in PLACE if c in table.columns]
    # Varying columns are adjacent, for compression.
    steady = [c for c in mine if c not in MOVING]
    kept = [c for c in table.header if c not in (*mine, *DROPPED, "seed")
            and (c in columns or (c not in ON_DEMAND if name else c in COLUMNS))
            and c not in without and not (c in added and table.lacks(c))
            and (times or c not in TIMES)]
    if not name:
        kept.sort(key=[*COLUMNS, *columns].index)
    kept.sort(key=lambda c: c in TIMES)
    seeds = [c for c in ("seed",) if c in table.columns]
    extra = ["source"] if name in ("", "scores", "scores.layers") else []
    out = Table([*extra, *steady, *seeds, *(["seeds"] if seeds else []), *mine[len(steady):], *kept,
                 "check"], [])
    digits = digits_of(name)
    groups, sums = {}, {}
    at, variant = table.indices(mine), table.indices(VARIANT)
    for row in table.rows:
        groups.setdefault(tuple(row[i] for i in at), []).append(row)
    checked = [i for i, c in enumerate(table.header) if c not in (*DROPPED, *TIMES, *added, *ON_DEMAND)]
    later = [i for i, c in enumerate(table.header)
             if c in added and c not in without or c in ON_DEMAND and c in columns]
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

def csv_text(rows):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def write_bytes(path, data):
    """Writes a file atomically."""
    write_part(path, data)
    os.replace(path + PART, path)


def write_part(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + PART, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def packed(text):
    """Returns gzip of a text without time and name: deterministic."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=out, mtime=0) as file:
        file.write(text.encode())
    return out.getvalue()


def members(data):
    """Yields (bytes, text) of each member of a gzip file. Raises EOFError, zlib.error."""
    while data:
        unpack = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        text = unpack.decompress(data)
        if not unpack.eof:
            raise EOFError("its end is missing")
        yield data[:len(data) - len(unpack.unused_data)], text.decode()
        data = unpack.unused_data


def rows_of(text):
    return list(csv.reader(io.StringIO(text, newline="")))


class Packed:
    """A stage's table. header: names; parts: {prompt: gzip of its rows}."""

    def __init__(self, path, header=(), parts=()):
        self.path, self.header, self.parts = path, list(header), dict(parts)

    def table(self, prompt):
        """Returns the rows of a prompt."""
        rows = rows_of(gzip.decompress(self.parts[prompt]).decode()) if prompt in self.parts else []
        return table_of(self.path, [self.header, *rows])

    def put(self, prompt, table):
        """Replaces the rows of a prompt; None removes them."""
        self.parts.pop(prompt, None)
        if table is None:
            return
        if not set(table.header) <= set(self.header):  # of a program that writes further columns
            header = merge(Table(self.header, []), table).header
            self.parts = {name: packed(csv_text(self.table(name).with_columns(header).rows)) for name in self.parts}
            self.header = header
        if table.rows:
            self.parts[prompt] = packed(csv_text(table.with_columns(self.header).rows))

    def data(self):
        return b"".join([packed(csv_text([self.header])), *(self.parts[name] for name in sorted(self.parts))])


def read_packed(path, data):
    """Returns the Packed of a file's bytes. Raises PlanError."""
    try:
        (_, first), *rest = members(data)
        out = Packed(path, rows_of(first)[0])
        at = out.header.index("trace")
        for part, text in rest:
            # Named after the prompt.
            name = next(csv.reader(io.StringIO(text, newline="")))[at]
            out.parts[name.removesuffix(".h5")] = part
        return out
    except (EOFError, zlib.error, ValueError, IndexError, StopIteration, csv.Error) as error:
        raise rp.PlanError(f"{path}: cannot be read: {error}{REMEDY}", 3) from None


class Store:
    """The files of a folder. One process writes (lock); it keeps the records in memory."""

    def __init__(self, folder):
        self.folder = folder
        self.known = self.held = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def sums(self):
        try:
            return checksums.listed(self.folder)
        except checksums.ChangedError as error:
            raise rp.PlanError(str(error), 3) from None

    def lock(self):
        """Keeps other processes from writing until this one ends. Raises PlanError if one does."""
        os.makedirs(self.folder, exist_ok=True)
        self.held = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise rp.PlanError(f"{self.folder}: another run writes there") from None

    def name_model(self, name):
        """Records the model of the tables, unless it is there."""
        if not os.path.exists(self.path(MODEL)):
            write_bytes(self.path(MODEL), (json.dumps({"model": name}) + "\n").encode())

    def recover(self):
        """Finishes or undoes the last step of a killed run."""
        self.known = None
        for name in sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else ():
            if name.endswith(PART):
                path = self.path(name.removesuffix(PART))
                if self.is_next(path):
                    os.replace(path + PART, path)
                else:
                    os.remove(path + PART)

    def is_next(self, path):
        """Returns whether SHA256SUMS lists what a killed run left beside a file."""
        return (os.path.exists(path + PART)
                and self.sums().get(os.path.basename(path)) == rp.file_digest(path + PART))

    def data(self, name):
        """Returns the bytes of a file. Raises PlanError unless they are those of SHA256SUMS."""
        path = self.path(name)
        try:
            if self.is_next(path):
                path += PART
            elif not os.path.exists(self.path(checksums.SUMS)):
                raise checksums.ChangedError(f"{path}: no {checksums.SUMS} beside it")
            else:
                checksums.check_listed(path)
            with open(path, "rb") as file:
                return file.read()
        except checksums.ChangedError as error:
            raise rp.PlanError(f"{error}{REMEDY}", 3) from None
        except OSError as error:
            raise rp.PlanError(f"{path}: cannot be read: {error.strerror}", 3) from None

    def has(self, name):
        return os.path.exists(self.path(name)) or self.is_next(self.path(name))

    def records(self):
        """Returns {stage: {prompt: record}}, without the steps of a removed table."""
        if self.known is None:
            try:
                self.known = parse_json(self.data(RECORDS).decode()) if self.has(RECORDS) else {}
            except ValueError as error:
                raise rp.PlanError(f"{self.path(RECORDS)}: cannot be read: {error}", 3) from None
            for stage, records in self.known.items():
                gone = {table for record in records.values() for table in record["files"]}
                gone = {table for table in gone if not self.has(file_of(stage, table))}
                self.known[stage] = {prompt: record for prompt, record in records.items()
                                     if not gone & set(record["files"])}
        return self.known

    def record(self, stage, prompt):
        """Returns a step's record, or None."""
        return self.records().get(stage, {}).get(prompt)

    def packed(self, stage, table):
        """Returns a stage's table; an empty one if there is none."""
        name = file_of(stage, table)
        return read_packed(self.path(name), self.data(name)) if self.has(name) else Packed(self.path(name))

    def put(self, stage, prompt, tables, record):
        """Replaces a step's record, and its rows in {name: table}. Rows in tables that the record lacks go."""
        records = self.records().setdefault(stage, {})
        data = {}
        gone = {name for one in records.values() for name in one["files"]} - set(record["files"])
        for name in sorted(gone | set(tables)):
            whole = self.packed(stage, name)
            if name in tables or prompt in whole.parts:
                whole.put(prompt, tables.get(name))
                data[file_of(stage, name)] = whole.data()
        records[prompt] = record
        self.write(data)

    def take(self, other):
        """Adds the steps of another store that this one lacks."""
        for stage, records in other.records().items():
            for prompt, record in records.items():
                if self.record(stage, prompt) is None:
                    self.put(stage, prompt, {name: other.packed(stage, name).table(prompt) for name in record["files"]},
                             record)

    def forget(self, stage, prompt):
        """Removes a step's record."""
        if self.records().get(stage, {}).pop(prompt, None) is not None:
            self.write({})

    def write(self, data):
        """Writes files and the records as one."""
        known = {stage: dict(sorted(some.items())) for stage, some in sorted(self.known.items()) if some}
        data = {**data, RECORDS: (json.dumps(known, indent=1, ensure_ascii=False) + "\n").encode()}
        sums = {**self.sums(), **{name: hashlib.sha256(one).hexdigest() for name, one in data.items()}}
        for name, one in data.items():
            write_part(self.path(name), one)
        lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
        write_bytes(self.path(checksums.SUMS), "".join(lines).encode())
        for name in data:
            os.replace(self.path(name + PART), self.path(name))


def size(folder):
    """Returns (bytes, files) of a store."""
    sizes = [os.path.getsize(os.path.join(at, name)) for at, _, files in os.walk(folder)
             for name in files if name.endswith((".csv.gz", ".json"))]
    return sum(sizes), len(sizes)
