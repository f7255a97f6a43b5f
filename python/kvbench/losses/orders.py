"""Agreement of two models, or lengths, on the order of methods: Spearman's correlation of their
means.
"""

from itertools import combinations

import numpy as np

from kvbench import ranks as kr
from kvbench import stats as ks
from kvbench.compare.tables import number
from kvbench.losses.tables import share

COLUMNS = ["budget", "model", "other", "methods", "sources", "sources_other", "spearman", "low", "high"]
FEWEST = 5  # methods: fewer may agree by chance
RESAMPLES = 2000


def orders(found, seed=0):
    """Returns a dict of COLUMNS per budget and pair of models, over the methods that both have at
    all sources. Intervals resample sources, shared ones together.
    """
    out = []
    for budget in found.budgets():
        for one, other in combinations(found.models(), 2):
            if (one, budget) not in found.values or (other, budget) not in found.values:
                continue
            a, b = (found.values[model, budget].dropna(axis=1) for model in (one, other))
            common = [method for method in a.columns if method in b.columns and method != "exact"]
            if len(common) >= FEWEST:
                point, low, high = correlated(a[common], b[common], seed)
                out.append({"budget": budget, "model": one, "other": other, "methods": len(common),
                            "sources": len(a), "sources_other": len(b), "spearman": point, "low": low,
                            "high": high})
    return out


def correlated(a, b, seed):
    """Returns (Spearman, low, high) of the mean rows of two frames [sources, methods]."""
    sources = sorted({*a.index, *b.index})
    counts = np.concatenate([np.ones((1, len(sources)), int),
                             ks.resample_counts(len(sources), RESAMPLES, seed)])
    pairs = kr.Pairs(len(a.columns))
    everything = pairs.group(list(range(len(a.columns))))
    sides = []
    for frame in (a, b):
        drawn = counts[:, [sources.index(source) for source in frame.index]]
        total = drawn.sum(axis=1, keepdims=True)
        means = np.divide(drawn @ frame.to_numpy(), total, out=np.full((len(drawn), len(a.columns)), np.nan),
                          where=total > 0)
        sides.append(kr.Ranked(pairs.signs(means), everything))
    values = kr.spearman(*sides)
    few = min(len(a), len(b))
    return (float(values[0]), *kr.interval(values[0], values[1:], few, bounds=(-1, 1)))


def markdown(rows):
    """Returns the table for the page; empty without rows."""
    if not rows:
        return ""
    out = ["", "Order of the methods by their means, Spearman's correlation [95 % interval over sources]:", "",
           "| budget | between | and | methods | correlation |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        low, high = number(row["low"], 2), number(row["high"], 2)
        out.append(f"| {share(row['budget'])} | {row['model']} | {row['other']} | {row['methods']} | "
                   f"{number(row['spearman'], 2)} [{low}, {high}] |")
    return "\n".join([*out, ""])
