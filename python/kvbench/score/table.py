"""Table of kvbench-py score: columns, rows, resuming. Needs no torch."""

import contextlib
import csv
import datetime
import io
import json
import os
import platform
import sys

from kvbench.hashing import file_sha256
from kvbench.records import replace_text
from kvbench.text import parse_json
from kvbench.trace.writer import TraceError

COLUMNS = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers",
           "n_tokens", "n_queries", "loss", "loss_exact", "loss_change", "kl", "kl_p95",
           "top_agreement", "answer_exact", "answer", "answer_expected", "answer_exact_right",
           "answer_right", "status", "answer_nll", "answer_nll_exact", "wrong_nll", "wrong_nll_exact",
           "choice_exact_right", "choice_right", "ratio")
KEY = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed")
LAYER = "layer"  # last column of the key in tables of single layers


def field(value):
    """Formats a value: shortest floats, empty for None."""
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def line(cells):
    """Returns a line of a CSV file."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def key_of(trace, prompt, group):
    return tuple(map(field, (trace, prompt, *group.key)))


def check_output(path, resume, overwrite):
    """Raises TraceError if the file exists without --resume or --overwrite, or its folder does not exist."""
    if os.path.exists(path) and not (resume or overwrite):
        raise TraceError(f"{path}: already exists; use --resume or --overwrite")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise TraceError(f"{path}: cannot be written: its folder does not exist")


class GrowingFile:
    """Context manager for a file of rows that grows by complete, flushed rows; `begin` opens it."""

    def __init__(self, path, resume, overwrite):
        self.path, self.file = path, None
        check_output(path, resume, overwrite)

    def begin(self, text):
        """Replaces the content, at once, and opens the file to append."""
        replace_text(self.path, text)
        self.file = open(self.path, "a", encoding="utf-8", newline="")

    def append(self, text):
        self.file.write(text)
        self.file.flush()

    def close(self, keep, *more):
        """Closes the file; without `keep` removes it and `more`, which leaves nothing to resume."""
        if self.file is not None:
            self.file.close()
            for path in () if keep else (self.path, *more):
                with contextlib.suppress(OSError):
                    os.remove(path)

    def __enter__(self):
        return self


class Table(GrowingFile):
    """The table of scores.

    resume     keep existing rows except failed ones; `done` has their keys
    overwrite  replace an existing file; without both it is rejected
    wanted     whether a row may stay, by its key and {column: text}
    by_layer   the key and the columns end with LAYER
    """

    def __init__(self, path, resume=False, overwrite=False, wanted=lambda key, row: True, by_layer=False):
        super().__init__(path, resume, overwrite)
        self.done, self.failed, kept = set(), 0, []
        self.key, self.columns = KEY + (LAYER,) * by_layer, COLUMNS + (LAYER,) * by_layer
        if overwrite and os.path.exists(path) and not self.is_table(path):
            raise TraceError(f"{path}: not a table of kvbench-py score: not replaced")
        if resume and os.path.exists(path):
            kept = [row for row in self.read() if not row["status"].startswith("failed")
                    and wanted(self.key_of(row), row)]
            self.done = {self.key_of(row) for row in kept}
        self.rows = len(kept)
        # Drops failed rows and the incomplete row of a killed run.
        self.begin("".join(map(line, [self.columns, *([row[name] for name in self.columns] for row in kept)])))

    @staticmethod
    def is_table(path):
        """Returns whether a file is empty, or begins as a table of any version."""
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            header = file.readline().rstrip("\n")
        known = ",".join(COLUMNS)
        if not header:
            return not os.path.getsize(path)
        return known.startswith(header) or header.startswith(known)

    def key_of(self, row):
        return tuple(row[name] for name in self.key)

    def read(self):
        """Returns the complete rows of the file."""
        with open(self.path, encoding="utf-8", newline="") as file:
            text = file.read()
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if not rows or tuple(rows[0]) != self.columns:
            raise TraceError(f"{self.path}: --resume: its columns are not those of a table of kvbench-py score")
        if not text.endswith("\n") or len(rows[-1]) != len(self.columns):
            rows.pop()
        return [dict(zip(self.columns, row)) for row in rows[1:]]

    def write(self, values):
        """Writes one row, {column: value}; missing columns are empty."""
        self.rows += 1
        self.failed += values["status"].startswith("failed")
        self.append(line([field(values.get(name)) for name in self.columns]))

    def __exit__(self, *_):
        self.close(self.rows, self.path + ".json")


class Manifest:
    """SCORES.csv.json: how the rows were made.

    settings  what all rows of a table must share; --resume with others is rejected
    machine   what may differ between runs
    earlier   previous content of the file, if the run is resumed
    """

    def __init__(self, args, settings, machine):
        self.path = args.output + ".json"
        traces, earlier = {path: file_sha256(path) for path in args.trace}, {}
        self.earlier = {}
        if args.resume and os.path.exists(args.output) and os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                try:
                    self.earlier = parse_json(file.read())
                    old, earlier = self.earlier["settings"], dict(self.earlier["traces"])
                except (ValueError, KeyError, TypeError):
                    raise TraceError(f"{self.path}: not a manifest of kvbench-py score") from None
            for name, value in settings.items():
                if old.get(name) != value:
                    raise TraceError(f"{args.output}: --resume: {name}: got {value}, existing "
                                     f"rows have {old.get(name)}")
            # Rows name traces without folders.
            sums = {os.path.basename(path): one for path, one in earlier.items()}
            for path, one in traces.items():
                if sums.get(os.path.basename(path), one) != one:
                    raise TraceError(f"{args.output}: --resume: {path}: SHA-256: got {one[:12]}..., existing rows have "
                                     f"{sums[os.path.basename(path)][:12]}...")
        self.content = {
            "settings": settings, "command": sys.argv, **machine, "host": platform.node(),
            "traces": earlier | traces,
            "caches": {path: file_sha256(path) for path in args.caches or ()},
            "begin": self.now()}

    @staticmethod
    def now():
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def write(self, **more):
        """Writes the whole file. more: results known at the end."""
        if more:
            self.content |= more | {"end": self.now()}
        replace_text(self.path, json.dumps(self.content, indent=2) + "\n")
