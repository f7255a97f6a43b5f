"""Protects files that kvbench did not write, as lib/core/output_guard.hpp does."""

import os

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class NotOurs(Exception):
    """The output path holds foreign files. One line."""


def refuse_foreign(path, part, what, format):
    """Raises NotOurs if `path` exists and is not of kvbench's HDF5 `format`, or if its temporary file `part` exists
    and a killed run cannot have left it. what: noun for the message, such as "a trace".
    """
    import h5py

    for name in (path, part):
        if os.path.lexists(name) and not os.path.isfile(name):
            raise NotOurs(f"{name}: cannot be written: is no regular file")
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            with h5py.File(path, "r") as file:
                found = file.attrs.get("format")
        except OSError:
            found = None
        if found not in (format, format.encode()):
            raise NotOurs(f"{path}: is there, and is not {what}: it is not replaced")
    if os.path.isfile(part):
        with open(part, "rb") as file:
            first = file.read(len(HDF5_SIGNATURE))
        # HDF5 writes its signature late; until then the file is empty or starts with zeros.
        if not HDF5_SIGNATURE.startswith(first) and first.strip(b"\0"):
            raise NotOurs(f"{part}: is there, and is no unfinished file of kvbench's: it is not replaced")
