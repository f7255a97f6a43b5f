"""`kvbench-py PROGRAM ...` (kvbench.programs)."""

from __future__ import annotations

import os
import sys

import kvbench
from kvbench import programs
from kvbench.progress import heartbeat
from kvbench.text import one_line


def run(words: list[str], commands: programs.Commands = programs.COMMANDS) -> int:
    """Runs a program and returns its exit code (docs/cli.md); prints an error as one line on stderr."""
    if not words or words[-1] in ("-h", "--help") and len(words) < 3 and commands.begin_with(words[:-1]):
        print(commands.help_text(words[:-1]), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words == ["--version"]:
        print(f"{commands.name} {kvbench.__version__}")
        return 0
    try:
        name, rest = commands.find(words)
    except LookupError as error:
        print(one_line(str(error.args[0])), file=sys.stderr)
        return 2
    sys.argv = [f"{commands.name} {name}", *rest]
    os.environ.setdefault("MPLBACKEND", "Agg")  # no window is opened
    from kvbench.command import run_main
    return run_main(lambda: commands.main_of(name)())


def main() -> None:
    words = sys.argv[1:]
    with heartbeat(" ".join([programs.NAME, *words[:1]])):
        code = run(words)
    sys.exit(code)


if __name__ == "__main__":
    main()
