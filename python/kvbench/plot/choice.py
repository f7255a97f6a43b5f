"""Chooses the lines of a figure if a table has more than MOST.

Without --all and --algorithms: first the lines of --highlight, then required ones (the Pareto
front), then the references (`exact`, oracles), then those with the smallest mean error at the
smallest budget. Lines without a point at the smallest budget come last; ties are ordered by name.
The choice is deterministic. A note and the footer report it.
"""

from typing import NamedTuple

import numpy as np

from kvbench import tables as kt
from kvbench.plot import style as ks

MOST = 10
REFERENCES = ("exact", "oracle", "oracle-matching")
SAME_SIZE = 1.05  # sizes of one budget differ by at most this, since it buys whole tokens and blocks


class Wanted(NamedTuple):
    """--all, --algorithms and --highlight, for choose."""

    all: bool
    algorithms: list[str]
    highlight: list[str]


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
    table = table.assign(place=places, worth=mean.where(np.isfinite(mean), np.inf),
                         name=table.index)
    return list(table.sort_values(["place", "worth", "name"]).index)


def choose(points, options, what="rel_error", first=(), higher_better=False):
    """Returns (drawn labels, footer text; empty if all are drawn).

    points: rows of label, size and mean. what: name of `mean`. first: required labels.
    """
    labels = list(dict.fromkeys(points["label"]))
    if options.all or options.algorithms or len(labels) <= MOST:
        return labels, ""
    order = ranked(points, higher_better)
    named = [label for label in order if ks.is_highlighted(label, options.highlight)]
    references = [label for label in order if ks.method_of(label) in REFERENCES]
    wanted = dict.fromkeys([*named, *(label for label in order if label in set(first)),
                            *references, *order])
    drawn = set(list(wanted)[:max(MOST, len(named))])
    how = (f"{'the references and ' if references else ''}those of the "
           f"{'largest' if higher_better else 'smallest'} {what} at the smallest budget")
    kt.note(f"{len(drawn)} of {len(labels)} lines are drawn: {how}; --all draws all, --algorithms "
            "NAME,... those that it names")
    return ([label for label in labels if label in drawn],
            f"{len(drawn)} of {len(labels)} lines are drawn, {how}. ")


def pick(table, options, size, value="mean", **more):
    """Returns (drawn rows of `table`, choose's text). size, value: the columns of choose."""
    points = table[["label"]].assign(size=table[size], mean=table[value])
    labels, text = choose(points, options, **more)
    out = table[table["label"].isin(labels)]
    out.attrs = table.attrs
    return out, text
