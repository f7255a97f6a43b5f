"""Errors of library code: one line each for the user. Needs Python alone."""


class CsvError(Exception):
    """Bad table or argument: one line for the user."""

    exit_code = 2


class DeviceError(CsvError):
    """Nothing that the user gave is wrong: the device failed."""

    exit_code = 3


class TraceError(Exception):
    """Bad trace or caches file: one line for the user."""
