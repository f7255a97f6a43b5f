"""kvbench/own.py: what kvbench did not write is refused and stays."""

import contextlib
import io
import os
import unittest

from script_case import FolderCase, missing, read_bytes, read_text, write_bytes, write_text

NO_H5PY = missing("h5py", "numpy")


def tree(folder):
    """{path within the folder: content}."""
    out = {}
    for inside, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inside, name)
            out[os.path.relpath(path, folder)] = read_bytes(path)
    return out


@unittest.skipIf(NO_H5PY, f"no {', '.join(NO_H5PY)}")
class FilesTest(FolderCase):
    def write(self):
        import numpy as np

        import kvbench
        kvbench.write_trace(self.path("t.h5"), {"a": [[np.ones((1, 2, 4), np.float16)] * 3]}, model="m", source="s")

    def refused(self, said):
        from kvbench.trace.writer import TraceError
        before = tree(self.folder)
        with self.assertRaisesRegex(TraceError, said):
            self.write()
        self.assertEqual(tree(self.folder), before)

    def test_only_traces_and_unfinished_ones_are_replaced_by_a_trace(self):
        import h5py
        for content in ("", "\0" * 4096, "\x89HDF\r\n\x1a\n and no more"):
            write_bytes(self.path("t.h5.tmp"), content.encode("latin-1"))
            self.write()
            self.assertEqual(list(tree(self.folder)), ["t.h5"])
        write_text(self.path("t.h5.tmp"), "precious")
        self.refused("t.h5.tmp: is there, and is no unfinished file")
        os.remove(self.path("t.h5.tmp"))
        write_text(self.path("t.h5"), "precious")
        self.refused("t.h5: is there, and is not a trace")
        with h5py.File(self.path("t.h5"), "w") as file:
            file["precious"] = [1, 2]
        self.refused("t.h5: is there, and is not a trace")
        os.remove(self.path("t.h5"))
        os.mkfifo(self.path("t.h5.tmp"))
        from kvbench.trace.writer import TraceError
        with self.assertRaisesRegex(TraceError, "t.h5.tmp: cannot be written: is no regular file"):
            self.write()
        os.remove(self.path("t.h5.tmp"))
        self.write()
        self.assertEqual(list(tree(self.folder)), ["t.h5"])

    def test_only_tables_of_scores_are_overwritten_by_scores(self):
        from kvbench.score.table import COLUMNS, Table
        from kvbench.trace.writer import TraceError
        path = write_text(self.path("scores.csv"), "precious\n")
        with self.assertRaisesRegex(TraceError, "scores.csv: not a table of kvbench-py score"):
            Table(path, overwrite=True)
        self.assertEqual(read_text(path), "precious\n")
        for text in ("", ",".join(COLUMNS[:-1]) + "\n", ",".join(COLUMNS) + "\n"):
            write_text(path, text)
            with contextlib.redirect_stderr(io.StringIO()), Table(path, overwrite=True) as table:
                table.write({"status": "ok"})
            self.assertEqual(len(read_text(path).splitlines()), 2)
