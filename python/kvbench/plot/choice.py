"""Which lines a figure draws where a table has more than MOST of them.

Without --all and --algorithms at most MOST lines are drawn: those that --highlight names, then
those that the figure must show (the Pareto front), then the references (`exact`, oracles), and in
the remaining places the lines of the smallest mean error at the smallest budget. A line without a point
at the smallest budget comes after all that have one; equal lines stand in the order of their names.
The same table gives the same choice. What is left out is said on stderr and below the figure.
"""

from typing import NamedTuple

import numpy as np

from kvbench import tables as kt
from kvbench.plot import style as ks

MOST = 10
REFERENCES = ("exact", "oracle", "oracle-matching")
SAME_SIZE = 1.05  # sizes of one budget, which buys whole tokens and blocks


class Wanted(NamedTuple):
    """--all, --algorithms and --highlight, as choose takes them."""

    all: bool
    algorithms: list[str]
    highlight: list[str]


def ranked(points, higher_better=False):
    """The labels of `points` (label, size, mean; size NaN: none), in the order of the rule."""
    points = points.assign(size=points["size"].fillna(points["size"].min()).fillna(1.0))
    smallest = points.groupby("label")["size"].transform("min")
    at = points[points["size"] <= smallest * SAME_SIZE].groupby("label", sort=True)
    table = at.agg(size=("size", "min"), mean=("mean", "mean")).sort_values("size", kind="stable")
    # Sizes that are one by SAME_SIZE have one number.
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
    """(labels that are drawn, what the footer says of it; empty where all are drawn).

    points: rows of label, size and mean; options: a Wanted; what: the
    name of `mean`; first: labels that the figure must show.
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
    """(rows of `table` that are drawn, choose's text). size, value: the columns of choose."""
    points = table[["label"]].assign(size=table[size], mean=table[value])
    labels, text = choose(points, options, **more)
    out = table[table["label"].isin(labels)]
    out.attrs = table.attrs
    return out, text
