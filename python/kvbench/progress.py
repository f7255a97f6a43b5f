"""Progress of long runs: a line with the time left on a terminal; elsewhere a whole line from time to time."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from typing import Any

from kvbench.text import printable, printable_lines

WIDTH = 110  # columns
EVERY = 10.0  # seconds between lines
SHARE = 0.05  # of the time spent, which long runs are silent at most


def minutes(seconds):
    """Returns seconds as 0:07 or 81:30."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def note(text: object, stream: Any = None) -> None:
    """Prints lines on stderr."""
    print(printable_lines(text), file=stream or sys.stderr, flush=True)


class Progress:
    """Context manager that shows progress and clears the line on exit.

    total    amount of work, in any unit
    stream   output
    clock    returns seconds
    """

    current = None  # the one whose work goes on

    def __init__(self, total, stream=None, clock=time.monotonic):
        self.total, self.done, self.text = total, 0, ""
        self.stream, self.clock = stream or sys.stderr, clock
        self.terminal = self.stream.isatty()
        self.begin = self.said = clock()

    def spent(self):
        return self.clock() - self.begin

    def left(self):
        """Returns the estimated seconds left; None before the first step."""
        if not self.done:
            return None
        return max(self.spent() / self.done * (self.total - self.done), 0.0)

    def step(self, amount, text):
        """Adds `amount` to the finished work. text: current item."""
        self.done, self.text = self.done + amount, text
        if self.terminal or self.clock() - self.said >= max(EVERY, SHARE * self.spent()):
            left = self.left()
            line = f"{minutes(self.spent())} so far" if left is None else f"{minutes(left)} left"
            (self._show if self.terminal else self.write)(f"{line}  {printable(text)}")

    def write(self, text):
        """Prints a permanent line."""
        self._clear()
        self.said = self.clock()
        note(text, self.stream)

    def _show(self, line):
        print(f"\r{line[:WIDTH]:<{WIDTH}}", end="", file=self.stream, flush=True)

    def _clear(self):
        if self.terminal:
            print(f"\r{'':<{WIDTH}}\r", end="", file=self.stream, flush=True)

    def __enter__(self):
        Progress.current = self
        return self

    def __exit__(self, *_):
        Progress.current = None
        self._clear()


@contextlib.contextmanager
def heartbeat(name, every=EVERY):
    """Says that the program `name` goes on: from a thread, at least every ten seconds where its Progress is silent."""
    stop, alone = threading.Event(), Progress(0)

    def beat():
        while not stop.wait(every / 10):
            now = Progress.current or alone
            if now is not alone:
                alone.said = alone.clock()
            if now is not alone or alone.clock() - alone.said >= every:
                now.step(0, now.text or name)
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if alone.text:
            alone._clear()


@contextlib.contextmanager
def silence():
    """No heartbeat meanwhile: another program says its own progress."""
    before, Progress.current = Progress.current, Progress(0, io.StringIO())
    try:
        yield
    finally:
        Progress.current = before


class _NoBar:
    def update(self, amount: int = 1) -> None:
        """Shows nothing."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def progress_bar(total: int, text: str, show: bool | None = None) -> Any:
    """Returns tqdm's bar, or a context manager that shows nothing. show None: on a terminal or in a notebook."""
    if show is None:
        show = "ipykernel" in sys.modules or sys.stderr.isatty()
    if not show:
        return _NoBar()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _NoBar()
    return tqdm(total=total, desc=printable(text), leave=False)
