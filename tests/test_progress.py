"""kvbench/progress.py: the line on a terminal, the lines elsewhere, and what is said where nobody counts."""

import io
import time
import unittest
from unittest import mock

import script_case  # noqa: F401  (finds the package)

from kvbench.progress import Progress, heartbeat, minutes, progress_bar, silence


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):
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
