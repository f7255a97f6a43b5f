"""Figures in a caller's process: tables in, a Picture out, no output.

    from kvbench.plot import pareto

    rows = kvbench.replay("t.h5", algorithm="snapkv,h2o", budget="0.5,0.25")
    picture = pareto.figure(rows, highlight=["snapkv"])  # a matplotlib Figure
    picture.savefig("pareto.pdf", bbox_inches="tight")

Every drawing module of kvbench.plot has such a `figure`. pyplot, its backend, rcParams and
sys.stderr are unaffected; notes go to the logger `kvbench`, level INFO. The programs call the same
functions, with notes on stderr.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, TypeVar, Union

import pandas as pd

from kvbench import tables as kt
from kvbench.plot import figures as kf

if TYPE_CHECKING:
    import argparse

# A file (or folder of `kvbench cluster`), a frame of kvbench.read_results, or related frames:
# {"rows": OUT.csv, "queries" or "steps": the side table} or the tables of a folder {"coverage":
# ..., "delta": ..., "growth": ...}.
Table: TypeAlias = Union[str, "os.PathLike[str]", pd.DataFrame, Mapping[str, pd.DataFrame]]
Tables: TypeAlias = Table | Sequence[Table]
Names: TypeAlias = str | Sequence[str]  # `a,b`, or a list
Rest = ParamSpec("Rest")
Drawn = TypeVar("Drawn")

# rcParams and kt.note are global: one figure at a time.
_ONE = threading.RLock()


def public(draw: Callable[Concatenate[list[str], Rest], Drawn]
           ) -> Callable[Concatenate[Tables, Rest], Drawn]:
    """Decorator of `figure(tables, *, ...)`, whose body takes a list of paths.

    The function takes any Tables and prints nothing. Raises kvbench.CsvError for unsuitable tables,
    ValueError for arguments.
    """
    @functools.wraps(draw)
    def drawn(tables: Tables, *args: Rest.args, **options: Rest.kwargs) -> Drawn:
        with _ONE, _notes_logged(), tempfile.TemporaryDirectory(prefix="kvbench-") as folder:
            paths, names = paths_of(tables, folder)
            try:
                return draw(paths, *args, **options)
            except kt.CsvError as error:
                raise type(error)(_renamed(str(error), names)) from None
    signature = inspect.signature(draw)
    first, *others = signature.parameters.values()
    setattr(drawn, "__signature__", signature.replace(  # noqa: B010  (mypy knows no such attribute)
        parameters=[first.replace(annotation="Tables"), *others]))
    return drawn


def run(figure: Callable[..., kf.Picture], options: argparse.Namespace) -> None:
    """Draws from command.argument_parser's options, and writes the files and the caption. Notes go
    to stderr. Raises CsvError, DeviceError.
    """
    given = dict(vars(options))
    inputs, output, caption = (given.pop(name) for name in ("inputs", "output", "caption"))
    picture = inspect.unwrap(figure)(inputs, **given)
    kf.save_figure(picture, output)
    if caption:
        try:
            with open(caption, "w", encoding="utf-8") as file:
                file.write(picture.caption + "\n")
        except OSError as error:
            raise kt.CsvError(f"{caption}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _notes_logged() -> Iterator[None]:
    """Sends notes of kvbench.tables to the logger `kvbench`."""
    before, log = kt.note, logging.getLogger("kvbench")
    setattr(kt, "note", lambda text: log.info("%s", text))  # noqa: B010  (mypy: a function is no variable)
    try:
        yield
    finally:
        setattr(kt, "note", before)  # noqa: B010


def paths_of(tables: Tables, folder: str) -> tuple[list[str], dict[str, str]]:
    """Returns (a path for each table, {path: its name in errors}); frames are written into
    `folder`.
    """
    alone = (str, os.PathLike, pd.DataFrame, Mapping)
    items = list(tables) if isinstance(tables, Iterable) and not isinstance(tables, alone) else [tables]
    if not items:
        raise ValueError("tables: got none, expected at least one")
    paths: list[str] = []
    names: dict[str, str] = {}
    for i, item in enumerate(items):
        if isinstance(item, (str, os.PathLike)):
            paths.append(os.fspath(item))
            continue
        place = os.path.join(folder, str(i))
        os.mkdir(place)
        if isinstance(item, pd.DataFrame):
            item = {"rows": item}
        if not isinstance(item, Mapping) or not all(isinstance(v, pd.DataFrame)
                                                    for v in item.values()):
            raise ValueError(f"tables: got {type(item).__name__}, expected a path, a DataFrame or "
                             "a mapping of DataFrames")
        called = f"table {i + 1}" if len(items) > 1 else "the table"
        for name, frame in item.items():
            file = "out.csv" if name == "rows" else f"out.{name}.csv"
            path = os.path.join(place, file if "rows" in item else name + ".csv")
            frame.to_csv(path, index=False)
            names[path] = called if name == "rows" else f"{called} `{name}`"
        names[place] = called
        paths.append(place if "rows" not in item else os.path.join(
            place, "out.queries.csv" if "queries" in item else "out.csv"))
    return paths, names


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def name_list(names: str | Iterable[str]) -> list[str]:
    """Returns names as a list; text is split at commas."""
    return [part for part in names.split(",") if part] if isinstance(names, str) else list(names)


def check_choice(option: str, value: str, allowed: Iterable[str]) -> None:
    """Raises ValueError unless `value` is one of `allowed`."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{option}: got `{value}`, expected one of {', '.join(allowed)}")


def check_count(option: str, value: int) -> None:
    """Raises ValueError unless `value` is at least 1."""
    if value < 1:
        raise ValueError(f"{option}: got {value}, expected a number above 0")


def options_of(defaults: argparse.Namespace, more: Mapping[str, object]) -> argparse.Namespace:
    """Returns a program's options with some replaced. Raises ValueError for an unknown one."""
    unknown = sorted(set(more) - set(vars(defaults)))
    if unknown:
        raise ValueError(f"{unknown[0]}: no such argument; expected some of "
                         + ", ".join(sorted(vars(defaults))))
    vars(defaults).update(more)
    return defaults
