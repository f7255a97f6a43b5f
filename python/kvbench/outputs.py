"""Outputs: no input, written by one run at a time, whole. lib/core/output_guard.hpp and file_lock.hpp follow the same
rules.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, TextIO

from kvbench.errors import CsvError, TraceError, unwritable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_special(path: str) -> bool:
    """Returns whether a path is there and no regular file: a device or a pipe, which is written in place."""
    return os.path.exists(path) and not os.path.isfile(path)


def check_outputs(inputs: Iterable[str], outputs: Iterable[str | None]) -> None:
    """Raises CsvError for an output that is an input or another output, under any path or link, or whose PATH.part is.
    None and `-` are no files.
    """
    taken = {os.path.realpath(path): "an input" for path in inputs}
    for path in outputs:
        if not path or path == "-" or is_special(path):
            continue
        name = os.path.realpath(path)
        for one in (name, name + ".part"):
            if one in taken:
                raise CsvError(f"{path}: is also {taken[one]}, expected another file")
        taken[name] = "another output"


@contextlib.contextmanager
def locked(path: str, error: type[Exception] = TraceError) -> Iterator[None]:
    """Holds the lock PATH.lock, then removes it. Raises `error` if another run holds it or it has content, OSError if
    it cannot be made.
    """
    name = path + ".lock"
    while True:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with os.fdopen(lock, "rb") as file:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                named = os.path.samestat(os.fstat(lock), os.stat(name))
            except BlockingIOError:
                raise error(f"{path}: another run writes it, and holds the lock {name}") from None
            except FileNotFoundError:
                named = False
            if not named:  # the run that held it has removed it
                continue
            if file.read(1):
                raise error(f"{name}: is there, and is no lock, which is empty: it is not removed")
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.remove(name)
            return


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields the path to write to: PATH.part, which is renamed to PATH on success and otherwise removed. Raises
    CsvError, DeviceError.
    """
    try:
        if is_special(path):
            yield path
            return
        name = os.path.realpath(path)  # beside the file, not beside a link to it
        with locked(name, CsvError):
            try:
                yield name + ".part"
                os.replace(name + ".part", name)
            finally:
                with contextlib.suppress(OSError):
                    os.remove(name + ".part")
    except OSError as error:
        raise unwritable(path, error) from None


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Yields a file of text, which takes the place of `path` on success. Raises CsvError, DeviceError."""
    with replacing(path) as part, open(part, "w", encoding="utf-8", newline="") as file:
        yield file
