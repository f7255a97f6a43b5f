"""Checksums and filters of a trace's datasets (docs/trace_format.md): the attribute `sha256`."""

from __future__ import annotations

import hashlib
import re

import h5py
import numpy as np

from kvbench.errors import TraceError

ATTRIBUTE = "sha256"
MEMBERS = "members"
DIGEST = re.compile("[0-9a-f]{64}")
# An attribute holds at most 64 KiB, at 16 bytes per string.
MAX_DIGESTS = 4000


def name_members(group: h5py.Group) -> None:
    """Gives a group and all groups below it the attribute `members`, the names in it."""
    for member in group.values():
        if isinstance(member, h5py.Group):
            name_members(member)
    if 0 < len(group) <= MAX_DIGESTS:
        group.attrs.create(MEMBERS, np.array(sorted(group), object), dtype=h5py.string_dtype())


def check_members(group: h5py.Group) -> None:
    """Raises TraceError if the group lacks a name of its attribute `members`."""
    for name in np.atleast_1d(group.attrs.get(MEMBERS, [])):
        text = name.decode() if isinstance(name, bytes) else str(name)
        if text not in group:
            raise TraceError(f"{group.file.filename}: {group.name}/{text}: is missing, expected what "
                             f"attribute {MEMBERS} of the group names")


def sha256_of(values: np.ndarray) -> str:
    """Returns the SHA-256 of elements as stored: their type, little-endian, C order."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(np.ascontiguousarray(little).data).hexdigest()


def filters(gzip: int) -> dict[str, object]:
    """Returns options of create_dataset: gzip level 1 to 9 after shuffle, or 0; then fletcher32."""
    out: dict[str, object] = {"fletcher32": True}
    return out | {"compression": "gzip", "compression_opts": gzip, "shuffle": True} if gzip else out


def seal(data: h5py.Dataset, values: np.ndarray | None = None) -> None:
    """Sets the digest attribute of a complete dataset: per head for rank 3, otherwise one. values: its content, if in
    memory; otherwise it is read back by head, since rows are written in any order.
    """
    if data.ndim != 3:
        data.attrs[ATTRIBUTE] = sha256_of(data[()] if values is None else values)
    elif len(data) <= MAX_DIGESTS:
        digests = [sha256_of(data[head]) for head in range(len(data))]
        data.attrs.create(ATTRIBUTE, np.array(digests, object), dtype=h5py.string_dtype())
