"""Checks that a table is unchanged since its run. Needs the standard library only.

SHA256SUMS in the folder of a file, if it is there, has its checksum. A manifest has the checksum of
the run's finished tables (docs/reliability.md), and rows name their run. Other tables are only
checked for the number of cells per row.
"""

import csv
import gzip
import hashlib
import os
import re
import zlib

from kvbench.hashing import file_sha256
from kvbench.text import parse_json

RUN = "run_id"
COLUMNS = (RUN, "row_crc")  # of every table of a run beside its own; the second is empty since schema 1.7
SUMS = "SHA256SUMS"
csv.field_size_limit(1 << 26)
SIDE_TABLES = ("steps", "kept", "queries", "layers")


class ChangedError(Exception):
    """The table was modified or belongs to another run. One line."""


def manifest_of(path):
    """Returns (path of the manifest, manifest, the table's name in it), or None."""
    places = [(path + ".json", "table")]
    for kind in SIDE_TABLES:
        end = f".{kind}.csv"
        if path.endswith(end):
            stem = path[:-len(end)]
            places += [(stem + ".csv.json", kind), (stem + ".json", kind)]
    places.append((os.path.join(os.path.dirname(path), "cluster.json"), os.path.basename(path)))
    for place, name in places:
        try:
            with open(place, encoding="utf-8") as file:
                manifest = parse_json(file.read())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ChangedError(f"{place}: cannot be read: {error}") from None
        if isinstance(manifest, dict) and manifest.get("format") == "kvbench-manifest":
            # A folder of clusters may hold unrelated tables.
            if not place.endswith("cluster.json") or name in (manifest.get("tables") or {}):
                return place, manifest, name
    return None


def _check_rows(path, file, digest):
    """Returns the runs that wrote the rows; None if rows do not name their run."""
    def lines():
        for line in file:
            digest.update(line)
            yield line.decode("utf-8", "replace")

    reader = csv.reader(lines(), strict=True)
    first = 1
    try:
        header = next(reader, [])
        at = header.index(RUN) if RUN in header else None
        runs = set()
        first = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise ChangedError(f"{path}: line {first}: got {len(row)} cells, expected {len(header)} "
                                   "as in the first line")
            if row and at is not None:
                runs.add(row[at])
            first = reader.line_num + 1
    except csv.Error as error:
        raise ChangedError(f"{path}: line {first}: {error}") from None
    return None if at is None else runs


def listed(folder):
    """Returns {name: SHA-256} of a folder's SHA256SUMS, as sha256sum writes it; {} without the file."""
    path = os.path.join(folder, SUMS)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ChangedError(f"{path}: cannot be read: {error}") from None
    out = {}
    for number, line in enumerate(lines, 1):
        found = re.fullmatch(r"([0-9a-f]{64})  ([^/]+)", line)
        if not found:
            raise ChangedError(f"{path}: line {number}: got `{line[:80]}`, expected `SHA-256  NAME`")
        out[found[2]] = found[1]
    return out


def check_listed(path):
    """Raises ChangedError unless SHA256SUMS in a file's folder, if it is there, has the file's SHA-256."""
    folder, name = os.path.split(path)
    if not os.path.exists(os.path.join(folder, SUMS)):
        return
    sums = listed(folder)
    if name not in sums:
        raise ChangedError(f"{path}: {SUMS} beside it names no such file")
    got = file_sha256(path)
    if got != sums[name]:
        raise ChangedError(f"{path}: SHA-256 is {got[:16]}..., expected {sums[name][:16]}... as in {SUMS} beside it")


def check_table(path):
    """Returns the runs that wrote the rows; empty if rows do not name their run.

    Raises ChangedError for a wrong number of cells, a file that does not match its manifest or a
    table of another run. Raises OSError if the file cannot be read.
    """
    check_listed(path)
    digest = hashlib.sha256()
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            runs = _check_rows(path, file, digest)
    except (EOFError, zlib.error) as error:
        raise ChangedError(f"{path}: cannot be read: {error}") from None
    found = manifest_of(path)
    if found is None:
        return runs or set()
    place, manifest, name = found
    run, sums = manifest.get("run_id"), manifest.get("sha256")
    if runs is None:
        raise ChangedError(f"{path}: line 1: expected the column `{RUN}`, as {place} is of a run")
    for other in sorted(runs - {run}):
        raise ChangedError(f"{path}: holds rows of run {other}, expected {run} as in {place}")
    if sums is not None and name not in sums:
        raise ChangedError(f"{path}: of another run, expected none: {place} names no such table")
    if sums is not None and sums[name] != digest.hexdigest():
        raise ChangedError(f"{path}: SHA-256 is {digest.hexdigest()[:16]}..., expected {sums[name][:16]}... as in "
                           f"{place} (lines were taken out, added or moved, or it is the table of another run)")
    return runs
