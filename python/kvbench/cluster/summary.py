"""Summarises `kvbench cluster` over prompts as one CSV.

    kvbench-py cluster DIR [DIR ...] -o clusters.csv

A prompt's figure is the mean over a layer's heads; a row has mean and standard deviation (n - 1)
over prompts. Layer `all`: means over layers first. Figures, by `what` (queries, keys, values) and
x:

    radius_rel  x = k     radius of k centres over that of one
    alpha       x = delta exponent of clusters ~ n^alpha; delta over the radius of one centre
    norm_p50, norm_p95, norm_max
"""

import math

import pandas as pd

from kvbench import command
from kvbench.cluster import tables as kcc
from kvbench.outputs import check_outputs, opened

UNIT = ["trace", "prompt"]


def figures(paths, pool=False):
    """Returns a frame of trace, prompt, layer, what, figure, x, value: a row per head."""
    coverage = kcc.read_table(paths, "coverage.csv", ["radius", "radius_rel"], pool)
    growth = kcc.read_table(paths, "growth.csv", ["alpha"])
    norms = kcc.read_table(paths, "norms.csv", ["p50", "p95", "max"])
    parts = [coverage.assign(figure="radius_rel", x=coverage["k"], value=coverage["radius_rel"]),
             growth.assign(figure="alpha", x=kcc.relative_delta(growth, coverage),
                           value=growth["alpha"])]
    parts += [norms.assign(figure="norm_" + name, x=math.nan, value=norms[name]) for name in ("p50", "p95", "max")]
    columns = [*UNIT, "layer", "what", "figure", "x", "value"]
    return pd.concat([part[columns] for part in parts], ignore_index=True)


def mean(values):
    """NaN propagates."""
    return values.mean(skipna=False)


def table(frame):
    keys = ["figure", "what", "x", "layer"]
    each = frame.groupby([*keys, *UNIT], dropna=False)["value"].agg(mean).reset_index()
    whole = each.groupby(["figure", "what", "x", *UNIT], dropna=False)["value"].agg(mean)
    each["layer"] = each["layer"].map("{:.0f}".format)
    both = pd.concat([whole.reset_index().assign(layer="all"), each], ignore_index=True)
    return both.groupby(keys, dropna=False, sort=False)["value"].agg(
        prompts="size", mean=mean, sd=lambda v: v.std(skipna=False)).reset_index()


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("inputs", nargs="+", metavar="DIR", help="folders of kvbench cluster")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.csv")
    parser.add_argument("--pool", **command.POOL)
    options = parser.parse_args(arguments)
    check_outputs(kcc.table_files(options.inputs), [options.output])
    out = table(figures(options.inputs, options.pool))
    with opened(options.output) as file:
        out.to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
