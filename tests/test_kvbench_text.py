"""python/kvbench/text.py and its users: names of files and of what they hold do not command a
terminal, and a text that is nested too deeply is one line; python/kvbench/progress.py."""

import contextlib
import glob
import io
import os
import re
import sys
import time
import types
import unittest
from unittest import mock

from script_case import ROOT, FolderCase, call, missing, read_text

from kvbench import text as kx
from kvbench.progress import Progress, heartbeat, minutes, progress_bar, silence

NO_TABLES = missing("numpy", "pandas", "matplotlib")
NESTED = "[" * 100_000
# One of each kind: C0, DEL, C1 (CSI, NEL), all that turn the direction of writing, halves of
# characters.
UNSAFE = ("\x1b\x00\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
          "\u2066\u2067\u2068\u2069\udc9b\ud800\udfff")
SAFE = "aZ09 é ß 漢 ‐ \u00a0\u00ad\u200d😀 ~"


class Terminal(io.StringIO):
    def isatty(self):
        return True


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
        said = io.StringIO()
        with contextlib.redirect_stderr(said), command.notes_on_stderr():
            kt.note(f"{self.NAME} is left out")
        self.assertEqual(said.getvalue(), f"note: {self.SHOWN} is left out\n")
        said = Terminal()
        with Progress(2, said, lambda: 0.0) as progress:
            progress.step(1, self.NAME)
            progress.write(f"{self.NAME}\nsecond")
        self.assertNotIn("\x9b", said.getvalue())
        self.assertIn(f"left  {self.SHOWN} ", said.getvalue())
        self.assertIn(f"\r{self.SHOWN}\nsecond\n", said.getvalue())

    def test_tables(self):
        from kvbench.comparison import tables as ct
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
        from kvbench.budgets import tables
        from kvbench.checksums import ChangedError
        from kvbench.errors import CsvError, TraceError
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


class ProgressTest(unittest.TestCase):
    """The line on a terminal, the lines elsewhere, and what is said where nobody counts."""

    def run_it(self, stream, seconds=10):
        """What is said of 4 pieces of work of so many seconds each."""
        now = [100.0]
        with Progress(4, stream, lambda: now[0]) as progress:
            self.assertIsNone(progress.left())
            for at in range(4):
                now[0] += seconds
                progress.step(1, f"piece {at}")
                self.assertEqual(progress.left(), seconds * (3 - at))
            progress.write("done")
            progress.step(1, "more than was expected")
            self.assertEqual(progress.left(), 0.0)
        return stream.getvalue()

    def test_a_terminal_has_a_line_with_the_time_left(self):
        said = self.run_it(Terminal())
        shown = [line.rstrip() for line in said.split("\r")]
        self.assertEqual(shown[1:5], [f"{text} left  piece {at}" for at, text in
                                      enumerate(("0:30", "0:20", "0:10", "0:00"))])
        self.assertIn("\rdone\n", said)
        self.assertEqual(said.split("\r")[-1], "")  # the last line is gone
        self.assertEqual(said.split("\r")[-2].strip(), "")

    def test_elsewhere_there_are_whole_lines_at_least_ten_seconds_apart(self):
        self.assertEqual(self.run_it(io.StringIO()), "".join(
            f"0:{30 - 10 * at:02} left  piece {at}\n" for at in range(4)) + "done\n")
        self.assertEqual(self.run_it(io.StringIO(), 6), "0:12 left  piece 1\n0:00 left  piece 3\ndone\n")
        self.assertEqual(self.run_it(io.StringIO(), 2), "done\n")

    def test_a_program_that_is_silent_is_heard(self):
        """Of work that counts nothing, of work that does, and of another program's."""
        with mock.patch("sys.stderr", io.StringIO()) as said, heartbeat("a program", 0.02), \
                mock.patch("kvbench.progress.EVERY", 0.02):
            time.sleep(0.2)
            with Progress(4, said) as progress:
                progress.step(1, "a piece")
                time.sleep(0.2)
                with silence():
                    before = said.getvalue()
                    time.sleep(0.1)
                    self.assertEqual(said.getvalue(), before)
        for line in ("0:00 so far  a program\n", "0:00 left  a piece\n"):
            self.assertIn(line, said.getvalue())

    def test_a_bar_is_tqdms_or_nothing(self):
        tqdm = mock.Mock()
        with mock.patch.dict("sys.modules", {"tqdm": tqdm, "tqdm.auto": tqdm}):
            self.assertIs(progress_bar(8, "text\n", True), tqdm.tqdm.return_value)
            self.assertEqual(tqdm.tqdm.call_args[1], {"total": 8, "desc": "text?", "leave": False})
            progress_bar(8, "text", False).update()
        with mock.patch.dict("sys.modules", {"tqdm": None, "tqdm.auto": None}), progress_bar(8, "text", True) as other:
            other.update()
        self.assertEqual(tqdm.tqdm.call_count, 1)

    def test_minutes(self):
        self.assertEqual([minutes(s) for s in (0, 7.9, 60, 4890)], ["0:00", "0:07", "1:00", "81:30"])
