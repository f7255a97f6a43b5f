"""Commands of kvbench-study reference, which may be interrupted, and small files."""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from kvbench.text import parse_json
from kvbench_study.reference import plan as rp
from kvbench_study.reference import store

INTERRUPTED = 130
LOCK_PATIENCE = 20.0  # s; the last command of a killed run needs time to end
PR_SET_PDEATHSIG = 1


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
    """kvbench. now: {version, sha256}."""

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
