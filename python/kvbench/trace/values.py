"""Checked reads of HDF5 datasets: chunks, filters, digests.

Raises TraceError: file, path inside it, got, expected.
"""

from __future__ import annotations

import bisect
import itertools
import math

import h5py
import numpy as np

from kvbench.errors import TraceError
from kvbench.text import one_line
from kvbench.trace.digest import ATTRIBUTE, DIGEST, sha256_of

FLETCHER_BYTES = 4  # a chunk's checksum, after its values


def location_of(data: h5py.Dataset) -> str:
    """Returns file and path inside, for errors."""
    return f"{data.file.filename}: {data.name[1:]}"


def read_stored(data: h5py.Dataset, which: slice = slice(None)) -> np.ndarray:
    """Returns `data[which]` on the first axis; by default all.

    Raises TraceError if a chunk of the dataset is missing (HDF5 would read zeros), a chunk that is
    read is empty, or HDF5 cannot decode the values.
    """
    try:
        if data.chunks is not None:
            check_chunks(data, which)
        return np.asarray(data[which] if data.ndim else data[()])
    except (OSError, RuntimeError) as error:
        raise TraceError(f"{location_of(data)}: cannot be read: {one_line(error)}") from None


def read_values(data: h5py.Dataset, which: slice = slice(None)) -> np.ndarray:
    """`read_stored` of a dataset that must match its attribute `sha256`, if any. which: heads of q, k or v."""
    expected = digests_of(data)
    values = read_stored(data, which)
    if expected is None:
        return values
    if data.ndim != 3:
        _compare(location_of(data), values, expected[0])
        return values
    for head, rows in zip(range(len(data))[which], values):
        _compare(f"{location_of(data)}: head {head}", rows, expected[head])
    return values


def _compare(where: str, values: np.ndarray, expected: str) -> None:
    got = sha256_of(values)
    if got != expected:
        raise TraceError(f"{where}: its SHA-256 is {got}, expected {expected} (attribute "
                         f"{ATTRIBUTE}): the values were changed")


def digests_of(data: h5py.Dataset) -> list[str] | None:
    """Returns the attribute `sha256`: a digest per head of q, k or v, else one; None if absent. Raises TraceError."""
    if ATTRIBUTE not in data.attrs:
        return None
    where = f"{location_of(data)}: attribute {ATTRIBUTE}"
    count = len(data) if data.ndim == 3 else 1
    expected = f"{count} strings, one per head" if data.ndim == 3 else "one string"
    try:
        value = data.attrs[ATTRIBUTE]
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise TraceError(f"{where}: cannot be read ({one_line(error)}), expected {expected}") from None
    got = np.asarray(value, object).ravel().tolist()
    if not all(isinstance(one, (str, bytes)) for one in got):
        raise TraceError(f"{where}: got {type(value).__name__}, expected {expected}")
    if len(got) != count:
        raise TraceError(f"{where}: got {len(got)}, expected {expected}")
    out = [one.decode("latin-1") if isinstance(one, bytes) else one for one in got]
    for one in out:
        if not DIGEST.fullmatch(one):
            raise TraceError(f"{where}: got `{one_line(one[:80])}`, expected 64 of the digits 0-9 and a-f")
    return out


# --- Chunks ------------------------------------------------------------------------------------


def check_chunks(data: h5py.Dataset, which: slice = slice(None)) -> None:
    """Raises TraceError if the file lacks chunks of a dataset, or one that `which` needs is empty.

    Counts all chunks in one walk through their index. Checks sizes while reading, since every size
    query walks the whole index. Without filters all chunks have one size, and the sum suffices.
    """
    grid = [range(0, extent, size) for extent, size in zip(data.shape, data.chunks)]
    total, stored = math.prod(map(len, grid)), data.id.get_num_chunks()
    if stored < total:
        raise TraceError(f"{location_of(data)}: {_first_missing(data, grid, stored)} "
                         f"({total - stored} of {total} are), expected all chunks in the file")
    if not data.id.get_create_plist().get_nfilters():
        got = data.id.get_storage_size()
        expected = total * math.prod(data.chunks) * data.dtype.itemsize
        if got != expected:
            raise TraceError(f"{location_of(data)}: got {got} bytes in its chunks, expected {expected}")
        return
    rows, step = range(len(data))[which], grid[0].step
    needed = range(rows.start // step * step, rows.stop, step)
    for place in itertools.product(needed, *grid[1:]):
        try:
            size = len(data.id.read_direct_chunk(place)[1])
        except ValueError:  # "Buf cannot be null"
            size = 0
        # HDF5 1.10 crashes if a chunk is too short for its checksum.
        if size <= (FLETCHER_BYTES if data.fletcher32 else 0):
            raise TraceError(f"{location_of(data)}: chunk at {list(place)} has {size} bytes, expected its values")


def _first_missing(data: h5py.Dataset, grid: list[range], stored: int) -> str:
    """Describes the first missing chunk. stored: number of stored chunks."""
    def number(place: tuple[int, ...]) -> int:
        out = 0
        for at, axis in zip(place, grid):
            out = out * len(axis) + at // axis.step
        return out

    # Chunks are indexed in order: those before the first missing one have their numbers. Asking for each takes minutes.
    rest = bisect.bisect(range(stored), False, key=lambda i: number(data.id.get_chunk_info(i).chunk_offset) > i)
    place: list[int] = []
    for axis in reversed(grid):
        rest, at = divmod(rest, len(axis))
        place.insert(0, axis[at])
    # Resizable datasets may have another order.
    if data.id.get_chunk_info_by_coord(tuple(place)).byte_offset is not None:
        return "chunks are missing"
    return f"chunk at {place} is missing"
