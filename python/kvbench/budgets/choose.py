"""The choice with the smallest predicted KL divergence at a mean budget: a multiple-choice knapsack."""

import numpy as np
from scipy import optimize, sparse

BOTH, METHODS, BUDGETS = "both", "methods", "budgets"
VARY = (BOTH, METHODS, BUDGETS)
ROUNDING = 1e-9  # of a mean of decimal fractions


class Infeasible(Exception):
    """No choice fits the budget. One line."""


def allocate(cost, budgets, total, sizes):
    """Returns [layers]: the choices with the smallest sum of costs at a mean budget of at most `total`; of equal ones
    the first. cost [layers, choices]; budgets [choices]; sizes [layers]: weights of the mean. Raises Infeasible.
    """
    layers = len(cost)
    sizes = np.asarray(sizes) / np.mean(sizes)
    kept = [useful(row, budgets) for row in cost]
    counts = [len(some) for some in kept]
    if np.mean(sizes * [budgets[some].min() for some in kept]) > total + ROUNDING:
        raise Infeasible(f"got no choice of at most {total:g}, the smallest budget is {budgets.min():g}")
    ends = np.cumsum(counts)
    values = np.concatenate([row[some] for row, some in zip(cost, kept)])
    weights = np.concatenate([size * budgets[some] for size, some in zip(sizes, kept)])
    one_each = sparse.csr_array((np.ones(ends[-1]), (np.repeat(np.arange(layers), counts), np.arange(ends[-1]))))
    # In units of the largest cost, so that tolerances of the solver are relative.
    found = optimize.milp(values / max(values.max(), np.finfo(float).tiny), integrality=np.ones(ends[-1]),
                          bounds=optimize.Bounds(0, 1), options={"mip_rel_gap": 0.0},
                          constraints=[optimize.LinearConstraint(one_each, 1, 1),
                                       optimize.LinearConstraint(weights[None], -np.inf,
                                                                 layers * (total + ROUNDING))])
    if not found.success:
        raise Infeasible(f"no choice found: {found.message}")
    return np.array([some[np.argmax(found.x[end - count:end])] for some, count, end in zip(kept, counts, ends)])


def useful(costs, budgets):
    """Returns indices of the choices that no other beats at the same or a smaller budget, by budget."""
    order = np.lexsort((np.arange(len(costs)), costs, budgets))
    out, least = [], np.inf
    for at in order:
        if costs[at] < least:
            out.append(at)
            least = costs[at]
    return np.array(out)


def choose(cost, variants, budgets, total, vary, sizes):
    """Returns [layers]: choices. vary: what may differ between layers.

    cost [layers, choices]; variants [choices]: names; sizes [layers]: as of allocate.
    METHODS: all layers have the budget `total`.
    BUDGETS: all have one variant, the best.
    """
    if vary == METHODS:
        mine = np.flatnonzero(np.isclose(budgets, total, rtol=0, atol=ROUNDING))
        if not len(mine):
            raise Infeasible(f"got no rows at {total:g}, which --vary methods needs")
        return mine[np.argmin(cost[:, mine], axis=1)]
    if vary == BOTH:
        return allocate(cost, budgets, total, sizes)
    best = None
    for name in dict.fromkeys(variants):
        mine = np.array([at for at, other in enumerate(variants) if other == name])
        try:
            found = mine[allocate(cost[:, mine], budgets[mine], total, sizes)]
        except Infeasible:
            continue
        value = cost[np.arange(len(cost)), found].sum()
        if best is None or value < best[0]:
            best = value, found
    if best is None:
        raise Infeasible(f"got no algorithm with a choice of at most {total:g}")
    return best[1]


def uniform(cost, budgets, total):
    """Returns the choice at the budget `total` with the smallest sum over layers, or None."""
    mine = np.flatnonzero(np.isclose(budgets, total, rtol=0, atol=ROUNDING))
    return mine[np.argmin(cost[:, mine].sum(axis=0))] if len(mine) else None
