"""python/kvbench/checksums.py: no script takes a changed table for results."""

import csv
import hashlib
import io
import json
import os
import random
import shutil
import unittest

from script_case import KVBENCH, FolderCase, missing, read_text, run_program, write_bytes, write_text

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

    def test_damages_are_refused(self):
        """Digits, bits, cells and lines of the three tables, as many as KVBENCH_DAMAGES says."""
        count = int(os.environ.get("KVBENCH_DAMAGES", "300"))
        names = ["a.csv", "a.steps.csv", "a.kept.csv"]
        before = {name: read_text(self.path(name)).encode() for name in names}
        done = 0
        for seed in range(10 * count):
            draw = random.Random(seed)
            name = draw.choice(names)
            data = damaged(before[name], draw)
            if data == before[name]:
                continue
            write_bytes(self.path(name), data)
            with self.assertRaises(checksums.ChangedError, msg=f"damage {seed} of {name}"):
                checksums.check_table(self.path(name))
            write_bytes(self.path(name), before[name])
            done += 1
            if done == count:
                break
        self.assertEqual(done, count)

    def test_compare_runs_refuses_them(self):
        self.stream("c.csv", "2")
        paths = [self.path("a.csv"), self.path("c.csv")]
        done = run_program("compare_runs.py", *paths)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        write_text(paths[1], read_text(paths[1]).replace("p0", "p1"))
        done = run_program("compare_runs.py", *paths)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("c.csv: SHA-256 is ", done.stderr)


def damaged(data, draw):
    kind = draw.choice(["digit", "bit", "cells", "removed", "doubled", "moved"])
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    if kind == "digit":
        place = draw.choice([i for i, c in enumerate(data) if 48 <= c < 58])
        return data[:place] + b"%d" % draw.randrange(10) + data[place + 1:]
    if kind == "bit":
        place = draw.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1:]
    if kind == "cells":
        cells = lines[at][:-1].split(b",")
        i, j = draw.randrange(len(cells)), draw.randrange(len(cells))
        cells[i], cells[j] = cells[j], cells[i]
        lines[at] = b",".join(cells) + b"\n"
    elif kind == "removed":
        del lines[at]
    elif kind == "doubled":
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    else:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)
