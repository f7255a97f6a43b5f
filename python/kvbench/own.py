"""Whole HDF5 files, in place of none or of kvbench's own. lib/core/output_guard.hpp follows the same rules."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

import h5py

from kvbench.errors import TraceError
from kvbench.outputs import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextlib.contextmanager
def whole_file(path: str, part: str, what: str, format: str, copy: str | None = None) -> Iterator[h5py.File]:
    """Yields a new h5py.File at `part`, or a copy of the file `copy`; renames it to `path` on success, and otherwise
    removes it. Raises TraceError if another run writes `path`, if `path` is there and not of this format, or if `part`
    is and no killed run can have left it; OSError if they cannot be written. what: noun for the message, such as "a
    trace".
    """
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise TraceError(f"{path}: cannot be written: its folder does not exist")
    with locked(path):
        _refuse_foreign(path, part, what, format)
        file: Any = None
        try:
            if copy is not None:
                shutil.copyfile(copy, part)
            try:
                file = h5py.File(part, "w" if copy is None else "r+")
            except OSError as error:
                raise OSError(f"{path}: cannot be written: {error}") from None
            yield file
            file.close()
            os.replace(part, path)
        finally:
            with contextlib.suppress(Exception):  # also after a failed close, as on a full disk
                file.close()
            with contextlib.suppress(OSError):
                os.remove(part)


def _refuse_foreign(path: str, part: str, what: str, format: str) -> None:
    for name in (path, part):
        if os.path.lexists(name) and not os.path.isfile(name):
            raise TraceError(f"{name}: cannot be written: is no regular file")
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            with h5py.File(path, "r") as file:
                found = file.attrs.get("format")
        except OSError:
            found = None
        if found not in (format, format.encode()):
            raise TraceError(f"{path}: is there, and is not {what}: it is not replaced")
    if os.path.isfile(part):
        with open(part, "rb") as file:
            first = file.read(len(SIGNATURE))
        # HDF5 writes its signature late; until then the file is empty or starts with zeros.
        if not SIGNATURE.startswith(first) and first.strip(b"\0"):
            raise TraceError(f"{part}: is there, and is no unfinished file of kvbench's: it is not replaced")
