"""What Python tests share: places, tables, a folder per test, scripts run in this process."""

import contextlib
import csv
import importlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path[:0] = [os.path.join(ROOT, "python"), SCRIPTS]

import kvbench  # noqa: E402


def tested_program():
    """The path of kvbench.program(): $KVBENCH, or build/kvbench. Empty if there is none: tests of it are skipped."""
    try:
        return os.path.abspath(kvbench.program())
    except kvbench.ProgramError:
        return ""


KVBENCH = tested_program()


def missing(*names):
    """Those of the packages that this Python lacks."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write_text(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def write_bytes(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def read_rows(path):
    """A CSV file's rows as dicts of text."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path, columns, rows):
    """Writes a table, and its folder; returns the path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows(rows)
    return path


def untimed(path):
    """A run's rows without their times."""
    left_out = ("compress_ms", "attend_us_per_query", "compress_ms_iqr", "attend_us_per_query_iqr")
    return [{name: "" if name in left_out else value for name, value in row.items()} for row in read_rows(path)]


def program(module):
    """What a module's program is called: `kvbench-py NAME`, or that of its package's command line; of a script
    in scripts/, its own name.
    """
    package, _, rest = module.__name__.partition(".")
    if rest:
        commands = importlib.import_module(package + ".programs").COMMANDS
        for name, found in commands.programs.items():
            if rest == found.module:
                return f"{commands.name} {name}"
    return module.__name__ + ".py"


def call(main, name, *arguments):
    """A script's main() in this process, where an interpreter and its imports would cost seconds.

    name  what sys.argv says it is called
    returns  .code, .out and .err
    """
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", [name, *map(str, arguments)]), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main() or 0
        except SystemExit as error:
            code = error.code or 0
    return types.SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


def run_program(name, *arguments, folder=SCRIPTS):
    """`kvbench-py ...`, or a script of the folder, in an interpreter of its own."""
    script, *words = name.split()
    return subprocess.run([sys.executable, os.path.join(folder, script), *words, *arguments],
                          capture_output=True, text=True, check=False)


class ProgramCase(unittest.TestCase):
    def program(self, *arguments):
        """What `kvbench ARGUMENTS` did; the test is skipped where there is no program."""
        if not KVBENCH:
            self.skipTest("KVBENCH names no program")
        return subprocess.run([KVBENCH, *arguments], capture_output=True, text=True, check=False)

    def done(self, *arguments, code=0, says=""):
        """stdout of `kvbench ARGUMENTS`, which ends with this code and says this on stderr."""
        ran = self.program(*arguments)
        self.assertEqual(ran.returncode, code, ran.stderr)
        self.assertIn(says, ran.stderr)
        return ran.stdout


class FolderCase(ProgramCase):
    """A folder of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write_file(self, name, text):
        return write_text(self.path(name), text)

class CommandCase(FolderCase):
    """Calls of one program's main in this process; `module()` is the program's."""

    def module(self):
        raise NotImplementedError

    def call(self, *arguments):
        from kvbench.command import run_main

        module = self.module()
        return call(lambda: run_main(module.main), program(module), *arguments)

    def run_script(self, *arguments):
        """(what it says, what it says on stderr); it must succeed."""
        ran = self.call(*arguments)
        self.assertEqual(ran.code, 0, ran.err)
        return ran.out, ran.err

    def refused(self, what, *arguments):
        """It must fail and say `what`."""
        ran = self.call(*arguments)
        self.assertNotEqual(ran.code, 0)
        self.assertIn(what, ran.err)
        self.assertNotIn("Traceback", ran.err)

    def read(self, name):
        return read_rows(self.path(name))
