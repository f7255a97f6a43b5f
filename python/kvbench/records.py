"""Files of JSON: one value, or .jsonl with an object a line. Readers raise `error`, one line that begins with the file.

Prompt records have `text`, and `id`, `set`, `source` where they are known.
"""

import json
import os

from kvbench.errors import CsvError, TraceError
from kvbench.text import encodable, parse_json


def read_file(path, error=TraceError):
    """Returns the text of a file in UTF-8."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise error(f"{path}: not UTF-8") from None
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror}") from None


def read_json(path, error=TraceError):
    """Returns the value of a file of JSON."""
    try:
        return parse_json(read_file(path, error))
    except ValueError as reason:
        raise error(f"{path}: {reason}") from None


def read_lines(path, error=TraceError):
    """Yields (line number, value) of a .jsonl file, without blank lines."""
    for number, line in enumerate(read_file(path, error).split("\n"), 1):  # not at U+2028
        if not line.strip():
            continue
        try:
            yield number, parse_json(line)
        except ValueError as reason:
            what = f"{reason.msg}, column {reason.colno}" if isinstance(reason, json.JSONDecodeError) else reason
            raise error(f"{path}:{number}: not JSON ({what}), expected one object per line") from None


def read_texts(path, error=TraceError):
    """Yields (line number, object) of a .jsonl file whose objects have a `text`."""
    for number, record in read_lines(path, error):
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise error(f"{path}:{number}: expected an object with a `text`")
        if not encodable(json.dumps(record, ensure_ascii=False)):
            raise error(f"{path}:{number}: its text has half of a surrogate pair, expected Unicode")
        yield number, record


def read_jsonl(path):
    """Returns the records of a file, in order. Raises CsvError."""
    return [record for _, record in read_texts(path, CsvError)]


def replace_text(path, text):
    """Writes a file at once: it is the old one or the whole new one."""
    with open(path + ".part", "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(path + ".part", path)
