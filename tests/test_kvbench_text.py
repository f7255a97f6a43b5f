"""python/kvbench/text.py and its users: names of files and of what they hold do not command a
terminal, and a text that is nested too deeply is one line."""

import contextlib
import glob
import io
import os
import re
import sys
import types
import unittest

from script_case import ROOT, FolderCase, call, missing, read_text

from kvbench import text as kx

NO_TABLES = missing("numpy", "pandas", "matplotlib")
NESTED = "[" * 100_000
# One of each kind: C0, DEL, C1 (CSI, NEL), all that turn the direction of writing, halves of
# characters.
UNSAFE = ("\x1b\x00\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
          "\u2066\u2067\u2068\u2069\udc9b\ud800\udfff")
SAFE = "aZ09 é ß 漢 ‐ \u00a0\u00ad\u200d😀 ~"


class TextTest(FolderCase):
    def test_what_is_replaced(self):
        self.assertEqual(kx.printable(UNSAFE), "?" * len(UNSAFE))
        self.assertEqual(kx.printable(SAFE), SAFE)
        self.assertEqual(kx.printable(b"\xff.h5".decode("utf-8", "surrogateescape")), "?.h5")
        self.assertEqual(kx.printable("a\nb\tc"), "a?b?c")
        self.assertEqual(kx.printable_lines("a\x9b\nb\r\n"), "a?\nb?\n")
        self.assertEqual(kx.one_line(f" a\n  b\t{UNSAFE[:6]}\r\n c\u2028d "), "a b ?????? c?d")
        self.assertEqual(kx.one_line(ValueError("x\n\x9by")), "x ?y")
        # Of Latin-1 the controls alone.
        for code in range(0x100):
            self.assertEqual(kx.printable(chr(code)) == "?", code < 32 or 127 <= code < 160 or code == ord("?"), code)

    def test_lists(self):
        """`\\,` is a comma within a part, as in tests/cli/selection.sh."""
        from kvbench.dump.options import names

        for text, parts in (("a,b", ["a", "b"]), ("a\\,b,c", ["a,b", "c"]), (",a,,b,", ["a", "b"]),
                            ("a\\b", ["a\\b"]), ("", [])):
            self.assertEqual(kx.list_parts(text), parts)
            self.assertEqual(names(text), parts or [""])
        for name in ("a,b", "a", ",,"):
            self.assertEqual(kx.list_parts(kx.list_part(name)), [name])

    def test_json(self):
        self.assertEqual(kx.parse_json('{"a": [1]}'), {"a": [1]})
        self.assertEqual(kx.parse_json("[-2.5, 1e300, 12345678901234567890]"), [-2.5, 1e300, 12345678901234567890])
        for bad in (NESTED, '{"a":' * 100_000, "[", "", "1" * 5000, "1" + "0" * 400, "[-1e400]"):
            with self.assertRaises(ValueError):
                kx.parse_json(bad)


@unittest.skipIf(NO_TABLES, f"{sys.executable} lacks {', '.join(NO_TABLES)}")
class IndicesTest(unittest.TestCase):
    def test_numbers_and_ranges_as_in_kvbench(self):
        for said, indices, named in (("2,0", [0, 2], (0, 2)), ("0:3", [0, 1, 2], ()), ("9,2:8:3,2", [2, 5, 9], (2, 9))):
            found = kx.index_list(said)
            self.assertEqual((list(found), found.named), (indices, named))
        for said in ("", ",", "x", "-1", "01", "1:", "1:2:3:4", "2:2", "1-3", "1000001", "0:2:0"):
            with self.assertRaisesRegex(ValueError, "expected numbers and ranges"):
                kx.index_list(said)


class TerminalTest(FolderCase):
    """What the programs print of a name with a command for the terminal in it."""

    NAME = "x\x9b2J\x1b[2J\u202e\udcff"
    SHOWN = "x?2J?[2J??"

    def test_errors(self):
        from kvbench import command
        from kvbench.errors import CsvError, TraceError

        def fail(kind):
            raise kind(f"{self.NAME}.h5:  no\nsuch file")
        for kind, code in ((CsvError, 2), (TraceError, 2), (OSError, 3)):
            done = call(lambda kind=kind: command.run_main(lambda: fail(kind)), "program.py")
            self.assertEqual((done.code, done.err), (code, f"program.py: {self.SHOWN}.h5: no such file\n"))
        parser = command.plain_parser("")
        done = call(lambda: parser.parse_args(["--" + self.NAME]), "program.py")
        self.assertEqual((done.code, len(done.err.splitlines())), (2, 1))
        self.assertIn(self.SHOWN, done.err)

    def test_notes_and_progress(self):
        from kvbench import command
        from kvbench import tables as kt
        from kvbench.progress import Progress
        said = io.StringIO()
        with contextlib.redirect_stderr(said), command.notes_on_stderr():
            kt.note(f"{self.NAME} is left out")
        self.assertEqual(said.getvalue(), f"note: {self.SHOWN} is left out\n")
        said = io.StringIO()
        said.isatty = lambda: True
        with Progress(2, said, lambda: 0.0) as progress:
            progress.step(1, self.NAME)
            progress.write(f"{self.NAME}\nsecond")
        self.assertNotIn("\x9b", said.getvalue())
        self.assertIn(f"left  {self.SHOWN} ", said.getvalue())
        self.assertIn(f"\r{self.SHOWN}\nsecond\n", said.getvalue())

    def test_tables(self):
        from kvbench.compare import tables as ct
        done = call(lambda: ct.write_text("-", f"| {self.NAME} |\n| b |\n"), "kvbench-py compare")
        self.assertEqual(done.out, f"| {self.SHOWN} |\n| b |\n")
        ct.write_text(self.path("t.md"), "| x\x9b |\n")
        self.assertEqual(read_text(self.path("t.md")), "| x\x9b |\n")  # files are as they are


class NestedTest(FolderCase):
    """JSON that is nested too deeply, in every file that is read."""

    def test_one_place_parses(self):
        found = [path for path in glob.glob(os.path.join(ROOT, "python", "kvbench", "**", "*.py"), recursive=True)
                 if re.search(r"\bjson\.loads?\(", read_text(path))]
        self.assertEqual([os.path.relpath(path, ROOT) for path in found], ["python/kvbench/text.py"])

    @unittest.skipIf(NO_TABLES or missing("h5py", "scipy"), f"{sys.executable} lacks packages")
    def test_every_reader_says_it_in_one_line(self):
        from kvbench import checksums, records
        from kvbench.checksums import ChangedError
        from kvbench.errors import CsvError, TraceError
        from kvbench.policy import tables
        from kvbench.score.table import Manifest

        table = self.write_file("t.csv", "a\n1\n")
        self.write_file("t.csv.json", NESTED)
        args = types.SimpleNamespace(output=table, resume=True, trace=[], caches=[])
        lines = self.write_file("p.jsonl", '{"text": "a"}\n' + NESTED + "\n")
        large = '{"layers": 1' + "0" * 400 + "}"
        cases = [*(("s.json: ", lambda text=text: tables.read_sensitivities(self.write_file("s.json", text)))
                   for text in (NESTED, large)),
                 ("t.csv.json: cannot be read: nested", lambda: checksums.check_table(table)),
                 (r"p.jsonl:2: not JSON \(nested", lambda: records.read_jsonl(lines)),
                 ("t.csv.json: not a manifest of kvbench-py score", lambda: Manifest(args, {}, {}))]
        if not missing("transformers"):
            from kvbench.dump.prompts import read_lines
            cases.append((r"p.jsonl:2: not JSON \(nested too deeply", lambda: list(read_lines(lines))))
        for said, read in cases:
            with self.subTest(said), self.assertRaisesRegex((ChangedError, CsvError, TraceError), said):
                read()
