"""Text of other people's files, on its way to a terminal or into a parser. Needs Python alone."""

import json
import re
from typing import Any

# What commands a terminal, or shows other text than it is: control characters (C0, C1), signs that
# turn the direction of writing, and halves of characters (bytes that were no UTF-8).
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """The text with a `?` for each character that may command a terminal or hide what it is."""
    return _UNSAFE.sub("?", str(text))


def printable_lines(text: object) -> str:
    """`printable` for text of several lines, which keeps its line ends."""
    return "\n".join(map(printable, str(text).split("\n")))


def one_line(text: object) -> str:
    """`printable`, in one line with single spaces."""
    # White space that is no sign of a name becomes a space before the rest becomes `?`.
    return " ".join(printable(re.sub("[ \t\n\v\f\r]+", " ", str(text))).split())


def storable(text: object) -> str:
    """The text with a `?` for each character that HDF5 cannot hold: NUL, and what UTF-8 has not,
    such as bytes of a file's name that were no UTF-8."""
    return str(text).replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says. Raises ValueError for all that is none, nested too deeply included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
