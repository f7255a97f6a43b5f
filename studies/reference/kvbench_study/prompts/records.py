"""Shared by the prompt programs: .jsonl files, lengths in tokens, overlapping texts.

A prompt file has one object per line: id, kind, set ("dev" or "test"), text, and further fields
(studies/reference/prompts/README.md).
"""

import bisect
import json
import os

from kvbench import records
from kvbench.errors import CsvError

SETS = ("dev", "test")


class PromptError(Exception):
    """Invalid input. One line."""


def read_jsonl(path):
    """Returns the objects of a file, in order."""
    try:
        return records.read_jsonl(path)
    except CsvError as error:
        raise PromptError(str(error)) from None


def write_jsonl(path, lines):
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as file:
        for record in lines:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(part, path)


class Tokens:
    """Lengths by the tokenizer of a model's folder, without special tokens."""

    def __init__(self, folder):
        from tokenizers import Tokenizer

        path = os.path.join(folder, "tokenizer.json")
        if not os.path.isfile(path):
            raise PromptError(f"{path}: no such file (make model: build/models/smollm2-135m)")
        try:
            self.inner = Tokenizer.from_file(path)
        except Exception as error:  # the library has no class of its own
            raise PromptError(f"{path}: {error}") from None

    def spans(self, text):
        """Returns (begin, end) of each token, in characters."""
        return self.inner.encode(text, add_special_tokens=False).offsets

    def count(self, text):
        return len(self.spans(text))


def fit(text, tokens, count, build=lambda cut: cut):
    """Returns build(text[:end]) of exactly `tokens` tokens, preferably at a word's end; otherwise
    None.

    The number of tokens must grow with the cut, except within a word.
    """
    ends = range(len(text) + 1)
    end = bisect.bisect_right(ends, tokens, key=lambda e: count(build(text[:e]))) - 1

    def rank(e):
        whole = e == len(text) or (text[e].isspace() and not text[e - 1:e].isspace())
        return not whole, abs(e - end)

    for near in sorted(ends[max(0, end - 60):end + 61], key=rank):
        out = build(text[:near])
        if count(out) == tokens:
            return out
    return None


def shared_stretch(texts, length=200):
    """Returns (id, id, stretch) of the first two of `texts`, {id: text}, that share `length`
    characters, or None.

    A shared stretch contains a block of half its length that begins at a multiple of that half:
    these blocks are searched in the other texts.
    """
    half = length // 2
    blocks = {}
    for name, text in texts.items():
        for at in range(0, len(text) - half + 1, half):
            blocks.setdefault(text[at:at + half], []).append((name, at))
    for name, text in texts.items():
        for at in range(len(text) - half + 1):
            for other, place in blocks.get(text[at:at + half], ()):
                if other != name:
                    stretch = common_stretch(text, at, texts[other], place)
                    if len(stretch) >= length:
                        return name, other, stretch
    return None


def common_stretch(a, at, b, place):
    """Returns the longest common text around a[at] and b[place]."""
    begin = 0
    while begin < min(at, place) and a[at - begin - 1] == b[place - begin - 1]:
        begin += 1
    end = 0
    while at + end < len(a) and place + end < len(b) and a[at + end] == b[place + end]:
        end += 1
    return a[at - begin:at + end]
