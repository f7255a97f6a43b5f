"""Claims of BalanceKV for kvbench-py claims: a function each, whose comment defines it."""

import numpy as np

from kvbench import tables as kt
from kvbench.claims import tables
from kvbench.claims import verdicts as cv


PROTOCOL = {"protocol": "prefill", "sink": 256, "recent": 256, "n_queries": 256}  # the paper's


def halvings(paths):
    """Rows of balancekv and uniform with T halvings, and `middle`: tokens of the middle kept."""
    frame = tables.read_rows(paths, ["rel_error", "eps_fro", "tokens_kept"])
    protocol = tables.protocol_of(frame)
    frame = frame[frame["algorithm"].isin(["balancekv", "uniform"])].copy()
    tables.add_parameters(frame, ["T"], paths[0])
    tables.as_numbers(frame, "T")
    frame = frame[frame["T"].notna()]
    if set(frame["algorithm"]) != {"balancekv", "uniform"}:
        raise kt.CsvError(f"{paths[0]}: expected rows of balancekv and uniform with T=1, 2, ...")
    for name, ts in frame.groupby("algorithm")["T"]:
        if ts.nunique() < 3:
            raise kt.CsvError(f"{paths[0]}: {name}: rows of {ts.nunique()} T, expected 3 or more for an "
                              "exponent")
    # A method that keeps other tokens than asked for has an error at what it keeps.
    frame["middle"] = frame["tokens_kept"] - frame["sink"] - frame["recent"]
    return frame, protocol


def balancekv_figure2(frame, protocol):
    """BalanceKV's error is below uniform sampling's at every T and layer.

    Figure: rel_error of balancekv over that of uniform at the same T, each a mean over heads and
    seeds; the mean over prompts of the logarithm of this ratio. A cell is a layer at a T. Against
    it: a cell whose interval lies above 1. Shown besides: at each T the ratio of the means over
    layers.
    """
    claim = cv.Claim(
        "balancekv-figure2", "BalanceKV", "section 4.1, figure 2",
        "For each layer and compression rate the error is below that of uniform sampling",
        protocol, "rel_error over that of uniform", 1.0, True)
    if all((frame[name] == value).all() for name, value in PROTOCOL.items()):
        claim.label = cv.REPLICATED
    found = tables.grids(frame, "rel_error", ["algorithm", "T"])
    for t in sorted(t for name, t in found if name == "balancekv" and ("uniform", t) in found):
        ours, other = found["balancekv", t], found["uniform", t]
        claim.tested += cv.cells_of(tables.log_ratio(ours, other), cv.text_of(T=t))
        means = tables.log_ratio(tables.over_layers(ours), tables.over_layers(other))
        cv.shown(claim, means, claim.figure, 1.0, cv.text_of(T=t))
    return claim


def exponents(frame, metric, name, over_layers=False):
    """Grid of the slope of log(metric) on log(tokens of the middle kept) over T; NaN where a T
    lacks a figure."""
    errors = tables.grids(frame, metric, ["algorithm", "T"])
    kept = tables.grids(frame, "middle", ["algorithm", "T"])
    ts = sorted(t for algorithm, t in errors if algorithm == name)
    pick = tables.over_layers if over_layers else lambda grid: grid
    with np.errstate(divide="ignore", invalid="ignore"):
        xs, ys = ([np.log(pick(some[name, t])) for t in ts] for some in (kept, errors))
    return tables.slopes(xs, ys)


def balancekv_rate(frame, protocol, metric="rel_error"):
    """BalanceKV's error falls with memory at least as fast as 1/memory.

    Theorem 3.1: memory O*(e^(2 r^2 / sqrt d) / epsilon) for precision epsilon of equation (2), O*
    without polynomials in d and log n; so epsilon ~ 1/memory. The factor that its proof (of theorem
    3.3) leaves out and that changes with memory is T = log2(n/t), which only steepens the line:
    T 2^T over T = 1..4 falls as memory^-1.66. Figure: per prompt the least-squares slope of
    log(error) on log(tokens of the middle kept) over the T; error: a mean over heads and seeds of
    `rel_error` (BalanceKV's figure) or `eps_fro` (the epsilon of equation (2)). Below -1 is for the
    claim. A cell is a layer. Against it: a layer whose interval lies above -1, where the error
    falls more slowly. The theorem is an upper bound with free constants, so that no table can
    contradict it; what does not hold is the rate as a description of these T. Shown besides: the
    slope of the mean over layers, and uniform sampling's, which theory has at -1/2 for draws from a far larger
    whole, and at -0.65 for T = 1..4 without replacement (error ~ sqrt(2^T - 1)).
    """
    claim = cv.Claim(
        f"balancekv-rate-{metric}", "BalanceKV", "theorem 3.1, section 2.3",
        "The error falls as 1/memory or faster", protocol, f"exponent of {metric} in kept tokens",
        -1.0)
    claim.tested = cv.cells_of(exponents(frame, metric, "balancekv"))
    cv.shown(claim, exponents(frame, metric, "balancekv", True), claim.figure, -1.0)
    uniform = f"exponent of uniform's {metric}"
    for whole in (False, True):
        cv.shown(claim, exponents(frame, metric, "uniform", whole), uniform, -0.5)
    return claim


def balancekv_faster(frame, protocol, metric="rel_error"):
    """BalanceKV's error falls faster with memory than that of uniform sampling.

    Section 2.3: independent sampling has "a 1/epsilon^2 dependence" of memory on epsilon, BalanceKV
    1/epsilon. Figure: the slope of balancekv_rate minus uniform sampling's at the same prompt: what
    is finite in both (saturation, no replacement) is in both slopes. A cell is a layer. Against it:
    a layer whose interval lies above 0. The theorems' difference is -1/2.
    """
    claim = cv.Claim(
        f"balancekv-faster-{metric}", "BalanceKV", "section 2.3, theorem 3.1",
        "The error falls faster with memory than that of uniform sampling", protocol,
        f"exponent of {metric} minus uniform's", 0.0)
    for whole in (False, True):
        apart = exponents(frame, metric, "balancekv", whole) - exponents(frame, metric, "uniform",
                                                                         whole)
        if whole:
            cv.shown(claim, apart, claim.figure, 0.0)
        else:
            claim.tested = cv.cells_of(apart)
    return claim


def all_claims(paths):
    frame, protocol = halvings(paths)
    out = [balancekv_figure2(frame, protocol)]
    for metric in ("rel_error", "eps_fro"):
        out += [balancekv_rate(frame, protocol, metric), balancekv_faster(frame, protocol, metric)]
    return out
