"""Progress of long runs: a line with the time left on a terminal, otherwise complete lines only."""

from __future__ import annotations

import sys
import time
from typing import Any

from kvbench.text import printable, printable_lines

WIDTH = 110  # columns


def minutes(seconds):
    """Returns seconds as 0:07 or 81:30."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Context manager that shows progress and clears the line on exit.

    total    amount of work, in any unit
    stream   output; the progress line is for terminals only
    clock    returns seconds
    """

    def __init__(self, total, stream=None, clock=time.monotonic):
        self.total, self.done = total, 0
        self.stream, self.clock = stream or sys.stderr, clock
        self.terminal = self.stream.isatty()
        self.begin = clock()

    def spent(self):
        return self.clock() - self.begin

    def left(self):
        """Returns the estimated seconds left; None before the first step."""
        if not self.done:
            return None
        return max(self.spent() / self.done * (self.total - self.done), 0.0)

    def step(self, amount, text):
        """Adds `amount` to the finished work. text: current item."""
        self.done += amount
        if self.terminal:
            self._show(f"{minutes(self.left())} left  {printable(text)}")

    def write(self, text):
        """Prints a permanent line."""
        self._clear()
        print(printable_lines(text), file=self.stream, flush=True)

    def _show(self, line):
        print(f"\r{line[:WIDTH]:<{WIDTH}}", end="", file=self.stream, flush=True)

    def _clear(self):
        if self.terminal:
            print(f"\r{'':<{WIDTH}}\r", end="", file=self.stream, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._clear()


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
