"""Chooses the lines of a figure if a table has more than figures.MOST, and says so.

Without --all and --algorithm: first the lines of --highlight, then required ones (the Pareto
front), then the references (`exact`, oracles), then those with the smallest mean error at the
smallest budget. Lines without a point at the smallest budget come last; ties are ordered by name.
"""

import numpy as np

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import style as ks

REFERENCES = ("exact", "oracle", "oracle-matching")
SAME_SIZE = 1.05  # sizes of one budget differ by at most this, since it buys whole tokens and blocks


def ranked(points, higher_better=False):
    """Returns the labels of `points` (label, size, mean; size may be NaN), best first."""
    points = points.assign(size=points["size"].fillna(points["size"].min()).fillna(1.0))
    smallest = points.groupby("label")["size"].transform("min")
    at = points[points["size"] <= smallest * SAME_SIZE].groupby("label", sort=True)
    table = at.agg(size=("size", "min"), mean=("mean", "mean")).sort_values("size", kind="stable")
    # Sizes within SAME_SIZE are equal.
    place, start, places = -1, -np.inf, []
    for size in table["size"]:
        if not size <= start * SAME_SIZE:
            place, start = place + 1, size
        places.append(place)
    mean = -table["mean"] if higher_better else table["mean"]
    table = table.assign(place=places, worth=mean.where(np.isfinite(mean), np.inf), name=table.index)
    return list(table.sort_values(["place", "worth", "name"]).index)


def pick(table, size, given, value="mean", what="rel_error", first=(), higher_better=False):
    """Returns (drawn rows of `table`, text for the footer; empty if all are drawn).

    size: column of the size, NaN for native ones. given: (all, algorithms, highlight), the options.
    value, what: column that ranks, its name. first: required labels.
    """
    every, algorithms, highlight = given
    ks.check_highlight(table["label"], highlight, kt.source_of(table))
    labels = list(dict.fromkeys(table["label"]))
    if every or algorithms or len(labels) <= kf.MOST:
        return table, ""
    points = table[["label"]].assign(size=table[size], mean=table[value])
    order = ranked(points, higher_better)
    named = [label for label in order if ks.is_highlighted(label, highlight)]
    references = [label for label in order if ks.method_of(label) in REFERENCES]
    wanted = dict.fromkeys([*named, *(label for label in order if label in set(first)), *references, *order])
    drawn = set(list(wanted)[:max(kf.MOST, len(named))])
    how = (f"{'the references and ' if references else ''}those of the "
           f"{'largest' if higher_better else 'smallest'} {what} at the smallest budget")
    kt.note(f"{len(drawn)} of {len(labels)} lines are drawn: {how}; --all draws all, --algorithm "
            "NAME,... those that it names")
    return (table[table["label"].isin(drawn)], f"{len(drawn)} of {len(labels)} lines are drawn, {how}. ")
