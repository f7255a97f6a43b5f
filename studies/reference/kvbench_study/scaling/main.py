"""Fits a law of a head's error: a power of the bytes and of the context length, and of e by the entropy.

    kvbench cluster t.h5 -o heads --points none
    kvbench replay t.h5 --algorithm h2o,snapkv --budget 0.5,0.25,0.125,0.0625 -o t.csv
    kvbench-study scaling --row-table 4096 t.csv --cluster 4096 heads --markdown scaling.md

For each algorithm, by least squares over query heads, budgets and sources (means over a source's prompts):

    log error = a + b log budget + c log tokens + d entropy

error: `rel_error`; entropy: of the head's attention in nats, mean over prompts of that length
(attention.csv). `--row-table TOKENS FILE...` and `--cluster TOKENS DIR...` once per length; c needs two. Intervals
are of 95 % over sources (bootstrap), with fewer than eight sources the least and largest of fits to one source.
The law is checked on sources left out (five folds) and on layers left out, one at a time: the median factor by which
a prediction is off.
"""

import math
from dataclasses import dataclass

import numpy as np

from kvbench import command, units
from kvbench import stats as ks
from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.comparison import scores as kcs
from kvbench.comparison.tables import markdown_table, write_table, write_text
from kvbench.text import counted

METRIC = "rel_error"
TERMS = ["budget", "tokens", "entropy"]
COLUMNS = ["algorithm", "sources", "cells", *(f"{name}{end}" for name in TERMS for end in ("", "_low", "_high")),
           "r2", "off_sources", "off_layers"]
FOLDS, RESAMPLES = 5, 2000


@dataclass
class Points:
    """Cells of an algorithm: x [cells, 1 + terms], y [cells] (log error), and the source and layer of each."""

    terms: list
    x: np.ndarray
    y: np.ndarray
    sources: np.ndarray
    layers: np.ndarray


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    for name, files in (("--row-table", "FILE"), ("--cluster", "DIR")):
        parser.add_argument(name, nargs="+", action="append", required=True, metavar=("TOKENS", files),
                            help="of one length; once per length")
    parser.add_argument("--records", **units.SOURCES)
    parser.add_argument("--algorithm", **command.ALGORITHM)
    parser.add_argument("--csv", metavar="FILE.csv", help="a row per algorithm")
    parser.add_argument("--markdown", metavar="FILE", help="report [stdout]")
    options = parser.parse_args(arguments)
    for name, groups in (("--row-table", options.row_table), ("--cluster", options.cluster)):
        command.check_named_files(parser, name, groups, "length", "TOKENS")
        for tokens, *_ in groups:
            if not tokens.isdecimal() or int(tokens) == 0:
                parser.error(f"{name}: got {tokens}, expected a number of tokens first")
    if {int(tokens) for tokens, *_ in options.row_table} != {int(tokens) for tokens, *_ in options.cluster}:
        parser.error("--row-table and --cluster: expected the same lengths")
    return options


def load(options):
    """Returns {algorithm: Points}."""
    cells = {}
    folders = {int(tokens): some for tokens, *some in options.cluster}
    for tokens, *files in options.row_table:
        n = int(tokens)
        attention = kcc.read_table(folders[n], "attention.csv", ["entropy"])
        entropies = attention.groupby(["layer", "head"])["entropy"].mean()
        for (label, source, layer, head, budget), error in means(files, options).items():
            if not error > 0:
                raise kt.CsvError(f"{files[0]}: {label} at {budget:g}, layer {layer:g}: error {error:g}, expected one "
                                  "above 0")
            if (layer, head) not in entropies.index:
                raise kt.CsvError(f"--cluster {n}: no layer {layer:g}, head {head:g}, which {files[0]} has")
            cells.setdefault(label, []).append((source, int(layer), math.log(error), math.log(budget), math.log(n),
                                                float(entropies[layer, head])))
    return {label: points(label, rows) for label, rows in cells.items()}


def means(files, options):
    """Returns METRIC by algorithm, source, layer, query head and budget: means over seeds and prompts."""
    frame = kcs.read(files, METRIC)
    frame = frame[frame["budget_requested"].notna()].copy()
    kt.add_labels(frame)
    frame = kt.ok_rows(kt.pick_names(frame, "label", options.algorithm, files[0]), files[0])
    frame = frame.assign(source=units.sources_of(frame, options.records, files[0], own_source=True))
    keys = ["label", "source", "layer", "q_head", "budget_requested"]
    return frame.groupby([*keys, "trace", "prompt"])[METRIC].mean().groupby(keys).mean()


def points(label, rows):
    """Returns Points of (source, layer, log error, log budget, log tokens, entropy)."""
    x = np.array([row[3:] for row in rows])
    used = [at for at in range(len(TERMS)) if np.ptp(x[:, at]) > 0]
    sources, layers = (np.array([row[at] for row in rows]) for at in range(2))
    if "budget" not in [TERMS[at] for at in used] or len(set(sources)) < 2 or len(set(layers)) < 2:
        raise kt.CsvError(f"{label}: expected at least two budgets, sources and layers")
    return Points([TERMS[at] for at in used], np.column_stack([np.ones(len(x)), x[:, used]]),
                  np.array([row[2] for row in rows]), sources, layers)


def fit(x, y):
    return np.linalg.lstsq(x, y, rcond=None)[0]


def left_out(found, groups):
    """Returns |log predicted - log measured| of every cell, from the cells of other groups."""
    off = np.empty(len(found.y))
    for group in np.unique(groups):
        mine = groups == group
        off[mine] = np.abs(found.x[mine] @ fit(found.x[~mine], found.y[~mine]) - found.y[mine])
    return off


def intervals(found, seed=0):
    """Returns the 2.5 and 97.5 % quantiles [2, 1 + terms] of the coefficients over resampled sources, with fewer than
    kcs.FEWEST sources the least and largest of fits to one source.
    """
    names = np.unique(found.sources)
    masks = [found.sources == name for name in names]
    if len(names) < kcs.FEWEST:
        alone = [fit(found.x[mine], found.y[mine]) for mine in masks]
        return np.min(alone, axis=0), np.max(alone, axis=0)
    squares = np.array([found.x[mine].T @ found.x[mine] for mine in masks])
    products = np.array([found.x[mine].T @ found.y[mine] for mine in masks])
    counts = ks.resample_counts(len(names), RESAMPLES, seed)
    drawn = np.linalg.solve(np.tensordot(counts, squares, 1), np.tensordot(counts, products, 1)[..., None])[..., 0]
    return np.quantile(drawn, [0.025, 0.975], axis=0)


def row_of(label, found):
    """Returns a dict of COLUMNS; absent terms are missing."""
    weights = fit(found.x, found.y)
    low, high = intervals(found)
    names = np.unique(found.sources)
    folds = np.searchsorted(names, found.sources) % min(FOLDS, len(names))
    rest = found.y - found.x @ weights
    row = {"algorithm": label, "sources": len(names), "cells": len(found.y),
           "r2": 1 - float(rest.var() / found.y.var()),
           "off_sources": math.exp(np.median(left_out(found, folds))),
           "off_layers": math.exp(np.median(left_out(found, found.layers)))}
    for at, name in enumerate(found.terms, start=1):
        row |= {name: float(weights[at]), f"{name}_low": float(low[at]), f"{name}_high": float(high[at])}
    return row


def term_cell(row, name):
    if name not in row:
        return "-"
    low, high = (f"{row[name + end]:.2f}" for end in ("_low", "_high"))
    return f"{row[name]:.2f} " + (f"({low} to {high})" if row["sources"] < kcs.FEWEST else f"[{low}, {high}]")


def report(rows, options):
    cells = [[row["algorithm"], *(term_cell(row, name) for name in TERMS),
              *(f"{row[name]:.2f}" for name in ("r2", "off_sources", "off_layers"))]
             for row in sorted(rows, key=lambda row: row["algorithm"])]
    lengths = ", ".join(str(int(tokens)) for tokens, *_ in options.row_table)
    few = any(row["sources"] < kcs.FEWEST for row in rows)
    ranges = "95 % intervals over sources" + (
        f", of fewer than {kcs.FEWEST} least to largest of the fits to each (in parentheses)" if few else "")
    return "\n".join([
        f"Laws of `{METRIC}` over query heads, budgets and "
        f"{counted(max(row['sources'] for row in rows), 'source')}, "
        f"{lengths} tokens: exponents of the budget and of the tokens, slope per nat of entropy ({ranges}), share "
        "of the variance of the log error, and the median factor by which predictions for sources and for layers left "
        "out are off.", "",
        *markdown_table(["algorithm", *TERMS, "r2", "sources left out", "layers left out"], cells)]) + "\n"


def main(arguments=None):
    options = parse_arguments(arguments)
    rows = [row_of(label, found) for label, found in load(options).items()]
    if options.csv:
        write_table(options.csv, COLUMNS, rows)
    if options.markdown or not options.csv:
        write_text(options.markdown or "-", report(rows, options))


if __name__ == "__main__":
    command.run_main(main)
