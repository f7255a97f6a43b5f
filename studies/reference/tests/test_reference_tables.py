"""Files of the store of kvbench-study reference and names of variants; what needs no program."""

import contextlib
import csv
import glob
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import tomllib
import unittest
import zlib
from unittest import mock

from study_case import ROOT, STUDY, FolderCase, missing, write_text

from kvbench import tables
from kvbench_study.reference import placeholders, samples, sources, store, variants, works
from kvbench_study.reference import plan as rp
from kvbench_study.reference.steps import Steps

HEADER = ["schema", "trace", "prompt", "layer", "q_head", "algorithm", "params", "seed",
          "budget_requested", "bytes", "rel_error", "cosine", "compress_ms", "status", "run_id", "row_crc"]


def row(method, layer, head, seed, error, *, size="100", budget="0.5", ms="1.23456", status="ok"):
    return ["1.4", "t.h5", "p", str(layer), str(head), method, "x=1", str(seed), budget, size, error, "0.9",
            ms, status, "run", "crc"]


def table(*rows):
    return store.Table(HEADER, [list(one) for one in rows])


def text(found):
    return store.csv_text([found.header, *found.rows])


def dicts(found):
    return [dict(zip(found.header, cells)) for cells in found.rows]


class CondenseTest(unittest.TestCase):
    def test_means_over_seeds(self):
        found = dicts(store.condense(table(
            row("b", 0, 0, 1, "0.2", size="101"), row("b", 0, 0, 0, "0.10000004", size="100"),
            row("a", 0, 0, 0, "0.123456789", ms="")), "", (), "book"))
        self.assertEqual([r["algorithm"] for r in found], ["a", "b"])
        a, b = found
        self.assertEqual((a["rel_error"], a["seeds"], a["compress_ms"], a["source"]),
                         ("0.12346", "1", "", "book"))
        self.assertEqual((b["rel_error"], b["seeds"], b["seed"], b["bytes"], b["compress_ms"]),
                         ("0.15", "2", "0", "100.5", "1.23"))
        self.assertNotIn("cosine", a)
        self.assertNotIn("run_id", a)
        found = dicts(store.condense(table(row("a", 0, 0, 0, "0.1")), "", ("cosine",), ""))
        self.assertEqual(found[0]["cosine"], "0.9")

    def test_what_is_not_ok_or_finite_stays_visible(self):
        found = dicts(store.condense(table(
            row("a", 0, 0, 0, "0.2"), row("a", 0, 0, 1, "", size="", status="infeasible: no"),
            row("b", 0, 0, 0, "nan"), row("b", 0, 0, 1, "1"), row("c", 0, 0, 0, "inf")), ""))
        self.assertEqual([(r["status"], r["rel_error"]) for r in found],
                         [("infeasible: no", ""), ("ok", "nan"), ("ok", "inf")])

    def test_whole_numbers_stay_whole(self):
        found = dicts(store.condense(table(row("a", 0, 0, 0, "1", size="12345678"),
                                           row("a", 0, 0, 1, "1", size="12345680")), ""))
        self.assertEqual(found[0]["bytes"], "12345679")

    def test_diagnostics_are_means_too(self):
        def diag(*cells):
            rows = [[*row("a", 0, 0, seed, "0.1"), cell] for seed, cell in enumerate(cells)]
            found = store.condense(store.Table([*HEADER, "diag"], rows), "", ("diag",), "")
            return dicts(found)[0]["diag"]

        self.assertEqual(diag("k_error=1.5;vague=30;of=x", "k_error=2.25;vague=31;of=y"),
                         "k_error=1.875;vague=30.5;of=x")
        self.assertEqual(diag("k_error=1", "k_error=nan"), "k_error=nan")
        self.assertEqual(diag("k_error=1;vague=2", "k_error=3"), "k_error=1;vague=2")
        self.assertEqual(diag("", ""), "")
        self.assertEqual(diag("k_error=1", ""), "k_error=1")

    def checks(self, *rows):
        return [r["check"] for r in dicts(store.condense(table(*rows), ""))]

    def test_a_check_of_all_digits(self):
        """One for a variant and layer, of what is rounded away and not stored too; not of times."""
        rows = [row("a", 0, 0, 0, "0.123456789"), row("a", 0, 1, 0, "0.2"), row("a", 1, 0, 0, "0.3")]
        usual = self.checks(*rows)
        self.assertEqual([bool(one) for one in usual], [True, False, True])
        rows[1][HEADER.index("rel_error")] = "0.20000000000000001"
        changed = self.checks(*rows)
        self.assertNotEqual(changed[0], usual[0])
        self.assertEqual(changed[1:], usual[1:])
        rows[1] = row("a", 0, 1, 0, "0.2", ms="9")
        self.assertEqual(self.checks(*rows), usual)
        rows[1][HEADER.index("cosine")] = "0.8"
        self.assertNotEqual(self.checks(*rows), usual)
        self.assertEqual(self.checks(*reversed([row("a", 0, 0, 1, "0.1"), row("a", 0, 0, 0, "0.2")])),
                         self.checks(row("a", 0, 0, 1, "0.1"), row("a", 0, 0, 0, "0.2")))

    def test_the_ratio_of_a_replay_is_no_later_column(self):
        """It stands in the check in its place, as in rows from before tables of scores had one."""
        header = ["algorithm", "layer", "seed", "ratio", "rel_error", "status"]
        cells = ["a", "0", "0", "0.25", "0.123456789", "ok"]
        check = f"{zlib.crc32(chr(0).join(cells).encode() + bytes([10])):08x}"
        self.assertEqual(dicts(store.condense(store.Table(header, [cells]), ""))[0]["check"], check)
        cells[3] = ""
        self.assertEqual(dicts(store.condense(store.Table(header, [cells]), ""))[0]["ratio"], "")

    SCORES = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed", "kl", "answer_right", "status"]

    def scores(self, *rows, later=True, without=()):
        """Condensed scores of (method, kl, {column: value}): a table of today, or an older one."""
        header = [*self.SCORES, *(store.LATER if later else ())]
        return store.condense(store.Table(header, [
            ["t.h5", "p", method, "x=1", "0.5", "0", kl, "", "ok",
             *(more.get(name, "") for name in (store.LATER if later else ()))]
            for method, kl, more in rows]), "scores", (), "book", without=without)

    def test_later_columns_are_where_there_is_something_in_them(self):
        rows = [("a", "0.1", {}), ("b", "0.2", {})]
        old = self.scores(*rows, later=False)
        self.assertEqual(text(self.scores(*rows)), text(old))
        samples.same_bits("s", old, self.scores(*rows))
        told = [("a", "0.1", {"answer_nll": "2.5", "choice_right": "1"}), ("b", "0.2", {})]
        new = self.scores(*told)
        self.assertEqual([name for name in new.header if name in store.LATER], ["answer_nll", "choice_right"])
        self.assertEqual([r["answer_nll"] for r in dicts(new)], ["2.5", ""])
        with self.assertRaisesRegex(samples.Differs, "the store has no column answer_nll"):
            samples.same_bits("s", old, new)
        self.assertEqual(text(self.scores(*told, without=("answer_nll", "choice_right"))), text(old))
        # A sample of a row alone has its check, whatever the other rows have.
        for at, one in enumerate(told):
            self.assertEqual(dicts(self.scores(one))[0]["check"], dicts(new)[at]["check"])
        told[0][2]["choice_right"] = "0"
        self.assertNotEqual(dicts(self.scores(*told))[0]["check"], dicts(new)[0]["check"])
        # Rows without them and rows with them lie in one table.
        merged = dicts(store.merge(self.scores(rows[1], later=False), self.scores(told[0])))
        self.assertEqual([(r["algorithm"], r["choice_right"]) for r in merged], [("a", "0"), ("b", "")])
        self.assertEqual(samples.floats(new), ["kl"])

    @unittest.skipIf(missing("h5py"), "lacks h5py")
    def test_lists_are_kept_where_a_plan_names_them(self):
        header = ["schema", "algorithm", "layer", "seed", "residual_rel_error", "residual_rel_error_heads"]
        rows = [["1.5", "a", "0", "0", "0.3", "0.1;0.25"], ["1.5", "a", "0", "1", "0.3", "0.2;0.5"]]
        old = store.condense(store.Table(header[:-1], [["1.4", *one[1:-1]] for one in rows]), "layers")
        plain = store.condense(store.Table(header, rows), "layers")
        self.assertEqual((plain.header, plain.rows), (old.header, old.rows))  # the check too
        kept = store.condense(store.Table(header, rows), "layers", ("residual_rel_error_heads",))
        self.assertEqual(dicts(kept)[0]["residual_rel_error_heads"], "0.15;0.375")
        self.assertEqual(dicts(kept)[0]["schema"], "1.4")
        self.assertNotEqual(dicts(kept)[0]["check"], dicts(old)[0]["check"])
        rows[1][-1] = "0.2;0.50000001"
        again = store.condense(store.Table(header, rows), "layers", ("residual_rel_error_heads",))
        self.assertNotEqual(dicts(again)[0]["check"], dicts(kept)[0]["check"])
        for schema in ("1.3", "1.4", "2.0", "x"):
            self.assertEqual(store.stored_schema(schema), schema)

    def test_columns_of_reads_are_kept_where_they_have_values(self):
        header = ["schema", "algorithm", "q_head", "rel_error", "read_bytes", "read_ratio", "index_bytes", "recall"]
        rows = [["1.6", "a", "0", "0.3", "", "", "", ""], ["1.6", "a", "1", "0.3", "", "", "", ""]]
        old = store.condense(store.Table(header[:4], [["1.5", *one[1:4]] for one in rows]), "", store.READS)
        empty = store.condense(store.Table(header, rows), "", store.READS)
        self.assertEqual((empty.header, empty.rows), (old.header, old.rows))  # the check too
        rows[1][4:] = "64", "0.25", "8", "0.5"
        full = store.condense(store.Table(header, rows), "", store.READS)
        self.assertEqual([one["read_ratio"] for one in dicts(full)], ["", "0.25"])
        self.assertNotEqual(dicts(full)[0]["check"], dicts(old)[0]["check"])
        self.assertNotIn("read_ratio", store.condense(store.Table(header, rows), "").columns)

    def test_later_columns_are_the_last_of_the_scores(self):
        from kvbench.score.table import COLUMNS

        self.assertEqual(COLUMNS[-len(store.LATER):], store.LATER)

    def test_merged_tables_are_those_of_one_run(self):
        rows = [row(name, layer, head, 0, "0.1", budget=budget) for name in "abc" for layer in (0, 1, 10)
                for head in (0, 1) for budget in ("0.5", "0.25")]
        whole = store.condense(table(*rows), "")
        parts = [store.condense(table(*(r for r in rows if r[5] in names)), "") for names in ("b", "ac")]
        for one, other in (parts, reversed(parts)):
            self.assertEqual(text(store.merge(one, other)), text(whole))
        # A variant that both have is that of the later one.
        again = store.condense(table(row("b", 0, 0, 0, "0.7", budget="0.5")), "")
        found = dicts(store.merge(whole, again))
        self.assertEqual([r["rel_error"] for r in found
                          if (r["algorithm"], r["budget_requested"]) == ("b", "0.5")], ["0.7"])
        self.assertEqual(len(found), len(whole.rows) - 6 + 1)


class Killed(BaseException):
    pass


class FilesTest(FolderCase):
    def rows(self, prompt, *errors, more=False):
        """The condensed rows of a prompt, a head for each error; more: a column more."""
        rows = [row("a", 0, head, 0, error) for head, error in enumerate(errors)]
        header = [*HEADER[:-2], *(["log_z_error"] if more else []), *HEADER[-2:]]
        rows = [[cells[0], prompt + ".h5", prompt, *cells[3:-2], *(["7"] if more else []), *cells[-2:]]
                for cells in rows]
        return store.condense(store.Table(header, rows), "", ("log_z_error",))

    def put(self, prompt, tables, files=None):
        at = store.Store(self.folder)
        at.put("s", prompt, tables, {"prompt": prompt, "files": sorted(tables) if files is None else files})
        return at

    def state(self):
        """Everything that a reader sees."""
        at = store.Store(self.folder)
        return {prompt: (record, [text(at.packed("s", name).table(prompt)) for name in record["files"]])
                for prompt, record in at.records().get("s", {}).items()}

    def bytes(self, name="s.csv.gz"):
        with open(self.path(name), "rb") as file:
            return file.read()

    def test_equal_bytes_in_whatever_order_steps_are_done(self):
        tables = {prompt: {"": self.rows(prompt, "0.1", "0.2"), "layers": self.rows(prompt, "0.3")}
                  for prompt in ("a", "a-b", "a.b")}
        found = []
        for order in (("a", "a-b", "a.b"), ("a.b", "a", "a-b"), ("a.b", "a-b", "a", "a")):
            for name in os.listdir(self.folder):
                os.remove(self.path(name))
            for prompt in order:
                self.put(prompt, tables[prompt])
            self.assertEqual(sorted(os.listdir(self.folder)),
                             ["SHA256SUMS", "records.json", "s.csv.gz", "s.layers.csv.gz"])
            found.append({name: self.bytes(name) for name in os.listdir(self.folder)})
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        data = found[0]["s.csv.gz"]
        # No flags (a name), no time, the best compression, no system.
        self.assertEqual(data[:10], b"\x1f\x8b\x08\0\0\0\0\0\x02\xff")
        # Others read it as one table.
        whole = gzip.decompress(data).decode()
        parts = [text(tables[prompt][""]).partition("\n") for prompt in sorted(tables)]
        self.assertEqual(whole, parts[0][0] + "\n" + "".join(rest for _, _, rest in parts))
        done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=self.folder, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 3)

    def test_a_step_replaces_its_rows_alone(self):
        for prompt in "ab":
            self.put(prompt, {"": self.rows(prompt, "0.1"), "layers": self.rows(prompt, "0.3")})
        before = self.state()
        self.put("a", {"": self.rows("a", "0.7", "0.8")})  # no layers any more
        found = self.state()
        self.assertEqual(found["b"], before["b"])
        self.assertEqual(found["a"], ({"prompt": "a", "files": [""]}, [text(self.rows("a", "0.7", "0.8"))]))
        self.assertEqual(list(store.Store(self.folder).packed("s", "layers").parts), ["b"])
        # A table that the record lists and no run made again stays.
        self.put("b", {}, ["", "layers"])
        self.assertEqual(self.state()["b"][1], before["b"][1])
        store.Store(self.folder).forget("s", "a")
        self.assertEqual(list(self.state()), ["b"])

    def test_steps_of_two_machines(self):
        self.put("a", {"": self.rows("a", "0.1")})
        shutil.copytree(self.folder, self.path("other"))
        self.put("b", {"": self.rows("b", "0.2")})
        other = store.Store(self.path("other"))
        other.put("s", "c", {"": self.rows("c", "0.3")}, {"prompt": "c", "files": [""]})
        other.put("s", "a", {"": self.rows("a", "0.9")}, {"prompt": "a", "files": [""]})
        before = self.state()
        store.Store(self.folder).take(store.Store(self.path("other")))
        self.assertEqual({prompt: self.state()[prompt] for prompt in "ab"}, before)
        self.assertEqual(self.state()["c"][1], [text(self.rows("c", "0.3"))])

    def test_a_column_more(self):
        self.put("a", {"": self.rows("a", "0.1")})
        self.put("b", {"": self.rows("b", "0.2", more=True)})
        self.put("c", {"": self.rows("c", "0.3")})
        at = store.Store(self.folder).packed("s", "")
        self.assertEqual({prompt: [r["log_z_error"] for r in dicts(at.table(prompt))] for prompt in "abc"},
                         {"a": [""], "b": ["7"], "c": [""]})
        self.assertEqual([r["rel_error"] for prompt in "abc" for r in dicts(at.table(prompt))], ["0.1", "0.2", "0.3"])

    def test_a_kill_leaves_the_step_before_or_behind_it(self):
        """At every write and every rename, and half a file at that."""
        def begin():
            for name in os.listdir(self.folder):
                os.remove(self.path(name))
            for prompt in "ab":
                self.put(prompt, {"": self.rows(prompt, "0.1"), "layers": self.rows(prompt, "0.3")})

        def step():
            self.put("a", {"": self.rows("a", "0.7"), "layers": self.rows("a", "0.8")})

        begin()
        before = self.state()
        step()
        after = self.state()
        self.assertNotEqual(before, after)
        for function, real in (("fsync", os.fsync), ("replace", os.replace)):
            seen = []
            for last in range(1, 100):
                begin()
                calls = []

                def dies(*words):
                    calls.append(words)
                    if len(calls) == last:
                        if isinstance(words[0], int):
                            os.ftruncate(words[0], os.fstat(words[0]).st_size // 2)
                        raise Killed
                    return real(*words)

                try:
                    with mock.patch.object(store.os, function, dies):
                        step()
                    break
                except Killed:
                    seen.append(self.state())
                    self.assertIn(seen[-1], (before, after), (function, last))
                    store.Store(self.folder).recover()
                    self.assertEqual(self.state(), seen[-1])
                    self.assertFalse([name for name in os.listdir(self.folder) if name.endswith(".part")])
                    store.Store(self.folder).packed("s", "")
                    step()
                    self.assertEqual(self.state(), after)
            self.assertEqual(len(seen), 4)  # two tables, the records, the sums
            self.assertEqual(after in seen, function == "replace")

    def test_damaged_files(self):
        self.put("a", {"": self.rows("a", "0.1")})
        data = {name: self.bytes(name) for name in os.listdir(self.folder)}
        one, other = (hashlib.sha256(b).hexdigest()[:16] for b in (data["s.csv.gz"][:-9], data["s.csv.gz"]))
        for name, damaged, expected in (
                ("s.csv.gz", data["s.csv.gz"][:-9], f"s.csv.gz: SHA-256 is {one}..., expected {other}... as in "
                                                    "SHA256SUMS beside it; take it from the repository again"),
                ("s.csv.gz", b"", "s.csv.gz: SHA-256 is"),
                ("records.json", data["records.json"].replace(b"a", b"b"), "records.json: SHA-256 is"),
                ("SHA256SUMS", b"", "records.json: SHA256SUMS beside it names no such file"),
                ("SHA256SUMS", data["SHA256SUMS"][:40], "SUMS: line 1: got `[0-9a-f]*`, expected `SHA-256  NAME`"),
                ("SHA256SUMS", b"\xff", "SHA256SUMS: cannot be read"),
                ("SHA256SUMS", None, "records.json: no SHA256SUMS beside it")):
            with self.subTest(name=name, expected=expected):
                if damaged is None:
                    os.remove(self.path(name))
                else:
                    with open(self.path(name), "wb") as file:
                        file.write(damaged)
                with self.assertRaisesRegex(rp.PlanError, expected):
                    self.state()
                # Readers of a table alone find it too, but a folder without SHA256SUMS.
                if name != "records.json" and damaged is not None:
                    with self.assertRaisesRegex(tables.CsvError, "SHA-256|SHA256SUMS"):
                        tables.check_table(self.path("s.csv.gz"))
                with open(self.path(name), "wb") as file:
                    file.write(data[name])
        self.state()
        tables.check_table(self.path("s.csv.gz"))

    def test_damage_that_has_its_checksum(self):
        self.put("a", {"": self.rows("a", "0.1")})
        data, path = self.bytes(), self.path("s.csv.gz")
        head = gzip.compress(b"trace,x\n")
        for damaged, expected in ((data[:-9], "cannot be read: its end is missing"), (b"text", "cannot be read"),
                                  (b"", "cannot be read"), (gzip.compress(b"a,b\n1,2\n"), "cannot be read: 'trace' is"),
                                  (head + gzip.compress(b"a.h5,1,2\n"), "as many cells"),
                                  (head + b"\0", "cannot be read"), (head + gzip.compress(b"\xff"), "cannot be read"),
                                  (head + gzip.compress(b""), "cannot be read")):
            with self.subTest(damaged=damaged):
                with open(path, "wb") as file:
                    file.write(damaged)
                write_text(self.path("SHA256SUMS"), "".join(
                    f"{hashlib.sha256(self.bytes(name)).hexdigest()}  {name}\n"
                    for name in ("records.json", "s.csv.gz")))
                with self.assertRaisesRegex(rp.PlanError, f"s.csv.gz: .*{expected}"):
                    self.state()

    def test_steps_of_a_removed_table_are_not_done(self):
        for prompt in "ab":
            self.put(prompt, {"": self.rows(prompt, "0.1"), "layers": self.rows(prompt, "0.3")})
        os.remove(self.path("s.layers.csv.gz"))
        self.assertEqual(self.state(), {})
        self.put("a", {"": self.rows("a", "0.1"), "layers": self.rows("a", "0.3")})
        self.assertEqual(list(self.state()), ["a"])

    def test_works_of_a_stage(self):
        for prompt in "abc":
            self.put(prompt, {"": self.rows(prompt, "0.1"), "scores": self.rows(prompt, "0.3")})

        def run(*words):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertEqual(works.run([self.folder, *words]), 0)
            return said.getvalue().split()

        self.assertEqual(run("s"), ["a", "b", "c"])
        self.assertEqual(run("none"), [])
        out = self.path("out.csv.gz")
        self.assertEqual(run("s", "scores", "b", "d", "a", "-o", out), [out])
        with gzip.open(out, "rt", encoding="utf-8") as file:
            self.assertEqual([r["prompt"] for r in csv.DictReader(file)], ["a", "b"])
        for words in (("s", "scores", "d"), ("s", "layers", "a"), ("none", "scores", "a")):
            self.assertEqual(run(*words, "-o", self.path("no.csv.gz")), [])
        with open(self.path("s.csv.gz"), "ab") as file:
            file.write(b"x")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(works.run([self.folder, "s", "rows", "a", "-o", out]), 3)
        self.assertIn("works: ", said.getvalue())

    def test_names_of_tables(self):
        self.assertEqual([store.table_name(name) for name in ("rows.csv", "rows.layers.csv", "scores.csv")],
                         ["", "layers", "scores"])


class CompareTest(unittest.TestCase):
    def pair(self, *rows):
        return store.condense(table(*rows), "")

    def test_bits(self):
        old = self.pair(row("a", 0, 0, 0, "0.1"), row("a", 0, 1, 0, "0.3"))
        samples.same_bits("t", old, self.pair(row("a", 0, 0, 0, "0.1", ms="7"), row("a", 0, 1, 0, "0.3")))
        for rows, expected in (
                ([row("a", 0, 0, 0, "0.1")], "has 2 rows, expected 1"),
                ([row("a", 0, 0, 0, "0.1"), row("a", 0, 1, 0, "0.30000000000000004")], "check: the store has"),
                ([row("a", 0, 0, 0, "0.2"), row("a", 0, 1, 0, "0.3")],
                 "algorithm a, budget_requested 0.5, layer 0, q_head 0: rel_error: the store has 0.1, here it is 0.2")):
            with self.subTest(expected=expected), self.assertRaisesRegex(samples.Differs, expected):
                samples.same_bits("t", old, self.pair(*rows))

    def test_digits(self):
        def layers(error):
            return store.condense(table(row("a", 0, 0, 0, error)), "layers")
        old, other = layers("0.1"), layers("0.10000000000000002")
        compare = samples.Samples.compare
        self.assertEqual(compare("t", old, layers("0.1"), False, True), "bits")
        self.assertEqual(compare("t", old, other, False, True), "digits")
        self.assertEqual(compare("t", old, other, True, False), "means")
        for new, digits in ((other, False), (layers("0.100000001"), True), (layers("nan"), True)):
            with self.assertRaisesRegex(samples.Differs, "check: the store has|rel_error: the store has"):
                compare("t", old, new, False, digits)

    def test_tolerance(self):
        old = self.pair(row("a", 0, 0, 0, "0.1"), row("a", 0, 1, 0, "0.3"))
        samples.near("t", old, self.pair(row("a", 0, 0, 0, "0.12"), row("a", 0, 1, 0, "0.285")))
        for error in ("0.345", "0.255", "nan", "inf"):
            with self.subTest(error=error), self.assertRaisesRegex(samples.Differs, "mean rel_error"):
                samples.near("t", old, self.pair(row("a", 0, 0, 0, "0.1"), row("a", 0, 1, 0, error)))
        with self.assertRaisesRegex(samples.Differs, "has 2 rows, expected 1"):
            samples.near("t", old, self.pair(row("a", 0, 0, 0, "0.1")))


class VariantsTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(variants.split_words(["a,b", "c,d:x=1,2;y=3", "all:grid"]),
                         ["a", "b", "c", "d:x=1,2;y=3", "all:grid"])
        for word, expected in (("all", True), ("all:grid", True), ("@merging", True), ("snap*", True),
                               ("snapkv", False), ("a:x=*", False)):
            self.assertIs(variants.is_set(word), expected, word)
        self.assertEqual(variants.option_values(["--a", "1", "--b=2", "--b", "3"], "--b"), ["2", "3"])

    def test_rows_of_a_variant(self):
        self.assertTrue(variants.matches("T=auto;rope=auto", "T=auto;rope=tables"))
        self.assertFalse(variants.matches("T=auto;rope=none", "T=auto;rope=tables"))
        self.assertFalse(variants.matches("T=auto", "T=auto;rope=tables"))
        self.assertTrue(variants.matches("", ""))
        self.assertTrue(variants.claims([["a", "x=1"]], ("a", "x=1", "0.5")))
        self.assertFalse(variants.claims([["a", "x=1"]], ("b", "x=1", "0.5")))


class PlanTest(unittest.TestCase):
    """What a plan may say."""

    def test_the_dump_is_a_program(self):
        """Each word of a command stands alone: `kvbench-py dump` would be a program's name."""
        paths = glob.glob(os.path.join(STUDY, "plans", "**", "*.toml"), recursive=True)
        self.assertGreater(len(paths), 5)
        for path in sorted(paths):
            with open(path, "rb") as file:
                plan = tomllib.load(file)
            for words in (plan["trace"]["run"], *(s.get("score", []) for s in plan["stage"])):
                with self.subTest(plan=path, words=words[:3]):
                    self.assertFalse([word for word in words if word.startswith("kvbench-py ")])

    def test_plans_of_models(self):
        """Good plans, over test sources that there are. `make prompts` makes their records: here these hold
        ids alone."""
        with open(os.path.join(STUDY, "prompts", "sources.toml"), "rb") as file:
            works = tomllib.load(file)["works"]
        paths = glob.glob(os.path.join(STUDY, "plans", "models", "*.toml"))
        self.assertGreater(len(paths), 5)
        for path in paths:
            with open(path, "rb") as file:
                files = tomllib.load(file)["prompts"]
            with self.subTest(plan=path), tempfile.TemporaryDirectory() as folder:
                for name in files:
                    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
                    kind = os.path.basename(name).removesuffix(".jsonl")
                    write_text(os.path.join(folder, name), "".join(
                        json.dumps(record) + "\n" for record in self.records_of(kind, works)))
                with mock.patch.object(rp, "ROOT", folder):
                    plan = rp.read_plan(path)
                texts = {name: one for name, one in plan.prompts.items() if not one.task}
                self.assertGreater(len(plan.prompts), 20)
                # Their numbers, which traces may use, are those of a plan without tasks.
                self.assertEqual([one.number for one in texts.values()], list(range(len(texts))))
                for stage in plan.stages.values():
                    for word in stage.options:
                        if word.endswith(".toml"):
                            self.assertTrue(os.path.isfile(os.path.join(ROOT, word)), word)
                    if path.endswith("-long.toml") and stage.name == "short":
                        # Completes other plans: with their works it has those of `judged`, which are enough.
                        longer = {one.rpartition("-")[0] for one in plan.stages["judged"].prompts}
                        self.assertLessEqual({*stage.prompts}, longer)
                    else:
                        self.assertGreaterEqual(len(stage.prompts), 4)
                    self.assertEqual(stage.name.startswith("tasks"), {*stage.prompts}.isdisjoint(texts))
                    self.assertEqual({plan.prompts[one].set for one in stage.prompts},
                                     {"dev" if stage.name in ("grids", "alone", "curves", "bits", "judged_swapped") or
                                      stage.name.startswith("windows") else "test"})

    def test_records_in_commands_of_reports(self):
        """{records} is every file of prompts, as in commands of stages."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("b.jsonl", "a.jsonl"):
                write_text(os.path.join(folder, name), "")
            plan = mock.Mock(records=[os.path.join(folder, "*.jsonl")], model={"folder": "m"})
            words, output = placeholders.Placeholders(plan, folder, folder, (0,), "kvbench", "python", "").report_words(
                "kvbench-py compare --records {records} --csv {out}/x.csv > {out}/y", None, "/out")
        self.assertEqual(words[2:], ["compare", "--records", os.path.join(folder, "a.jsonl"),
                                     os.path.join(folder, "b.jsonl"), "--csv", "/out/x.csv"])
        self.assertEqual(output, "/out/y")

    @staticmethod
    def records_of(kind, works):
        """As `make prompts` writes them: of the works of a kind, or of test works."""
        tasks = {"tasks": ("one-key", "four-keys", "variable", "count"),
                 "instructions": ("fact", "first-rule", "second-rule")}.get(kind, ())
        ends = {"long": ("-8k", "-16k"), "windows": ("-w2", "-w3")}.get(kind, [f"-{task}" for task in tasks])
        return [{"id": work + end, "set": facts["set"], "source": facts["title"],
                 **({"task": end[1:]} if tasks else {})}
                for work, facts in works.items() if (facts["set"] == "test" if ends else facts["kind"] == kind)
                for end in ends or [""]]

    def test_prompts_of_a_stage(self):
        prompts = {name: rp.Prompt(name, group, at, "", "", task) for at, (name, group, task) in enumerate((
            ("vim", "test", ""), ("zsh", "dev", ""), ("vim-one-key", "test", "one-key"),
            ("vim-count", "test", "count"), ("git-one-key", "test", "one-key")))}
        for wanted, expected in (("test", ["vim"]), ("dev", ["zsh"]), ("all", ["vim", "zsh"]),
                                 (["vim-*"], ["vim-one-key", "vim-count"]), (["vim"], ["vim"]),
                                 (["git-one-key", "vim"], ["vim", "git-one-key"])):
            self.assertEqual(rp.pick_prompts(wanted, prompts, "p"), tuple(expected))
        for wanted in (["vom-*"], ["vom"], "nobody"):
            with self.assertRaisesRegex(rp.PlanError, "prompts: no prompt"):
                rp.pick_prompts(wanted, prompts, "p")
        stage = {"name": "s", "title": "t", "score": ["x"], "algorithms": ["exact"], "seconds": 1}
        for wanted, short in (("test", False), (["vim"], False), (["*-one-key"], False), (["vim-*"], True),
                              (["vim", "vim-count"], False), (["git-*", "vim"], True)):
            if short:
                with self.assertRaisesRegex(rp.PlanError, "`fewer` must say why"):
                    rp.read_stage({**stage, "prompts": wanted}, "p", prompts, {}, {})
            rp.read_stage({**stage, "prompts": wanted, **({"fewer": "time"} if short else {})}, "p", prompts, {}, {})

    def test_tables_that_the_store_keeps(self):
        prompts = {"p": rp.Prompt("p", "test", 0, "", "book")}
        table = {"name": "s", "title": "t", "score": ["x"], "algorithms": ["exact"], "seconds": 1}
        with self.assertRaisesRegex(rp.PlanError, "keep: got `scores`, expected some of rows.csv, rows.layers.csv"):
            rp.read_stage({**table, "keep": ["scores"]}, "p", prompts, {}, {})
        steps = Steps.__new__(Steps)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("rows.csv", "rows.layers.csv", "scores.csv"):
                write_text(os.path.join(folder, name), "trace,prompt,algorithm,kl,status\nt,p,exact,0.5,ok\n")
            for keep, expected in (([], ["", "layers", "scores"]), (["scores.csv"], ["scores"])):
                stage = rp.read_stage({**table, "keep": keep}, "p", prompts, {}, {})
                self.assertEqual(sorted(steps.condensed(stage, prompts["p"], folder)), expected)

    def test_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            write_text(os.path.join(folder, "p.jsonl"), '{"id": "a", "set": "test", "source": "book", "text": ""}\n'
                       '{"id": "b", "text": ""}\n')
            found = rp.read_prompts([os.path.join(folder, "*.jsonl")])
        self.assertEqual([(p.id, p.source) for p in found.values()], [("a", "book"), ("b", "")])

    def test_scripts_of_both_packages_count(self):
        files = sources.of_reports()
        for path in ("python/kvbench/tables.py", "studies/reference/kvbench_study/claims/main.py",
                     "studies/reference/kvbench_study/page_tables.py"):
            self.assertIn(path, files)
        self.assertNotIn("studies/reference/kvbench_study/reference/plan.py", files)
        for words, file in (("dump kvbench-py score --model m", "python/kvbench/score/main.py"),
                            ("kvbench-study claims", "studies/reference/kvbench_study/claims/main.py")):
            self.assertEqual(sources.named(words.split()), [file])
        found = sources.imported("studies/reference/kvbench_study/claims/main.py")
        self.assertLessEqual({"python/kvbench/units.py", "studies/reference/kvbench_study/claims/page.py"}, set(found))


if __name__ == "__main__":
    unittest.main()
