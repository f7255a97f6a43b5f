"""Claims of ClusterGen for kvbench-py claims: a function each, whose comment defines it."""

import math

import numpy as np

from kvbench.claims import tables
from kvbench.claims import verdicts as cv

COVERAGE_K = (16, 64, 256)
# n^(1 - Omega(1)) clusters: at 4096 tokens n^.95 is a third fewer than tokens.
SUBLINEAR = 0.95


def clustergen_keys(paths):
    """Keys are more clusterable than values.

    Section 3 shows it by t-SNE with 16 greedy k-center centres. Figure: radius_rel, the radius of
    greedy k-center with k centres over that with one (token 0), mean over KV heads, of keys minus
    that of values at the same prompt. A cell is a layer at k = 16, 64 or 256. Against it: a cell
    whose interval lies above 0: there values lie closer to as many centres.
    """
    claim = cv.Claim("clustergen-keys", "ClusterGen", "section 3, figure 1",
                     "Keys are more clusterable than values", "all tokens",
                     "radius_rel of keys minus that of values", 0.0)
    found = tables.coverage_grids(paths)
    for k in COVERAGE_K:
        if ("keys", k) not in found or ("values", k) not in found:
            continue
        apart = found["keys", k] - found["values", k]
        claim.tested += cv.cells_of(apart, cv.text_of(k=k))
        cv.shown(claim, tables.over_layers(apart), claim.figure, 0.0, cv.text_of(k=k))
    return claim


def clustergen_premise(frame, protocol):
    """At some radius the clusters grow sublinearly and delta r is below log n.

    Section 2 after theorem 2.2, corollary B.5: m = n^(1 - Omega(1)) clusters of diameter delta, and
    delta r = o(log n), r the largest norm of queries. At one length n, o(log n) is read as below
    log n, and n^(1 - Omega(1)) as alpha below 0.95, both in favour of the claim; so is delta, the
    radius of the algorithm's clusters and half of their diameter. r is that of the head's queries
    times the softmax scale, which the paper's logits do not have. Figure: the least over the grid's
    deltas of the larger of alpha / 0.95 and delta r / log n, mean over KV heads: below 1 where a
    delta meets both. A cell is a layer. Against it: a layer whose interval lies above 1: there no
    delta does. Shown besides: alpha and delta r / log n at every delta, over the radius of one
    centre.
    """
    claim = cv.Claim("clustergen-premise", "ClusterGen", "section 2, corollary B.5",
                     "At one radius delta the clusters of keys grow sublinearly and delta r is "
                     "below log n", protocol,
                     "least over delta of max(alpha/0.95, delta r/log n)", 1.0,
                     label=cv.ASSUMPTION)
    both = frame.assign(both=np.where(frame[["alpha", "reach"]].isna().any(axis=1), np.nan,
                                      np.maximum(frame["alpha"] / SUBLINEAR, frame["reach"])))
    grid = tables.min_over_deltas(both, "both")
    claim.tested = cv.cells_of(grid)
    cv.shown(claim, tables.over_layers(grid), claim.figure, 1.0)
    for column, figure in (("alpha", "alpha"), ("reach", "delta r / log n")):
        for (delta,), part in tables.grids(frame, column, ["delta_rel"], "kv_head").items():
            cv.shown(claim, part, figure, 1.0, cv.text_of(delta=delta))
    return claim


def clustergen_memory(frame, protocol):
    """The theorem's memory is below that of all tokens at some radius.

    Theorem 2.2: memory O(d (m t + s)) with t = Omega(epsilon^-2 e^(2 delta r) log n) samples a
    cluster. Figure: the least over the grid's deltas of log(m e^(2 delta r)) / log n, mean over KV
    heads, with m the clusters of the whole stream; epsilon = 1, and constants, log n and s left
    out, all in favour of the claim. Below 1: m t is below n. A cell is a layer. Against it: a layer
    whose interval lies above 1: no delta of the grid does. A delta below the grid has as many
    clusters or more; at 0 the figure is 1, each key its own cluster.
    """
    claim = cv.Claim("clustergen-memory", "ClusterGen", "theorem 2.2, theorem B.4",
                     "At one radius delta the theorem's m t = m e^(2 delta r) is below n", protocol,
                     "least over delta of log(m e^(2 delta r)) / log n", 1.0,
                     label=cv.ASSUMPTION)
    grid = tables.min_over_deltas(frame, "cost")
    claim.tested = cv.cells_of(grid)
    cv.shown(claim, tables.over_layers(grid), claim.figure, 1.0)
    return claim


def all_claims(paths, head_dim):
    frame = tables.growth_rows(paths, 1 / math.sqrt(head_dim))
    protocol = f"all tokens, softmax scale 1/sqrt({head_dim})"
    return [clustergen_keys(paths), clustergen_premise(frame, protocol),
            clustergen_memory(frame, protocol)]
