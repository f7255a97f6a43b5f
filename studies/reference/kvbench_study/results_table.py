"""Prints a Markdown table of results: a row per algorithm, a column per table and budget.

    kvbench-study results-table default=OUT.csv balancekv=OUT256.csv

Cells are means of a metric over prompts, layers, heads and seeds. Each LABEL is a group of columns, one
per budget; files with the same LABEL are read as one table. A cell is `-` unless its rows cover every
head of the table (infeasible somewhere).
"""

import argparse

from kvbench import command
from kvbench import tables as kt
from kvbench.text import printable


def load(paths, metric, short=False, budgets=(), pool=False):
    """{(label, budget): mean of `metric`}, where the rows cover every head of the table."""
    frame = kt.read_results(paths, [metric, "seed", "budget_requested", *kt.HEAD_COLUMNS,
                                     *kt.SETTINGS])
    if frame.duplicated([*kt.HEAD_COLUMNS, *kt.SETTINGS, "algorithm", "params", "seed",
                         "budget_requested"]).any():
        raise kt.CsvError(f"{', '.join(paths)}: duplicate rows")
    heads = frame.groupby(kt.HEAD_COLUMNS).ngroups
    frame = kt.pick_numbers(frame, "budget_requested", budgets, paths[0])
    frame = kt.add_labels(kt.measured_rows(frame, paths[0], pool), short=short)
    out = {}
    for (label, budget), rows in frame.groupby(["label", "budget_requested"], dropna=False,
                                               sort=False):
        for _, seed in rows.groupby("seed"):
            if seed.groupby(kt.HEAD_COLUMNS).ngroups < heads:
                break
        else:
            out[label, budget] = rows[metric].mean(skipna=False)
    return out


def table(groups, sort, digits):
    """Markdown lines. `groups`: (label, {(algorithm, budget): mean}) in order."""
    columns = [(name, budget) for name, means in groups
               for budget in sorted({b for _, b in means if b == b}, reverse=True)]
    if not columns:
        raise kt.CsvError("no table has rows with a budget")
    by_name = dict(groups)
    if sort not in columns:
        raise kt.CsvError(f"--sort-by: got {sort[0]}:{sort[1]:g}, expected one of "
                          + ", ".join(f"{n}:{b:g}" for n, b in columns))
    labels = list(dict.fromkeys(label for _, means in groups for label, b in means if b == b))
    labels.sort(key=lambda a: by_name[sort[0]].get((a, sort[1]), float("inf")))
    lines = ["| algorithm | " + " | ".join(f"{name} {budget:g}" for name, budget in columns) + " |",
             "| --- |" + " ---: |" * len(columns)]
    for label in labels:
        cells = [by_name[name].get((label, budget)) for name, budget in columns]
        lines.append(f"| `{label}` | "
                     + " | ".join("-" if x is None else f"{x:.{digits}f}" for x in cells) + " |")
    return lines


def labelled_path(text):
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected LABEL=OUT.csv")
    return name, path


def sort_key(text):
    name, colon, budget = text.rpartition(":")
    try:
        return name, float(budget)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected LABEL:BUDGET") from None


def main(argv=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("tables", nargs="+", type=labelled_path, metavar="LABEL=OUT.csv")
    parser.add_argument("--metric", default="rel_error", metavar="COLUMN",
                        help="metric of the cells [rel_error]")
    parser.add_argument("--sort-by", type=sort_key, metavar="LABEL:BUDGET",
                        help="column to sort by [the first table at its second smallest budget]")
    parser.add_argument("--budget", **command.BUDGET)
    parser.add_argument("--short", action="store_true", help="omit parameter values in names that more "
                        "than half of an algorithm's variants share")
    parser.add_argument("--pool", **command.POOL)
    parser.add_argument("--digits", type=int, default=3, metavar="N", help="decimal digits [3]")
    args = parser.parse_args(argv)
    paths = {}
    for name, path in args.tables:
        paths.setdefault(name, []).append(path)
    groups = [(name, load(files, args.metric, args.short, args.budget, args.pool))
              for name, files in paths.items()]
    budgets = sorted({b for _, b in groups[0][1] if b == b})
    default = (groups[0][0], budgets[min(1, len(budgets) - 1)] if budgets else 0.0)
    print("\n".join(map(printable, table(groups, args.sort_by or default, args.digits))))
    return 0
