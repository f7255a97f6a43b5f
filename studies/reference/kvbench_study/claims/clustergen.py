"""Claims of ClusterGen. Each function's docstring defines one claim."""

import math

from kvbench_study.claims import growth, tables
from kvbench_study.claims import verdicts as cv

COVERAGE_K = (16, 64, 256)
MODEL = "another model, other texts"


def clustergen_keys(paths, options):
    """Keys are more clusterable than values.

    Section 3 shows it by t-SNE with 16 greedy k-center centres. Figure: radius_rel (radius of
    greedy k-center with k centres over that with one, token 0; mean over KV heads) of keys minus
    that of values at the same unit. A cell is a layer at k = 16, 64 or 256.
    """
    claim = cv.Claim("clustergen-keys", "ClusterGen", "section 3, figure 1",
                     "Keys are more clusterable than values", "all tokens",
                     "radius_rel of keys minus that of values", 0.0,
                     differs=f"radii of greedy k-center in place of t-SNE pictures, {MODEL}")
    found = growth.coverage_grids(paths, options)
    for k in COVERAGE_K:
        if ("keys", k) in found and ("values", k) in found:
            apart = found["keys", k] - found["values", k]
            claim.add(apart, cv.text_of(k=k))
            claim.show(tables.over_layers(apart), cv.text_of(k=k))
    return claim


def clustergen_growth(frame):
    """Clusters of keys grow more slowly with the stream than clusters of values: an estimate.

    The paper's delta is free, and at small and at large deltas the figures have opposite signs:
    their mean would depend on the grid. Section 3 in the terms of the premise (section 2, corollary
    B.5), m = n^(1 - Omega(1)) clusters. Figure: alpha of keys minus alpha of values at the same
    delta, relative to the radius of one centre of the head; alpha: exponent of online clusters in
    tokens, mean over KV heads. A cell is a layer at a delta. Also shown: exponents from 256 tokens
    on.
    """
    claim = cv.Claim("clustergen-growth", "ClusterGen", "section 3, corollary B.5",
                     "Clusters of keys grow more slowly than those of values", "all tokens",
                     "alpha of keys minus that of values", 0.0, judged=False,
                     differs=f"growth of clusters in place of t-SNE pictures, {MODEL}")
    for column, figure in (("alpha", claim.figure),
                           ("late", f"the same from {growth.LATE} tokens on")):
        keys, values = (growth.grids_of(frame, column, what) for what in ("keys", "values"))
        for delta in [delta for delta in keys if delta in values]:
            apart, setting = keys[delta] - values[delta], cv.text_of(delta=delta)
            if column == "alpha":
                claim.add(apart, setting)
            else:
                claim.show(apart, setting, figure)
    return claim


def clustergen_sublinear(frame, protocol):
    """The premise: the exponent of the clusters of keys, and delta r, at each radius: an estimate.

    Section 2 after theorem 2.2, corollary B.5: m = n^(1 - Omega(1)) clusters of diameter delta, and
    delta r = o(log n), r the largest norm of queries. Constants and delta are free: alpha is near 1
    for small delta and near 0 for large, whatever the keys. Figure: alpha of keys, mean over KV
    heads; a cell is a layer at a delta, over the radius of one centre. delta is the radius of the
    algorithm's clusters, half their diameter, which favours the claim. Also shown: alpha of values;
    both from 256 tokens on; delta r / log n with r of the head's queries times the softmax scale,
    which the paper's logits lack.
    """
    claim = cv.Claim("clustergen-sublinear", "ClusterGen", "section 2, corollary B.5",
                     "At one radius delta the clusters of keys grow sublinearly and delta r is "
                     "o(log n)", protocol, "alpha of keys", 1.0, label=cv.ASSUMPTION, judged=False,
                     differs=MODEL)
    for what, column, figure in (
            ("keys", "alpha", ""), ("values", "alpha", "alpha of values"),
            ("keys", "late", f"alpha of keys from {growth.LATE} tokens on"),
            ("values", "late", f"alpha of values from {growth.LATE} tokens on"),
            ("keys", "reach", "delta r / log n")):
        for delta, grid in growth.grids_of(frame, column, what).items():
            if figure:
                claim.show(grid, cv.text_of(delta=delta), figure)
            else:
                claim.add(grid, cv.text_of(delta=delta))
    return claim


def clustergen_memory(frame, protocol):
    """The theorem's memory relative to that of all tokens, at the best radius: an estimate.

    Theorem 2.2: memory O(d (m t + s)) with t = Omega(epsilon^-2 e^(2 delta r) log n) samples a
    cluster. Figure: minimum over the grid's deltas of log(m e^(2 delta r)) / log n, mean over KV
    heads, with m the clusters of the whole stream; epsilon = 1, and constants, log n and s omitted,
    which favours the claim. Below 1: m t < n. A cell is a layer. A smaller delta has at least as
    many clusters; at 0 the figure is 1.
    """
    claim = cv.Claim("clustergen-memory", "ClusterGen", "theorem 2.2, theorem B.4",
                     "At one radius delta the theorem's m t = m e^(2 delta r) is below n", protocol,
                     "least over delta of log(m e^(2 delta r)) / log n", 1.0, label=cv.ASSUMPTION,
                     judged=False, differs=f"epsilon = 1, constants, log n and s left out, {MODEL}")
    grid = growth.min_over_deltas(frame[frame["what"] == "keys"], "cost")
    claim.add(grid)
    claim.show(tables.over_layers(grid))
    return claim


def all_claims(paths, options):
    frame = growth.growth_rows(paths, 1 / math.sqrt(options.head_dim), options)
    protocol = f"all tokens, softmax scale 1/sqrt({options.head_dim})"
    return [clustergen_keys(paths, options), clustergen_growth(frame),
            clustergen_sublinear(frame, protocol), clustergen_memory(frame, protocol)]
