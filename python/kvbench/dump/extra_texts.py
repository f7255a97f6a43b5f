"""Inputs of kvbench-py dump --extra and --add-scores: token ids of segments, arrays of other programs.
Imports neither torch nor transformers.

A segment follows the first `prefix` tokens of the prompt: all but the evaluated ones.
"""

import dataclasses
import os
import re

import numpy as np

from kvbench.convert.arrays import open_arrays
from kvbench.errors import TraceError
from kvbench.records import read_texts
from kvbench.trace.parts import NAME

# KVzip (Kim et al., 2025, arXiv:2505.23416), as in kvpress 8bb29b9 (KVzipPress): the prompt in chunks, each repeated
# after an instruction, which from the second chunk on ends with the last tokens before it. A newline follows the
# instruction, since a trace's prompts have no chat template.
REPEAT = "repeat"
CHUNK = 2048
BEFORE = 8
ALL_OF_IT = "\n\nRepeat the previous context exactly."
A_PART_OF_IT = "\n\nRepeat the part of the previous context exactly, starting with"
SUFFIX = "\n"


@dataclasses.dataclass
class Tokens:
    """A segment before its run. about: (first, last), the tokens [first, last); None: none."""

    ids: np.ndarray
    about: "tuple[int, int] | None" = None


def repeat_segments(ids, prefix, encode, chunk=CHUNK):
    """Returns KVzip's repetition of the first `prefix` of `ids`: [Tokens], one per chunk. encode: to token ids."""
    out = []
    for first in range(0, prefix, chunk):
        last = min(first + chunk, prefix)
        parts = [encode(A_PART_OF_IT if first else ALL_OF_IT), ids[max(0, first - BEFORE):first],
                 encode(SUFFIX), ids[first:last]]
        out.append(Tokens(np.concatenate([np.asarray(part, np.int64) for part in parts]), (first, last)))
    return out


def read_records(path):
    """Returns [(id or None, text)] of a .jsonl file with `text` and optional `id`."""
    out = [(str(record["id"]) if "id" in record else None, record["text"]) for _, record in read_texts(path)]
    if not out:
        raise TraceError(f"{path}: no records")
    named = sum(one is not None for one, _ in out)
    if named not in (0, len(out)):
        raise TraceError(f"{path}: {named} of {len(out)} records have an `id`, expected all or none")
    return out


class TextSet:
    """--extra text:FILE.jsonl, a set named after the file. Records with `id` belong to the prompt of that name or text
    id, a segment each, in order; records without `id` to the prompts in order.
    """

    def __init__(self, path):
        self.path = path
        self.name = re.sub(r"\.jsonl?$", "", os.path.basename(path))
        self.records = read_records(path)

    def texts(self, at, name, text_id):
        """Returns the texts of prompt number `at`, named `name` in the trace."""
        if self.records[0][0] is not None:
            out = [text for one, text in self.records if one in (name, text_id)]
            if not out:
                raise TraceError(f"{self.path}: no record has the id {name}")
            return out
        if at >= len(self.records):
            raise TraceError(f"{self.path}: {len(self.records)} records, expected one for each prompt")
        return [self.records[at][1]]


def parse_extra(text):
    """Returns REPEAT or a TextSet. Raises TraceError."""
    if text == REPEAT:
        return REPEAT
    kind, _, path = text.partition(":")
    if kind != "text" or not path:
        raise TraceError(f"--extra: got `{text}`, expected {REPEAT} or text:FILE.jsonl")
    out = TextSet(path)
    if not NAME.fullmatch(out.name):
        raise TraceError(f"--extra: {path}: its name `{out.name}` becomes the set's, expected letters, "
                         "digits, `-`, `_` and `.`")
    return out


class StoredScores:
    """--add-scores NAME=FILE.npz: arrays PROMPT/LAYER, [kv_heads, n], and `prefix` or PROMPT/prefix,
    the number of tokens that the scoring program had read.
    """

    def __init__(self, text):
        self.name, _, self.path = text.partition("=")
        if not NAME.fullmatch(self.name) or not self.path.lower().endswith(".npz"):
            raise TraceError(f"--add-scores: got `{text}`, expected NAME=FILE.npz, NAME of letters, digits, "
                             "`-`, `_` and `.`")
        self.arrays = {array.name: array.load() for array in open_arrays(self.path)}

    def write(self, writer, prompt, layers):
        """Writes the prompt's scores into its open `layers`. Raises TraceError if one is missing."""
        prefix = self.arrays.get(f"{prompt}/prefix", self.arrays.get("prefix"))
        for layer in layers:
            array = self.arrays.get(f"{prompt}/{layer}")
            if array is None:
                raise TraceError(f"{self.path}: no array {prompt}/{layer}, expected one for each prompt "
                                 "and layer of the trace")
            writer.write_scores(self.name, array, None if prefix is None else int(prefix), layer)
