"""Sanitises foreign text for terminals and parsers. Needs the standard library only."""

import json
import math
import re
from typing import Any

# Control characters (C0, C1), bidirectional controls, and lone surrogates (invalid UTF-8).
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """Returns the text with `?` for unsafe characters."""
    return _UNSAFE.sub("?", str(text))


def printable_lines(text: object) -> str:
    """`printable` that keeps line ends."""
    return "\n".join(map(printable, str(text).split("\n")))


def one_line(text: object) -> str:
    """`printable` on one line with single spaces."""
    return " ".join(printable(re.sub("[ \t\n\v\f\r]+", " ", str(text))).split())


def counted(count: float, what: str = "prompt") -> str:
    """Returns `1 prompt`, `2 prompts`."""
    return f"{count:.15g} {what}" + ("s" if count != 1 else "")


def list_parts(text: str) -> list[str]:
    r"""Splits at commas, but not at `\,`, a comma within a part. Empty parts are dropped. As kvbench's options do."""
    return [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text) if part]


def list_part(text: str) -> str:
    """Returns the text as one part of a list, for list_parts() or kvbench."""
    return text.replace(",", "\\,")


class Indices(list[int]):
    """Indices of an option, ascending; `named`: those that came alone, and must exist; `text`: as given."""

    named: tuple[int, ...] = ()
    text = ""


def index_list(text: str) -> Indices:
    """Returns `0,2,5:9` as Indices; A:B[:STEP] excludes B and skips what does not exist. Raises ValueError."""
    found: set[int] = set()
    named: set[int] = set()
    for part in list_parts(text) or [""]:
        numbers = [int(one) for one in part.split(":") if re.fullmatch("0|[1-9][0-9]{0,5}|1000000", one)]
        whole = len(numbers) == part.count(":") + 1 <= 3 and (len(numbers) < 3 or numbers[2] > 0)
        some = range(*numbers) if len(numbers) > 1 and whole else numbers
        if not whole or not some:
            raise ValueError(f"got `{part}`, expected numbers and ranges such as 0,2,5:9")
        (named if len(numbers) == 1 else found).update(some)
    out = Indices(sorted(found | named))
    out.named, out.text = tuple(sorted(named)), text
    return out


def storable(text: object) -> str:
    """Returns the text with `?` for characters that HDF5 cannot store: NUL and invalid UTF-8."""
    return str(text).replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


def encodable(text: str) -> bool:
    """Returns whether the text is Unicode: JSON may hold half of a surrogate pair."""
    return not any("\ud800" <= one <= "\udfff" for one in text)


def _number(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(float(text)):
            raise ValueError("number: got one that overflows, expected one below 1.8e308")
        return value
    return parse


def parse_json(text: str | bytes) -> Any:
    """Parses JSON. Raises ValueError for invalid text, including text nested too deeply and numbers that overflow."""
    try:
        return json.loads(text, parse_int=_number(int), parse_float=_number(float))
    except RecursionError:
        raise ValueError("nested too deeply") from None
