"""Comparisons and policies: kvbench-py compare and kvbench-py policy, of Python's values."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

import pandas as pd

from kvbench.api.run import options_of, path_list

if TYPE_CHECKING:
    from collections.abc import Iterable


def compare(rows: pd.DataFrame | str | os.PathLike[str] | Iterable[pd.DataFrame | str | os.PathLike[str]],
            to: str | None = None, *, metric: str | None = None, **options: Any) -> pd.DataFrame:
    """Returns the methods of a table, compared at each budget (docs/statistics.md): the best first.

        rows = kvbench.replay(["a.h5", "b.h5"], algorithm="snapkv,h2o", budget=[0.25, 0.125])
        print(kvbench.compare(rows, to="snapkv")[["budget", "method", "mean", "low", "high", "verdict"]])

    rows      of replay, evaluate or read_results, or of judge, or several such frames; or paths of such tables
    to        method that the others are compared with
    metric    column; None: rel_error, of the rows of judge kl
    options   of `kvbench-py compare`, with _ for -: by="source", records="prompts.jsonl", layers=[0, 1]; algorithm,
              exclude, prompts and budget choose rows; a text is read as the command line's: exclude="oracle,exact"
    Columns: those of --csv. Notes go to the logger `kvbench`. Raises kvbench.CsvError for unsuitable tables,
    TypeError for an unknown option, ValueError for a text that the command line refuses.
    """
    from kvbench import command
    from kvbench import tables as kt
    from kvbench.comparison import analysis, scores
    from kvbench.comparison import tables as ct
    from kvbench.comparison.options import DEFAULTS, ROWS, SCORES

    given = [rows] if isinstance(rows, (pd.DataFrame, str, os.PathLike)) else list(rows)
    frames = [one for one in given if isinstance(one, pd.DataFrame)]
    if frames and len(frames) < len(given):
        raise TypeError("rows: got DataFrames and paths, expected only one kind")
    source = kt.joined(frames) if len(frames) > 1 else frames[0] if frames else path_list(given)
    names = source.columns if isinstance(source, pd.DataFrame) else kt.header_of(source[0])
    kind = ROWS if "q_head" in names else SCORES
    known: dict[str, Any] = {**DEFAULTS[kind], "algorithm": [], "exclude": [], "budget": [], "prompts": [],
                             "records": []}
    if kind == ROWS:
        known |= {"layers": [], "set": None, "pool": False, "higher_better": None}
    texts: dict[str, Any] = {"algorithm": command.ALGORITHM, "exclude": command.EXCLUDE, "prompts": command.PROMPTS,
                             "budget": command.BUDGET, "layers": command.LAYERS}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"compare() got an unexpected option {name!r}, expected one of {', '.join(known)}")
        if isinstance(value, str) and name in texts:
            try:
                value = texts[name]["type"](value)
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"{name}: {error}") from None
        wanted_list = isinstance(known[name], list) and (isinstance(value, str) or not hasattr(value, "__iter__"))
        known[name] = [value] if wanted_list else value
    chosen = argparse.Namespace(**known, to=to, figures=None, tuned=[], tables=[("", source)])
    chosen.metric = metric or chosen.metric
    if kind == SCORES:
        found = scores.load(chosen)
        for text in found.notes:
            kt.note(text)
        return pd.DataFrame(scores.lines(found, to), columns=scores.COLUMNS[1:])
    if chosen.higher_better is None:
        chosen.higher_better = chosen.metric in kt.HIGHER_BETTER
    of_budgets = analysis.compare(source, chosen)
    for one in of_budgets:
        for text in one.notes:
            kt.note(f"budget {one.budget}: {text}")
    return pd.DataFrame([row for one in of_budgets for row in one.rows], columns=ct.COLUMNS)


def policy(model: str | os.PathLike[str], prompts: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
           budget: float, output: str | os.PathLike[str] = "policy.json", **options: Any) -> str:
    """Makes a policy of a model, budgets of layers by the loss that they predict (docs/policies.md); returns its path.

        path = kvbench.policy("build/models/smollm2-135m", "dev.jsonl", 0.125)
        rows = kvbench.replay("t.h5", policy=path)
        cache = kvbench.compress(model, text, policy=path)

    model     folder or name of a model of transformers; prompts: .jsonl files or texts
    budget    mean over layers of the fraction of the middle's bytes
    output    the policy; intermediate files, which a later call goes on with, stand in policy.steps
    options   of `kvbench-py policy`, with _ for -: per="head", measure=True, algorithm="snapkv,h2o"
    Raises kvbench.CsvError for unsuitable prompts and tables, TypeError for an unknown option.
    """
    from kvbench.budgets import main, make

    parser = argparse.ArgumentParser(add_help=False)
    make.add_options(parser)
    known = [action.dest for action in parser._actions]
    for name in options:
        if name not in known:
            raise TypeError(f"policy() got an unexpected option {name!r}, expected one of {', '.join(known)}")
    words = options_of({"model": os.fspath(model), "budget": budget, "output": os.fspath(output),
                        "markdown": os.devnull, **options})
    main.main(["--prompts", *path_list(prompts), *words])
    return os.fspath(output)
