"""Checks that a table is unchanged since its run. Needs the standard library only.

SHA256SUMS in the folder of a file, if it is there, has its checksum. Every row of a table has
`run_id` and `row_crc`, before `model` or at the end. The manifest has the checksum of the finished
file (docs/reliability.md). Tables without these columns are only checked for the number of cells
per row.
"""

import gzip
import hashlib
import os
import re
import zlib

from kvbench.text import parse_json

RUN, CRC = "run_id", "row_crc"
SUMS = "SHA256SUMS"
COLUMNS = (RUN, CRC)
FIRST_BEHIND = "model"  # may follow the two columns
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


def _cells(record):
    """Returns the number of cells of a CSV line: commas outside quotes, plus one."""
    return 1 + sum(part.count(b",") for part in record.split(b'"')[::2])


def _checked_place(names, path):
    """Returns the number of columns after `row_crc`; None if there are no checksums."""
    if not {*names} & {*COLUMNS}:
        return None
    at = names.index(RUN) if RUN in names else len(names)
    behind = names[at + 2:]
    if at == 0 or tuple(names[at:at + 2]) != COLUMNS or behind[:1] not in ([], [FIRST_BEHIND]):
        raise ChangedError(f"{path}: line 1: `{RUN}` and `{CRC}` are neither the last columns nor "
                           f"right before `{FIRST_BEHIND}`")
    return len(behind)


def _split(row, behind):
    """Splits a row into the part before `row_crc`, that cell, and the rest with its commas."""
    *_, cells = row.rpartition(b'"')
    if cells.count(b",") > behind:  # Fast path: no quotes after the cell.
        got = row.rsplit(b",", behind + 1)[1]
        at = len(row) - sum(1 + len(cell) for cell in row.rsplit(b",", behind)[1:])
        return row[:at - len(got)], got, row[at:]
    at = len(row)
    for _ in range(behind):
        quoted = False
        at -= 1
        while at >= 0 and (quoted or row[at:at + 1] != b","):
            quoted ^= row[at:at + 1] == b'"'
            at -= 1
    at = max(at, 0)
    begin = row.rfind(b",", 0, at) + 1
    return row[:begin], row[begin:at], row[at:]


def _check_rows(path, file, digest):
    """Returns the runs that wrote the rows; None if rows carry no checksums."""
    header = file.readline()
    digest.update(header)
    names = header.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").rstrip("\r\n").split(",")
    behind = _checked_place(names, path)
    expected_cells = _cells(header)
    runs, record, first = set(), b"", 2
    for number, line in enumerate(file, 2):
        digest.update(line)
        if not record:
            first = number
        record += line
        if record.count(b'"') % 2:
            continue  # line break inside a field
        row, record = record.rstrip(b"\r\n"), b""
        if not row:
            continue
        if behind is not None:
            before, got, rest = _split(row, behind)
            expected = b"%08x" % zlib.crc32(rest, zlib.crc32(before))
            if got != expected:
                raise ChangedError(f"{path}: line {first}: {CRC} is "
                                   f"{got[:40].decode('utf-8', 'replace')}, expected "
                                   f"{expected.decode()} (the row was changed after it was written)")
            runs.add(before[:-1].rpartition(b",")[2].decode("utf-8", "replace"))
        cells = _cells(row)
        if cells != expected_cells:
            raise ChangedError(f"{path}: line {first}: got {cells} cells, expected {expected_cells} "
                               "as in the first line")
    if record:
        raise ChangedError(f"{path}: line {first}: the end of the file inside quotes")
    return None if behind is None else runs


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
    with open(path, "rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != sums[name]:
        raise ChangedError(f"{path}: SHA-256 is {got[:16]}..., expected {sums[name][:16]}... as in {SUMS} beside it")


def check_table(path):
    """Returns the runs that wrote the rows; empty if rows carry no checksums.

    Raises ChangedError for a modified row, a wrong number of cells, a file that does not match its
    manifest or a table of another run. Raises OSError if the file cannot be read.
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
        raise ChangedError(f"{path}: line 1: its rows carry no checksums, expected the columns "
                           f"`{RUN}` and `{CRC}`")
    for other in sorted(runs - {run}):
        raise ChangedError(f"{path}: holds rows of run {other}, expected {run} as in {place}")
    if sums is not None and name not in sums:
        raise ChangedError(f"{path}: of another run, expected none: {place} names no such table")
    if sums is not None and sums[name] != digest.hexdigest():
        raise ChangedError(f"{path}: SHA-256 is {digest.hexdigest()[:16]}..., expected "
                           f"{sums[name][:16]}... as in {place} (lines were taken out, added or "
                           "moved, or it is the table of another run)")
    return runs
