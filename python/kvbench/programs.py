"""Registry of the programs of `kvbench-py`.

`kvbench-py NAME` after `pip install`, `scripts/kvbench-py NAME` in a checkout and
`python -m kvbench NAME` are equivalent.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = "kvbench-py"
TABLES = ("numpy", "pandas")
FIGURES = ("numpy", "pandas", "matplotlib")
TRACES = ("numpy", "h5py")
MODELS = ("numpy", "h5py", "torch", "transformers")
# Package names of pip and Debian where they differ from the module's.
PIP = {"sklearn": "scikit-learn", "kvpress": "'kvpress>=0.5.5'", "transformers": "'transformers>=4.56'"}
DEBIAN = {"numpy": "python3-numpy", "pandas": "python3-pandas", "matplotlib": "python3-matplotlib",
          "scipy": "python3-scipy", "h5py": "python3-h5py", "sklearn": "python3-sklearn"}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of a command line.

    module   in the package; has main(), which reads sys.argv and returns None or an exit code, or is a kind of figure
    about    one line for the help
    needs    modules that must be installed
    options  module whose parse_arguments() works without `needs`
    group    heading of the help
    """

    module: str
    about: str
    needs: tuple[str, ...] = FIGURES
    options: str = ""
    group: str = "programs"


TRACE, MODEL, RESULTS, FIGURE, SHELL = "traces", "a model's loss", "results", "figures", "shell"
PROGRAMS = {
    "dump": Program("dump.main", "dump queries, keys and values of a model as a trace", MODELS, "dump.options", TRACE),
    "convert": Program("convert.main", "convert arrays of another tool to a trace", TRACES, "", TRACE),
    "press": Program("press.main", "write what presses of kvpress keep as a caches file", (*MODELS, "kvpress"),
                     "press.options", TRACE),
    "qfilters": Program("qfilters", "fit Q-Filters, and add their scores to a trace", TRACES, "", TRACE),
    "score": Program("score.main", "measure the model's loss with compressed caches, also while replaying", MODELS,
                     "score.options", MODEL),
    "policy": Program("budgets.main", "choose algorithms and budgets of layers by the loss that they predict",
                      (*TABLES, "scipy"), "", MODEL),
    "compare": Program("comparison.main", "compare methods by errors or the model's loss: means, intervals, tests",
                       (*FIGURES, "scipy"), "", RESULTS),
    "tune": Program("tune", "choose parameters on development prompts, evaluate them on others",
                    (*TABLES, "scipy"), "", RESULTS),
    "cluster": Program("cluster.summary", "summarise folders of kvbench cluster as one table", TABLES, "", RESULTS),
    **{f"plot {name}": Program(f"plot.kinds.{module}", about, group=FIGURE) for name, module, about in (
        ("amnesia", "amnesia", "attention on tokens not held"),
        ("bits", "bits", "error by bits, tokens and bytes"),
        ("coverage", "coverage", "k-center coverage of keys and values"),
        ("error", "error", "error by budget or T, a panel per layer"),
        ("growth", "growth", "clusters by tokens read"),
        ("heatmap", "heatmap", "error by layer and head"),
        ("kept-map", "kept_map", "which tokens each head keeps"),
        ("lambda", "bumblebee_lambda", "error by BumbleBee's lambda"),
        ("norms", "norms", "norms of keys and values"),
        ("offset", "offset", "error by distance from the prompt's end"),
        ("pareto", "pareto", "error against bytes held"),
        ("reads", "reads", "recall of what queries read, and what the choice costs"),
        ("reconstruction", "reconstruction", "KVReviver's reconstruction"),
        ("stream", "stream", "error along a stream"),
        ("tsne", "tsne", "keys or values in two dimensions"))},
    "completion": Program("completion", "print a completion script for bash or zsh", (), "", SHELL),
}


class MissingModules(Exception):
    """A program needs packages that are not installed. One line with the remedy."""


def absent(modules: Iterable[str]) -> list[str]:
    """Returns the modules that cannot be found. Imports nothing."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def expect_modules(who: str, modules: Iterable[str]) -> None:
    """Raises MissingModules unless all modules can be found."""
    missing = absent(modules)
    if not missing:
        return
    remedy = "pip install " + " ".join(PIP.get(name, name) for name in missing)
    # Debian rejects pip outside a virtual environment, which does not see Debian's packages.
    if sys.prefix == sys.base_prefix and os.path.exists("/etc/debian_version") and set(missing) <= {*DEBIAN}:
        remedy += f", or on Debian: apt install {' '.join(DEBIAN[name] for name in missing)}"
    raise MissingModules(f"{who}: {sys.executable} has no {', '.join(missing)}: {remedy}")


@dataclasses.dataclass(frozen=True)
class Commands:
    """A command line of several programs: its name, the package of their modules, {words: program}."""

    name: str
    package: str
    programs: dict[str, Program]

    def begin_with(self, words: Iterable[str]) -> dict[str, Program]:
        """Returns the programs whose names continue these words."""
        first = "".join(word + " " for word in words)
        return {name: program for name, program in self.programs.items() if name.startswith(first)}

    def help_text(self, words: Iterable[str] = ()) -> str:
        """Returns the list of programs, or those whose names begin with `words`."""
        first = "".join(word + " " for word in words)
        shown = self.begin_with(words)
        width = max(map(len, shown))
        lines = [f"usage: {self.name} {first}{'FIGURE' if first else 'PROGRAM'} ..."]
        for group in dict.fromkeys(program.group for program in shown.values()):
            lines += ["", f"{group}:", *(f"  {name:<{width}}  {program.about}" for name, program in shown.items()
                                         if program.group == group)]
        lines += ["", f"{self.name} PROGRAM --help lists its options; {self.name} --version says the version."]
        return "\n".join(lines)

    def find(self, words: list[str]) -> tuple[str, list[str]]:
        """Returns the program's name and the remaining arguments. Raises LookupError."""
        for count in (1, 2):
            name = " ".join(words[:count])
            if len(words) >= count and name in self.programs:
                return name, words[count:]
        group = self.begin_with(words[:1])
        if group:
            names = ", ".join(name.removeprefix(words[0] + " ") for name in group)
            got = f"got `{words[1]}`, " if len(words) > 1 else ""
            raise LookupError(f"{self.name} {words[0]}: {got}expected one of {names}")
        raise LookupError(f"{self.name}: got `{words[0]}`, expected a program: {self.name} --help lists them")

    def main_of(self, name: str) -> Callable[[], object]:
        """Returns the program's main function. Checks its options first. Raises MissingModules."""
        program = self.programs[name]
        if program.options:
            importlib.import_module(f"{self.package}.{program.options}").parse_arguments()
        expect_modules(f"{self.name} {name}", program.needs)
        module = importlib.import_module(f"{self.package}.{program.module}")
        if program.module.startswith("plot."):
            return functools.partial(importlib.import_module(f"{self.package}.plot.kind").run, module)
        return module.main


COMMANDS = Commands(NAME, "kvbench", PROGRAMS)
