"""python/kvbench/checksums.py: no script takes a changed table for results."""

import csv
import hashlib
import io
import json
import os
import shutil
import unittest

from script_case import KVBENCH, FolderCase, missing, read_text, run_program, write_text

from kvbench import checksums

HEADER = "a,b,run_id,row_crc\n"


def line(*cells, behind=(), run="r"):
    """A row as kvbench writes it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([*cells, run, "", *behind])
    return out.getvalue()


class Rows(FolderCase):
    def check(self, text, manifest=None):
        path = write_text(self.path("t.csv"), text)
        if manifest is not None:
            write_text(path + ".json", json.dumps({"format": "kvbench-manifest", **manifest}))
        return checksums.check_table(path)

    def refused(self, words, text, manifest=None):
        with self.assertRaises(checksums.ChangedError) as caught:
            self.check(text, manifest)
        self.assertIn(words, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_runs_of_the_rows(self):
        good = HEADER + line("1", 'x,"\n\ny') + line("2", "", run="s") + "\n"
        self.assertEqual(self.check(good), {"r", "s"})
        self.assertEqual(self.check((HEADER + line("1", "2")).replace("\n", "\r\n")), {"r"})
        self.assertEqual(self.check("a,run_id,row_crc,model\n" + line("x,y", behind=['of "A", B'])), {"r"})
        self.assertEqual(self.check("a,b\n1,2\n"), set())  # another table

    def test_the_first_bad_line(self):
        good = line("1", "x\ny")
        self.refused("line 4: got 3 cells, expected 4", HEADER + good + "1,2,3\n" + good)
        self.refused("line 4: unexpected end of data", HEADER + good + '1,"x,r,\n')

    def test_the_manifest(self):
        good = HEADER + line("1", "2") + line("3", "4")
        sums = {"table": hashlib.sha256(good.encode()).hexdigest()}
        manifest = {"run_id": "r", "sha256": sums}
        self.assertEqual(self.check(good, manifest), {"r"})
        self.refused("SHA-256", HEADER + line("1", "2"), manifest)
        self.refused("SHA-256", HEADER + line("3", "4") + line("1", "2"), manifest)
        self.refused("SHA-256", good.replace("a,b", "b,a"), manifest)
        self.refused("holds rows of run q, expected r", HEADER + line("1", "2", run="q"), manifest)
        self.refused("expected the column `run_id`", "a,b\n1,2\n", manifest)
        self.refused("names no such table", good, {**manifest, "sha256": {}})
        self.assertEqual(self.check(good, {**manifest, "sha256": None}), {"r"})  # not ended
        write_text(self.path("t.csv.json"), "{")
        self.refused("cannot be read", good)


@unittest.skipUnless(KVBENCH and not missing("pandas", "matplotlib"), "no program or no pandas")
class Tables(FolderCase):
    """Tables of the program itself."""

    def setUp(self):
        super().setUp()
        self.done("synth", "-o", self.path("t.h5"), "--layers", "1", "--q-heads", "2", "--kv-heads", "1",
                  "--n", "96", "--d", "16", "--dv", "8")
        self.stream("a.csv", "2")
        self.stream("b.csv", "3")

    def stream(self, out, sink):
        self.done("replay", self.path("t.h5"), "--protocol", "stream", "--algorithm",
                  "streamingllm", "--budget", "0.5", "--sink", sink, "--recent", "8", "--queries",
                  "16", "-o", self.path(out), "--kept")

    def frame(self, name):
        from kvbench import tables
        try:
            return tables.read_table([self.path(name)], [], tables.TEXT_COLUMNS)
        except tables.CsvError as error:
            return str(error)

    def test_the_columns_do_not_show(self):
        self.assertFalse(set(checksums.COLUMNS) & set(self.frame("a.csv").columns))
        self.assertEqual(len(self.frame("a.csv").attrs["runs"]), 1)

    def test_side_tables_of_another_run(self):
        from kvbench import tables
        from kvbench.plot.kinds import stream
        self.assertGreater(len(stream.join(*stream.read([self.path("a.csv")]))), 0)
        shutil.copy(self.path("b.steps.csv"), self.path("a.steps.csv"))
        self.assertIn("holds rows of run", self.frame("a.steps.csv"))
        os.remove(self.path("a.csv.json"))  # then the two tables say it
        with self.assertRaisesRegex(tables.CsvError, r"a\.steps\.csv: holds rows of run"):
            stream.read([self.path("a.csv")])

    def test_compare_runs_refuses_them(self):
        self.stream("c.csv", "2")
        paths = [self.path("a.csv"), self.path("c.csv")]
        done = run_program("compare_runs.py", *paths)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        write_text(paths[1], read_text(paths[1]).replace("p0", "p1"))
        done = run_program("compare_runs.py", *paths)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("c.csv: SHA-256 is ", done.stderr)
