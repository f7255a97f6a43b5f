"""Steps that write files in one folder. A step is done again only if it or its inputs changed, or its files."""

import collections
import csv
import json
import os
import signal
import subprocess
import sys
import time

import kvbench
from kvbench.api.run import SOME_FAILED
from kvbench.errors import CsvError
from kvbench.hashing import file_sha256
from kvbench.progress import minutes, note, silence
from kvbench.records import read_json, replace_text
from kvbench.text import counted, parse_json

RECORD = "steps.json"  # {step: {"inputs": what it was made from, "outputs": {file: SHA-256} once it is whole}}


class StepFailed(CsvError):
    """A program of a step failed, and has said why."""

    def __init__(self, text, code):
        super().__init__(text)
        self.exit_code = code if code in (2, 3, 130) else 3


class Steps:
    """`total` steps in a folder, which is made. Raises CsvError for a folder of other files."""

    def __init__(self, folder, total):
        self.folder, self.total, self.at = folder, total, 0
        self.record = self.path(RECORD)
        if os.path.exists(self.record):
            self.known = read_json(self.record, CsvError)
            if not isinstance(self.known, dict) or not all(isinstance(one, dict) for one in self.known.values()):
                raise CsvError(f"{self.record}: got no record of steps, expected that of an earlier run")
        else:
            self.known = {}
            if os.path.isdir(folder) and os.listdir(folder):
                raise CsvError(f"{folder}: got a folder without {RECORD}, expected that of an earlier run or a new one")
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise CsvError(f"{folder}: cannot be made: {error.strerror}") from None

    def path(self, name):
        return os.path.join(self.folder, name)

    def save(self):
        replace_text(self.record, json.dumps(self.known, indent=1))

    def whole(self, name, inputs):
        """Returns whether the step was made from these inputs, and its files are as it wrote them."""
        known = self.known.get(name, {})
        outputs = known.get("outputs")
        return bool(outputs) and known["inputs"] == inputs and all(
            os.path.isfile(self.path(file)) and file_sha256(self.path(file)) == value
            for file, value in outputs.items())

    def begin(self, name):
        """Returns how the next step is called."""
        self.at += 1
        return f"[{self.at}/{self.total}] {name}"

    def always(self, name, about):
        """Says that a step begins which is done each time."""
        note(f"{self.begin(name)}: {about}")

    def run(self, name, about, work, outputs, **inputs):
        """Does `work(begun)` unless the step is whole. begun: an interrupted run of the same inputs left files, which
        are not those of a whole step that somebody changed.
        """
        inputs, where = parse_json(json.dumps(inputs)), self.begin(name)
        if self.whole(name, inputs):
            note(f"{where}: is there")
            return
        begun, begin = self.known.get(name) == {"inputs": inputs}, time.monotonic()
        note(f"{where}: {about}{', goes on' if begun else ''}")
        self.known[name] = {"inputs": inputs}
        self.save()
        with silence():
            work(begun)
        self.known[name]["outputs"] = {os.path.basename(path): file_sha256(path) for path in outputs}
        self.save()
        note(f"{where}: {minutes(time.monotonic() - begin)}")


def failed_rows(table):
    """Returns lines that say which rows of a table failed; none without a table."""
    if not os.path.isfile(table):
        return []
    with open(table, encoding="utf-8", newline="") as file:
        found = collections.Counter((row["prompt"], row["algorithm"], row["budget_requested"], row["status"])
                                    for row in csv.DictReader(file) if row["status"].startswith("failed"))
    return [f"{table}: prompt {prompt}, {algorithm} at {budget}: {counted(count, 'row')}: {status}"
            for (prompt, algorithm, budget, status), count in found.items()]


def call(*words, table=""):
    """Runs a program, whose stdout is stderr here. table: of rows, which may have failed. Raises StepFailed."""
    source = os.path.dirname(os.path.dirname(kvbench.__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    try:
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, env=env) as child:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)  # it keeps what is finished
                child.wait()
                raise
    except OSError as error:
        raise StepFailed(f"{words[0]}: cannot be run: {error.strerror}", 2) from None
    failed = failed_rows(table) if code == SOME_FAILED else []
    for line in failed:
        note(line)
    if code and not failed:
        raise StepFailed(f"the step ended with exit code {code}; the same command goes on from there", code)


def kvbench_py(*words, table=""):
    call(sys.executable, "-m", "kvbench", *words, table=table)
