"""Steps of kvbench-study reference: their files, and interruptible commands.

A folder of a step or report holds begun.json while it runs and done.json once complete:
dependencies (`inputs`), program, commands and seconds. There is no other state.
"""

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from kvbench.text import parse_json
from kvbench_study.reference import plan as rp
from kvbench_study.reference import sources, store

INTERRUPTED = 130
LOCK_PATIENCE = 20.0  # s; the last command of a killed run needs time to end
PR_SET_PDEATHSIG = 1
# Equal sources in two commits mean equal programs.
SOURCES = ("lib", "apps", "CMakeLists.txt", "cmake")
# Fixes the kernels of torch: with a fixed number of threads a trace has the same bits on most
# machines. For plans whose [trace] has `threads`.
STEADY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}


def say(text):
    print(f"reference: {text}", flush=True)


def duration(seconds):
    """Formats 40 s, 12 min, 2 h 05 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def read_json(path):
    """Returns the content of a file; None if absent or truncated."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_json(file.read())
    except (OSError, ValueError):
        return None


def write_text(path, text):
    """Writes a file atomically."""
    store.write_bytes(path, text.encode())


def write_json(path, value):
    write_text(path, json.dumps(value, indent=1) + "\n")


class Failed(rp.PlanError):
    """A command failed; its exit code is passed on."""


class Commands:
    """Runs one command at a time. SIGINT and SIGTERM are passed on to it, and then end this
    process.

    The command also ends if this process is killed. It shares the lock, so that no other run can
    begin before.
    """

    def __init__(self):
        self.child, self.stopped, self.lock_file = None, False, None
        self.environments = {}  # {program: {variable: value}} in addition to ours

    def catch(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)

    def on_signal(self, _number, _frame):
        again, self.stopped = self.stopped, True
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL if again else signal.SIGINT)

    def lock(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.lock_file = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
        end = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise rp.PlanError(f"{folder}: another run is at work there") from None
                self.check()
                time.sleep(0.1)

    def check(self):
        if self.stopped:
            raise Failed("interrupted; the same command goes on from here", INTERRUPTED)

    def run(self, words, log, typed, output=None, rows=False):
        """Returns exit code 0 or, for a command with failed rows, 1. Raises Failed for others.

        log: file for the output; output: file for stdout; rows: exit code 1 means failed rows, as
        for `kvbench replay`.
        """
        self.check()
        environment = {**os.environ, **self.environments.get(words[0], {})}
        # Manifests repeat these words: keep local paths out.
        words = [word.replace(rp.ROOT + os.sep, "") for word in words]
        libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

        def begin():
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        with open(log, "ab") as said:
            start = said.tell()
            stdout = open(output, "wb") if output else said
            try:
                self.child = subprocess.Popen(
                    words, cwd=rp.ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=said,
                    env=environment, start_new_session=True, pass_fds=[self.lock_file], preexec_fn=begin)
            except OSError as error:
                raise Failed(f"{typed}: cannot be started: {error.strerror}", 3) from None
            finally:
                if output:
                    stdout.close()
            if self.stopped:  # the signal came before there was a child
                self.on_signal(None, None)
            code = self.child.wait()
            self.child = None
        self.check()
        if code == 0 or (code == 1 and (rows or words[1] == "replay")):
            return code
        with open(log, "rb") as file:
            file.seek(start)
            tail = file.read().decode(errors="replace").strip().splitlines()[-5:]
        for line in tail:
            print(f"  {line}", file=sys.stderr)
        raise Failed(f"exit code {code} of: {typed}", code if code in (1, 2, 3) else 3)


class Program:
    """kvbench: {version, sha256}, and whether a step of another program is still valid."""

    def __init__(self, path):
        found = shutil.which(path)
        if found is None:
            raise rp.PlanError(f"{path}: no such program; `make` builds it", 3)
        self.path = os.path.abspath(found)
        try:
            version = subprocess.run([self.path, "--version"], capture_output=True, text=True,
                                     check=True).stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            raise rp.PlanError(f"{path}: is no kvbench", 3) from None
        self.now = {"version": version, "sha256": rp.file_digest(self.path)}
        self.known = {}

    def same(self, other):
        """Returns whether bytes are equal, or both are clean commits without changed sources in
        between.
        """
        if not isinstance(other, dict):
            return False
        if other.get("sha256") == self.now["sha256"]:
            return True
        key = other.get("version", "")
        if key not in self.known:
            commits = [re.search(r" \(([0-9a-f]{40})\)$", text) for text in
                       (key, self.now["version"])]
            self.known[key] = all(commits) and subprocess.run(
                ["git", "diff", "--quiet", commits[0][1], commits[1][1], "--", *SOURCES],
                cwd=rp.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                check=False).returncode == 0
        return self.known[key]


class Steps:
    """Every (prompt, stage) and trace: dependencies, state and execution."""

    def __init__(self, plan, placeholders, program, commands):
        self.plan, self.placeholders = plan, placeholders
        self.program, self.commands = program, commands
        self.digests = {}
        if plan.threads:
            commands.environments[placeholders.programs[2]] = {**STEADY,
                                                         "OMP_NUM_THREADS": str(plan.threads)}

    def digest(self, path):
        if path not in self.digests:
            self.digests[path] = rp.file_digest(path)
        return self.digests[path]

    def trace_inputs(self, prompt):
        """Returns a trace's dependencies. The model is identified by its small files and the size
        of its weights.
        """
        folder = os.path.join(rp.ROOT, self.plan.model["folder"])
        return {"prompt": prompt.digest, "layers": list(self.placeholders.layers),
                "run": list(self.plan.trace), **self.threads(),
                "model": {name: self.model_file(os.path.join(folder, name))
                          for name in self.plan.model["files"]}}

    def threads(self):
        return {"threads": self.plan.threads} if self.plan.threads else {}

    def model_file(self, path):
        if not os.path.exists(path):
            return "absent"
        size = os.path.getsize(path)
        return size if size > 1 << 24 else self.digest(path)

    def inputs(self, stage, prompt):
        """Returns a step's dependencies without the program."""
        files = {word: self.digest(os.path.join(rp.ROOT, word)) for word in stage.options
                 if word.endswith(".toml")}
        layers = [n for n in stage.layers if n in self.placeholders.layers]
        more = {key: list(getattr(stage, key)) for key in ("algorithms", "budgets")
                if getattr(stage, key)}
        return {"trace": self.trace_inputs(prompt), "kind": stage.kind,
                "options": list(stage.options), **more, "layers": layers, "configs": files,
                "needs": {need: self.inputs(self.plan.stages[need], prompt)
                          for need in stage.needs}, **self.read_of_reports(stage),
                **self.second_command(stage)}

    def second_command(self, stage):
        """Returns `then` with digests of its scripts and their imports, or the scripts of
        `score`.
        """
        found = self.scripts(stage)
        if not stage.then:
            return {"scripts": found} if found else {}
        return {"then": list(stage.then), "drop": list(stage.drop), "scripts": found}

    def scripts(self, stage):
        """Returns {file: digest} of the Python that a step runs."""
        scripts = sources.named(stage.options if stage.kind == "score" else stage.then)
        found = {}
        for script in scripts:  # grows on the way
            found[script] = self.digest(os.path.join(rp.ROOT, script))
            scripts += [other for other in sources.imported(script) if other not in scripts]
        return found

    def read_of_reports(self, stage):
        """Returns digests of the reports' files that a stage reads; they change during a run."""
        files = {match[0]: os.path.join(self.placeholders.report_folder(match[1]), match[2])
                 for word in stage.options for match in rp.TABLE.finditer(word)
                 if match[1] in stage.after}
        return {"reports": {name: rp.file_digest(path) if os.path.exists(path) else "absent"
                            for name, path in files.items()}} if files else {}

    def folder(self, stage, prompt):
        return self.placeholders.folder(stage.name, prompt.id)

    def done(self, stage, prompt):
        """Returns the step's done.json if it is still valid, otherwise None."""
        found = read_json(os.path.join(self.folder(stage, prompt), "done.json"))
        if (found and found.get("inputs") == self.inputs(stage, prompt)
                and self.program.same(found.get("program"))):
            return found
        return None

    def holds(self, stage, prompt):
        """Returns a digest of a finished step, for reports that read it."""
        return rp.file_digest(os.path.join(self.folder(stage, prompt), "done.json"))

    def manifest(self, stage, prompt):
        name = "cluster.json" if stage.kind == "cluster" else rp.ROWS + ".json"
        return read_json(os.path.join(self.folder(stage, prompt), name)) or {}

    def took(self, stage, prompt):
        """Returns seconds of the step with the current number of layers; None if not done."""
        found = read_json(os.path.join(self.folder(stage, prompt), "done.json"))
        return (found["seconds"] if found and found.get("layers") == len(self.placeholders.layers)
                else None)

    def has_trace(self, prompt):
        path = self.placeholders.trace(prompt.id)
        found = read_json(path + ".json")
        return bool(found and found.get("inputs") == self.trace_inputs(prompt)
                    and os.path.isfile(path))

    def lacks_model(self):
        """Returns the model's first missing file."""
        folder = os.path.join(rp.ROOT, self.plan.model["folder"])
        return next((name for name in self.plan.model["files"]
                     if not os.path.isfile(os.path.join(folder, name))), None)

    def make_model(self):
        typed = self.placeholders.typed(list(self.plan.model["run"]))
        say(f"the model: {typed}")
        os.makedirs(self.placeholders.work, exist_ok=True)
        self.commands.run(list(self.plan.model["run"]), os.path.join(self.placeholders.work, "model.log"),
                          typed)
        if self.lacks_model():
            raise Failed(f"{typed}: left no {self.plan.model['folder']}/{self.lacks_model()}", 3)
        self.digests.clear()

    def make_trace(self, prompt):
        """Returns the seconds it took."""
        path = self.placeholders.trace(prompt.id)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.drop_trace(prompt)
        words = self.placeholders.trace_words(prompt)
        start = time.monotonic()
        self.commands.run(words, os.path.join(os.path.dirname(path), prompt.id + ".log"),
                          self.placeholders.typed(words))
        seconds = time.monotonic() - start
        if not os.path.isfile(path):
            raise Failed(f"left no trace: {self.placeholders.typed(words)}", 3)
        write_json(path + ".json", {"inputs": self.trace_inputs(prompt)})
        # separate, since times outlive traces
        write_json(path.removesuffix(".h5") + ".done.json",
                   {"layers": len(self.placeholders.layers), "seconds": round(seconds, 2)})
        return seconds

    def drop_trace(self, prompt):
        trace = self.placeholders.trace(prompt.id)
        for path in (trace + ".json", trace, trace + ".tmp"):
            if os.path.exists(path):
                os.remove(path)

    def run(self, stage, prompt):
        """Runs the rest of one step. Returns its done.json."""
        folder = self.folder(stage, prompt)
        begun, finished = (os.path.join(folder, name) for name in ("begun.json", "done.json"))
        now = {"inputs": self.inputs(stage, prompt), "program": self.program.now}
        words = self.placeholders.stage_words(stage, prompt, folder)
        found = self.begin_or_go_on(stage, prompt, folder, words, now)
        write_json(finished, found)
        os.remove(begun)
        return found

    def begin_or_go_on(self, stage, prompt, folder, words, now):
        """Runs a step in its folder, resuming if begun.json equals `now`. Returns its done.json."""
        begun = os.path.join(folder, "begun.json")
        resumed = stage.kind != "cluster" and read_json(begun) == now
        # A replay that was killed has left its log.
        resumed = resumed and any(os.path.isfile(os.path.join(folder, rp.ROWS + end)) for end in ("", ".log"))
        if resumed:
            more = ["--resume"] if stage.kind == "replay" else []
            try:
                return {**now, **self.execute(stage, prompt, folder, [*words, *more]),
                        "seconds": None}
            except Failed as error:
                # A regenerated trace may differ in a last digit: the rows cannot be resumed.
                if error.exit_code != 2:
                    raise
                say(f"{prompt.id} {stage.name}: begins anew")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        write_json(begun, now)
        start = time.monotonic()
        found = self.execute(stage, prompt, folder, words)
        return {**now, **found, "seconds": round(time.monotonic() - start, 2)}

    def execute(self, stage, prompt, folder, words):
        """Runs a step's commands in a folder: returns {command, code, layers}."""
        log = os.path.join(folder, "log.txt")
        typed = self.placeholders.typed(words)
        code = self.commands.run(words, log, typed, rows=stage.kind == "score")
        if stage.then:
            second = self.placeholders.then_words(stage, prompt, folder)
            code |= self.commands.run(second, log, self.placeholders.typed(second), rows=True)
        expected = {"replay": rp.ROWS + ".json", "cluster": "cluster.json", "score": rp.ROWS}
        if not os.path.isfile(os.path.join(folder, expected[stage.kind])):
            raise Failed(f"left no {expected[stage.kind]}: {typed}", 3)
        # Before the step counts as done, so that no file is left after a kill.
        for name in stage.drop:
            if os.path.exists(os.path.join(folder, name)):
                os.remove(os.path.join(folder, name))
        return {"command": typed, "code": code, "layers": len(self.placeholders.layers)}
