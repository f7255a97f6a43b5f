"""The table of score_model.py: columns, rows, resuming; without torch."""

import csv
import io
import os

from kvbench_trace import TraceError

COLUMNS = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers",
           "n_tokens", "n_queries", "loss", "loss_exact", "loss_change", "kl", "kl_p95",
           "top_agreement", "answer_exact", "answer", "answer_expected", "answer_exact_right",
           "answer_right", "status")
KEY = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed")


def field(value):
    """A value as it stands in the table: shortest floats, nothing for None."""
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def key_of(trace, prompt, group):
    return tuple(map(field, (trace, prompt, *group.key)))


class Table:
    """Appends rows to a file, each whole and flushed. A context manager.

    resume     keep the rows that are there, but for failed ones; `done` has their keys
    overwrite  replace a file that is there; without both, one that is there is refused
    """

    def __init__(self, path, resume=False, overwrite=False):
        self.path, self.done, self.failed, kept = path, set(), 0, []
        if os.path.exists(path) and not (resume or overwrite):
            raise TraceError(f"{path}: is there already; --resume goes on with it, --overwrite "
                             "replaces it")
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            raise TraceError(f"{path}: cannot be written: its folder does not exist")
        if resume and os.path.exists(path):
            kept = [row for row in self.read() if not row["status"].startswith("failed")]
            self.done = {tuple(row[name] for name in KEY) for row in kept}
        # Failed rows and the half row of a run that was killed go; the rest is never at risk.
        part = path + ".part"
        with open(part, "w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            out.writeheader()
            out.writerows(kept)
        os.replace(part, path)
        self.file = open(path, "a", encoding="utf-8", newline="")
        self.out = csv.writer(self.file, lineterminator="\n")

    def read(self):
        """The whole rows of the file."""
        with open(self.path, encoding="utf-8", newline="") as file:
            text = file.read()
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if not rows or tuple(rows[0]) != COLUMNS:
            raise TraceError(f"{self.path}: --resume: its columns are not those of a table of "
                             "score_model.py")
        if not text.endswith("\n") or len(rows[-1]) != len(COLUMNS):
            rows.pop()
        return [dict(zip(COLUMNS, row)) for row in rows[1:]]

    def write(self, values):
        """One row, {column: value}; columns that are not there stay empty."""
        self.failed += values["status"].startswith("failed")
        self.out.writerow([field(values.get(name)) for name in COLUMNS])
        self.file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
