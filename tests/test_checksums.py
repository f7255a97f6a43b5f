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


def slow_crc(data):
    """CRC-32 bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def line(*cells, behind=None, run="r"):
    """A row as kvbench writes it; behind: cells behind the checksum, as schema 1.4 has them."""
    first, last = (io.StringIO() for _ in range(2))
    csv.writer(first, lineterminator="\n").writerow([*cells, run])
    csv.writer(last, lineterminator="\n").writerow(behind or [])
    before, after = first.getvalue()[:-1] + ",", "," + last.getvalue()[:-1] if behind else ""
    return before + slow_crc((before + after).encode()) + after + "\n"


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

    def test_right_rows(self):
        self.assertEqual(slow_crc(b"123456789"), "cbf43926")
        good = HEADER + line("1", 'x,"\n\ny') + line("2", "", run="s") + "\n"
        self.assertEqual(self.check(good), {"r", "s"})
        plain = HEADER + line("1", "2")
        self.assertEqual(self.check(plain.replace("\n", "\r\n")), {"r"})
        self.assertEqual(self.check("a,b\n1,2\n"), set())  # another table

    def test_the_first_bad_line(self):
        good = line("1", "x\ny")
        bad = good.replace("1", "2", 1)
        self.refused("t.csv: line 4: row_crc is ", HEADER + good + bad + bad)
        self.refused("line 2: the end of the file inside quotes", HEADER + '1,"x,r,00000000\n')
        self.refused("line 4: row_crc", HEADER + good + good[:-3].replace("\n", ""))

    def test_columns_behind_the_checksum(self):
        header = "a,run_id,row_crc,model,dtype\n"
        rows = [line("1", behind=["m", "float16"]), line('x,"\ny', behind=['of "A", B', "float16"], run="s"),
                line("2", behind=["", ""]), line("x,y", behind=["m", "z,"])]
        self.assertEqual(self.check(header + "".join(rows)), {"r", "s"})
        self.assertEqual(self.check((header + rows[0]).replace("\n", "\r\n")), {"r"})
        for good, new in ((rows[0], ("float16", "float32")), (rows[0], ("m", "n")),
                          (rows[1], ("A", "B")), (rows[2], (",,", ",x,")), (rows[3], ("y", "z"))):
            bad = new[1].join(good.rsplit(new[0], 1))
            self.assertNotEqual(bad, good)
            self.refused("line 2: row_crc is ", header + bad)
        self.refused("line 2: row_crc is ", header + line("1", behind=["m"]))

    def test_the_columns(self):
        for header in ("a,run_id,row_crc,dtype\n", "a,run_id,model,row_crc\n",
                       "a,run_id\n", "a,row_crc\n", "run_id,row_crc,a\n", "a,row_crc,run_id\n"):
            self.refused("line 1", header)

    def test_the_manifest(self):
        good = HEADER + line("1", "2") + line("3", "4")
        sums = {"table": hashlib.sha256(good.encode()).hexdigest()}
        manifest = {"run_id": "r", "sha256": sums}
        self.assertEqual(self.check(good, manifest), {"r"})
        self.refused("SHA-256", HEADER + line("1", "2"), manifest)
        self.refused("SHA-256", HEADER + line("3", "4") + line("1", "2"), manifest)
        self.refused("SHA-256", good.replace("a,b", "b,a"), manifest)
        self.refused("holds rows of run q, expected r", HEADER + line("1", "2", run="q"), manifest)
        self.refused("no checksums", "a,b\n1,2\n", manifest)
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
        self.assertIn("c.csv: line 2: row_crc is ", done.stderr)


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


if __name__ == "__main__":
    unittest.main()
