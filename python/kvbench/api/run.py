"""Runs of the program `kvbench`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import warnings
from typing import TYPE_CHECKING, Any

from kvbench import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Some rows failed; the table is complete.
SOME_FAILED = 1


class ProgramError(Exception):
    """The program failed or was not found. exit_code: None if it did not run."""

    def __init__(self, text: str, exit_code: int | None = None):
        super().__init__(text)
        self.exit_code = exit_code


def program() -> str:
    """Returns the program's path: $KVBENCH, build/kvbench of the repository, the one installed with this package,
    or the first `kvbench` on the PATH. Raises ProgramError.
    """
    if os.environ.get("KVBENCH"):
        return os.environ["KVBENCH"]
    own = [os.path.join(sysconfig.get_path("scripts", scheme), "kvbench")
           for scheme in (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))]
    if os.path.isfile(os.path.join(ROOT, "python", "kvbench", "__init__.py")):
        own.insert(0, os.path.join(ROOT, "build", "kvbench"))
    for path in own:
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("kvbench")
    if found is None:
        raise ProgramError(f"no program `kvbench`: neither {' nor '.join(own)}, nor one on the PATH; "
                           "`make` builds it, and KVBENCH names another")
    return found


def options_of(options: dict[str, Any]) -> list[str]:
    """Returns command-line options: `per_query=True` is --per-query, `per_query="all"` is --per-query=all,
    `budget=[0.5, 0.25]` is --budget=0.5,0.25, `algorithm={"snapkv": {"window": [32, 64]}, "h2o": {}}` is
    --algorithm=snapkv:window=32,64 --algorithm=h2o; None and False are omitted.
    """
    out = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        option = "--" + name.rstrip("_").replace("_", "-")
        if isinstance(value, dict):
            out += [f"{option}={spec_of(one, params)}" for one, params in value.items()]
        else:
            out.append(option if value is True else f"{option}={text_of(value)}")
    return out


def text_of(value: Any) -> str:
    """Returns a value of an option, or a list of values."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def spec_of(name: str, params: Mapping[str, Any]) -> str:
    """Returns `NAME:KEY=VALUE;...`, a method of --algorithm. name: with or without parameters."""
    parts = name.partition(":")[2:] if ":" in name else ()
    text = ";".join([*parts, *(f"{key}={text_of(value)}" for key, value in params.items())])
    return name.partition(":")[0] + ":" * bool(text) + text


def path_list(paths: str | os.PathLike | Iterable[str | os.PathLike]) -> list[str]:
    """Returns one path or several as a list."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def run(*arguments: str | os.PathLike, **options: Any) -> str:
    """Runs `kvbench ARGUMENTS OPTIONS` and returns its stdout. options: see options_of.

    Notes become warnings (UserWarning). Raises ProgramError with the program's message.
    """
    command = [program(), *path_list(arguments), *options_of(options)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProgramError(f"{command[0]}: cannot be run: {error.strerror}") from None
    if done.returncode not in (0, SOME_FAILED):
        raise ProgramError(done.stderr.strip() or f"{command[0]}: ended with {done.returncode}", done.returncode)
    for line in done.stderr.splitlines():
        if line.startswith("note: "):
            warnings.warn(line.removeprefix("note: "), stacklevel=2)
    return done.stdout
