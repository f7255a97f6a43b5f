"""The error of all that reads or writes traces and caches files."""


class TraceError(Exception):
    """Bad input: one line for the user."""
