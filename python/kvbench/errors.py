"""Errors of the library, one line each. Needs the standard library only."""

import errno


class CsvError(Exception):
    """Invalid table or argument. One line."""

    exit_code = 2


class DeviceError(CsvError):
    """The device failed; the input is valid."""

    exit_code = 3


def unwritable(path, error):
    """Returns the error of a file that an OSError kept from being written."""
    kind = DeviceError if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT) else CsvError
    return kind(f"{path}: cannot be written: {error.strerror}")


class TraceError(Exception):
    """Invalid trace or caches file. One line."""
