"""Checksums in a trace (docs/trace_format.md): the attribute `sha256` of a dataset, and the filters
of TraceWriter's datasets."""

from __future__ import annotations

import hashlib
import re

import h5py
import numpy as np

from kvbench.errors import TraceError

ATTRIBUTE = "sha256"
MEMBERS = "members"
DIGEST = re.compile("[0-9a-f]{64}")
# An attribute has at most 64 KiB, and a string of any length takes 16 bytes of it.
MAX_DIGESTS = 4000


def name_members(group: h5py.Group) -> None:
    """Gives a group and all below it the attribute `members`, the names in it."""
    for member in group.values():
        if isinstance(member, h5py.Group):
            name_members(member)
    if 0 < len(group) <= MAX_DIGESTS:
        group.attrs.create(MEMBERS, np.array(sorted(group), object), dtype=h5py.string_dtype())


def check_members(group: h5py.Group) -> None:
    """Raises TraceError where the group lacks a name of its attribute `members`, if it has one."""
    for name in np.atleast_1d(group.attrs.get(MEMBERS, [])):
        text = name.decode() if isinstance(name, bytes) else str(name)
        if text not in group:
            raise TraceError(f"{group.file.filename}: {group.name}/{text}: is missing, expected what "
                             f"attribute {MEMBERS} of the group names")


def sha256_of(values: np.ndarray) -> str:
    """SHA-256 of elements as a trace has them: their type, little-endian, C order."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(np.ascontiguousarray(little).data).hexdigest()


def filters(gzip: int) -> dict[str, object]:
    """Options of create_dataset: level 1 to 9 of gzip after shuffle, or 0; then fletcher32."""
    out: dict[str, object] = {"fletcher32": True}
    return out | {"compression": "gzip", "compression_opts": gzip, "shuffle": True} if gzip else out


def seal(data: h5py.Dataset, values: np.ndarray | None = None) -> None:
    """Gives a dataset, whole, its attribute: of rank 3 a digest per head, else one.

    values  what it holds, where that is in memory. Without them it is read back, a head at a time:
            rows come in any order, while a digest needs them in theirs, and a file whose values
            cannot be read again gets no name
    """
    if data.ndim != 3:
        data.attrs[ATTRIBUTE] = sha256_of(data[()] if values is None else values)
    elif len(data) <= MAX_DIGESTS:
        digests = [sha256_of(data[head]) for head in range(len(data))]
        data.attrs.create(ATTRIBUTE, np.array(digests, object), dtype=h5py.string_dtype())
