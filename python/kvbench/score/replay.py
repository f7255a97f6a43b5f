"""Runs one part of a plan of kvbench-py score, and collects its rows. Needs no torch."""

from __future__ import annotations

import collections
import csv
import os
import platform
import re
import shutil
import subprocess
import tempfile
from typing import Any

from kvbench.api.run import SOME_FAILED
from kvbench.score.plan import Part, ReplayError, common_options
from kvbench.score.table import KEY, GrowingFile, field
from kvbench.text import list_part
from kvbench.trace.writer import TraceError

ENOUGH = 4 << 30  # free bytes required in a memory file system
LAYERS = ".layers.csv"
FOLDER = f"kvbench-score-{platform.node()}-"  # a process has its number on one host
FIRST = "schema,trace,prompt,"  # start of the program's tables

Key = tuple[str, ...]


def work_folder(asked: str | None) -> str:
    if asked is not None:
        if not os.path.isdir(asked):
            raise TraceError(f"--work: {asked}: no such folder")
        return asked
    memory = "/dev/shm"
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ENOUGH:
        return memory
    return tempfile.gettempdir()


def remove_orphans(work: str) -> None:
    """Removes the folders of runs that were killed on this host: each can hold hundreds of MB, in memory."""
    for name in os.listdir(work):
        found = re.match(re.escape(FOLDER) + r"(\d+)-", name)
        if not found:
            continue
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            shutil.rmtree(os.path.join(work, name), ignore_errors=True)
        except OSError:  # a process of another user
            pass


class Replay:
    """A running `kvbench replay` of one part; close() removes its files."""

    def __init__(self, args: Any, trace: str, prompt: str, part: Part):
        self.part = part
        self.folder = tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=args.work)
        self.rows, self.caches = (os.path.join(self.folder, name) for name in ("rows.csv", "caches.h5"))
        command = [args.program, "replay", trace, *common_options(args), *part.options(),
                   f"--prompts={list_part(prompt)}", f"--threads={args.replay_threads}", "--device=cpu",
                   f"--output={self.rows}", f"--export-caches={self.caches}"]
        try:
            # Spinning threads would take the model's cores.
            with open(os.path.join(self.folder, "log"), "wb") as log:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                    env=os.environ | {"OMP_WAIT_POLICY": "passive"})
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise TraceError(f"--program: {args.program}: {error.strerror}") from None

    def wait(self) -> None:
        """Waits for the program. Raises ReplayError with its last line if it failed."""
        code = self.process.wait()
        if code not in (0, SOME_FAILED):
            with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as file:
                lines = file.read().strip().splitlines()
            raise ReplayError(lines[-1] if lines else f"kvbench replay: ended with exit code {code}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def read_lines(path: str) -> tuple[str, list[tuple[Key, str]]]:
    """Returns the header of a table of the program, and (key, line) of its complete rows."""
    with open(path, encoding="utf-8", newline="") as file:
        header = file.readline()
        if not header.startswith(FIRST) or not header.endswith("\n"):
            raise TraceError(f"{path}: got no table of kvbench replay, expected one that begins with {FIRST}...")
        names = next(csv.reader([header]))
        places = [names.index(name) for name in KEY]
        rows = []
        for line in file:
            cells = next(csv.reader([line]))
            if line.endswith("\n") and len(cells) == len(names):
                rows.append((key_text(*(cells[at] for at in places)), line))
    return header, rows


def key_text(trace: str, prompt: str, algorithm: str, params: str, budget: str, seed: str) -> Key:
    """Formats a key as in the table of scores."""
    return trace, prompt, algorithm, params, field(float(budget)) if budget else "", seed


def complete(rows: list[tuple[Key, str]]) -> set[Key]:
    """Returns keys with the largest number of rows of their trace: one per head."""
    counts = collections.Counter(key for key, _ in rows)
    most: dict[str, int] = {}
    for key, count in counts.items():
        most[key[0]] = max(count, most.get(key[0], 0))
    return {key for key, count in counts.items() if count == most[key[0]]}


class RowsTable(GrowingFile):
    """ROWS.csv or ROWS.layers.csv: unmodified lines of the program's tables.

    resume     `held` has the keys of an existing file
    overwrite  replaces it; without both an existing file is rejected
    """

    def __init__(self, path: str, resume: bool, overwrite: bool):
        super().__init__(path, resume, overwrite)
        self.header = ""
        self.held: set[Key] = set()
        self.rows: list[tuple[Key, str]] = []
        if not os.path.exists(path):
            return
        if os.path.exists(path.removesuffix(LAYERS).removesuffix(".csv") + ".csv.json"):
            raise TraceError(f"{path}: is the table of a run of kvbench replay, with its manifest: "
                             "expected a name of its own")
        if os.path.getsize(path):
            self.header, self.rows = read_lines(path)
        if overwrite:
            self.header, self.rows = "", []
        self.held = complete(self.rows)

    def keep(self, done: set[Key]) -> None:
        """Opens the file and keeps only the rows of these keys."""
        self.begin(self.header + "".join(line for key, line in self.rows if key in done))
        self.rows = []

    def write(self, header: str, lines: list[str]) -> None:
        """Writes the rows of one key. Raises TraceError if columns differ."""
        new = "" if self.header else header
        self.header = self.header or header
        if header != self.header:
            raise TraceError(f"{self.path}: --resume: its columns are not those of this program's rows")
        self.append(new + "".join(lines))


class Tables:
    """Context manager for ROWS.csv and ROWS.layers.csv."""

    def __init__(self, path: str, resume: bool, overwrite: bool):
        layers = path.removesuffix(".csv") + LAYERS
        self.rows, self.layers = (RowsTable(one, resume, overwrite) for one in (path, layers))
        self.part: dict[str, tuple[str, dict[Key, list[str]]]] = {}

    @property
    def held(self) -> set[Key]:
        """Returns the keys whose rows are complete."""
        return self.rows.held

    def begin(self, done: set[Key]) -> None:
        self.rows.keep(done)
        self.layers.keep(done)

    def load(self, path: str) -> None:
        """Loads the tables of one part for write()."""
        self.part = {}
        for name, one in (("rows", path), ("layers", path.removesuffix(".csv") + LAYERS)):
            if os.path.exists(one):
                header, rows = read_lines(one)
                by_key: dict[Key, list[str]] = {}
                for key, line in rows:
                    by_key.setdefault(key, []).append(line)
                self.part[name] = header, by_key

    def ratio(self, key: Key) -> float | None:
        """Returns the bytes of a key's caches in the loaded part over their full bytes; None if a head has none."""
        header, rows = self.part["rows"]
        cells = csv.DictReader([header, *rows.get(key, [])])
        sizes = [(row["bytes"], row["full_bytes"]) for row in cells]
        if not sizes or any("" in size for size in sizes):
            return None
        return sum(float(one) for one, _ in sizes) / sum(float(full) for _, full in sizes)

    def write(self, key: Key) -> None:
        """Writes the rows of a key in the loaded part; its scores are written afterwards."""
        for name, (header, rows) in self.part.items():
            if name == "rows" and key not in rows:
                raise TraceError(f"kvbench replay: {' '.join(key)}: got no row, expected one per head")
            getattr(self, name).write(header, rows.get(key, []))

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.rows.close(self.rows.header)
        self.layers.close(self.layers.header)
