"""Errors of the library, one line each. Needs the standard library only."""


class CsvError(Exception):
    """Invalid table or argument. One line."""

    exit_code = 2


class DeviceError(CsvError):
    """The device failed; the input is valid."""

    exit_code = 3


class TraceError(Exception):
    """Invalid trace or caches file. One line."""
