"""Prompt records: .jsonl files of one object per line with `text`, and `id`, `set`, `source` where they
are known.
"""

import json

from kvbench.errors import CsvError
from kvbench.text import parse_json


def read_jsonl(path):
    """Returns the objects of a file, in order. Raises CsvError."""
    try:
        with open(path, encoding="utf-8") as file:
            records = [parse_json(line) for line in file if line.strip()]
    except OSError as error:
        raise CsvError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CsvError(f"{path}: not one JSON object a line: {error}") from None
    for at, record in enumerate(records, 1):
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise CsvError(f"{path}: record {at}: expected an object with a `text`")
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise CsvError(f"{path}: record {at}: got half of a surrogate pair, expected text") from None
    return records
