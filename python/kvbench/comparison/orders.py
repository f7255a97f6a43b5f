"""Agreement of two models, or lengths, on the order of methods: Spearman's correlation of their
means and of their geometric means, under resampled sources, and sources and methods.
"""

from itertools import combinations

import numpy as np

from kvbench import stats as ks
from kvbench.comparison.scores import logs, share
from kvbench.comparison.tables import significant

COLUMNS = ["budget", "model", "other", "figure", "methods", "sources", "sources_other", "spearman", "low",
           "high", "both_low", "both_high"]
FEWEST = 5  # methods: fewer may agree by chance
RESAMPLES = 2000
ROUNDING = 1e-12  # relative error of a mean under another order of summation


def orders(found, seed=0):
    """Returns a dict of COLUMNS per budget, pair of models and figure, over the methods that both have at all sources.
    low, high: intervals that draw sources, shared ones together; both_low, both_high: that draw methods too.
    """
    out = []
    for budget in found.budgets():
        for one, other in combinations(found.models(), 2):
            if (one, budget) not in found.values or (other, budget) not in found.values:
                continue
            a, b = (found.values[model, budget].dropna(axis=1) for model in (one, other))
            common = [method for method in a.columns if method in b.columns and method != "exact"]
            if len(common) < FEWEST:
                continue
            a, b = a[common], b[common]
            for figure, sides in (("mean", (a, b)), ("geometric", (logs(a), logs(b)))):
                if not any(side.isna().to_numpy().any() for side in sides):
                    out.append({"budget": budget, "model": one, "other": other, "figure": figure,
                                "methods": len(common), "sources": len(a), "sources_other": len(b),
                                **correlated(*sides, seed)})
    return out


def correlated(a, b, seed):
    """Returns {spearman, low, high, both_low, both_high} of the mean rows of two frames [sources, methods]."""
    sources, methods = sorted({*a.index, *b.index}), len(a.columns)
    counts = np.concatenate([np.ones((1, len(sources)), int), ks.resample_counts(len(sources), RESAMPLES, seed)])
    # Another stream: with as many methods as sources the draws would coincide.
    drawn_methods = np.concatenate([np.ones((1, methods), int), ks.resample_counts(methods, RESAMPLES, [seed, 1])])
    sides = []
    for frame in (a, b):
        drawn = counts[:, [sources.index(source) for source in frame.index]]
        total = drawn.sum(axis=1, keepdims=True)
        means = np.divide(drawn @ frame.to_numpy(), total, out=np.full((len(drawn), methods), np.nan), where=total > 0)
        sides.append(means)
    few = min(len(a), len(b))
    out = {}
    for names, copies, n in ((("low", "high"), np.ones_like(drawn_methods), few),
                             (("both_low", "both_high"), drawn_methods, min(few, methods))):
        values = spearman(*sides, copies)
        out["spearman"] = float(values[0])
        out.update(zip(names, ks.correlation_interval(values[0], values[1:], n, bounds=(-1, 1))))
    return out


def spearman(a, b, copies):
    """Returns [r]: the rank correlation of each row of a and b [r, methods], with `copies` [r, methods] of each method;
    NaN if a side is constant.
    """
    roots = np.divide(1, np.sqrt(copies), out=np.zeros(copies.shape), where=copies > 0)
    one, other = (centred_ranks(values, copies) * copies * roots for values in (a, b))
    below = np.sqrt((one * one).sum(axis=1) * (other * other).sum(axis=1))
    return np.divide((one * other).sum(axis=1), below, out=np.full(len(below), np.nan), where=below > 0)


def centred_ranks(values, copies):
    """Returns ranks within each row among all copies, less (n + 1) / 2 of n. Ties share their mean rank."""
    one, other = values[:, :, None], values[:, None]
    apart, slack = one - other, ROUNDING * (np.abs(one) + np.abs(other))
    signs = (apart > slack).astype(np.int8) - (apart < -slack)
    return (signs * copies[:, None]).sum(axis=2) / 2


def markdown(rows):
    """Returns the table for the page; empty without rows."""
    if not rows:
        return ""
    out = ["", "Order of the methods, Spearman's correlation [95 % interval over sources; over sources and "
           "methods]:", "", "| budget | between | and | methods | by means | by geometric means |",
           "| --- | --- | --- | --- | --- | --- |"]
    for row in (row for row in rows if row["figure"] == "mean"):
        other = [r for r in rows if r["figure"] == "geometric"
                 and all(r[key] == row[key] for key in ("budget", "model", "other"))]
        out.append(f"| {share(row['budget'])} | {row['model']} | {row['other']} | {row['methods']} | "
                   f"{text(row)} | {text(other[0]) if other else '-'} |")
    return "\n".join([*out, ""])


def text(row):
    low, high, both_low, both_high = (significant(row[name], 2) for name in ("low", "high", "both_low", "both_high"))
    return f"{significant(row['spearman'], 2)} [{low}, {high}; {both_low}, {both_high}]"
