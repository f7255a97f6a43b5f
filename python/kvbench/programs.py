"""Registry of the programs of `kvbench-py`.

`kvbench-py NAME` after `pip install`, `scripts/kvbench-py NAME` in a checkout and
`python -m kvbench NAME` are equivalent.
"""

from __future__ import annotations

import dataclasses
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
    """A program of kvbench-py.

    module   has main(), which reads sys.argv and returns None or an exit code
    about    one line for the help
    needs    modules that must be installed
    options  module whose parse_arguments() works without `needs`
    """

    module: str
    about: str
    needs: tuple[str, ...] = FIGURES
    options: str = ""


PROGRAMS = {
    "dump": Program("dump.main", "dump queries, keys and values of a model as a trace", MODELS, "dump.options"),
    "convert": Program("convert.main", "convert arrays of another tool to a trace", TRACES),
    "score": Program("score.main", "measure the model's loss with compressed caches", MODELS, "score.options"),
    "judge": Program("judge.main", "replay methods and score them with the model in one run", MODELS,
                     "judge.options"),
    "press": Program("press.main", "write what presses of kvpress keep as a caches file", (*MODELS, "kvpress"),
                     "press.options"),
    "model": Program("model.main", "make a real model from the package index", ()),
    "prompts": Program("prompts.make", "make the prompts of the reference results", ()),
    "needles": Program("prompts.needles", "make prompts with a passkey to find", ()),
    "tasks": Program("prompts.tasks", "make prompts of tasks with a known answer", ()),
    "compare": Program("compare.main", "compare methods on the same prompts: means, intervals, tests",
                       (*FIGURES, "scipy")),
    "losses": Program("losses.main", "compare the losses of models under compression, over sources",
                      (*FIGURES, "scipy")),
    "answers": Program("answers.main", "test whether a model still answers its tasks, with controls",
                       (*FIGURES, "scipy")),
    "correlate": Program("correlate.main", "correlate replay metrics with the model's loss", (*FIGURES, "scipy")),
    "predict": Program("predict.main", "predict the model's loss from errors of layers", (*TABLES, "scipy")),
    "policy": Program("policy.main", "choose an algorithm and a budget for each layer", (*TABLES, "scipy")),
    "ablate": Program("ablate.main", "split the error by ingredient: tokens, weights, values, bits, queries",
                      (*FIGURES, "scipy")),
    "atlas": Program("atlas.main", "describe KV heads, and which method serves each best",
                     (*FIGURES, "scipy", "sklearn")),
    "scaling": Program("scaling.main", "fit a law of errors: bytes, tokens, entropy", (*TABLES, "scipy")),
    "tune": Program("tune", "choose parameters on development prompts, evaluate them on others",
                    (*TABLES, "scipy")),
    "qfilters": Program("qfilters", "fit Q-Filters, and add their scores to a trace", TRACES),
    "claims": Program("claims.main", "test the papers' claims on measured rows", (*FIGURES, "scipy")),
    "cluster-table": Program("cluster.summary", "summarise folders of kvbench cluster as one table", TABLES),
    "reference": Program("reference.main", "make the reference results (in a checkout)", ()),
    "plot amnesia": Program("plot.amnesia", "attention on tokens not held"),
    "plot bits": Program("plot.bits", "error by bits, tokens and bytes"),
    "plot coverage": Program("plot.coverage", "k-center coverage of keys and values"),
    "plot error": Program("plot.error", "error by budget or T, a panel per layer"),
    "plot growth": Program("plot.growth", "clusters by tokens read"),
    "plot heatmap": Program("plot.heatmap", "error by layer and head"),
    "plot kept-map": Program("plot.kept_map", "which tokens each head keeps"),
    "plot lambda": Program("plot.bumblebee_lambda", "error by BumbleBee's lambda"),
    "plot norms": Program("plot.norms", "norms of keys and values"),
    "plot offset": Program("plot.offset", "error by distance from the prompt's end"),
    "plot pareto": Program("plot.pareto", "error against bytes held"),
    "plot reads": Program("plot.reads", "recall of what queries read, and what the choice costs"),
    "plot reconstruction": Program("plot.reconstruction", "KVReviver's reconstruction"),
    "plot stream": Program("plot.stream", "error along a stream"),
    "plot tsne": Program("plot.tsne", "keys or values in two dimensions"),
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


def help_text(words: Iterable[str] = ()) -> str:
    """Returns the list of programs, or those whose names begin with `words`."""
    first = "".join(word + " " for word in words)
    shown = {name: program for name, program in PROGRAMS.items() if name.startswith(first)}
    width = max(map(len, shown))
    lines = [f"usage: {NAME} {first}{'FIGURE' if first else 'PROGRAM'} ...", "", "programs:"]
    lines += [f"  {name:<{width}}  {program.about}" for name, program in shown.items()]
    lines += ["", f"{NAME} PROGRAM --help lists its options; {NAME} --version says the version."]
    return "\n".join(lines)


def find_program(words: list[str]) -> tuple[str, list[str]]:
    """Returns the program's name and the remaining arguments. Raises LookupError."""
    for count in (1, 2):
        name = " ".join(words[:count])
        if len(words) >= count and name in PROGRAMS:
            return name, words[count:]
    if words[0] == "plot":
        figures = ", ".join(name.removeprefix("plot ") for name in PROGRAMS if name.startswith("plot "))
        got = f"got `{words[1]}`, " if len(words) > 1 else ""
        raise LookupError(f"{NAME} plot: {got}expected one of {figures}")
    raise LookupError(f"{NAME}: got `{words[0]}`, expected a program: {NAME} --help lists them")


def main_of(name: str) -> Callable[[], object]:
    """Returns the program's main function. Checks its options first. Raises MissingModules."""
    program = PROGRAMS[name]
    if program.options:
        importlib.import_module("kvbench." + program.options).parse_arguments()
    expect_modules(f"{NAME} {name}", program.needs)
    return importlib.import_module("kvbench." + program.module).main
