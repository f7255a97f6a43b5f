"""What makes a function of frames a kind of figure: checked options, and `kvbench-py plot KIND`.

The program's options are the keyword arguments of the function; OPTIONS describes them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias

import pandas as pd

from kvbench import command
from kvbench import tables as kt
from kvbench.cluster.tables import table_files
from kvbench.outputs import check_outputs, opened
from kvbench.plot import figures as kf
from kvbench.text import list_parts

Names: TypeAlias = str | Sequence[str]  # `a,b`, or a list
Args = ParamSpec("Args")

# rcParams are global: one figure at a time.
_ONE = threading.RLock()

_NAMES = ("algorithm", "highlight", "labels", "marked", "what")  # options that hold names
_NUMBERS = {"type": command.number_list}
_COUNT = {"type": command.count, "metavar": "N"}
OPTIONS: dict[str, dict[str, Any]] = {
    "y": {"metavar": "COLUMN", "help": "column that is drawn"},
    "x": {"help": "the x axis"},
    "kind": {"help": "error over bytes, tokens against bits, keys' bits against values', or engines' types over bytes"},
    "spread": {"help": "standard deviation over seeds, or over all rows"},
    "algorithm": {"metavar": "NAME,...", "help": "only these [default: all]"},
    "all": {"help": f"draw every line [default: at most {kf.MOST}, the references and those with the "
                    "smallest error at the smallest budget]"},
    "layers": {**command.INDICES, "help": "only these [default: all, or as many as fit]"},
    "kv_heads": {**command.INDICES, "help": "[default: the first]"},
    "mean_over_layers": {"help": "one panel with the mean over layers"},
    "by_layer": {"help": "panels per layer; of many layers the mean, and maps of all"},
    "by": {"help": "a panel per budget (over all layers) or per layer, which needs one budget"},
    "highlight": {"metavar": "NAME,...", "help": "methods or labels; all others are grey"},
    "relative_to": {"metavar": "METHOD", "help": "divide each point by that of this method at the same "
                                                 "budget, layer or step"},
    "pool": command.POOL,
    "budget": {**_NUMBERS, "metavar": "RHO,...", "help": "only these [default: all]"},
    "deltas": {**_NUMBERS, "metavar": "X,...", "help": "lines to draw, in the legend's numbers [default: all, "
                                                       "or five evenly spaced ones of more]"},
    "bins": {"type": command.positive, "metavar": "N", "help": "maximum number of points per line"},
    "mean": {"help": "lines are means, not medians"},
    "band": {"help": "shade the spread"},
    "log_y": {"help": "logarithmic y axis"},
    "linear_y": {"help": "linear error axis"},
    "share_y": {"help": "one error scale for all layers"},
    "labels": {"metavar": "LABEL,...", "help": "panels: algorithms, with what of their budgets, parameters and "
                                               "seeds differs [default: the first four]"},
    "prompt": {"metavar": "ID", "help": "[default: the first]"},
    "what": {"metavar": "keys,values", "help": "[default: both, with --marked keys]"},
    "marked": {"metavar": "LABEL,...", "help": "mark the tokens that these kept (labels of column kept_by)"},
    "color_by": {"help": "kind: tokens, centres, kept; position: of the token"},
    "max_points": {**_COUNT, "help": "about N evenly spaced tokens per picture, and all centres; 0: all; t-SNE of 2000 "
                                     "tokens takes some 15 s"},
    "perplexity": {"type": float, "help": "neighbours that t-SNE looks at"},
    "seed": {**_COUNT, "help": "t-SNE's random state"},
    "jobs": {**_COUNT, "help": "embeddings at a time; no influence on the picture"},
    "title": {"metavar": "TEXT", "help": "above the figure"},
    "model": {"metavar": "MODEL", "help": "model name in the footer [default: that of the trace]"},
}


def read_rows(paths, **_):
    """Returns the rows of OUT.csv files."""
    return (kt.read_table(paths, ["schema", "algorithm", "params", "status"], kt.TEXT_COLUMNS),)


@dataclasses.dataclass(frozen=True)
class Kind:
    """How the program of a kind reads its files.

    read      paths and options to the function's frames
    inputs    placeholder of the files in the help; about: what they are
    defaults  of the program, where a caller's differ
    choices   {option: allowed values}
    """

    function: Callable[..., kf.Picture]
    read: Callable[..., tuple[Any, ...]]
    inputs: str
    about: str
    defaults: Mapping[str, Any]
    choices: Mapping[str, Iterable[str]]


KINDS: dict[str, Kind] = {}  # by the function's name


def kind(read: Callable[..., tuple[Any, ...]] = read_rows, inputs: str = "OUT.csv",
         about: str = "files of kvbench replay", defaults: Mapping[str, Any] | None = None,
         **choices: Iterable[str]) -> Callable[[Callable[Args, kf.Picture]], Callable[Args, kf.Picture]]:
    """Decorator of a figure's function: registers its Kind, and checks its options.

    The function raises ValueError for a value outside of `choices` and for counts below 1.
    """
    def decorate(function: Callable[Args, kf.Picture]) -> Callable[Args, kf.Picture]:
        sequences = sequences_of(function)

        @functools.wraps(function)
        def figure(*tables: Args.args, **options: Args.kwargs) -> kf.Picture:
            for name, allowed in choices.items():
                check_choice(name, options.get(name), allowed)
            check_count("bins", options.get("bins"))
            lists: dict[str, Any] = {name: listed(name, value, sequences) for name, value in options.items()}
            with _ONE:
                return function(*tables, **lists)

        KINDS[function.__name__] = Kind(figure, read, inputs, about, defaults or {}, choices)
        return figure
    return decorate


def draw(one: Kind, tables: Any, options: Mapping[str, Any]) -> kf.Picture:
    """Returns the figure of one frame, several of one kind, frames by parameter, or paths."""
    if isinstance(tables, Mapping):
        return one.function(**tables, **options)
    alone = isinstance(tables, (str, os.PathLike, pd.DataFrame)) or not isinstance(tables, Iterable)
    items = [tables] if alone else list(tables)
    if not items:
        raise ValueError("tables: got none, expected at least one")
    if all(isinstance(item, pd.DataFrame) for item in items):
        beside = side_paths(one, items)
        if beside is None:
            return one.function(items[0] if len(items) == 1 else kt.joined(items), **options)
        items = beside
    if not all(isinstance(item, (str, os.PathLike)) for item in items):
        raise ValueError(f"tables: got {type(items[0]).__name__}, expected paths, DataFrames or a mapping of "
                         "DataFrames")
    given = {option.name: option.default for option in options_of(one)}
    sequences = sequences_of(one.function)
    given.update({name: listed(name, value, sequences) for name, value in options.items()})
    return one.function(*one.read([os.fspath(item) for item in items], **given), **options)


def side_paths(one: Kind, frames: list[pd.DataFrame]) -> list[str] | None:
    """Returns the files of a kind that draws side tables, beside those of frames of rows; None for other frames."""
    side = re.fullmatch(r"OUT\.(\w+)\.csv", one.inputs)
    taken = [each for each in inspect.signature(one.function).parameters.values()
             if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    paths = [path for frame in frames for path in frame.attrs.get("paths", ())]
    if not paths or not side and len(taken) == 1 or side and any(f".{side[1]}.csv" in path for path in paths):
        return None
    if any(len(frame) != sum(frame.attrs["rows"]) for frame in frames):
        raise ValueError(f"tables: got some rows of {paths[0]}, expected all: options choose what of its side table is "
                         "drawn")
    out = [kt.side_table(path, side[1]) if side else path for path in paths]
    for path in out:
        if not os.path.exists(path):
            option = {"queries": " with per_query=True", "kept": " with kept=True"}.get(side[1] if side else "", "")
            raise kt.CsvError(f"{path}: no such file, expected it beside the rows of a run{option}")
    return out


def options_of(one: Kind) -> list[inspect.Parameter]:
    """Returns the options of a kind's function."""
    return [each for each in inspect.signature(one.function).parameters.values() if each.kind is each.KEYWORD_ONLY]


def parser_of(one: Kind) -> argparse.ArgumentParser:
    """Returns the parser of `kvbench-py plot KIND`."""
    doc = sys.modules[one.function.__module__].__doc__
    parser = command.figure_parser(doc, one.inputs, one.about)
    for option in options_of(one):
        default = one.defaults.get(option.name, option.default)
        more = dict(OPTIONS[option.name])
        if option.annotation == "bool":
            more["action"] = "store_true"
        elif option.annotation == "float | None":
            more.update(type=command.number, metavar="RHO", help="[default: the smallest]")
        elif option.annotation == "bool | None":
            more.update(action=argparse.BooleanOptionalAction, default=None)
        else:
            more.setdefault("type", list_parts if option.name in _NAMES else str)
            more["default"] = default
            if option.name in one.choices:
                more["choices"] = list(one.choices[option.name])
                more["help"] += f": {', '.join(more['choices'])}" if "metavar" in more else ""
            if default not in ("", (), None, 0):
                more["help"] += f" [default: {default}]"
        parser.add_argument("--" + option.name.replace("_", "-"), **more)
    return parser


def of_module(module: types.ModuleType) -> Kind:
    """Returns the kind of a module of kvbench.plot.kinds."""
    return KINDS[module.__name__.rpartition(".")[2]]


def run(module: types.ModuleType) -> None:
    """Runs the program of a kind: reads the files, writes pictures and caption. Raises CsvError, DeviceError."""
    one = of_module(module)
    given = dict(vars(parser_of(one).parse_args()))
    inputs, output, caption = (given.pop(name) for name in ("inputs", "output", "caption"))
    check_outputs(table_files(inputs), [*command.picture_files(output), caption])
    picture = one.function(*one.read(inputs, **given), **given)
    kf.save_figure(picture, output)
    if caption:
        with opened(caption) as file:
            file.write(picture.caption + "\n")


def name_list(names: Names) -> list[str]:
    """Returns names as a list; text is split at commas."""
    return list_parts(names) if isinstance(names, str) else list(names)


def sequences_of(function: Callable[..., Any]) -> list[str]:
    """Returns the options of a figure's function that are sequences of numbers."""
    return [each.name for each in inspect.signature(function).parameters.values()
            if str(each.annotation).startswith("Sequence[")]


def listed(option: str, value: Any, sequences: Iterable[str]) -> Any:
    """Returns the value of an option: names, and a single number of `sequences`, as a list."""
    if option in _NAMES:
        return name_list(value)
    return [value] if option in sequences and isinstance(value, (int, float)) else value


def check_choice(option: str, value: Any, allowed: Iterable[str]) -> None:
    """Raises ValueError unless `value` is None or one of `allowed`."""
    allowed = list(allowed)
    if value is not None and value not in allowed:
        raise ValueError(f"{option}: got `{value}`, expected one of {', '.join(allowed)}")


def check_count(option: str, value: Any) -> None:
    """Raises ValueError unless `value` is None or at least 1."""
    if value is not None and value < 1:
        raise ValueError(f"{option}: got {value}, expected a number above 0")
